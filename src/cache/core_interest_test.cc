// Interests through the whole core: what they hold, when it is told, replays, authority, ends.
#include <array>
#include <random>

#include "base/limits.h"
#include "cache/core_interest_test.h"
#include "cache/interests.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

TEST(CoreInterest, what_is_acquired_is_held_and_nobody_is_given_a_lease) {
  Asked a;
  const auto answer = a.submit(Asked::name(1), 4);
  EXPECT_EQ(a.phase(answer), InterestPhase::kAcquired);
  EXPECT_EQ(answer->blocks, 4u);
  EXPECT_TRUE(answer->leases.empty());
  EXPECT_EQ(answer->authority.incarnation, 77u);
  EXPECT_EQ(answer->authority.consumers, 1u);
  EXPECT_EQ(answer->authority.generation, a.ranks[0].value);
  EXPECT_EQ(a.stats().leased, 4 * slot_bytes());
  EXPECT_EQ(a.core().evict(kGiB, a.t->now).blocks, 0u);
  const LeaseId lease = a.claim(Asked::name(1), 4);
  EXPECT_TRUE(lease);
  EXPECT_EQ(a.claim(Asked::name(1), 4), lease) << "claimed again: the same";
  EXPECT_EQ(a.stats().interests.claims, 1u);
  a.restore_all(lease, 4, a.ranks[0]);
  EXPECT_EQ(a.phase(a.call(Asked::name(0), InterestVerb::kClose)), InterestPhase::kClosed);
  a.expect_nothing_held();
}

TEST(CoreInterest, a_claimed_prefix_outlives_the_last_local_restore) {
  Asked a({}, 2);
  ASSERT_EQ(a.phase(a.submit(Asked::name(1), 4)), InterestPhase::kAcquired);
  const LeaseId lease = a.claim(Asked::name(1), 4);
  a.restore_all(lease, 4, a.ranks[0]);
  a.restore_all(lease, 4, a.ranks[1]);
  EXPECT_EQ(a.stats().leased, 4 * slot_bytes()) << "other hosts may still restore theirs";
  EXPECT_EQ(a.core().evict(kGiB, a.t->now).blocks, 0u);
  EXPECT_EQ(a.poll(1), InterestPhase::kClaimed);
  EXPECT_EQ(code_of(a.t->restore(a.t->next_op(a.worker), a.ranks[0], lease, blocks(0, 1), 4)), Code::kReject)
      << "a rank restores it once";
  const Status released = a.core().release(a.owner, lease);
  ASSERT_FALSE(released.ok());
  EXPECT_NE(released.error().message().find("close that"), std::string::npos);
  EXPECT_EQ(a.phase(a.call(Asked::name(0), InterestVerb::kClose)), InterestPhase::kClosed);
  a.expect_nothing_held();
  EXPECT_EQ(a.core().evict(kGiB, a.t->now).blocks, 4u);
}

TEST(CoreInterest, a_replicated_group_is_charged_once_for_all_ranks) {
  // Four ranks hold the same bytes: one shard, one writer.
  Asked a({}, 4);
  ASSERT_EQ(a.phase(a.submit(Asked::name(1), 4)), InterestPhase::kAcquired);
  EXPECT_EQ(a.stats().budgets.used, 4 * slot_bytes());
  const LeaseId lease = a.claim(Asked::name(1), 4);
  for (const RegistrationId rank : a.ranks) a.restore_all(lease, 4, rank);
  EXPECT_EQ(a.stats().budgets.used, 4 * slot_bytes());
  done(a.call(Asked::name(0), InterestVerb::kClose));
  a.expect_nothing_held();
}

TEST(CoreInterest, what_is_stored_is_acquired_when_it_has_landed) {
  Asked a;
  EXPECT_EQ(a.phase(a.submit(Asked::name(1), 10)), InterestPhase::kAcquiring);
  EXPECT_EQ(a.poll(1), InterestPhase::kAcquiring);
  EXPECT_EQ(a.phase(a.call(Asked::name(1), InterestVerb::kClaim, 8)), InterestPhase::kAcquiring)
      << "a claim before its time changes nothing";
  a.t.all_loaded();
  const auto answer = a.call(Asked::name(1), InterestVerb::kPoll);
  EXPECT_EQ(a.phase(answer), InterestPhase::kAcquired);
  EXPECT_EQ(answer->blocks, 8u);
  const auto wrong = a.call(Asked::name(1), InterestVerb::kClaim, 9);
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message().find("9 blocks, and 8 are acquired"), std::string::npos);
  EXPECT_EQ(a.poll(1), InterestPhase::kAcquired);
}

