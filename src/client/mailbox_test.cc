// What a transport may do with a group's mailbox: nothing that comes from it is believed, and nothing
// grows without bound.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "base/limits.h"
#include "orbitkv/interests.h"
#include "wire/messages.h"

namespace orbitkv::client {
namespace {

constexpr FrameToken token_of(std::uint64_t claim, std::uint64_t number) {
  return {claim << 32 | number};
}
std::vector<std::byte> frame_of(std::size_t bytes, int fill = 0) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(fill));
}

std::unique_ptr<Carrier> carrier_of(std::shared_ptr<Mailbox> mailbox) {
  Outcome outcome;
  auto carrier = carry_by(std::move(mailbox), outcome);
  EXPECT_TRUE(outcome.ok()) << outcome.message;
  return carrier;
}

struct Post {
  explicit Post(std::uint32_t participants = 2) : mailbox(std::make_shared<Mailbox>(participants)) {}
  std::shared_ptr<Mailbox> mailbox;
  std::unique_ptr<Carrier> carrier = carrier_of(mailbox);
};

TEST(Mailbox, frames_go_out_in_order_and_the_newest_of_a_claim_counts) {
  Post post;
  post.carrier->send({0}, token_of(1, 1), frame_of(3, 1));
  post.carrier->send({0}, token_of(2, 1), frame_of(3, 2));
  post.carrier->send({1}, token_of(1, 2), frame_of(3, 3));
  post.carrier->send({0}, token_of(1, 3), frame_of(3, 4));
  std::vector<FrameToken> tokens;
  Mailbox::Parcel out;
  while (post.mailbox->take(0, out)) tokens.push_back(out.token);
  EXPECT_EQ(tokens, (std::vector<FrameToken>{token_of(2, 1), token_of(1, 2), token_of(1, 3)}));
  EXPECT_EQ(out.frame, frame_of(3, 4));
}

TEST(Mailbox, what_comes_back_is_copied_and_what_cannot_be_an_answer_refused) {
  Post post;
  std::vector<std::byte> frame = frame_of(100, 7);
  EXPECT_TRUE(post.mailbox->arrived({1}, token_of(1, 1), frame).ok());
  frame.assign(100, std::byte{9});
  EXPECT_EQ(post.mailbox->arrived({2}, token_of(1, 1), frame).message,
            "an answer of participant 2, and there are 2");
  EXPECT_EQ(post.mailbox->arrived({0}, {1}, frame_of(limits::kInterestFrameBytes + 1)).action,
            Action::kReject);
  Carrier::Arrival out;
  ASSERT_TRUE(post.carrier->receive(0, out));
  EXPECT_EQ(out.participant.value, 1u);
  EXPECT_EQ(out.frame, frame_of(100, 7));
  EXPECT_FALSE(post.carrier->receive(0, out));
}

