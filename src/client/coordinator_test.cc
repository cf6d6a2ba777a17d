// What a coordinator makes of single answers: it trusts none of them. How it fares against whole
// Managers is tested where those can be run (tests/native/coordinator_test.cc).
#include "client/coordinator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/limits.h"

namespace orbitkv::client {
namespace {

using Verdict = Coordinator::Verdict;
using Phase = Coordinator::Phase;

InstanceId instance_of(std::uint8_t n) {
  InstanceId id;
  id.bytes[0] = static_cast<std::byte>(n);
  return id;
}
LeaseId lease_of(std::uint8_t n) {
  LeaseId id;
  id.bytes[0] = static_cast<std::byte>(n);
  return id;
}

// Two seats of one rank each, and the frame of each that is not answered.
struct Rig {
  explicit Rig(std::size_t hashes = 8, std::uint8_t second = 2) : coordinator(attempt(hashes, second), now) {
    collect();
  }
  static Attempt attempt(std::size_t hashes, std::uint8_t second) {
    Attempt out;
    out.interest = InterestId(std::uint64_t{9} << 32 | 5);
    out.seats = {{instance_of(1), {0}}, {instance_of(second), {1}}};
    out.group = GroupId(3);
    out.hashes.resize(hashes);
    for (std::size_t i = 0; i < hashes; ++i) out.hashes[i].bytes[0] = static_cast<std::byte>(i);
    return out;
  }
  void collect() {
    for (Coordinator::Send& send : coordinator.take_sends()) {
      sent[send.seat] = send;
      ++frames;
    }
  }
  wire::InterestSubmit submit(std::uint32_t seat) {
    const auto decoded = wire::decode_interest_submit(sent.at(seat).frame);
    EXPECT_TRUE(decoded.ok());
    return decoded.ok() ? *decoded : wire::InterestSubmit{};
  }
  wire::InterestCall call(std::uint32_t seat) {
    const auto decoded = wire::decode_interest_call(sent.at(seat).frame);
    EXPECT_TRUE(decoded.ok());
    return decoded.ok() ? *decoded : wire::InterestCall{};
  }
  wire::InterestReply reply(std::uint32_t seat, InterestPhase phase, std::uint32_t blocks = 0) {
    wire::InterestReply out;
    out.interest = InterestId(std::uint64_t{9 + seat} << 32 | 5);
    const auto submitted = wire::decode_interest_submit(sent.at(seat).frame);
    out.operation = submitted.ok() ? submitted->name.operation : call(seat).name.operation;
    out.newest = out.operation;
    out.authority = {77, 5, {}, 1};
    out.phase = phase;
    out.blocks = blocks;
    return out;
  }
  void answer(std::uint32_t seat, const wire::InterestReply& reply) {
    wire::Buffer frame;
    wire::encode(reply, frame);
    coordinator.arrive(seat, sent.at(seat).token, frame, now);
    collect();
  }
  void error(std::uint32_t seat, Code code) {
    wire::Buffer frame;
    wire::encode(wire::ErrorReply{code, "scripted"}, frame);
    coordinator.arrive(seat, sent.at(seat).token, frame, now);
    collect();
  }
  void wait(Duration d) {
    now = now + d;
    coordinator.tick(now);
    collect();
  }
  // Both have acquired.
  void acquire(std::uint32_t first, std::uint32_t second) {
    answer(0, reply(0, InterestPhase::kAcquired, first));
    answer(1, reply(1, InterestPhase::kAcquired, second));
  }
  wire::InterestReply claimed(std::uint32_t seat, std::uint32_t blocks) {
    wire::InterestReply out = reply(seat, InterestPhase::kClaimed, blocks);
    out.leases = {{GroupId(3), blocks, lease_of(static_cast<std::uint8_t>(1 + seat))}};
    return out;
  }
  Verdict verdict() const { return coordinator.outcome().verdict; }

