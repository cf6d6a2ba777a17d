// How many interests may be open, who makes room, and what is said of those that cannot be.
#include "base/limits.h"
#include "cache/core_interest_test.h"
#include "cache/interests.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

// Submits blocks [first, first + count) as an interest of a session, in an instance.
struct Room : Asked {
  using Asked::Asked;
  Result<InterestAnswer> ask(SessionId session, std::uint64_t interest, const std::vector<BlockHash>& list,
                             int instance = 1) {
    InterestPart part;
    part.name = {instance_id(instance), InterestId(interest), InterestOperation(1)};
    part.total = static_cast<std::uint32_t>(list.size());
    part.hashes = list;
    return core().submit_interest(session, part, t->now);
  }
  InterestPhase poll_as(SessionId session, std::uint64_t interest) {
    return phase(core().interest(session, {name(1, interest), {}, InterestVerb::kPoll, 0}, t->now));
  }
  const std::vector<BlockHash> there = hashes(0, 1), nowhere = hashes(8, 1);
};

TEST(CoreInterestRoom, a_strangers_session_takes_nothing_of_an_engines_own) {
  Room a;
  const SessionId stranger = a.t->open();
  std::uint32_t taken = 0;
  for (std::uint64_t i = 1; i <= 2 * limits::kInterestsPerInstance; ++i)
    taken += a.ask(stranger, i, a.there).ok() ? 1 : 0;
  EXPECT_EQ(taken, limits::kInterestsPerInstance) << "they hold, and are spoken of";
  for (std::uint64_t i = 1; i <= limits::kInterestsPerInstance; ++i)
    ASSERT_EQ(a.phase(a.ask(a.owner, i, a.there)), InterestPhase::kAcquired) << i;
  EXPECT_EQ(code_of(a.ask(a.owner, 1000, a.there)), Code::kBusy);
}

TEST(CoreInterestRoom, what_holds_nothing_makes_room_the_oldest_first_and_is_taken_up_again_by_more) {
  Room a;
  for (std::uint64_t i = 1; i <= limits::kInterestsPerInstance; ++i) {
    a.t->now = a.t->now + milliseconds(1);
    ASSERT_EQ(a.phase(a.ask(a.owner, i, i == 1 ? a.there : a.nowhere)),
              i == 1 ? InterestPhase::kAcquired : InterestPhase::kMissing);
  }
  EXPECT_EQ(a.poll_as(a.owner, 2), InterestPhase::kMissing) << "a poll makes it the newest";
  EXPECT_EQ(a.phase(a.ask(a.owner, 1000, a.there)), InterestPhase::kAcquired);
  EXPECT_EQ(a.poll_as(a.owner, 1), InterestPhase::kAcquired) << "it holds, and is the oldest";
  EXPECT_EQ(a.poll_as(a.owner, 2), InterestPhase::kMissing);
  EXPECT_EQ(a.poll_as(a.owner, 3), InterestPhase::kUnknown);
  EXPECT_EQ(code_of(a.submit(Asked::name(1, 3), 1)), Code::kReject) << "an operation that came late";
  EXPECT_EQ(a.phase(a.submit(Asked::name(2, 3), 1)), InterestPhase::kAcquired);
  EXPECT_EQ(a.poll_as(a.owner, 4), InterestPhase::kUnknown);
  done(a.core().interest(a.owner, {Asked::name(0, 4), {}, InterestVerb::kClose, 0}, a.t->now));
  EXPECT_EQ(code_of(a.submit(Asked::name(2, 4), 1)), Code::kReject) << "behind its close";
  EXPECT_EQ(a.stats().interests.interests, limits::kInterestsPerInstance);
}

// Its agent keeps the session, and nobody speaks of what the one before it had.
TEST(CoreInterestRoom, a_coordinator_that_restarts_behind_its_session_is_let_in_before_all_has_ended) {
  Room a;
  for (std::uint64_t i = 1; i <= limits::kInterestsPerInstance; ++i)
    ASSERT_EQ(a.phase(a.ask(a.owner, i, a.there)), InterestPhase::kAcquired);
  const std::uint64_t again = std::uint64_t{7} << 32;
  EXPECT_EQ(code_of(a.ask(a.owner, again | 1, a.there)), Code::kBusy);
  a.t.wait(seconds(11));
  for (std::uint64_t i = 1; i <= limits::kInterestsPerInstance; ++i)
    ASSERT_EQ(a.phase(a.ask(a.owner, again | i, a.there)), InterestPhase::kAcquired) << i;
  EXPECT_EQ(code_of(a.ask(a.owner, again | 1000, a.there)), Code::kBusy) << "of these somebody speaks";
  EXPECT_EQ(a.stats().leases, limits::kInterestsPerInstance) << "what made room holds nothing any more";
  for (std::uint64_t i = 1; i <= limits::kInterestsPerInstance; ++i)
    done(a.core().interest(
        a.owner, {{instance_id(1), InterestId(again | i), {}}, {}, InterestVerb::kClose, 0}, a.t->now));
  a.expect_nothing_held();
}