TEST(Mailbox, neither_way_grows_without_bound) {
  Post post(4);
  const std::size_t most = limits::kCarriedBytes.value / limits::kInterestFrameBytes;
  for (std::uint64_t i = 1; i <= 2 * most; ++i) {
    post.carrier->send({static_cast<std::uint32_t>(i % 4)}, token_of(i, i),
                       frame_of(limits::kInterestFrameBytes));
    EXPECT_TRUE(post.mailbox->arrived({0}, token_of(i, i), frame_of(limits::kInterestFrameBytes)).ok());
  }
  for (std::uint64_t i = 1; i <= 100'000; ++i) post.mailbox->arrived({1}, token_of(i, i), {});
  Mailbox::Parcel out;
  Carrier::Arrival in;
  std::size_t taken = 0, came = 0;
  while (post.mailbox->take(0, out)) ++taken;
  while (post.carrier->receive(0, in)) ++came;
  EXPECT_EQ(taken, most);
  EXPECT_GE(came, most);
  EXPECT_LE(came, 2u * limits::kInterestsPerInstance * limits::kInterestGroup);
  post.carrier->send({0}, {1}, frame_of(10));
  EXPECT_TRUE(post.mailbox->take(0, out)) << "what was taken makes room";
}

TEST(Mailbox, one_participants_frames_hold_up_no_others) {
  Post post;
  for (std::uint64_t i = 1; i <= 10'000; ++i) post.carrier->send({0}, token_of(i, 1), frame_of(10));
  post.carrier->send({1}, token_of(1, 2), frame_of(10));
  Mailbox::Parcel out;
  ASSERT_TRUE(post.mailbox->take(0, out));
  EXPECT_EQ(out.token, token_of(1, 1));
  ASSERT_TRUE(post.mailbox->take(0, out));
  EXPECT_EQ(out.participant.value, 1u);
  std::size_t left = 0;
  while (post.mailbox->take(0, out)) ++left;
  EXPECT_EQ(left + 1, 2u * limits::kInterestsPerInstance) << "a line of its own, and bounded";
  post.carrier->send({9}, {1}, frame_of(10));
  EXPECT_FALSE(post.mailbox->take(0, out)) << "of nobody";
}

TEST(Mailbox, it_carries_for_one_group) {
  Post post;
  Outcome outcome;
  EXPECT_EQ(carry_by(post.mailbox, outcome), nullptr);
  EXPECT_EQ(outcome.message, "the mailbox carries for a group already; each needs one of its own");
  EXPECT_EQ(carry_by(nullptr, outcome), nullptr);
  EXPECT_EQ(outcome.action, Action::kReject);
}

TEST(Mailbox, it_stops_with_its_group_and_lets_those_go_that_wait) {
  Post post;
  std::atomic<bool> taken = true;
  std::thread waits([&] {
    Mailbox::Parcel out;
    taken = post.mailbox->take(600'000, out);
  });
  post.carrier.reset();
  waits.join();
  EXPECT_FALSE(taken);
  EXPECT_TRUE(post.mailbox->stopped());
  EXPECT_TRUE(post.mailbox->arrived({0}, {1}, frame_of(10)).ok()) << "lost";
}

TEST(Mailbox, whoever_asks_a_stopped_one_again_and_again_does_not_spin) {
  Post post;
  EXPECT_FALSE(post.carrier->over());
  ASSERT_TRUE(post.mailbox->arrived({0}, {1}, frame_of(10)).ok());
  post.mailbox->stop();
  EXPECT_FALSE(post.carrier->over()) << "what came before is looked at";
  Carrier::Arrival in;
  EXPECT_TRUE(post.carrier->receive(0, in));
  EXPECT_TRUE(post.carrier->over());
  const auto asked = std::chrono::steady_clock::now();  // no less by the clock of the wait itself
  EXPECT_FALSE(post.carrier->receive(20, in));
  EXPECT_GE(std::chrono::steady_clock::now() - asked, std::chrono::milliseconds(20));
}

TEST(Mailbox, a_group_ends_with_it_where_nobody_can_be_told) {
  auto mailbox = std::make_shared<Mailbox>(1);
  Outcome outcome;
  auto group =
      PrefixGroup::open({.timeout_ms = 600'000}, {{InstanceId(), {0}}}, carrier_of(mailbox), outcome);
  ASSERT_TRUE(outcome.ok()) << outcome.message;
  std::uint64_t claim = 0;
  const std::vector<BlockHash> hashes(3);
  ASSERT_TRUE(group->begin({hashes}, claim).ok());
  EXPECT_FALSE(group->finish(0));
  mailbox->stop();
  EXPECT_TRUE(group->finish());
}

TEST(Mailbox, what_hinders_it_stands_in_the_message_of_a_claim_that_nobody_answered) {
  auto mailbox = std::make_shared<Mailbox>(2);
  InstanceId first, second;
  second.bytes[0] = std::byte{1};
  Outcome outcome;
  auto group = PrefixGroup::open({.timeout_ms = 300, .resend_ms = 50}, {{first, {0}}, {second, {1}}},
                                 carrier_of(mailbox), outcome);
  ASSERT_TRUE(outcome.ok()) << outcome.message;
  std::uint64_t claim = 0;
  const std::vector<BlockHash> hashes(3);
  ASSERT_TRUE(group->begin({hashes}, claim).ok());
  // Junk is no answer, whoever it says to be of.
  Mailbox::Parcel out;
  ASSERT_TRUE(mailbox->take(60'000, out));
  for (const std::uint64_t token :
       {out.token.value, out.token.value + 1, std::uint64_t{0}, ~std::uint64_t{0}})
    for (const std::uint32_t participant : {0u, 1u})
      EXPECT_TRUE(mailbox->arrived({participant}, {token}, frame_of(200, 3)).ok());
  CommonPrefix found;
  mailbox->hindered("the line is down " + std::string(1000, '.'));
  ASSERT_TRUE(group->poll(claim, 600'000, found).ok());
  EXPECT_FALSE(found.loading);
  EXPECT_EQ(found.why, Missing::kTimeout);
  for (const char* told : {"participant 0 did not answer in time: ",
                           "what came back (2) answers none of them", "; its carrier says: the line is down"})
    EXPECT_NE(found.message.find(told), std::string::npos) << found.message;
  EXPECT_LT(found.message.size(), 512u) << "as much as C takes";
}

TEST(Mailbox, an_answer_ends_what_hindered_its_participant) {
  Post post;
  post.mailbox->hindered("the line is down");
  ASSERT_TRUE(post.mailbox->arrived({1}, {1}, frame_of(10)).ok());
  Carrier::Arrival in;
  ASSERT_TRUE(post.carrier->receive(0, in));
  EXPECT_EQ(post.carrier->trouble({1}), "the line is down") << "it may be junk";
  post.carrier->heard({1});
  post.carrier->heard({2});
  EXPECT_EQ(post.carrier->trouble({1}), "");
  EXPECT_EQ(post.carrier->trouble({0}), "the line is down");
}

TEST(Mailbox, a_group_tells_what_was_an_answer) {
  auto mailbox = std::make_shared<Mailbox>(1);
  auto carrier = carrier_of(mailbox);
  const Carrier& carries = *carrier;
  Outcome outcome;
  auto group = PrefixGroup::open({.timeout_ms = 600'000}, {{InstanceId(), {0}}}, std::move(carrier), outcome);
  ASSERT_TRUE(outcome.ok()) << outcome.message;
  mailbox->hindered("the line is down");
  std::uint64_t claim = 0;
  const std::vector<BlockHash> hashes(3);
  ASSERT_TRUE(group->begin({hashes}, claim).ok());
  wire::Buffer refusal;
  wire::encode(wire::ErrorReply{Code::kReject, "not this one"}, refusal);
  CommonPrefix found;
  Mailbox::Parcel out;
  ASSERT_TRUE(mailbox->take(60'000, out));
  ASSERT_TRUE(mailbox->arrived({0}, out.token, refusal).ok());
  ASSERT_TRUE(group->poll(claim, 600'000, found).ok());
  EXPECT_EQ(found.message, "participant 0: not this one");
  EXPECT_EQ(carries.trouble({0}), "");
  mailbox->stop();
}

}  // namespace
}  // namespace orbitkv::client