TEST(CoreInterest, a_claim_of_less_gives_the_rest_back_and_nothing_between) {
  Asked a;
  ASSERT_EQ(a.phase(a.submit(Asked::name(1), 4)), InterestPhase::kAcquired);
  const LeaseId lease = a.claim(Asked::name(1), 3);
  EXPECT_EQ(a.stats().leased, 3 * slot_bytes());
  EXPECT_EQ(a.stats().budgets.used, 3 * slot_bytes());
  EXPECT_EQ(a.core().evict(kGiB, a.t->now).blocks, 1u);
  EXPECT_EQ(a.claim(Asked::name(1), 3), lease);
  for (const std::uint32_t other : {2u, 4u})
    EXPECT_EQ(code_of(a.call(Asked::name(1), InterestVerb::kClaim, other)), Code::kReject) << other;
  EXPECT_EQ(code_of(a.t->restore(a.t->next_op(a.worker), a.ranks[0], lease, blocks(0, 4))), Code::kReject);
  a.restore_all(lease, 3, a.ranks[0]);
  EXPECT_EQ(a.poll(1), InterestPhase::kClaimed);
  done(a.call(Asked::name(0), InterestVerb::kClose));
  a.expect_nothing_held();
}

TEST(CoreInterest, what_is_dropped_in_between_is_claimed_and_fails_at_its_restore) {
  Asked a;
  ASSERT_EQ(a.phase(a.submit(Asked::name(1), 4)), InterestPhase::kAcquired);
  a.t->drop({});
  const LeaseId lease = a.claim(Asked::name(1), 4);
  EXPECT_EQ(code_of(a.t->restore(a.t->next_op(a.worker), a.ranks[0], lease, blocks(0, 4))), Code::kRecompute);
  done(a.call(Asked::name(0), InterestVerb::kClose));
  a.expect_nothing_held();
}

TEST(CoreInterest, an_interest_that_nobody_speaks_of_ends) {
  Asked a;
  done(a.submit(Asked::name(1, 1), 4));
  done(a.submit(Asked::name(1, 2), 4));
  a.claim(Asked::name(1, 2), 4);
  done(a.submit(Asked::name(1, 3), 4));
  for (int i = 0; i < 4; ++i) {
    a.t.wait(seconds(10));
    EXPECT_EQ(a.poll(1, 3), InterestPhase::kAcquired) << "polls keep it";
  }
  EXPECT_EQ(a.poll(1, 1), InterestPhase::kEnded);
  EXPECT_EQ(a.poll(1, 2), InterestPhase::kEnded);
  EXPECT_EQ(a.stats().leased, 4 * slot_bytes());
}

TEST(CoreInterest, a_cancel_that_overtakes_its_submit_spends_the_operation) {
  Asked a;
  done(a.submit(Asked::name(1), 2));
  EXPECT_EQ(a.phase(a.call(Asked::name(3), InterestVerb::kCancel)), InterestPhase::kEnded);
  a.expect_nothing_held();
  EXPECT_EQ(a.phase(a.submit(Asked::name(2), 4)), InterestPhase::kUnknown);
  EXPECT_EQ(a.phase(a.submit(Asked::name(3), 4)), InterestPhase::kEnded);
  EXPECT_EQ(a.phase(a.submit(Asked::name(4), 4)), InterestPhase::kAcquired);
}

TEST(CoreInterest, a_poll_of_what_is_not_there_tells_the_authority_of_now) {
  Asked a;
  const auto answer = a.call(Asked::name(1), InterestVerb::kPoll);
  EXPECT_EQ(a.phase(answer), InterestPhase::kUnknown);
  EXPECT_EQ(answer->authority.generation, a.ranks[0].value);
  a.authority = answer->authority;
  EXPECT_EQ(a.phase(a.submit(Asked::name(1), 4)), InterestPhase::kAcquired);
  EXPECT_EQ(a.stats().interests.operations, 1u);
}

