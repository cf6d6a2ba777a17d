// What leaves DRAM for the tier, through the whole core.
#include <algorithm>

#include "cache/core_tier_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;
using Answer = Tier::Answer;

// Roomy: nothing is considered before eviction asks. Tight: the pool is smaller than the
// window, so that everything is considered as soon as it is saved.
WorldOptions roomy() {
  WorldOptions options;
  options.pool = 256 * kMiB;
  options.core.eviction_batch = ByteCount(1);
  return options;
}

struct Saver {
  TierWorld t;
  Engine e;
  explicit Saver(const WorldOptions& options = roomy()) : t(options), e(*t) {}
  void save(std::uint64_t first, std::uint64_t count = 1) {
    t->store(e.worker, e.registration, hashes(first, count));
  }
  EvictReport evict(std::uint64_t blocks) { return t->core->evict(blocks * slot_bytes(), t->now); }
  bool resident(std::uint64_t n) {
    const auto list = hashes(n, 1);
    const auto a = t->core->query(e.scheduler, t->part(list, "", QueryMode::kDiscover), t->now);
    return a.ok() && a->resident[0] == 1;
  }
  LeaseId lease(std::uint64_t first, std::uint64_t count, std::string_view id = "r") {
    return t->read(e.scheduler, hashes(first, count), id).lease;
  }
  CoreStats stats() { return t.stats(); }
};

TEST(CoreSpill, all_is_stored_at_the_seal) {
  Saver s;
  s.t.tier.at_seal = Answer::kStore;
  s.save(0, 3);
  EXPECT_EQ(s.t.tier.stores.size(), 3u);
  EXPECT_EQ(s.stats().spilling, 3u);
  EXPECT_TRUE(s.lease(0, 3)) << "readable while it is stored";
  s.t.all_stored();
  EXPECT_EQ(s.stats().spilled, 3u);
  EXPECT_EQ(s.stats().spilled_bytes, 3 * slot_bytes().value);
  EXPECT_EQ(s.stats().spilling, 0u);
}

TEST(CoreSpill, a_store_that_fails_or_is_refused_is_counted) {
  Saver s;
  s.t.tier.at_seal = Answer::kStore;
  s.t.tier.most_stores = 1;
  s.save(0, 2);
  EXPECT_EQ(s.stats().spills_refused, 1u);
  s.t.all_stored(false);
  EXPECT_EQ(s.stats().spill_failures, 1u);
  EXPECT_EQ(s.stats().spilled, 0u);
  EXPECT_EQ(s.evict(2).blocks, 2u);
}

TEST(CoreSpill, store_keeps_lru_place) {
  Saver s;
  for (std::uint64_t n = 0; n < 4; ++n) s.save(n);
  s.t.tier.at_leave = Answer::kStore;
  s.evict(1);  // asks for all; they are being stored and stay
  EXPECT_EQ(s.stats().spilling, 4u);
  EXPECT_EQ(s.stats().blocks, 4u);
  s.save(4);
  s.t.stored(2);
  s.t.stored(0);
  EXPECT_EQ(s.evict(1).blocks, 1u);
  EXPECT_FALSE(s.resident(0)) << "put back last at the least recent end";
  EXPECT_EQ(s.evict(1).blocks, 1u);
  EXPECT_FALSE(s.resident(2));
  EXPECT_TRUE(s.resident(4));
}

TEST(CoreSpill, store_at_the_seal_does_not_make_recent) {
  Saver s;
  s.t.tier.at_seal = Answer::kStore;
  for (std::uint64_t n = 0; n < 3; ++n) s.save(n);
  for (const std::uint64_t n : {0, 1, 2}) s.t.stored(n);
  EXPECT_EQ(s.evict(1).blocks, 1u);
  EXPECT_FALSE(s.resident(0));
  EXPECT_TRUE(s.resident(1));
}

