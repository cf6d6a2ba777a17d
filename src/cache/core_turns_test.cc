// What a call does at once, and what goes on over turns: where much ends, is waited for or stands in the
// way at the same time.
#include "cache/core_take_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

void expect_exact(World& w) {
  const Census census = w.core->census();
  EXPECT_EQ(census.pins, census.pinned);
  EXPECT_EQ(census.charged, w.core->stats().budgets.used);
}

// Turns until there is no more to do, in each of which everything adds up; how many.
int turns(World& w) {
  int count = 1;
  for (; w.core->turn(w.now) && count < 1000; ++count) expect_exact(w);
  expect_exact(w);
  return count;
}

void store_many(World& w, const Engine& e, std::uint32_t count) {
  for (std::uint32_t at = 0; at < count; at += 8000)
    w.store(e.worker, e.registration, hashes(at, std::min<std::uint32_t>(8000, count - at)));
}

TEST(CoreTurns, leases_that_end_together_go_over_turns) {
  constexpr std::uint32_t kEach = limits::kUnpinsPerTurn / 2 + 100, kLeases = 4;
  enum class How { kClosed, kDied, kUnregistered, kExpired };
  for (const How how : {How::kClosed, How::kDied, How::kUnregistered, How::kExpired}) {
    SCOPED_TRACE(static_cast<int>(how));
    WorldOptions options;
    options.pool = 256 * kMiB;
    options.core.query_budget = options.core.query_instance_budget = kGiB;
    World w(options);
    Engine e(w);
    store_many(w, e, kEach * kLeases);
    for (std::uint32_t i = 0; i < kLeases; ++i)
      ASSERT_TRUE(w.read(e.scheduler, hashes(i * kEach, kEach), std::to_string(i)).lease);
    const ByteCount all = w.core->stats().budgets.used;
    if (how == How::kClosed) w.core->close_session(e.scheduler, w.now);
    if (how == How::kDied) w.core->process_ended(e.scheduler, w.now);
    if (how == How::kUnregistered) {
      ASSERT_TRUE(w.core->unregister(e.worker, e.registration).ok());
    }
    if (how == How::kExpired) {
      w.now = w.now + seconds(10'000);
      w.core->tick(w.now);
    }
    expect_exact(w);
    EXPECT_EQ(w.core->stats().leases, 0u);
    const ByteCount left = w.core->stats().budgets.used;
    EXPECT_GE(left.value, all.value / kLeases) << "what is pinned yet is charged yet";
    EXPECT_LT(left, all) << "some of it goes at once";
    EXPECT_GE(turns(w), 2);
    EXPECT_EQ(w.core->stats().budgets.used, ByteCount());
    EXPECT_EQ(w.core->stats().leased, ByteCount());
  }
}

TEST(CoreTurns, restores_that_end_together_go_over_turns) {
  constexpr std::uint32_t kEach = limits::kUnpinsPerTurn / 2 + 100, kRestores = 4;
  WorldOptions options;
  options.pool = 256 * kMiB;
  World w(options);
  Engine e(w);
  store_many(w, e, kEach * kRestores);
  const QueryAnswer lease = w.read(e.scheduler, hashes(0, kEach * kRestores), "r");
  for (std::uint32_t i = 0; i < kRestores; ++i) {
    const OperationKey op{e.worker, RecordIndex(10 + i), OperationId(10'000 + i)};
    ASSERT_TRUE(w.restore(op, e.registration, lease.lease, blocks(0, kEach), i * kEach).ok());
    w.ports.claimed.insert(op);
  }
  EXPECT_EQ(w.core->stats().leases, 0u) << "all of it is consumed";
  turns(w);
  const ByteCount all = w.core->stats().budgets.used;
  EXPECT_EQ(all, kEach * kRestores * slot_bytes());
  w.core->process_ended(e.worker, w.now);
  expect_exact(w);
  EXPECT_EQ(w.core->stats().operations, 0u);
  EXPECT_TRUE(w.core->session_gone(e.worker));
  EXPECT_EQ(w.core->stats().budgets.used, all) << "the last of them returns the charge";
  EXPECT_GE(turns(w), 2);
  EXPECT_EQ(w.core->stats().budgets.used, ByteCount());
  EXPECT_EQ(w.core->stats().leased, ByteCount());
}

// Each as a whole: two of them are as much as a call gives back.
TEST(CoreTurns, saves_of_a_session_that_ends_go_back_over_turns) {
  constexpr std::uint32_t kEach = 8, kSaves = 8;
  enum class How { kClosed, kDied, kDiedClaimed, kClaimedMeanwhile };
  for (const How how : {How::kClosed, How::kDied, How::kDiedClaimed, How::kClaimedMeanwhile}) {
    SCOPED_TRACE(static_cast<int>(how));
    WorldOptions options;
    options.core.turn_unpins = kEach + 1;
    World w(options);
    Engine e(w);
    for (std::uint32_t i = 0; i < kSaves; ++i) {
      const OperationKey op = w.next_op(e.worker);
      ASSERT_TRUE(w.publish(op, e.registration, hashes(i * kEach, kEach)).ok());
      if (how == How::kDiedClaimed) w.ports.claimed.insert(op);
    }
    if (how == How::kDied || how == How::kDiedClaimed) {
      w.core->process_ended(e.worker, w.now);
    } else {
      w.core->close_session(e.worker, w.now);
    }
    EXPECT_TRUE(w.core->works());
    // A process that ends closes its session first.
    const std::uint32_t at_once = how == How::kDied ? 4 : how == How::kDiedClaimed ? 0 : 2;
    EXPECT_EQ(w.core->stats().operations, kSaves - at_once);
    EXPECT_FALSE(w.core->session_gone(e.worker));
    if (how == How::kClaimedMeanwhile) {
      for (const auto& [op, plan] : w.ports.granted) w.ports.claimed.insert(op);
    }
    EXPECT_GE(turns(w), 2);
    const bool waits = how == How::kClaimedMeanwhile;
    EXPECT_EQ(w.core->stats().operations, waits ? kSaves - 2 : 0);
    EXPECT_EQ(w.core->session_gone(e.worker), !waits);
    w.core->process_ended(e.worker, w.now);
    turns(w);
    EXPECT_TRUE(w.core->session_gone(e.worker));
    const std::uint32_t lost = how == How::kDiedClaimed ? kSaves : waits ? kSaves - 2 : 0;
    EXPECT_EQ(w.core->stats().quarantined_extents, lost * kEach);
    EXPECT_EQ(w.used(), lost * kEach * slot_bytes());
    EXPECT_EQ(w.core->stats().inflight_images, 0u);
  }
}

// Its place has another session by then.
TEST(CoreTurns, a_session_in_the_place_of_one_that_ended_keeps_its_saves) {
  WorldOptions options;
  options.core.turn_unpins = 1;
  World w(options);
  Engine e(w);
  std::vector<OperationKey> ops;
  for (std::uint32_t i = 0; i < 2; ++i) {
    ops.push_back(w.next_op(e.worker));
    ASSERT_TRUE(w.publish(ops.back(), e.registration, hashes(i * 8, 8)).ok());
  }
  w.core->close_session(e.worker, w.now);
  ASSERT_EQ(w.core->stats().operations, 1u);
  w.commit(ops.back());  // its receipt came before the Manager took it back
  ASSERT_TRUE(w.core->session_gone(e.worker));
  w.core->open_session(e.worker, w.now);
  const RegistrationId again = w.join(e.worker);
  ASSERT_TRUE(w.publish(w.next_op(e.worker), again, hashes(100, 8)).ok());
  turns(w);
  EXPECT_EQ(w.core->stats().operations, 1u);
}

// Somebody asks all the time, and the turns come seldom.
TEST(CoreTurns, whoever_pins_gives_back_what_others_have_left) {
  constexpr std::uint32_t kLong = 2 * limits::kUnpinsPerTurn;
  WorldOptions options;
  options.pool = 256 * kMiB;
  World w(options);
  Engine e(w);
  store_many(w, e, kLong);
  ASSERT_TRUE(w.core->release(e.scheduler, w.read(e.scheduler, hashes(0, kLong), "long").lease).ok());
  std::uint64_t pinned = w.core->census().pins;
  EXPECT_EQ(pinned, kLong);
  for (int i = 0; pinned > 0 && i < 100; ++i) {
    ASSERT_TRUE(w.read(e.scheduler, hashes(0, 200), std::to_string(i)).lease);
    expect_exact(w);
    const std::uint64_t now = w.core->census().pins;
    EXPECT_LE(now, kLong) << "it does not grow";
    ASSERT_TRUE(w.core->cancel(e.scheduler, {instance_id(1), GroupId(0), std::to_string(i)}).ok());
    EXPECT_LT(w.core->census().pins, pinned);
    pinned = w.core->census().pins;
  }
  EXPECT_EQ(pinned, 0u);
}

// What was taken has to be seen in one view: not for ever.
TEST(CoreTurns, a_run_that_is_of_no_one_view_when_its_time_is_over_is_looked_at_for_a_second_more) {
  for (const bool changes : {false, true}) {
    SCOPED_TRACE(changes);
    LongList l;
    l.t->store(l.e.worker, l.e.registration, hashes(500, 20));
    l.read();
    l.t->core->turn(l.t->now);
    l.t.all_loaded();
    l.lose(500);
    l.t.wait(seconds(6));
    ASSERT_EQ(l.in(LeaseState::kTaking), 1u) << "more was taken than is looked at at once";
    EXPECT_EQ(l.poll().hit_blocks, 2 * kTurn) << "and no more is";
    for (std::uint64_t i = 1; i < 10; ++i) {
      if (changes) l.lose(500 + i);
      l.t->core->turn(l.t->now);
    }
    EXPECT_EQ(l.in(LeaseState::kTaking), changes ? 1u : 0u);
    l.t.wait(seconds(2));
    const TicketAnswer answer = l.poll();
    if (changes) {
      EXPECT_EQ(answer.state, TicketState::kMissing);
      EXPECT_EQ(answer.why, Missing::kTimeout);
      l.holds_nothing();
    } else {
      ASSERT_EQ(answer.state, TicketState::kReady);
      EXPECT_EQ(answer.hit_blocks, 2 * kTurn);
    }
    EXPECT_EQ(l.t.stats().load_timeouts, 1u);
  }
}

TEST(CoreTurns, saves_whose_wait_is_over_look_again_over_turns) {
  constexpr std::uint32_t kSaves = 6;
  WorldOptions options;
  options.core.turn_hashes = 4;
  World w(options);
  Engine a(w), b(w, {.instance = 2});
  const auto list = hashes(0, 3);
  const OperationKey first = w.next_op(a.worker);
  ASSERT_TRUE(w.publish(first, a.registration, list).ok());
  std::vector<OperationKey> waiting;
  for (std::uint32_t i = 0; i < kSaves; ++i) {
    waiting.push_back(w.next_op(b.worker));
    const auto answer = w.publish(waiting.back(), b.registration, list);
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(answer->waiting, 3u);
  }
  const auto over = [&] {
    return static_cast<std::size_t>(std::count_if(
        waiting.begin(), waiting.end(), [&](const auto& op) { return w.ports.reaped.contains(op); }));
  };
  w.commit(first);
  EXPECT_LE(over(), 2u) << "of three hashes each, four a call";
  // One of them ends before its turn.
  std::size_t before = over();
  while (w.core->turn(w.now)) {
    EXPECT_LE(over() - before, 4u) << "a turn, and what it wakes";
    before = over();
  }
  EXPECT_EQ(over(), kSaves) << "all of it is there: nothing is left to save";
  EXPECT_EQ(w.core->stats().operations, 0u);
  EXPECT_EQ(w.core->stats().filtered, 3 * kSaves);
}

TEST(CoreTurns, saves_that_look_again_may_end_before_their_turn) {
  WorldOptions options;
  options.core.turn_hashes = 1;
  World w(options);
  Engine a(w), b(w, {.instance = 2});
  const OperationKey first = w.next_op(a.worker);
  ASSERT_TRUE(w.publish(first, a.registration, hashes(0, 3)).ok());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(w.publish(w.next_op(b.worker), b.registration, hashes(0, 3)).ok());
  w.commit(first);
  w.core->close_session(b.worker, w.now);
  EXPECT_EQ(w.core->stats().operations, 0u);
  // Others have their places.
  const OperationKey again = w.next_op(a.worker);
  ASSERT_TRUE(w.publish(again, a.registration, hashes(10, 3)).ok());
  while (w.core->turn(w.now)) continue;
  EXPECT_TRUE(w.ports.granted.contains(again));
  w.commit(again);
  EXPECT_EQ(w.core->stats().blocks, 6u);
}

// Eviction meets more pinned images than a call passes over: it finds what may go over turns.
TEST(CoreTurns, very_many_pinned_images_in_the_way_of_an_eviction_are_passed_over_turns) {
  constexpr std::uint32_t kPinned = 2 * limits::kEvictLooks + 100;
  WorldOptions options;
  options.pool = ByteCount((kPinned + 100) * slot_bytes().value / 4096 * 4096);
  options.core.query_budget = options.core.query_instance_budget = kGiB;
  World w(options);
  Engine e(w);
  store_many(w, e, kPinned);
  const auto room = static_cast<std::uint32_t>(w.pool->free_bytes().value / slot_bytes().value);
  w.store(e.worker, e.registration, hashes(kPinned, room));
  ASSERT_TRUE(w.read(e.scheduler, hashes(0, kPinned), "r").lease);
  const auto save = [&](std::uint64_t block) {
    const OperationKey op = w.next_op(e.worker);
    const auto answer = w.publish(op, e.registration, hashes(block, 1));
    EXPECT_TRUE(answer.ok());
    if (w.ports.granted.contains(op)) w.commit(op);
    return answer.ok() && answer->accepted == 1;
  };
  EXPECT_FALSE(save(20'000)) << "a miss that is counted";
  EXPECT_EQ(w.core->stats().dropped, 1u);
  EXPECT_GE(turns(w), 2);
  EXPECT_TRUE(save(20'000));
  EXPECT_GE(w.core->stats().evicted, 1u);
  EXPECT_EQ(w.core->stats().leased, kPinned * slot_bytes());
}

TEST(CoreTurns, a_lease_whose_term_is_over_is_not_used_however_many_end_before_it) {
  constexpr std::uint32_t kLeases = limits::kEndsPerTurn + 20;
  World w;
  Engine e(w);
  w.store(e.worker, e.registration, hashes(1, 2));
  std::vector<QueryAnswer> answers;
  for (std::uint32_t i = 0; i < kLeases; ++i)
    answers.push_back(w.read(e.scheduler, hashes(1, 2), std::to_string(i)));
  w.now = w.now + WorldOptions{}.core.lease_ttl + seconds(1);
  const OperationKey op{e.worker, RecordIndex(10), OperationId(10'000)};
  const auto code = w.restore(op, e.registration, answers[kLeases - 1].lease, {0, 1});
  ASSERT_FALSE(code.ok());
  EXPECT_EQ(code.error().code(), Code::kRecompute);
  EXPECT_GT(w.core->stats().leases, 0u) << "the others end over turns";
  const QueryAnswer again = w.read(e.scheduler, hashes(1, 2), std::to_string(kLeases - 2));
  EXPECT_NE(again.lease, answers[kLeases - 2].lease) << "it is another one";
  EXPECT_FALSE(again.again);
  turns(w);
  EXPECT_EQ(w.core->stats().leases, 1u);
  expect_exact(w);
}

// What one call may do at once does not depend on the call before.
TEST(CoreTurns, each_call_gives_back_a_little_at_once) {
  WorldOptions options;
  options.pool = 256 * kMiB;
  World w(options);
  Engine e(w);
  store_many(w, e, limits::kUnpinsPerTurn);
  const LeaseId all = w.read(e.scheduler, hashes(0, limits::kUnpinsPerTurn), "all").lease;
  const QueryAnswer few = w.read(e.scheduler, hashes(0, 10), "few");
  ASSERT_TRUE(w.core->release(e.scheduler, all).ok());
  const TicketName name{instance_id(1), GroupId(0), "few"};
  ASSERT_TRUE(w.core->cancel(e.scheduler, name, few.revision).ok());
  EXPECT_EQ(w.core->stats().leased, ByteCount());
  EXPECT_FALSE(w.core->works());
}

}  // namespace
}  // namespace orbitkv::cache