TEST(CoreInterest, a_newer_operation_shortens_and_older_ones_touch_nothing) {
  Asked a;
  ASSERT_EQ(a.phase(a.submit(Asked::name(1), 8)), InterestPhase::kAcquiring);
  a.t.all_loaded();
  const auto shorter = a.submit(Asked::name(2), 3);
  EXPECT_EQ(a.phase(shorter), InterestPhase::kAcquired);
  EXPECT_EQ(shorter->blocks, 3u);
  EXPECT_EQ(a.stats().leased, 3 * slot_bytes());
  for (const InterestVerb verb : {InterestVerb::kPoll, InterestVerb::kCancel}) {
    const auto old = a.call(Asked::name(1), verb);
    EXPECT_EQ(a.phase(old), InterestPhase::kUnknown);
    EXPECT_EQ(old->operation, InterestOperation(2));
  }
  EXPECT_EQ(a.phase(a.call(Asked::name(1), InterestVerb::kClaim, 3)), InterestPhase::kUnknown);
  EXPECT_EQ(a.phase(a.submit(Asked::name(1), 8)), InterestPhase::kUnknown) << "it came late";
  EXPECT_EQ(a.poll(2), InterestPhase::kAcquired);
  EXPECT_EQ(a.poll(3), InterestPhase::kUnknown) << "nothing is submitted by a poll";
  EXPECT_EQ(a.stats().interests.operations, 2u);
  EXPECT_EQ(a.phase(a.call(Asked::name(2), InterestVerb::kCancel)), InterestPhase::kEnded);
  EXPECT_EQ(a.phase(a.call(Asked::name(2), InterestVerb::kCancel)), InterestPhase::kEnded);
  a.expect_nothing_held();
}

TEST(CoreInterest, a_submit_that_comes_twice_is_one) {
  Asked a;
  const auto list = hashes(0, 4);
  ASSERT_EQ(a.phase(a.submit_part(Asked::name(1), list, 0, 2)), InterestPhase::kCollecting);
  EXPECT_EQ(a.phase(a.submit_part(Asked::name(1), list, 0, 2)), InterestPhase::kCollecting);
  EXPECT_EQ(a.phase(a.submit_part(Asked::name(1), list, 2, 2)), InterestPhase::kAcquired);
  EXPECT_EQ(a.phase(a.submit_part(Asked::name(1), list, 0, 2)), InterestPhase::kAcquired);
  EXPECT_EQ(a.phase(a.submit_part(Asked::name(1), list, 2, 2)), InterestPhase::kAcquired);
  const LeaseId lease = a.claim(Asked::name(1), 4);
  EXPECT_EQ(a.phase(a.submit_part(Asked::name(1), list, 2, 2)), InterestPhase::kClaimed);
  EXPECT_EQ(a.claim(Asked::name(1), 4), lease);
  EXPECT_EQ(code_of(a.submit_part(Asked::name(1), hashes(1, 4), 0, 2)), Code::kReject) << "another list";
  EXPECT_EQ(code_of(a.submit_part(Asked::name(1), hashes(0, 5), 0, 2)), Code::kReject);
  EXPECT_EQ(code_of(a.submit_part(Asked::name(1), list, 1, 2)), Code::kReject) << "no part that was taken";
  // A part that is ahead of its turn is not taken, and no error.
  EXPECT_EQ(a.phase(a.submit_part(Asked::name(1, 2), list, 2, 2)), InterestPhase::kUnknown);
  done(a.submit_part(Asked::name(1, 2), list, 0, 1));
  const auto ahead = a.submit_part(Asked::name(1, 2), list, 2, 2);
  EXPECT_EQ(a.phase(ahead), InterestPhase::kCollecting);
  EXPECT_EQ(ahead->blocks, 1u);
  EXPECT_EQ(a.phase(a.submit_part(Asked::name(2, 2), list, 2, 2)), InterestPhase::kUnknown);
  EXPECT_EQ(code_of(a.submit(Asked::name(2), 2)), Code::kReject) << "it is claimed";
  EXPECT_EQ(a.poll(1), InterestPhase::kClaimed);
}