TEST(CoreSpill, evict_while_storing) {
  Saver s;
  s.t.tier.at_seal = Answer::kStore;
  s.save(0);
  const EvictReport report = s.evict(10);
  EXPECT_EQ(report.blocks, 0u);
  EXPECT_EQ(report.being_written, 1u);
  EXPECT_TRUE(s.resident(0));
  s.t.all_stored();
  EXPECT_EQ(s.evict(10).blocks, 1u);
  EXPECT_EQ(s.t->used(), ByteCount(0));
}

// A pool of `blocks` that is full of them, 0 the oldest; the tier wants all and takes none.
WorldOptions full(std::uint64_t blocks) {
  WorldOptions options;
  options.pool = blocks * slot_bytes();
  options.core.eviction_batch = ByteCount(1);
  return options;
}

TEST(CoreSpill, memory_takes_clean_ones_first_and_does_not_wait) {
  Saver s(full(8));
  s.t.tier.most_stores = 0;
  s.t.tier.at_leave = Answer::kStore;
  s.t.tier.put(1);
  std::uint64_t n = 0;
  while (s.stats().evicted == 0) s.save(n++);  // room runs out
  EXPECT_TRUE(s.resident(0)) << "older, but it would be lost";
  EXPECT_FALSE(s.resident(1)) << "the tier has it already";
  s.save(n);
  EXPECT_FALSE(s.resident(0)) << "nothing else is left";
  EXPECT_TRUE(s.resident(n));
}

TEST(CoreSpill, memory_passes_over_a_bounded_number) {
  Saver s(full(100));
  s.t.tier.most_stores = 0;
  s.t.tier.at_leave = Answer::kStore;
  s.t.tier.put(90);  // further up than eviction looks
  std::uint64_t n = 0;
  std::size_t asked = 0;
  for (; s.stats().evicted == 0; ++n) {
    asked = s.t.tier.leaving_blocks.size();
    s.save(n);
  }
  EXPECT_LE(s.t.tier.leaving_blocks.size() - asked, 66u);
  EXPECT_FALSE(s.resident(0));
  EXPECT_TRUE(s.resident(90));
}

TEST(CoreSpill, the_operator_takes_only_what_may_go) {
  Saver s;
  s.save(0, 200);
  s.t.tier.put(150);
  s.t.tier.at_leave = Answer::kStore;
  s.t.tier.most_stores = 100;
  EvictReport report = s.t->core->evict(kGiB, s.t->now);
  EXPECT_EQ(report.blocks, 1u) << "the one that the tier has";
  EXPECT_EQ(report.being_written, 100u);
  EXPECT_EQ(report.kept, 99u) << "the tier takes no more now";
  EXPECT_EQ(s.stats().blocks, 199u);
  s.t.all_stored();
  report = s.t->core->evict(kGiB, s.t->now);
  EXPECT_EQ(report.blocks, 100u);
  EXPECT_EQ(report.being_written, 99u);
  EXPECT_EQ(report.kept, 0u);
  s.t.all_stored();
  EXPECT_EQ(s.evict(10).blocks, 10u) << "no more than was asked for";
  EXPECT_EQ(s.t->core->evict(kGiB, s.t->now).blocks, 89u);
  EXPECT_EQ(s.t.tier.records.size(), 200u) << "all were written first";
  EXPECT_EQ(s.t->used(), ByteCount(0));
}

TEST(CoreSpill, the_operator_takes_what_nobody_wants) {
  Saver s;
  s.save(0, 200);
  const EvictReport report = s.t->core->evict(kGiB, s.t->now);
  EXPECT_EQ(report.blocks, 200u);
  EXPECT_EQ(report.kept + report.being_written, 0u);
}

TEST(CoreSpill, window_is_considered_before_memory_runs_out) {
  WorldOptions options;
  options.core.eviction_batch = ByteCount(1);
  Saver s(options);
  s.t.tier.at_leave = Answer::kStore;
  s.save(0, 100);
  EXPECT_EQ(s.t.tier.stores.size(), 64u) << "one turn";
  s.t.wait(milliseconds(1));
  EXPECT_EQ(s.t.tier.stores.size(), 100u);
  s.t.all_stored();
  const std::size_t asked = s.t.tier.leaving_blocks.size();
  EXPECT_EQ(s.evict(100).blocks, 100u);
  EXPECT_EQ(s.t.tier.leaving_blocks.size(), asked) << "eviction need not ask again";
  s.t.wait(milliseconds(1));
}

