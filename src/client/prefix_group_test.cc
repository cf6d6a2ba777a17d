// Who a group lets go, and when it has ended: calls that wait, several that end it, carriers that answer
// nothing.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "orbitkv/interests.h"
#include "wire/messages.h"

namespace orbitkv::client {
namespace {

// Whatever it is given is lost.
class Silent final : public Carrier {
 public:
  void send(ParticipantIndex, FrameToken, std::vector<std::byte>) override {}
  bool receive(std::uint32_t timeout_ms, Arrival&) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(timeout_ms, 2u)));
    return false;
  }
};

// Answers closes and nothing else.
class Closes final : public Carrier {
 public:
  explicit Closes(std::atomic<int>* answered) : answered_(answered) {}
  void send(ParticipantIndex participant, FrameToken token, std::vector<std::byte> frame) override {
    const auto call = wire::decode_interest_call(frame);
    if (!call.ok() || call->verb != InterestVerb::kClose) return;
    wire::InterestReply reply;
    reply.interest = call->name.interest;
    reply.phase = InterestPhase::kClosed;
    wire::Buffer answer;
    wire::encode(reply, answer);
    std::lock_guard lock(mutex_);
    arrivals_.push_back({participant, token, std::move(answer)});
    came_.notify_one();
  }
  bool receive(std::uint32_t timeout_ms, Arrival& out) override {
    std::unique_lock lock(mutex_);
    const auto some = [this] { return !arrivals_.empty(); };
    if (!came_.wait_for(lock, std::chrono::milliseconds(timeout_ms), some)) return false;
    out = std::move(arrivals_.front());
    arrivals_.pop_front();
    ++*answered_;
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<Arrival> arrivals_;
  std::atomic<int>* answered_;
};

// One participant with one rank.
std::unique_ptr<PrefixGroup> group_over(std::unique_ptr<Carrier> carrier, std::uint32_t timeout_ms) {
  Outcome outcome;
  auto group =
      PrefixGroup::open({.timeout_ms = timeout_ms}, {{InstanceId(), {0}}}, std::move(carrier), outcome);
  EXPECT_TRUE(outcome.ok()) << outcome.message;
  return group;
}

// No claim of it runs out of time.
std::unique_ptr<PrefixGroup> patient(std::atomic<int>& answered) {
  return group_over(std::make_unique<Closes>(&answered), 600'000);
}

std::uint64_t begin(PrefixGroup& group) {
  const std::vector<BlockHash> hashes(4);
  std::uint64_t claim = 0;
  EXPECT_TRUE(group.begin({hashes}, claim).ok());
  return claim;
}

TEST(PrefixGroup, one_that_is_stopped_while_others_call_it_lets_them_go_and_ends) {
  const std::vector<BlockHash> hashes(4);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> answered = 0;
    auto group = patient(answered);
    ASSERT_NE(group, nullptr);
    std::atomic<int> begun = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&] {
        std::uint64_t claim = 0;
        Action action = Action::kNone;
        while ((action = group->begin({hashes}, claim).action) != Action::kReject) {
          if (action != Action::kNone) continue;
          ++begun;
          CommonPrefix found;
          group->poll(claim, 0, found);
          group->close(claim);
        }
      });
    std::uint64_t claim = 0;
    Outcome waited;
    CommonPrefix found;
    std::thread waiting([&] {
      while (group->begin({hashes}, claim).action == Action::kRetry) std::this_thread::yield();
      waited = group->poll(claim, 600'000, found);
    });
    while (begun < 10) std::this_thread::yield();
    group->stop();
    for (std::thread& thread : threads) thread.join();
    waiting.join();
    EXPECT_EQ(waited.action, Action::kReject);
    group.reset();
    EXPECT_GE(answered, begun) << "each is given back";
  }
}

TEST(PrefixGroup, when_it_is_finished_all_is_given_back_though_others_hold_it) {
  std::atomic<int> answered = 0;
  auto group = patient(answered);
  ASSERT_NE(group, nullptr);
  const std::uint64_t claim = begin(*group);
  Outcome waited;
  std::thread waits([&] {
    CommonRestore end;
    waited = group->wait(claim, 600'000, end);
  });
  std::atomic<int> well = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&] { well += group->finish() && answered >= 1 ? 1 : 0; });
  for (std::thread& thread : threads) thread.join();
  waits.join();
  EXPECT_EQ(well, 3);
  EXPECT_EQ(waited.action, Action::kReject);
  EXPECT_TRUE(group->finish(0));
}

TEST(PrefixGroup, what_cannot_be_given_back_in_time_is_said) {
  auto group = group_over(std::make_unique<Silent>(), 200);
  ASSERT_NE(group, nullptr);
  begin(*group);
  EXPECT_FALSE(group->finish(0));
  EXPECT_TRUE(group->finish());
}