TEST(CoreInterest, a_closed_interest_is_not_taken_up_again) {
  Asked a;
  ASSERT_EQ(a.phase(a.submit(Asked::name(1), 4)), InterestPhase::kAcquired);
  EXPECT_EQ(a.phase(a.call(Asked::name(0), InterestVerb::kClose)), InterestPhase::kClosed);
  EXPECT_EQ(a.phase(a.call(Asked::name(0), InterestVerb::kClose)), InterestPhase::kClosed);
  EXPECT_EQ(code_of(a.submit(Asked::name(1), 4)), Code::kReject);
  EXPECT_EQ(code_of(a.submit(Asked::name(2), 4)), Code::kReject);
  // The close overtook the submit.
  EXPECT_EQ(a.phase(a.call(Asked::name(0, 5), InterestVerb::kClose)), InterestPhase::kClosed);
  EXPECT_EQ(code_of(a.submit(Asked::name(1, 5), 4)), Code::kReject);
  EXPECT_EQ(a.poll(1, 5), InterestPhase::kUnknown);
  EXPECT_EQ(a.phase(a.submit(Asked::name(1, 4), 4)), InterestPhase::kAcquired) << "a lower one, not used yet";
}

TEST(CoreInterest, an_authority_that_is_over_is_refused_by_its_name) {
  Asked a;
  const auto first = a.submit(Asked::name(1), 4);
  ASSERT_EQ(a.phase(first), InterestPhase::kAcquired);
  const auto refused = [&](std::string_view what) {
    for (const Result<InterestAnswer>& answer :
         {a.call(Asked::name(1), InterestVerb::kPoll), a.call(Asked::name(1), InterestVerb::kClaim, 4),
          a.submit(Asked::name(2), 2), a.submit(Asked::name(1, 9), 2)}) {
      ASSERT_FALSE(answer.ok()) << what;
      EXPECT_EQ(answer.error().code(), Code::kRecompute);
      EXPECT_NE(answer.error().message().find(what), std::string::npos) << answer.error().message();
      EXPECT_NE(answer.error().message().find("submit under a new one"), std::string::npos);
    }
  };
  a.authority = first->authority;
  EXPECT_EQ(a.poll(1), InterestPhase::kAcquired);
  a.authority.incarnation = 76;
  refused("Manager incarnation 000000000000004c, and it is 000000000000004d now");
  a.authority = first->authority;
  ++a.authority.generation;
  refused("registration generation");
  a.authority = first->authority;
  a.authority.layout[0] ^= std::byte{1};
  refused("layout");
  a.authority = first->authority;
  a.authority.consumers = 2;
  refused("2 consumers, and there are 1 now");
  a.authority = first->authority;
  EXPECT_EQ(a.poll(1), InterestPhase::kAcquired) << "nothing was touched";
}

TEST(CoreInterest, a_rank_that_registers_again_ends_the_authority_and_not_the_close) {
  Asked a({}, 2);
  ASSERT_EQ(a.phase(a.submit(Asked::name(1), 4)), InterestPhase::kAcquired);
  ASSERT_TRUE(a.core().unregister(a.worker, a.ranks[1]).ok());
  EXPECT_EQ(code_of(a.submit(Asked::name(2), 4)), Code::kRecompute);
  a.expect_nothing_held();
  const auto left = a.call(Asked::name(1), InterestVerb::kClaim, 4);
  ASSERT_FALSE(left.ok());
  EXPECT_EQ(left.error().code(), Code::kRecompute);
  EXPECT_NE(left.error().message().find("a rank of the instance has left"), std::string::npos);
  a.t->join(a.worker, {.rank = 1, .world = 2});
  const auto other = a.call(Asked::name(1), InterestVerb::kClaim, 4);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message().find("registration generation"), std::string::npos);
  EXPECT_EQ(a.phase(a.call(Asked::name(0), InterestVerb::kClose)), InterestPhase::kClosed);
  a.expect_nothing_held();
  EXPECT_EQ(a.phase(a.submit(Asked::name(1, 2), 4)), InterestPhase::kAcquired);
  // Nobody has to ask for that.
  ASSERT_TRUE(a.core().unregister(a.worker, a.ranks[0]).ok());
  a.t.wait(milliseconds(250));
  a.expect_nothing_held();
}