TEST(CoreSpill, window_waits_for_a_busy_tier) {
  WorldOptions options;
  Saver s(options);
  s.t.tier.at_leave = Answer::kStore;
  s.t.tier.most_stores = 5;
  s.save(0, 20);
  EXPECT_EQ(s.t.tier.stores.size(), 5u);
  s.t.stored(19);
  EXPECT_EQ(s.t.tier.stores.size(), 6u);
  s.t.tier.most_stores = 100;
  s.t.wait(milliseconds(1));
  EXPECT_EQ(s.t.tier.stores.size(), 20u);
}

TEST(CoreSpill, cursor_survives_unlink) {
  WorldOptions options;
  options.core.eviction_batch = ByteCount(1);
  Saver s(options);
  for (std::uint64_t n = 0; n < 30; ++n) {
    s.save(n);
    if (n >= 3 && n % 3 == 0) {  // two older ones become recent
      EXPECT_TRUE(s.t->core->release(s.e.scheduler, s.lease(n - 3, 2, "a")).ok());
    }
    if (n % 7 == 6) s.evict(1);
  }
  std::map<std::uint64_t, int> asked;
  for (const std::uint64_t n : s.t.tier.leaving_blocks) ++asked[n];
  for (std::uint64_t n = 0; n < 30; ++n) EXPECT_GE(asked[n], 1) << n;
  const std::uint64_t left = s.stats().blocks;
  s.t.wait(milliseconds(1));
  const std::size_t before = s.t.tier.leaving_blocks.size();
  s.t.wait(milliseconds(1));
  EXPECT_EQ(s.t.tier.leaving_blocks.size(), before) << "all are considered";
  EXPECT_EQ(s.evict(100).blocks, left);
}

TEST(CoreSpill, drop_while_storing) {
  Saver s;
  s.t.tier.at_seal = Answer::kStore;
  s.save(0, 2);
  const LeaseId lease = s.lease(0, 2);
  const OperationKey op = s.t->next_op(s.e.worker);
  ASSERT_TRUE(s.t->restore(op, s.e.registration, lease, {5, 6}).ok());
  const model::PlanEntry bad = s.t->ports.granted.at(op).entries[0];
  s.t->drain_failed(op, {0b01});
  ASSERT_EQ(s.t.tier.suspects.size(), 1u);
  EXPECT_EQ(s.t.tier.suspects[0].first, 0u);
  EXPECT_EQ(s.t.tier.suspects[0].second.digest, bad.digest);
  EXPECT_EQ(s.t.tier.suspects[0].second.revision, bad.revision);
  EXPECT_FALSE(s.resident(0));
  EXPECT_EQ(s.t->used(), 2 * slot_bytes()) << "the device still reads it";
  s.save(0);  // another image of the block, stored beside
  EXPECT_EQ(s.t.tier.count(false), 3u);
  s.t.all_stored();
  EXPECT_EQ(s.t->used(), 2 * slot_bytes());
  EXPECT_EQ(s.evict(10).blocks, 2u);
  EXPECT_EQ(s.t->used(), ByteCount(0));
}

TEST(CoreSpill, leaving_after_instance_end) {
  Saver s;
  s.save(0, 2);
  s.t->core->process_ended(s.e.worker, s.t->now);
  s.t->core->process_ended(s.e.scheduler, s.t->now);
  EXPECT_EQ(s.stats().instances, 0u);
  s.t.tier.at_leave = Answer::kStore;
  s.evict(2);
  EXPECT_EQ(s.t.tier.stores.size(), 2u) << "its space is open as long as images are there";
  s.t.all_stored();
  s.evict(2);
  EXPECT_TRUE(s.t.tier.open.empty());
  EXPECT_EQ(s.t->used(), ByteCount(0));
}