TEST(PrefixGroup, a_participant_that_answers_nothing_is_counted) {
  auto group = group_over(std::make_unique<Silent>(), 200);
  ASSERT_NE(group, nullptr);
  CommonPrefix found;
  ASSERT_TRUE(group->poll(begin(*group), 600'000, found).ok());
  EXPECT_EQ(found.why, Missing::kTimeout);
  EXPECT_NE(found.message.find("nothing came back"), std::string::npos) << found.message;
  std::vector<ParticipantStats> stats;
  ASSERT_TRUE(group->stats(stats).ok());
  ASSERT_EQ(stats.size(), 1u);
  EXPECT_GE(stats[0].sent, 2u) << "the list, and the close";
  EXPECT_EQ(stats[0].answered + stats[0].astray, 0u);
  EXPECT_EQ(stats[0].silent, 1u);
}

// Its tokens may come of another claim, and its frames of a participant that is not there.
TEST(PrefixGroup, what_comes_astray_is_counted_and_what_answers_is) {
  auto mailbox = std::make_shared<Mailbox>(2);
  Outcome outcome;
  auto group = group_over(carry_by(mailbox, outcome), 600'000);
  ASSERT_NE(group, nullptr);
  const std::uint64_t claim = begin(*group);
  Mailbox::Parcel out;
  ASSERT_TRUE(mailbox->take(600'000, out));
  wire::Buffer refusal;
  wire::encode(wire::ErrorReply{Code::kReject, "not this one"}, refusal);
  EXPECT_TRUE(mailbox->arrived({1}, out.token, refusal).ok());
  EXPECT_TRUE(mailbox->arrived({0}, {out.token.value + 1}, refusal).ok());
  EXPECT_TRUE(mailbox->arrived({0}, {std::uint64_t{77} << 32}, refusal).ok());
  EXPECT_TRUE(mailbox->arrived({0}, out.token, refusal).ok());
  CommonPrefix found;
  ASSERT_TRUE(group->poll(claim, 600'000, found).ok());
  std::vector<ParticipantStats> stats;
  ASSERT_TRUE(group->stats(stats).ok());
  EXPECT_EQ(stats[0].answered, 1u);
  EXPECT_EQ(stats[0].astray, 2u);
  EXPECT_EQ(stats[0].silent, 0u);
  mailbox->stop();
}

TEST(PrefixGroup, a_call_that_waits_is_told_that_the_group_is_closed) {
  std::atomic<int> answered = 0;
  auto group = patient(answered);
  ASSERT_NE(group, nullptr);
  std::uint64_t claim = begin(*group);
  EXPECT_EQ(group->restored(claim, 0, true).action, Action::kReject) << "no lease was told";
  Outcome polled, waited;
  std::thread poll([&] {
    CommonPrefix found;
    polled = group->poll(claim, 600'000, found);
  });
  std::thread wait([&] {
    CommonRestore end;
    waited = group->wait(claim, 600'000, end);
  });
  group->stop();
  poll.join();
  wait.join();
  EXPECT_EQ(polled.action, Action::kReject);
  EXPECT_EQ(waited.action, Action::kReject);
  const std::vector<BlockHash> hashes(4);
  EXPECT_EQ(group->begin({hashes}, claim).message, "the group is closed");
}

TEST(PrefixGroup, times_of_nothing_are_refused) {
  for (int which = 0; which < 4; ++which) {
    PrefixGroup::Options options;
    (which == 0   ? options.timeout_ms
     : which == 1 ? options.restore_ms
     : which == 2 ? options.resend_ms
                  : options.poll_ms) = 0;
    Outcome outcome;
    EXPECT_EQ(PrefixGroup::open(options, {{InstanceId(), {0}}}, std::make_unique<Silent>(), outcome),
              nullptr);
    EXPECT_EQ(outcome.action, Action::kReject);
  }
}

// In a child: all of it is refused at once, and goes with nothing waited for.
void end_forked(std::unique_ptr<PrefixGroup>& group, std::shared_ptr<Mailbox>& mailbox) {
  ::alarm(60);
  std::uint64_t claim = 0;
  CommonPrefix prefix;
  CommonRestore restore;
  const std::vector<BlockHash> hashes(3);
  const Outcome begun = group->begin({hashes}, claim);
  bool refused = begun.action == Action::kReject && begun.message.find("forked") != std::string::npos;
  refused = refused && group->poll(1, 600'000, prefix).action == Action::kReject;
  refused = refused && group->wait(1, 600'000, restore).action == Action::kReject;
  refused = refused && group->restored(1, 0, true).action == Action::kReject;
  refused = refused && group->close(1).action == Action::kReject && !group->finish();
  group->stop();
  group.reset();
  Mailbox::Parcel out;
  mailbox->stop();
  refused = refused && mailbox->stopped() && !mailbox->take(600'000, out);
  mailbox.reset();
  ::_exit(refused ? 0 : 1);
}

TEST(PrefixGroup, a_forked_child_that_ends_it_waits_for_nobody) {
  auto mailbox = std::make_shared<Mailbox>(1);
  Outcome outcome;
  auto group = group_over(carry_by(mailbox, outcome), 600'000);
  ASSERT_NE(group, nullptr);
  const std::uint64_t claim = begin(*group);
  std::atomic<int> came = 0;
  std::thread polls([&] {
    CommonPrefix found;
    ++came;
    EXPECT_EQ(group->poll(claim, 600'000, found).action, Action::kReject);
  });
  std::thread takes([&] {
    Mailbox::Parcel out;
    ++came;
    while (mailbox->take(600'000, out)) {
    }
  });
  while (came < 2) std::this_thread::yield();
  for (int i = 0; i < 5; ++i) {  // the locks are held, or not
    const pid_t child = ::fork();
    if (child == 0) end_forked(group, mailbox);
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  EXPECT_FALSE(mailbox->stopped()) << "the parent's goes on";
  mailbox->stop();
  EXPECT_TRUE(group->finish());
  polls.join();
  takes.join();
}

}  // namespace
}  // namespace orbitkv::client