TEST(CoreInterest, layouts_differ_by_what_the_ranks_hold) {
  World w;
  const SessionId s = w.open();
  w.join(s, {.instance = 1});
  w.join(s, {.instance = 2});
  w.join(s, {.instance = 3, .name_space = "model-b"});
  w.join(s, {.instance = 4, .fragment_bytes = 8192});
  const auto layout = [&](int instance) {
    const auto list = hashes(0, 1);
    InterestPart part;
    part.name = {instance_id(instance), InterestId(static_cast<std::uint64_t>(instance)),
                 InterestOperation(1)};
    part.total = 1;
    part.hashes = list;
    return w.core->submit_interest(s, part, w.now)->authority.layout;
  };
  const auto one = layout(1);
  EXPECT_EQ(layout(2), one);
  EXPECT_NE(layout(3), one);
  EXPECT_NE(layout(4), one);
}

TEST(CoreInterest, it_ends_with_its_session_at_every_stage) {
  for (int stage = 0; stage < 5; ++stage) {
    Asked a;
    const auto list = hashes(0, 4);
    if (stage == 0) done(a.submit_part(Asked::name(1), list, 0, 2));
    if (stage == 1) done(a.submit(Asked::name(1), 8));
    if (stage >= 2) done(a.submit(Asked::name(1), 4));
    const LeaseId lease = stage >= 3 ? a.claim(Asked::name(1), 4) : LeaseId{};
    const OperationKey op = a.t->next_op(a.worker);
    if (stage == 4) {
      ASSERT_TRUE(a.t->restore(op, a.ranks[0], lease, blocks(0, 4)).ok());
      a.t->ports.claimed.insert(op);
    }
    a.core().process_ended(a.owner, a.t->now);
    a.t.all_loaded();
    EXPECT_EQ(a.stats().interests.interests, 0u) << stage;
    EXPECT_EQ(a.stats().leases, 0u) << stage;
    EXPECT_EQ(a.core().census().pinned, stage == 4 ? 4u : 0u) << "a copy that runs keeps its sources";
    if (stage == 4) a.t->verified(op);
    a.expect_nothing_held();
  }
}

TEST(CoreInterest, whoever_opens_the_slot_next_has_all_ids_again) {
  Asked a;
  done(a.submit(Asked::name(1, 7), 4));
  a.core().process_ended(a.owner, a.t->now);
  ASSERT_TRUE(a.core().session_gone(a.owner));
  a.core().open_session(a.owner, a.t->now);
  EXPECT_EQ(a.poll(1, 7), InterestPhase::kUnknown);
  EXPECT_EQ(a.phase(a.submit(Asked::name(1, 7), 4)), InterestPhase::kAcquired);
}

TEST(CoreInterest, nobody_finds_what_an_interest_holds_by_another_way) {
  Asked a;
  done(a.submit(Asked::name(1), 4));
  const SessionId other = a.t->open();
  EXPECT_EQ(a.core().interest(other, {Asked::name(1), {}, InterestVerb::kPoll, 0}, a.t->now)->phase,
            InterestPhase::kUnknown);
  EXPECT_EQ(a.core().interest(other, {Asked::name(0), {}, InterestVerb::kClose, 0}, a.t->now)->phase,
            InterestPhase::kClosed);
  std::string key(12, '\0');
  std::memcpy(key.data(), &a.owner.value, 4);
  key[4] = 1;
  EXPECT_TRUE(a.core().cancel(a.owner, {instance_id(1), GroupId(0), key}).ok());
  EXPECT_EQ(a.poll(1), InterestPhase::kAcquired);
  EXPECT_EQ(a.t->read(a.owner, hashes(0, 2), key).hit_blocks, 2u) << "a query of its own";
  EXPECT_EQ(a.poll(1), InterestPhase::kAcquired);
}