TEST(CoreSpill, namespace_index_recycled) {
  TierWorld t;
  for (int round = 0; round < 3; ++round) {
    RankOptions options;
    options.name_space = "model-" + std::to_string(round);
    Engine e(*t, options);
    t->store(e.worker, e.registration, hashes(0, 2));
    t->core->process_ended(e.worker, t->now);
    t->core->process_ended(e.scheduler, t->now);
    EXPECT_EQ(t.tier.open.size(), 1u);
    t->core->evict(kGiB, t->now);
    EXPECT_TRUE(t.tier.open.empty());
  }
  EXPECT_EQ(t.tier.closed.size(), 3u) << "the number is the same, the space is not";
}

TEST(CoreSpill, ranks_and_instances_share_a_space) {
  TierWorld t;
  const SessionId s0 = t->open(), s1 = t->open();
  t->join(s0, {.rank = 0, .world = 2, .shards = 2});
  const RegistrationId second = t->join(s1, {.rank = 1, .world = 2, .shards = 2});
  Engine other(*t, {.instance = 2});
  EXPECT_EQ(t.tier.open.size(), 2u) << "one a namespace (shapes count), not one a rank";
  ASSERT_TRUE(t->core->unregister(s1, second).ok());
  EXPECT_EQ(t.tier.open.size(), 2u);
}

TEST(CoreSpill, clean_up_counts) {
  Saver s;
  s.save(0, 6);
  s.t.tier.at_seal = Answer::kStore;
  s.save(6, 2);
  s.lease(0, 2);
  const EvictReport report = s.t->core->evict(kGiB, s.t->now);
  EXPECT_EQ(report.blocks, 4u);
  EXPECT_EQ(report.bytes, 4 * slot_bytes());
  EXPECT_EQ(report.referenced, 2u);
  EXPECT_EQ(report.being_written, 2u);
  EXPECT_EQ(s.t->pool->free_bytes(), s.t->pool->capacity() - 4 * slot_bytes());
}

// ---- publishes that meet loads ----

struct Meeting : Saver {
  OperationKey op;
  Meeting() {
    t.tier.put(0);
    EXPECT_TRUE(t->read(e.scheduler, hashes(0, 1), "r").loading);
    op = t->next_op(e.worker);
    const auto answer = t->publish(op, e.registration, hashes(0, 2));
    EXPECT_TRUE(answer.ok());
    EXPECT_EQ(answer->waiting, 1u);
    EXPECT_FALSE(t->ports.granted.contains(op));
  }
};

TEST(CoreSpill, publish_meets_load_ok) {
  Meeting m;
  m.t.loaded(0);
  ASSERT_TRUE(m.t->ports.granted.contains(m.op));
  EXPECT_EQ(m.t->ports.granted.at(m.op).entries.size(), 1u) << "the loaded one need not be saved";
  m.t->commit(m.op);
  EXPECT_TRUE(m.lease(0, 2, "s"));
}

TEST(CoreSpill, publish_meets_load_failed) {
  Meeting m;
  m.t.loaded(0, false);
  ASSERT_TRUE(m.t->ports.granted.contains(m.op));
  EXPECT_EQ(m.t->ports.granted.at(m.op).entries.size(), 2u) << "it is the writer now";
  EXPECT_EQ(m.t->read(m.e.scheduler, hashes(0, 1), "r").hit_blocks, 0u);
  m.t->commit(m.op);
  EXPECT_TRUE(m.lease(0, 2, "s"));
}

