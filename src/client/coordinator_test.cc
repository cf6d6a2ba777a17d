// What a coordinator makes of single answers: it trusts none of them. How it fares against whole
// Managers is tested where those can be run (tests/native/coordinator_test.cc).
#include "client/coordinator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/limits.h"
#include "client/claim_ids.h"

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

wire::Buffer encoded(const wire::InterestReply& reply) {
  wire::Buffer frame;
  wire::encode(reply, frame);
  return frame;
}

// Two seats of one rank each, and the frame of each that is not answered.
struct Rig {
  explicit Rig(std::size_t hashes = 8, std::uint8_t second = 2, Duration wait = AttemptTimes().wait)
      : coordinator(attempt(hashes, second, wait), now) {
    collect();
  }
  static Attempt attempt(std::size_t hashes, std::uint8_t second, Duration wait = AttemptTimes().wait) {
    Attempt out;
    out.times.wait = wait;
    out.interest = InterestId(std::uint64_t{9} << 32 | 5);
    out.seats = {{instance_of(1), {0}}, {instance_of(second), {1}}};
    out.group = GroupId(3);
    out.hashes.resize(hashes);
    for (std::size_t i = 0; i < hashes; ++i) out.hashes[i].bytes[0] = static_cast<std::byte>(i);
    return out;
  }
  void collect() {
    for (Coordinator::Send& send : coordinator.take_sends()) {
      sent[send.seat.value] = send;
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
    answered = sent.at(seat).token;
    coordinator.arrive({seat}, answered, frame, now);
    collect();
  }
  void error(std::uint32_t seat, Code code) {
    wire::Buffer frame;
    wire::encode(wire::ErrorReply{code, "scripted"}, frame);
    answered = sent.at(seat).token;
    coordinator.arrive({seat}, answered, frame, now);
    collect();
  }
  // Refuses a submit of the seat, as often as it comes. False: there was none.
  bool put_off(std::uint32_t seat) {
    if (sent.at(seat).token == answered) return false;
    if (wire::decode_interest_call(sent.at(seat).frame).ok()) {
      answer(seat, reply(seat, InterestPhase::kUnknown));
      return false;
    }
    error(seat, Code::kBusy);
    return true;
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
  FrameToken answered;  // token of the newest one
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
  EXPECT_TRUE(rig.coordinator.take_leases().empty());
  rig.answer(1, rig.claimed(1, 5));
  ASSERT_EQ(rig.coordinator.take_leases().size(), 2u);
  EXPECT_EQ(rig.coordinator.take_leases()[1][0].lease, lease_of(2));
  EXPECT_FALSE(rig.coordinator.quiet());
  rig.coordinator.report(0, true, rig.now);
  EXPECT_EQ(rig.verdict(), Verdict::kOpen);
  rig.coordinator.report(1, true, rig.now);
  rig.collect();
  EXPECT_EQ(rig.verdict(), Verdict::kRestored);
  EXPECT_TRUE(rig.coordinator.take_leases().empty());
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
  rig.coordinator.arrive({0}, first.token, frame, rig.now);
  rig.coordinator.arrive({1}, first.token, frame, rig.now);
  rig.coordinator.arrive({7}, first.token, frame, rig.now);
  rig.coordinator.arrive({0}, {}, frame, rig.now);
  EXPECT_EQ(rig.verdict(), Verdict::kOpen);
  // Garbled, or of another interest: as if it were lost.
  frame.back() ^= std::byte{1};
  rig.coordinator.arrive({1}, rig.sent.at(1).token, frame, rig.now);
  auto other = rig.reply(1, InterestPhase::kAcquired, 3);
  other.interest = InterestId(1);
  rig.answer(1, other);
  const auto token = rig.sent.at(1).token;
  rig.wait(milliseconds(500));
  EXPECT_EQ(rig.sent.at(1).token, token) << "the same once more";
  rig.answer(1, rig.reply(1, InterestPhase::kAcquired, 3));
  EXPECT_EQ(rig.coordinator.phase(), Phase::kClaiming);
}

TEST(CoordinatorAnswers, a_manager_that_is_busy_for_long_is_waited_for_as_long_as_there_is_time) {
  Rig rig(8, 2, seconds(20));
  const TimePoint free = rig.now + seconds(10);
  std::uint32_t asked = 0;
  while (rig.now < free) {
    if (rig.put_off(0)) ++asked;
    rig.wait(milliseconds(10));
    ASSERT_EQ(rig.verdict(), Verdict::kOpen) << rig.coordinator.outcome().message;
  }
  EXPECT_GT(asked, 10u);
  rig.wait(milliseconds(500));
  EXPECT_EQ(rig.submit(0).name.operation.value, asked + 1);
  EXPECT_EQ(rig.submit(0).first, 0u);
  rig.acquire(8, 8);
  EXPECT_EQ(rig.coordinator.phase(), Phase::kClaiming);
}

// Two coordinators that have the last place at one Manager each, and want the other's.
TEST(CoordinatorAnswers, a_seat_that_finds_no_place_is_ordered_and_what_is_behind_it_gives_way) {
  for (const bool first_is_busy : {true, false}) {
    SCOPED_TRACE(first_is_busy);
    Rig rig;
    const std::uint32_t busy = first_is_busy ? 0 : 1, other = 1 - busy;
    rig.answer(other, rig.reply(other, InterestPhase::kAcquired, 8));
    rig.error(busy, Code::kBusy);
    ASSERT_EQ(rig.call(busy).verb, InterestVerb::kPoll)
        << "its authority is asked for, and nothing submitted";
    rig.answer(busy, rig.reply(busy, InterestPhase::kUnknown));
    EXPECT_EQ(rig.verdict(), Verdict::kOpen);
    // Instance 1 is before instance 2 at one Manager: only what is behind gives back.
    if (!first_is_busy) {
      EXPECT_EQ(rig.submit(other).name.operation.value, 1u) << "it keeps what it has";
    } else {
      ASSERT_EQ(rig.call(other).verb, InterestVerb::kCancel);
      rig.answer(other, rig.reply(other, InterestPhase::kEnded));
    }
    rig.wait(milliseconds(40));
    EXPECT_EQ(rig.submit(busy).name.operation.value, 2u);
    rig.answer(busy, rig.reply(busy, InterestPhase::kAcquired, 8));
    if (first_is_busy) {
      EXPECT_EQ(rig.submit(other).name.operation.value, 2u) << "it has its turn";
      rig.answer(other, rig.reply(other, InterestPhase::kAcquired, 8));
    }
    EXPECT_EQ(rig.coordinator.phase(), Phase::kClaiming);
  }
}

// It was ordered for another that waits, when the first had not answered yet.
TEST(CoordinatorAnswers, a_seat_that_turns_out_to_wait_later_is_given_way_to_as_well) {
  Attempt attempt = Rig::attempt(8, 2);
  attempt.seats.push_back({instance_of(3), {2}});
  Rig rig;
  rig.coordinator = Coordinator(attempt, rig.now);
  rig.collect();
  const auto waiting = [&](std::uint32_t seat) {
    auto out = rig.reply(seat, InterestPhase::kAcquiring);
    out.admitted = false;
    return out;
  };
  rig.answer(0, rig.reply(0, InterestPhase::kAcquiring));  // it loads, as far as is known
  rig.answer(1, rig.reply(1, InterestPhase::kAcquired, 8));
  rig.answer(2, waiting(2));
  rig.wait(milliseconds(2));
  rig.answer(0, waiting(0));
  EXPECT_EQ(rig.call(1).verb, InterestVerb::kCancel);
  EXPECT_EQ(rig.call(2).verb, InterestVerb::kCancel);
}

TEST(CoordinatorAnswers, what_gives_way_is_cancelled_behind_the_answer_of_its_submit_and_not_before) {
  const std::uint32_t whole = wire::interest_hashes_per_frame();
  Rig rig(2 * whole);
  // Seat 1 has answered its first part, and its second is under way.
  rig.answer(1, rig.reply(1, InterestPhase::kCollecting, whole));
  ASSERT_EQ(rig.submit(1).first, whole);
  rig.error(0, Code::kBusy);
  rig.answer(0, rig.reply(0, InterestPhase::kUnknown));
  EXPECT_EQ(rig.submit(1).first, whole) << "a cancel might overtake it";
  rig.answer(1, rig.reply(1, InterestPhase::kCollecting, whole));
  EXPECT_EQ(rig.call(1).verb, InterestVerb::kCancel) << "and no other part is sent";
  rig.answer(1, rig.reply(1, InterestPhase::kEnded));
  EXPECT_EQ(rig.verdict(), Verdict::kOpen);
}

TEST(CoordinatorAnswers, a_submit_that_came_twice_may_have_found_a_place_after_all) {
  Rig rig;
  rig.answer(1, rig.reply(1, InterestPhase::kAcquired, 8));
  rig.error(0, Code::kBusy);
  ASSERT_EQ(rig.call(0).verb, InterestVerb::kPoll);
  rig.answer(0, rig.reply(0, InterestPhase::kAcquired, 8));
  EXPECT_EQ(rig.coordinator.phase(), Phase::kClaiming);
}

TEST(CoordinatorAnswers, whoever_was_not_there_in_time_is_named_with_what_its_manager_said) {
  Rig rig;
  auto none = rig.reply(1, InterestPhase::kUnknown);
  none.authority = {};
  const TimePoint end = rig.now + rig.attempt(1, 2).times.wait;
  rig.answer(0, rig.reply(0, InterestPhase::kAcquired, 8));
  while (rig.now < end) {
    ASSERT_EQ(rig.verdict(), Verdict::kOpen) << rig.coordinator.outcome().message;
    if (rig.sent.at(1).token != rig.answered) {
      const bool polls = wire::decode_interest_call(rig.sent.at(1).frame).ok();
      if (polls) none.operation = rig.call(1).name.operation;
      polls ? rig.answer(1, none) : rig.error(1, Code::kBusy);
    }
    if (rig.sent.at(0).token != FrameToken{} && wire::decode_interest_call(rig.sent.at(0).frame).ok())
      rig.coordinator.arrive({0}, rig.sent.at(0).token, encoded(rig.reply(0, InterestPhase::kAcquired, 8)),
                             rig.now);
    rig.wait(milliseconds(5));
  }
  EXPECT_EQ(rig.verdict(), Verdict::kMissed);
  EXPECT_EQ(rig.coordinator.outcome().why, wire::Missing::kTimeout);
  EXPECT_EQ(rig.coordinator.outcome().seat, ParticipantIndex{1});
  EXPECT_EQ(rig.coordinator.outcome().message,
            "participant 1 did not have it in time; its Manager says: scripted");
  EXPECT_FALSE(rig.coordinator.outcome().silent);
}

// A carrier that loses everything raises nothing: what was sent and what came is all that tells.
TEST(CoordinatorAnswers, one_that_answers_nothing_is_named_with_what_was_sent_and_what_came) {
  const std::string check = "; check its carrier and what answers at the far end";
  Rig silent;
  silent.answer(0, silent.reply(0, InterestPhase::kAcquiring));
  for (int ms = 0; ms < 5000; ms += 250) silent.wait(milliseconds(250));
  EXPECT_TRUE(silent.coordinator.outcome().silent);
  EXPECT_EQ(silent.coordinator.outcome().seat, ParticipantIndex{1});
  EXPECT_EQ(
      silent.coordinator.outcome().message,
      "participant 1 did not answer in time: 11 frames were sent to it in 5.0 s, and nothing came back" +
          check);

  Rig spoilt;
  spoilt.answer(0, spoilt.reply(0, InterestPhase::kAcquiring));
  const auto junk = encoded({});
  for (int i = 0; i < 3; ++i)
    spoilt.coordinator.arrive({1}, {spoilt.sent.at(1).token.value + 1}, junk, spoilt.now);
  spoilt.wait(seconds(5));
  EXPECT_NE(spoilt.coordinator.outcome().message.find("what came back (3) answers none of them" + check),
            std::string::npos)
      << spoilt.coordinator.outcome().message;
}

TEST(CoordinatorAnswers, one_that_answers_no_more_is_named_before_those_that_were_put_off) {
  Rig rig;
  const TimePoint end = rig.now + rig.attempt(1, 2).times.wait;
  rig.answer(1, rig.reply(1, InterestPhase::kAcquiring));
  while (rig.now < end) {
    if (rig.sent.at(0).token != rig.answered) rig.put_off(0);
    rig.wait(milliseconds(10));
  }
  EXPECT_TRUE(rig.coordinator.outcome().silent);
  EXPECT_EQ(rig.coordinator.outcome().seat, ParticipantIndex{1});
  EXPECT_EQ(rig.coordinator.outcome().message.find("participant 1 answers no more: "), 0u)
      << rig.coordinator.outcome().message;
}

TEST(CoordinatorAnswers, where_the_operations_run_out_it_is_the_time_that_ends_it) {
  Rig rig(8, 2, seconds(200));
  const TimePoint end = rig.now + seconds(200);
  std::uint32_t asked = 0;
  while (rig.now < end) {
    ASSERT_EQ(rig.verdict(), Verdict::kOpen) << rig.coordinator.outcome().message;
    if (rig.put_off(0)) ++asked;
    rig.wait(milliseconds(100));
  }
  EXPECT_EQ(asked, limits::kInterestOperations);
  EXPECT_EQ(rig.verdict(), Verdict::kMissed);
  EXPECT_EQ(rig.coordinator.outcome().why, wire::Missing::kTimeout);
}

TEST(CoordinatorAnswers, ranks_are_told_when_the_leases_are_taken_and_not_before) {
  Rig rig;
  rig.acquire(5, 5);
  rig.answer(0, rig.claimed(0, 5));
  rig.answer(1, rig.claimed(1, 5));
  EXPECT_EQ(rig.coordinator.phase(), Phase::kHolding);
  EXPECT_FALSE(rig.coordinator.report(0, true, rig.now)) << "no rank can have restored";
  rig.wait(rig.attempt(1, 2).times.keep);
  rig.error(1, Code::kReconnect);
  EXPECT_EQ(rig.verdict(), Verdict::kFailed);
  EXPECT_TRUE(rig.coordinator.take_leases().empty());
  EXPECT_TRUE(rig.coordinator.quiet()) << "nobody has a lease, so nobody copies";
  EXPECT_FALSE(rig.coordinator.report(0, false, rig.now));
}

// Another Manager took its place, which knows nothing of the claim; its ranks have what they need.
TEST(CoordinatorAnswers, a_manager_that_restarts_when_its_ranks_have_restored_fails_nothing) {
  for (const bool told : {true, false}) {
    SCOPED_TRACE(told);
    Rig rig;
    rig.acquire(4, 4);
    rig.answer(0, rig.claimed(0, 4));
    rig.answer(1, rig.claimed(1, 4));
    ASSERT_EQ(rig.coordinator.take_leases().size(), 2u);
    if (told) rig.coordinator.report(0, true, rig.now);
    rig.wait(rig.attempt(1, 2).times.keep);
    auto other = rig.reply(0, InterestPhase::kUnknown);
    other.authority.incarnation = 78;
    rig.answer(0, other);
    EXPECT_EQ(rig.verdict(), told ? Verdict::kOpen : Verdict::kFailed);
    if (!told) continue;
    rig.coordinator.report(1, true, rig.now);
    EXPECT_EQ(rig.verdict(), Verdict::kRestored);
  }
}

TEST(CoordinatorAnswers, what_is_over_is_due_no_more) {
  Rig rig;
  auto missing = rig.reply(0, InterestPhase::kMissing);
  missing.why = wire::Missing::kGone;
  rig.answer(0, missing);
  for (const std::uint32_t seat : {0u, 1u}) rig.answer(seat, rig.reply(seat, InterestPhase::kClosed));
  ASSERT_EQ(rig.coordinator.phase(), Phase::kDone);
  rig.now = rig.now + seconds(60);
  EXPECT_GT(rig.coordinator.next_due(rig.now), rig.now + seconds(3600));
}

TEST(CoordinatorAnswers, a_seat_that_waits_for_its_turn_is_not_due) {
  Rig rig;
  auto waits = rig.reply(0, InterestPhase::kAcquiring);
  waits.admitted = false;
  rig.answer(0, waits);
  rig.answer(1, rig.reply(1, InterestPhase::kAcquired, 8));
  ASSERT_EQ(rig.call(1).verb, InterestVerb::kCancel);
  rig.answer(1, rig.reply(1, InterestPhase::kEnded));
  rig.now = rig.now + milliseconds(1);
  EXPECT_GT(rig.coordinator.next_due(rig.now), rig.now);
}

TEST(CoordinatorAnswers, polls_grow_apart_while_nothing_comes) {
  Rig rig;
  const std::size_t before = rig.frames;
  rig.answer(1, rig.reply(1, InterestPhase::kAcquired, 8));
  auto loading = rig.reply(0, InterestPhase::kAcquiring);
  loading.admitted = true;
  rig.answer(0, loading);
  for (int ms = 0; ms < 1000; ++ms) {
    rig.wait(milliseconds(1));
    if (rig.sent.at(0).token == rig.answered) continue;
    ASSERT_EQ(rig.call(0).verb, InterestVerb::kPoll);
    rig.answer(0, loading);
  }
  EXPECT_GT(rig.frames - before, 40u);
  EXPECT_LT(rig.frames - before, 70u) << "every 20 ms, and not every 2";
}

TEST(ClaimIds, a_number_that_was_given_comes_again_with_another_word_only) {
  std::uint32_t word = 0xFFFFFFFF;
  ClaimIds ids([&] { return word--; }, 0xFFFFFFFD);
  const auto none = [](ClaimNumber) { return false; };
  const InterestId last = ids.next(none), full = ids.next(none);
  EXPECT_EQ(claim_number(last), 0xFFFFFFFEu);
  EXPECT_EQ(full.value, last.value + 1);
  word = 8;
  const InterestId next = ids.next([](ClaimNumber number) { return number == 1; });
  EXPECT_EQ(claim_number(next), 2u) << "0 is none, and 1 is open";
  EXPECT_NE(next.value >> 32, full.value >> 32);
  EXPECT_GT((full.value >> 32) + limits::kInterestGroup, full.value >> 32);
  EXPECT_LE((full.value >> 32) + limits::kInterestGroup, 0xFFFFFFFFu) << "seats count up from it";
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
  EXPECT_EQ(rig.coordinator.outcome().seat, ParticipantIndex{1});
  rig.wait(seconds(5));
  EXPECT_EQ(rig.coordinator.phase(), Phase::kDone);
  EXPECT_EQ(rig.coordinator.unclosed(), 2u);

  Rig held;
  held.acquire(4, 4);
  held.answer(0, held.claimed(0, 4));
  held.answer(1, held.claimed(1, 4));
  ASSERT_EQ(held.coordinator.take_leases().size(), 2u);
  held.coordinator.report(0, true, held.now);
  held.wait(seconds(60));
  EXPECT_EQ(held.verdict(), Verdict::kFailed);
  EXPECT_FALSE(held.coordinator.quiet()) << "no deadline ends a copy";
  held.coordinator.report(1, true, held.now);
  EXPECT_TRUE(held.coordinator.quiet());
}

}  // namespace
}  // namespace orbitkv::client