TEST(CoreInterest, every_wait_and_every_result_ends) {
  WorldOptions options;
  options.core.lease_ttl = seconds(100);
  options.core.interest_idle = seconds(1000);
  Asked a(options);
  done(a.submit(Asked::name(1, 1), 8));  // is loading, and nothing lands
  done(a.submit(Asked::name(1, 2), 4));  // acquired, never claimed
  done(a.submit(Asked::name(1, 3), 4));
  const LeaseId lease = a.claim(Asked::name(1, 3), 4);
  a.restore_all(lease, 4, a.ranks[0]);
  const auto list = hashes(0, 4);
  done(a.submit_part(Asked::name(1, 4), list, 0, 2));  // its other part never comes
  EXPECT_EQ(a.phase(a.submit_part(Asked::name(1, 5), hashes(8, 2), 0, 2)), InterestPhase::kMissing);
  EXPECT_EQ(a.stats().interests.interests, 5u);
  a.t.wait(seconds(6));
  const auto late = a.call(Asked::name(1, 1), InterestVerb::kPoll);
  EXPECT_EQ(a.phase(late), InterestPhase::kAcquired) << "what had landed in time";
  EXPECT_EQ(late->blocks, 4u);
  EXPECT_EQ(a.poll(1, 4), InterestPhase::kEnded);
  a.t.wait(seconds(61));
  EXPECT_EQ(a.poll(1, 2), InterestPhase::kEnded);
  EXPECT_EQ(a.phase(a.call(Asked::name(1, 2), InterestVerb::kClaim, 4)), InterestPhase::kEnded);
  EXPECT_EQ(a.poll(1, 3), InterestPhase::kClaimed);
  a.t.wait(seconds(40));
  EXPECT_EQ(a.poll(1, 3), InterestPhase::kEnded) << "the lease's term is over";
  a.t.all_loaded();
  a.expect_nothing_held();
  a.t.wait(seconds(61));
  EXPECT_EQ(a.stats().interests.interests, 0u) << "and they are forgotten";
  EXPECT_EQ(code_of(a.submit(Asked::name(2, 3), 4)), Code::kReject) << "but not their ids";
}

TEST(CoreInterest, bounds) {
  Asked a;
  for (std::uint64_t i = 1; i <= limits::kInterestsPerInstance; ++i)
    ASSERT_TRUE(a.submit(Asked::name(1, i), 1).ok()) << i;
  const auto more = a.submit(Asked::name(1, 1000), 1);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code(), Code::kBusy);
  done(a.call(Asked::name(0, 1), InterestVerb::kClose));
  EXPECT_TRUE(a.submit(Asked::name(1, 1000), 1).ok());
  done(a.call(Asked::name(0, 2), InterestVerb::kClose));
  const auto list = hashes(0, 2000);
  for (std::uint32_t i = 0; i < limits::kInterestParts; ++i)
    ASSERT_TRUE(a.submit_part(Asked::name(1, 1001), list, i, 1).ok()) << i;
  EXPECT_EQ(code_of(a.submit_part(Asked::name(1, 1001), list, limits::kInterestParts, 1)), Code::kReject);
  EXPECT_EQ(code_of(a.submit(Asked::name(limits::kInterestOperations + 1, 1000), 1)), Code::kReject);
  EXPECT_EQ(code_of(a.submit(Asked::name(0, 1000), 1)), Code::kReject);
  EXPECT_EQ(a.phase(a.submit(Asked::name(limits::kInterestOperations, 1000), 1)), InterestPhase::kAcquired);
  EXPECT_EQ(code_of(a.submit(Asked::name(1, 0), 1)), Code::kReject);
}

TEST(CoreInterest, used_ids_are_told_apart_within_the_window) {
  InterestIds ids;
  std::mt19937_64 random(7);
  std::set<std::uint64_t> used;
  std::uint64_t newest = 0;
  const std::uint64_t other = std::uint64_t{5} << 32;  // another coordinator of the session
  const auto use = [&](std::uint64_t id) {             // whether it was not used before
    const bool fresh = ids.fresh(InterestId(id), InterestOperation(1));
    if (fresh) ids.spend(InterestId(id));
    return fresh;
  };
  EXPECT_TRUE(use(other | 0xFFFFFFFF));
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t step = random() % 50 == 0 ? random() % 3000 : random() % 8;
    const std::uint64_t id =
        std::max<std::uint64_t>(1, newest + step - std::min<std::uint64_t>(newest, random() % 1500));
    const bool fresh =
        (newest < limits::kInterestWindow || id > newest - limits::kInterestWindow) && !used.contains(id);
    ASSERT_EQ(use(id), fresh) << id << " with newest " << newest;
    if (fresh) used.insert(id);
    newest = std::max(newest, fresh ? id : 0);
  }
  EXPECT_FALSE(use(other | 0xFFFFFFFF));
  EXPECT_TRUE(use(other | 0xFFFFFFFE));
}