TEST(CoreSpill, publish_meets_load_given_up) {
  Meeting m;
  m.t.tier.most_loads = 0;
  m.t.tier.put(5);
  EXPECT_TRUE(m.t->read(m.e.scheduler, hashes(5, 1), "q").loading);
  const OperationKey op = m.t->next_op(m.e.worker);
  ASSERT_TRUE(m.t->publish(op, m.e.registration, hashes(5, 1)).ok());
  EXPECT_FALSE(m.t->ports.granted.contains(op));
  ASSERT_TRUE(m.t->core->cancel(m.e.scheduler, {instance_id(1), GroupId(0), "q"}).ok());
  m.t.wait(milliseconds(1));
  EXPECT_TRUE(m.t->ports.granted.contains(op));
}

TEST(CoreSpill, publish_does_not_wait_for_ever) {
  Meeting m;
  m.t.wait(seconds(2));
  ASSERT_TRUE(m.t->ports.granted.contains(m.op));
  EXPECT_EQ(m.t->ports.granted.at(m.op).entries.size(), 1u);
}

TEST(CoreSpill, load_meets_publish) {
  Saver s;
  const OperationKey op = s.t->next_op(s.e.worker);
  ASSERT_TRUE(s.t->publish(op, s.e.registration, hashes(0, 1)).ok());
  s.t.tier.put(0);
  s.t.tier.put(1);
  EXPECT_EQ(s.t->read(s.e.scheduler, hashes(0, 2), "r").hit_blocks, 0u) << "never loaded over";
  EXPECT_TRUE(s.t.tier.loads.empty());
  s.t->commit(op);
  EXPECT_EQ(s.t->read(s.e.scheduler, hashes(0, 2), "r").hit_blocks, 2u);
}

// ---- namespaces ----

TEST(CoreSpill, dropped_namespace_is_gone_and_what_was_on_its_way_does_not_arrive) {
  Saver s;
  s.save(0, 3);
  s.t.tier.put(8);
  EXPECT_TRUE(s.t->read(s.e.scheduler, hashes(8, 1), "l").loading);
  const LeaseId held = s.lease(0, 1);
  Engine other(*s.t, {.instance = 2, .name_space = "other"});
  s.t->store(other.worker, other.registration, hashes(0, 2));
  const auto digest = model::namespace_digest(rank_of({}));
  s.t.tier.records.clear();  // the tier is told first, by others
  const auto dropped = s.t->drop({{&digest, 1}, {}});
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0].blocks, 3u);
  EXPECT_FALSE(s.resident(0));
  EXPECT_EQ(code_of(s.t->restore(s.t->next_op(s.e.worker), s.e.registration, held, {1})), Code::kRecompute);
  s.t.loaded(8);  // whatever the device says
  EXPECT_FALSE(s.resident(8));
  EXPECT_EQ(s.t->read(s.e.scheduler, hashes(8, 1), "l").hit_blocks, 0u);
  EXPECT_EQ(s.stats().blocks, 2u) << "of the other one";
  const model::NamespaceDigest unknown{};
  EXPECT_TRUE(s.t->drop({{&unknown, 1}, {}}).empty());
}

TEST(CoreSpill, what_is_being_dropped_is_not_written_again) {
  Saver s;
  s.t.tier.at_seal = s.t.tier.at_leave = Answer::kStore;
  s.t.tier.most_stores = 0;
  s.save(0, 3);
  s.t.tier.most_stores = 100;
  Engine other(*s.t, {.instance = 2, .name_space = "other"});
  const auto digest = model::namespace_digest(rank_of({}));
  const DropId drop = s.t->core->begin_drop({{&digest, 1}, {}}, DropRun::kDrop, s.t->now);
  s.evict(2);
  s.save(10);
  EXPECT_TRUE(s.t.tier.stores.empty());
  s.t->store(other.worker, other.registration, hashes(0, 1));
  EXPECT_EQ(s.t.tier.stores.size(), 1u) << "of the other one";
  while (s.t->core->turn(s.t->now)) continue;
  EXPECT_EQ(s.t->core->take_dropped(drop)->at(0).blocks, 2u) << "what took an old one's place goes with them";
  s.save(20);
  EXPECT_EQ(s.t.tier.stores.size(), 2u);
}

}  // namespace
}  // namespace orbitkv::cache