  TimePoint now{1'000'000'000};
  Coordinator coordinator;
  std::map<std::uint32_t, Coordinator::Send> sent;
  std::size_t frames = 0;
};

TEST(CoordinatorAnswers, a_claim_names_the_shortest_run_and_leases_come_when_all_have_claimed) {
  Rig rig;
  rig.acquire(8, 5);
  EXPECT_EQ(rig.coordinator.phase(), Phase::kClaiming);
  EXPECT_NE(rig.call(0).name.interest, rig.call(1).name.interest) << "they may share a session";
  for (const std::uint32_t seat : {0u, 1u}) {
    EXPECT_EQ(rig.call(seat).verb, InterestVerb::kClaim);
    EXPECT_EQ(rig.call(seat).blocks, 5u);
    EXPECT_EQ(rig.call(seat).authority.incarnation, 77u) << "bound by the first answer";
  }
  rig.answer(0, rig.claimed(0, 5));
  EXPECT_TRUE(rig.coordinator.leases().empty());
  rig.answer(1, rig.claimed(1, 5));
  ASSERT_EQ(rig.coordinator.leases().size(), 2u);
  EXPECT_EQ(rig.coordinator.leases()[1][0].lease, lease_of(2));
  EXPECT_FALSE(rig.coordinator.quiet());
  rig.coordinator.report(0, true, rig.now);
  EXPECT_EQ(rig.verdict(), Verdict::kOpen);
  rig.coordinator.report(1, true, rig.now);
  rig.collect();
  EXPECT_EQ(rig.verdict(), Verdict::kRestored);
  EXPECT_TRUE(rig.coordinator.leases().empty());
  for (const std::uint32_t seat : {0u, 1u}) {
    EXPECT_EQ(rig.call(seat).verb, InterestVerb::kClose);
    rig.answer(seat, rig.reply(seat, InterestPhase::kClosed));
  }
  EXPECT_EQ(rig.coordinator.phase(), Phase::kDone);
  EXPECT_EQ(rig.coordinator.unclosed(), 0u);
}

TEST(CoordinatorAnswers, what_cannot_be_true_fails_it_and_closes_both) {
  const auto spoilt = [](auto spoil) {
    Rig rig;
    spoil(rig);
    EXPECT_EQ(rig.verdict(), Verdict::kFailed);
    EXPECT_EQ(rig.call(0).verb, InterestVerb::kClose);
    EXPECT_EQ(rig.call(1).verb, InterestVerb::kClose);
    EXPECT_TRUE(rig.coordinator.quiet());
  };
  spoilt([](Rig& rig) { rig.answer(0, rig.reply(0, InterestPhase::kAcquired, 9)); });
  spoilt([](Rig& rig) { rig.answer(0, rig.claimed(0, 5)); });
  spoilt([](Rig& rig) {
    auto other = rig.reply(0, InterestPhase::kAcquiring);
    other.authority.consumers = 2;
    rig.answer(0, other);
  });
  spoilt([](Rig& rig) {
    rig.answer(0, rig.reply(0, InterestPhase::kAcquiring));
    rig.wait(milliseconds(2));
    auto other = rig.reply(0, InterestPhase::kAcquired, 3);
    other.authority.incarnation = 78;
    rig.answer(0, other);
  });
  spoilt([](Rig& rig) {
    rig.acquire(8, 5);
    rig.answer(0, rig.claimed(0, 8));
  });
  spoilt([](Rig& rig) {
    rig.acquire(5, 5);
    auto other = rig.claimed(0, 5);
    other.leases[0].group = GroupId(4);
    rig.answer(0, other);
  });
  spoilt([](Rig& rig) {
    rig.acquire(5, 5);
    auto other = rig.claimed(0, 5);
    other.leases[0].blocks = 4;
    rig.answer(0, other);
  });
  spoilt([](Rig& rig) {
    rig.acquire(5, 5);
    rig.answer(0, rig.reply(0, InterestPhase::kEnded));
  });
  spoilt([](Rig& rig) { rig.error(1, Code::kRecompute); });
  spoilt([](Rig& rig) { rig.error(1, Code::kReconnect); });
}

TEST(CoordinatorAnswers, two_seats_that_are_one_instance_are_no_group) {
  Rig rig(8, 1);
  rig.answer(0, rig.reply(0, InterestPhase::kAcquired, 8));
  EXPECT_EQ(rig.verdict(), Verdict::kOpen);
  rig.answer(1, rig.reply(1, InterestPhase::kAcquired, 8));
  EXPECT_EQ(rig.verdict(), Verdict::kFailed);
  EXPECT_NE(rig.coordinator.outcome().message.find("another participant"), std::string::npos);
}

TEST(CoordinatorAnswers, only_the_frame_that_waits_for_an_answer_gets_one) {
  Rig rig;
  const auto first = rig.sent.at(0);
  auto late = rig.reply(0, InterestPhase::kMissing);
  late.why = wire::Missing::kGone;
  rig.answer(0, rig.reply(0, InterestPhase::kAcquired, 8));
  wire::Buffer frame;
  wire::encode(late, frame);
  rig.coordinator.arrive(0, first.token, frame, rig.now);
  rig.coordinator.arrive(1, first.token, frame, rig.now);
  rig.coordinator.arrive(7, first.token, frame, rig.now);
  rig.coordinator.arrive(0, 0, frame, rig.now);
  EXPECT_EQ(rig.verdict(), Verdict::kOpen);
  // Garbled, or of another interest: as if it were lost.
  frame.back() ^= std::byte{1};
  rig.coordinator.arrive(1, rig.sent.at(1).token, frame, rig.now);
  auto other = rig.reply(1, InterestPhase::kAcquired, 3);
  other.interest = InterestId(1);
  rig.answer(1, other);
  const auto token = rig.sent.at(1).token;
  rig.wait(milliseconds(500));
  EXPECT_EQ(rig.sent.at(1).token, token) << "the same once more";
  rig.answer(1, rig.reply(1, InterestPhase::kAcquired, 3));
  EXPECT_EQ(rig.coordinator.phase(), Phase::kClaiming);
}

TEST(CoordinatorAnswers, a_busy_manager_is_asked_again_with_another_operation_and_not_for_ever) {
  Rig rig;
  std::uint32_t asked = 0;
  while (rig.verdict() == Verdict::kOpen && asked <= 2 * limits::kInterestOperations) {
    EXPECT_EQ(rig.submit(0).name.operation.value, ++asked);
    EXPECT_EQ(rig.submit(0).first, 0u);
    rig.error(0, Code::kBusy);
    rig.wait(milliseconds(20));
  }
  EXPECT_EQ(asked, limits::kInterestOperations);
  EXPECT_EQ(rig.verdict(), Verdict::kFailed);
}

TEST(CoordinatorAnswers, a_long_list_goes_in_parts_from_where_the_manager_is) {
  const std::uint32_t whole = wire::interest_hashes_per_frame();
  Rig rig(2 * whole + 10);
  EXPECT_EQ(rig.submit(0).hashes.size(), whole);
  EXPECT_EQ(rig.submit(0).total, 2 * whole + 10);
  rig.answer(0, rig.reply(0, InterestPhase::kCollecting, whole));
  EXPECT_EQ(rig.submit(0).first, whole);
  rig.answer(0, rig.reply(0, InterestPhase::kCollecting, 2 * whole));
  EXPECT_EQ(rig.submit(0).first, 2 * whole);
  EXPECT_EQ(rig.submit(0).hashes.size(), 10u);
  rig.answer(0, rig.reply(0, InterestPhase::kCollecting, whole));
  EXPECT_EQ(rig.submit(0).first, whole) << "it says what it has";
}

TEST(CoordinatorAnswers, what_is_held_is_spoken_of_and_every_phase_ends) {
  Rig rig;
  rig.answer(0, rig.reply(0, InterestPhase::kAcquired, 8));
  rig.wait(rig.attempt(1, 2).times.keep);
  EXPECT_EQ(rig.call(0).verb, InterestVerb::kPoll);
  rig.wait(seconds(5));
  EXPECT_EQ(rig.verdict(), Verdict::kMissed);
  EXPECT_EQ(rig.coordinator.outcome().why, wire::Missing::kTimeout);
  EXPECT_EQ(rig.coordinator.outcome().seat, 1u);
  rig.wait(seconds(5));
  EXPECT_EQ(rig.coordinator.phase(), Phase::kDone);
  EXPECT_EQ(rig.coordinator.unclosed(), 2u);

  Rig held;
  held.acquire(4, 4);
  held.answer(0, held.claimed(0, 4));
  held.answer(1, held.claimed(1, 4));
  held.coordinator.report(0, true, held.now);
  held.wait(seconds(60));
  EXPECT_EQ(held.verdict(), Verdict::kFailed);
  EXPECT_FALSE(held.coordinator.quiet()) << "no deadline ends a copy";
  held.coordinator.report(1, true, held.now);
  EXPECT_TRUE(held.coordinator.quiet());
}

}  // namespace
}  // namespace orbitkv::client