TEST(CoreInterest, of_those_that_made_room_the_oldest_is_forgotten_whatever_its_coordinator) {
  InterestIds ids;
  const std::uint64_t low = std::uint64_t{1} << 32, high = std::uint64_t{9} << 32;
  const auto made_room = [&](std::uint64_t id) {
    ids.spend(InterestId(id));
    ids.made_room(InterestId(id), InterestOperation(3));
  };
  const auto may_go_on = [&](std::uint64_t id) {
    EXPECT_FALSE(ids.fresh(InterestId(id), InterestOperation(3))) << id;
    return ids.fresh(InterestId(id), InterestOperation(4));
  };
  made_room(high | 1);
  for (std::uint64_t i = 1; i < InterestIds::kMostOutside; ++i) made_room(low | i);
  EXPECT_TRUE(may_go_on(high | 1));
  made_room(low | 1000);
  EXPECT_FALSE(may_go_on(high | 1)) << "the oldest";
  EXPECT_TRUE(may_go_on(low | 1));
  ids.spend(InterestId(low | 1));  // it goes on, and may make room again
  EXPECT_FALSE(ids.fresh(InterestId(low | 1), InterestOperation(4)));
}

// ---- recoveries ----

struct Hybrid {
  World w;
  SessionId owner, worker;
  RegistrationId rank;
  static model::RankRegistration registration() {
    model::RankRegistration r = rank_of({});
    r.groups.resize(2, r.groups[0]);
    r.groups[1].group = GroupId(1);
    r.groups[1].rule = model::RecoveryRule::kCheckpoint;
    return r;
  }
  Hybrid() : owner(w.open()), worker(w.open()) {
    rank = *w.core->register_rank(worker, registration(), w.now);
  }
  void store(std::uint16_t group, const std::vector<BlockHash>& list) {
    const OperationKey op = w.next_op(worker);
    const auto indices = blocks(0, list.size());
    ASSERT_TRUE(w.core->publish({op, rank, GroupId(group), indices, list}, w.now).ok());
    w.commit(op);
  }
  Result<InterestAnswer> submit(std::uint32_t operation) {
    std::vector<BlockHash> list = hashes(0, 3);
    list.push_back(hash_of(1002));
    InterestPart part;
    part.name = Asked::name(operation);
    part.tail = TokenTail{0, 48};
    part.total = 4;
    part.hashes = list;
    return w.core->submit_interest(owner, part, w.now);
  }
};

TEST(CoreInterest, a_recovery_is_all_of_a_boundary_or_nothing) {
  Hybrid h;
  h.store(0, hashes(0, 3));
  const auto gone = h.submit(1);
  ASSERT_TRUE(gone.ok()) << gone.error().to_string();
  EXPECT_EQ(gone->phase, InterestPhase::kMissing);
  EXPECT_EQ(gone->why, Missing::kGone);
  EXPECT_EQ(gone->missing, GroupId(1));
  EXPECT_EQ(h.w.core->stats().leased, ByteCount(0));
  h.store(1, {hash_of(1002)});
  const auto there = h.submit(2);
  EXPECT_EQ(there->phase, InterestPhase::kAcquired);
  EXPECT_EQ(there->blocks, 4u);
  const auto claimed = h.w.core->interest(h.owner, {Asked::name(2), {}, InterestVerb::kClaim, 4}, h.w.now);
  ASSERT_TRUE(claimed.ok()) << claimed.error().to_string();
  ASSERT_EQ(claimed->leases.size(), 2u);
  for (const TicketLease& lease : claimed->leases) {
    const OperationKey op = h.w.next_op(h.worker);
    ASSERT_TRUE(h.w.restore(op, h.rank, lease.lease, blocks(10, lease.blocks)).ok());
    h.w.verified(op);
  }
  EXPECT_EQ(h.w.core->interest(h.owner, {Asked::name(2), {}, InterestVerb::kPoll, 0}, h.w.now)->phase,
            InterestPhase::kClaimed);
  EXPECT_EQ(h.w.core->stats().leased, 4 * slot_bytes());
  done(h.w.core->interest(h.owner, {Asked::name(0), {}, InterestVerb::kClose, 0}, h.w.now));
  EXPECT_EQ(h.w.core->stats().leased, ByteCount(0));
  EXPECT_EQ(h.w.core->census().pinned, 0u);
}

}  // namespace
}  // namespace orbitkv::cache