TEST(CoreInterestRoom, every_session_has_a_share_that_nobody_takes) {
  Room a;
  constexpr int kOthers = 6;
  for (int i = 2; i <= 1 + kOthers; ++i) a.t->join(a.worker, {.instance = i});
  const SessionId stranger = a.t->open();
  std::uint32_t taken = 0;
  for (int instance = 1; instance <= 1 + kOthers; ++instance)
    for (std::uint64_t i = 1; i <= limits::kInterestsPerInstance; ++i)
      taken +=
          a.ask(stranger, static_cast<std::uint64_t>(instance) * 1000 + i, a.there, instance).ok() ? 1 : 0;
  const std::uint32_t shared = limits::kInterests - limits::kReservedInterests * limits::kSessions;
  EXPECT_EQ(taken, shared + limits::kReservedInterests);
  for (std::uint64_t i = 1; i <= limits::kReservedInterests; ++i)
    ASSERT_EQ(a.phase(a.ask(a.owner, i, a.there)), InterestPhase::kAcquired) << i;
  EXPECT_EQ(code_of(a.ask(a.owner, 100, a.there)), Code::kBusy);
  // What of the stranger's holds nothing gives way to whoever asks.
  done(a.core().interest(stranger, {Asked::name(1, 1001), {}, InterestVerb::kCancel, 0}, a.t->now));
  EXPECT_EQ(a.phase(a.ask(a.owner, 101, a.there)), InterestPhase::kAcquired);
  EXPECT_EQ(a.poll_as(stranger, 1001), InterestPhase::kUnknown);
  EXPECT_EQ(code_of(a.ask(a.owner, 102, a.there)), Code::kBusy);
}

TEST(CoreInterestRoom, every_participant_of_the_largest_group_is_remembered) {
  Room a;
  const auto id = [](std::uint64_t coordinator) { return coordinator << 32 | 1; };
  for (std::uint64_t c = 1; c <= limits::kInterestGroup; ++c) {
    done(a.ask(a.owner, id(c), a.there));
    done(a.core().interest(a.owner, {Asked::name(0, id(c)), {}, InterestVerb::kClose, 0}, a.t->now));
  }
  for (std::uint64_t c = 1; c <= limits::kInterestGroup; ++c)
    EXPECT_EQ(code_of(a.ask(a.owner, id(c), a.there)), Code::kReject) << c << ": a submit behind its close";
  a.expect_nothing_held();
}

TEST(CoreInterestRoom, what_names_registrations_that_have_left_is_refused_for_good) {
  Room a;
  const auto first = a.ask(a.owner, 1, a.there);
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(a.core().unregister(a.worker, a.ranks[0]).ok());
  EXPECT_EQ(code_of(a.ask(a.owner, 2, a.there)), Code::kBusy) << "its ranks may still register";
  a.authority = first->authority;
  const auto left = a.submit(Asked::name(1, 3), 1);
  ASSERT_FALSE(left.ok());
  EXPECT_EQ(left.error().code(), Code::kRecompute);
  EXPECT_NE(left.error().message().find("a rank of the instance has left"), std::string::npos);
  a.authority.incarnation = 76;
  const auto other = a.submit(Asked::name(1, 3), 1);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code(), Code::kRecompute);
  EXPECT_NE(other.error().message().find("Manager incarnation"), std::string::npos);
}

// ---- why there is none ----

Missing why_none(Room& a) {
  const auto answer = a.ask(a.owner, 1, hashes(4, 1));
  if (!answer.ok()) return Missing::kNone;
  EXPECT_EQ(answer->phase, InterestPhase::kMissing);
  return answer->why;
}

TEST(CoreInterestRoom, a_miss_is_named_for_what_it_is) {
  {
    Room a;
    a.t.tier.records.clear();
    EXPECT_EQ(why_none(a), Missing::kGone);
  }
  {
    WorldOptions options;
    options.core.query_budget = options.core.query_instance_budget = ByteCount(1);
    Room a(options);
    EXPECT_EQ(why_none(a), Missing::kTooLarge) << "no budget ever holds a block";
  }
  {
    WorldOptions options;
    options.pool = ByteCount(slot_bytes().value * 8 / 4096 * 4096);
    options.core.query_budget = options.core.query_instance_budget = kMiB;
    Room a(options);
    ASSERT_EQ(a.phase(a.ask(a.owner, 2, hashes(0, 4))), InterestPhase::kAcquired);
    ASSERT_TRUE(a.t->publish(a.t->next_op(a.worker), a.ranks[0], hashes(200, 4)).ok());
    EXPECT_EQ(why_none(a), Missing::kNoMemory) << "all memory is pinned or lent";
    done(a.core().interest(a.owner, {Asked::name(0, 2), {}, InterestVerb::kClose, 0}, a.t->now));
    done(a.core().interest(a.owner, {Asked::name(0, 1), {}, InterestVerb::kClose, 0}, a.t->now));
    EXPECT_EQ(a.phase(a.ask(a.owner, 3, hashes(4, 1))), InterestPhase::kAcquiring) << "and now it is not";
  }
}

}  // namespace
}  // namespace orbitkv::cache
