// Queries whose blocks come from the tier, through the whole core.
#include "cache/core_tier_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

// Blocks 0..3 are resident, 4..7 stored; 8 and 9 are nowhere.
struct Mixed {
  TierWorld t;
  Engine e;
  explicit Mixed(const WorldOptions& options = {}) : t(options), e(*t) {
    t->store(e.worker, e.registration, hashes(0, 4));
    for (std::uint64_t n = 4; n < 8; ++n) t.tier.put(n);
  }
  QueryAnswer read(std::uint64_t first, std::uint64_t count, std::string_view id = "r") {
    return t->read(e.scheduler, hashes(first, count), id);
  }
  QueryAnswer ask(const std::vector<BlockHash>& list, std::uint32_t first, std::uint32_t count,
                  std::string_view id = "r") {
    const QueryPart part{instance_id(1),
                         GroupId(0),
                         QueryMode::kRead,
                         id,
                         first,
                         static_cast<std::uint32_t>(list.size()),
                         std::span(list).subspan(first, count)};
    auto answer = t->core->query(e.scheduler, part, t->now);
    EXPECT_TRUE(answer.ok()) << answer.error().to_string();
    return answer.ok() ? *answer : QueryAnswer{};
  }
  bool waits(std::string_view id = "r") { return read(0, 10, id).loading; }
  CoreStats stats() { return t.stats(); }
  void cancel(std::string_view id) {
    EXPECT_TRUE(t->core->cancel(e.scheduler, {instance_id(1), GroupId(0), id}).ok());
  }
};

TEST(CoreLoad, stored_blocks_are_awaited_and_leased) {
  Mixed m;
  const QueryAnswer a = m.read(0, 10);
  EXPECT_TRUE(a.loading);
  EXPECT_FALSE(a.lease);
  EXPECT_EQ(a.hit_blocks, 8u);
  EXPECT_EQ(a.resident, std::vector<std::uint64_t>{0b1111});
  EXPECT_EQ(a.stored, std::vector<std::uint64_t>{0b11110000});
  EXPECT_EQ(m.stats().loading, 4u);
  EXPECT_EQ(m.stats().leased, 4 * slot_bytes()) << "what is on its way counts when it is there";
  for (const std::uint64_t n : {6, 4, 7}) m.t.loaded(n);
  EXPECT_TRUE(m.waits());
  m.t.loaded(5);
  const QueryAnswer b = m.read(0, 10);
  EXPECT_FALSE(b.loading);
  EXPECT_EQ(b.hit_blocks, 8u);
  EXPECT_EQ(b.revision, a.revision);
  ASSERT_TRUE(b.lease);
  EXPECT_EQ(m.stats().leased, 8 * slot_bytes());
  EXPECT_EQ(m.stats().loaded, 4u);
  EXPECT_EQ(m.stats().loaded_bytes, 4 * slot_bytes().value);
  const OperationKey op = m.t->next_op(m.e.worker);
  ASSERT_TRUE(m.t->restore(op, m.e.registration, b.lease, blocks(0, 8)).ok());
  const model::Plan& plan = m.t->ports.granted.at(op);
  for (std::uint64_t n = 4; n < 8; ++n) {
    const LoadedSlot& mark = m.t.tier.records.at({1, n}).marks[0];
    EXPECT_EQ(plan.entries[n].digest, mark.digest);
    EXPECT_EQ(plan.entries[n].revision, mark.revision) << "of the save, not of where it lies";
  }
  m.t->verified(op);
  EXPECT_EQ(m.stats().leased, ByteCount(0));
}

TEST(CoreLoad, poll_same_list_no_reload) {
  Mixed m;
  m.read(0, 10);
  const std::uint64_t finds = m.t.tier.finds;
  const CoreStats before = m.stats();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(m.waits());
  EXPECT_EQ(m.t.tier.loads.size(), 4u);
  EXPECT_EQ(m.t.tier.finds, finds) << "a poll leaves the tier alone";
  EXPECT_EQ(m.t.tier.told.size(), 1u) << "and tells its admission nothing";
  EXPECT_EQ(m.stats().hits, before.hits);
  EXPECT_EQ(m.stats().misses, before.misses);
}

TEST(CoreLoad, the_tier_is_told_once_and_in_full) {
  Mixed m;
  m.read(0, 10);
  ASSERT_EQ(m.t.tier.told.size(), 1u);
  const ScriptedTier::Told& told = m.t.tier.told[0];
  EXPECT_EQ(told.blocks.size(), 10u);
  EXPECT_EQ(told.length, 10u);
  EXPECT_EQ(told.resident, std::vector<std::uint64_t>{0b1111});
  EXPECT_EQ(told.stored, std::vector<std::uint64_t>{0b11110000});
}

TEST(CoreLoad, a_hit_in_memory_does_not_ask_the_tier) {
  Mixed m;
  const QueryAnswer a = m.read(0, 4);
  EXPECT_TRUE(a.lease);
  EXPECT_EQ(m.t.tier.finds, 0u);
  EXPECT_TRUE(a.stored.empty());
}

TEST(CoreLoad, discovery_tells_what_is_stored_and_loads_nothing) {
  Mixed m;
  const auto list = hashes(0, 10);
  const auto a = m.t->core->query(m.e.scheduler, m.t->part(list, "", QueryMode::kDiscover), m.t->now);
  ASSERT_TRUE(a.ok());
  EXPECT_EQ(a->hit_blocks, 8u);
  EXPECT_EQ(a->stored, std::vector<std::uint64_t>{0b11110000});
  EXPECT_TRUE(m.t.tier.loads.empty());
  EXPECT_TRUE(m.t.tier.told.empty());
}

TEST(CoreLoad, one_load_for_many_queries) {
  Mixed m;
  Engine other(*m.t, {.instance = 2});
  m.read(0, 8, "a");
  m.read(0, 6, "b");
  EXPECT_TRUE(m.t->read(other.scheduler, hashes(0, 8), "a", 2).loading);
  EXPECT_EQ(m.t.tier.loads.size(), 4u);
  EXPECT_EQ(m.stats().shared_loads, 6u);
  m.t.loaded(4);
  m.t.loaded(5);
  EXPECT_FALSE(m.read(0, 6, "b").loading);
  EXPECT_TRUE(m.read(0, 8, "a").loading);
  m.t.loaded(6);
  m.t.loaded(7);
  EXPECT_TRUE(m.read(0, 8, "a").lease);
  EXPECT_TRUE(m.t->read(other.scheduler, hashes(0, 8), "a", 2).lease);
}

TEST(CoreLoad, cancel_while_loading_keeps_extents) {
  Mixed m;
  m.t.tier.most_loads = 2;
  m.read(0, 8);
  ASSERT_EQ(m.t.tier.count(true), 2u);
  m.cancel("r");
  EXPECT_EQ(m.stats().loading, 2u) << "those that the device writes";
  EXPECT_EQ(m.stats().loads_given_up, 2u);
  EXPECT_EQ(m.t->used(), 6 * slot_bytes());
  m.t->core->evict(kGiB, m.t->now);
  EXPECT_EQ(m.t->used(), 2 * slot_bytes()) << "eviction leaves them alone";
  m.t.loaded(4);
  EXPECT_EQ(m.stats().blocks, 1u) << "it has come, so it stays";
  m.t.loaded(5, false);
  EXPECT_EQ(m.t->used(), slot_bytes());
}

TEST(CoreLoad, failed_load_keeps_record_until_unpin) {
  Mixed m;
  m.t.tier.most_loads = 1;
  m.t.tier.put(20);
  m.read(4, 4, "a");
  m.t.loaded(4);
  m.t.loaded(5, false);  // cuts "a" to one block; its later loads go back
  EXPECT_EQ(m.read(4, 4, "a").hit_blocks, 1u);
  EXPECT_EQ(m.stats().loading, 0u);
  EXPECT_EQ(m.t->used(), 5 * slot_bytes());
  EXPECT_EQ(m.stats().leased, slot_bytes());
}

TEST(CoreLoad, prefix_shortens_on_failure) {
  Mixed m;
  const CoreStats before = m.stats();
  m.read(0, 8);
  m.t.loaded(6, false);
  EXPECT_TRUE(m.read(0, 8).loading) << "4 and 5 are still on their way";
  m.t.loaded(4);
  m.t.loaded(5);
  const QueryAnswer a = m.read(0, 8);
  EXPECT_EQ(a.hit_blocks, 6u);
  EXPECT_TRUE(a.lease);
  EXPECT_EQ(m.stats().hits - before.hits, 6u);
  EXPECT_EQ(m.stats().misses - before.misses, 2u);
  EXPECT_EQ(m.stats().load_failures, 1u);
  m.t.loaded(7);
  EXPECT_EQ(m.stats().blocks, 7u) << "nobody waits for 7 and it is there all the same";
}

TEST(CoreLoad, nothing_lands_is_a_miss) {
  Mixed m;
  EXPECT_TRUE(m.read(4, 2).loading);
  m.t.all_loaded(false);
  m.t.tier.records.clear();
  const QueryAnswer a = m.read(4, 2);
  EXPECT_FALSE(a.loading);
  EXPECT_EQ(a.hit_blocks, 0u);
  EXPECT_FALSE(a.lease);
  EXPECT_EQ(m.t->used(), 4 * slot_bytes());
}

TEST(CoreLoad, new_list_while_loading) {
  Mixed m;
  m.t.tier.most_loads = 1;
  m.read(0, 8);
  auto list = hashes(0, 6);
  list[5] = hash_of(77);
  const QueryAnswer a = m.t->read(m.e.scheduler, list, "r");
  EXPECT_EQ(a.hit_blocks, 5u);
  EXPECT_TRUE(a.loading);
  EXPECT_EQ(m.stats().loading, 1u) << "5, 6 and 7 had not been submitted";
  m.t.loaded(4);
  EXPECT_TRUE(m.t->read(m.e.scheduler, list, "r").lease);
  EXPECT_EQ(m.t.tier.loads.size(), 1u);
}

TEST(CoreLoad, new_list_gives_up_what_it_asks_for_again) {
  Mixed m;
  m.t.tier.most_loads = 0;
  m.read(4, 4);
  auto list = hashes(4, 4);
  std::swap(list[0], list[3]);
  EXPECT_TRUE(m.t->read(m.e.scheduler, list, "r").loading);
  m.t.tier.most_loads = 4;
  m.t->core->tier_ready(m.t->now);
  m.t.all_loaded();
  EXPECT_EQ(m.t->read(m.e.scheduler, list, "r").hit_blocks, 4u);
  EXPECT_EQ(m.t.tier.loads.size(), 4u);
}

TEST(CoreLoad, multi_part_list) {
  Mixed m;
  const auto list = hashes(0, 10);
  EXPECT_EQ(m.ask(list, 0, 5).hit_blocks, 5u);
  EXPECT_EQ(m.ask(list, 5, 2).hit_blocks, 7u);
  EXPECT_TRUE(m.t.tier.loads.empty()) << "nothing is read before the last part";
  const QueryAnswer a = m.ask(list, 7, 3);
  EXPECT_EQ(m.t.tier.loads.size(), 4u);
  EXPECT_EQ(a.hit_blocks, 8u);
  EXPECT_TRUE(a.loading);
  EXPECT_FALSE(m.ask(list, 0, 5).loading) << "said with the last part";
  m.t.all_loaded();
  EXPECT_EQ(m.ask(list, 5, 5).hit_blocks, 8u);
  EXPECT_TRUE(m.read(0, 10).lease);
  EXPECT_EQ(m.t.tier.told.size(), 3u);
  EXPECT_EQ(m.t.tier.told[2].position, 7u);
}

TEST(CoreLoad, multi_part_list_that_ends_empty_while_it_is_asked_again) {
  Mixed m;
  const auto list = hashes(4, 4);
  m.ask(list, 0, 2);
  EXPECT_TRUE(m.ask(list, 2, 2).loading);
  EXPECT_EQ(m.ask(list, 0, 2).hit_blocks, 2u);
  m.t.loaded(4, false);
  m.t.all_loaded();
  const QueryAnswer a = m.ask(list, 2, 2);
  EXPECT_EQ(a.hit_blocks, 0u);
  EXPECT_FALSE(a.loading);
  EXPECT_FALSE(a.lease);
  EXPECT_EQ(m.stats().leased, ByteCount(0));
}

TEST(CoreLoad, a_block_named_twice_waits_once) {
  Mixed m;
  for (const bool ok : {true, false}) {
    for (std::uint64_t n = 4; n < 6; ++n) m.t.tier.put(n);
    const std::vector<BlockHash> list{hash_of(4), hash_of(5), hash_of(4)};
    EXPECT_TRUE(m.t->read(m.e.scheduler, list, "r").loading);
    ASSERT_EQ(m.t.tier.count(true), 2u);
    m.t.loaded(5);
    m.t.loaded(4, ok);
    const QueryAnswer a = m.t->read(m.e.scheduler, list, "r");
    EXPECT_EQ(a.lease.operator bool(), ok);
    m.t.all_loaded();
    m.cancel("r");
    m.t->core->evict(kGiB, m.t->now);
    EXPECT_EQ(m.stats().blocks, 0u);
  }
}

TEST(CoreLoad, deadline_prefix_from_landed) {
  WorldOptions options;
  options.core.load_wait = seconds(5);
  Mixed m(options);
  m.read(0, 8);
  m.t.loaded(4);
  m.t.loaded(6);
  m.t.wait(seconds(4));
  EXPECT_TRUE(m.read(0, 8).loading) << "asking again does not begin a new wait";
  m.t.wait(seconds(1));
  const QueryAnswer a = m.read(0, 8);
  EXPECT_EQ(a.hit_blocks, 5u);
  EXPECT_TRUE(a.lease);
  EXPECT_EQ(m.stats().load_timeouts, 1u);
  EXPECT_EQ(m.stats().leased, 5 * slot_bytes());
  EXPECT_EQ(m.stats().loading, 2u) << "reads drain";
  m.t.all_loaded();
  EXPECT_EQ(m.stats().blocks, 8u);
}

TEST(CoreLoad, deadline_with_nothing_landed) {
  Mixed m;
  m.read(4, 4);
  m.t.wait(seconds(5));
  EXPECT_EQ(m.stats().load_timeouts, 1u);
  EXPECT_EQ(m.stats().leased, ByteCount(0));
  EXPECT_EQ(m.stats().loading, 4u) << "reads drain";
  m.t.all_loaded();
  EXPECT_EQ(m.stats().blocks, 8u);
  EXPECT_FALSE(m.read(4, 4).lease) << "the result of the wait";
  const QueryAnswer a = m.read(4, 4);
  EXPECT_TRUE(a.lease) << "a new query, and by now they are there";
}

TEST(CoreLoad, busy_load_retried_and_gone_shortens) {
  Mixed m;
  m.t.tier.most_loads = 1;
  m.t.tier.gone = {6};
  EXPECT_EQ(m.read(0, 8).hit_blocks, 8u);
  EXPECT_EQ(m.t.tier.loads.size(), 1u);
  m.t.loaded(4);
  EXPECT_EQ(m.t.tier.loads.size(), 2u) << "the end of one makes room";
  m.t.tier.most_loads = 0;
  m.t.loaded(5);
  EXPECT_TRUE(m.waits());
  EXPECT_GT(m.t.tier.busy_loads, 0u);
  m.t.tier.most_loads = 4;
  m.t->core->tier_ready(m.t->now);  // tells of 6, which is gone
  EXPECT_EQ(m.stats().loads_gone, 1u);
  const QueryAnswer a = m.read(0, 8);
  EXPECT_EQ(a.hit_blocks, 6u);
  EXPECT_TRUE(a.lease);
}

TEST(CoreLoad, gone_at_once_answers_what_is_left) {
  Mixed m;
  m.t.tier.gone = {4};
  const QueryAnswer a = m.read(0, 8);
  EXPECT_EQ(a.hit_blocks, 4u);
  EXPECT_TRUE(a.lease);
  m.t.tier.gone = {5, 6};
  const QueryAnswer b = m.read(5, 1, "b");
  EXPECT_EQ(b.hit_blocks, 0u);
  EXPECT_FALSE(b.lease);
  EXPECT_FALSE(b.loading);
  EXPECT_EQ(m.stats().loading, 0u);
}

TEST(CoreLoad, fair_between_queries) {
  TierWorld t;
  Engine e(*t);
  for (std::uint64_t n = 0; n < 40; ++n) t.tier.put(n);
  t.tier.most_loads = 1;
  for (const auto& [first, id] : {std::pair(0, "a"), std::pair(10, "b"), std::pair(20, "c")}) {
    t->read(e.scheduler, hashes(static_cast<std::uint64_t>(first), 10), id);
  }
  std::vector<std::uint64_t> order;
  while (const auto id = t.tier.oldest(true)) {
    order.push_back(t.tier.under_way.at(*id).name.second);
    t.tier.end(*id, true);
    t->core->loaded(*id, true, t->now);
  }
  ASSERT_EQ(order.size(), 30u);
  std::map<std::uint64_t, int> by_query;
  for (std::size_t i = 0; i < 15; ++i) ++by_query[order[i] / 10];
  for (std::uint64_t q = 0; q < 3; ++q) EXPECT_NEAR(by_query[q], 5, 1) << "query " << q;
  for (std::uint64_t q = 0; q < 3; ++q) {
    std::uint64_t last = 0;
    for (const std::uint64_t n : order) {
      if (n / 10 != q) continue;
      EXPECT_GE(n, last) << "in the order of the prefix";
      last = n;
    }
  }
}

// ---- memory ----

TEST(CoreLoad, pool_full_of_loads_shortens) {
  WorldOptions options;
  options.pool = ByteCount(slot_bytes().value * 20 / 4096 * 4096);
  TierWorld t(options);
  Engine e(*t);
  for (std::uint64_t n = 0; n < 40; ++n) t.tier.put(n);
  const QueryAnswer a = t->read(e.scheduler, hashes(0, 40), "a");
  EXPECT_TRUE(a.loading);
  EXPECT_GT(a.hit_blocks, 5u);
  EXPECT_LE(a.hit_blocks, 10u) << "half of the pool at most";
  EXPECT_EQ(t.stats().loads_refused_bounds, 1u);
  const QueryAnswer b = t->read(e.scheduler, hashes(20, 10), "b");
  EXPECT_EQ(b.hit_blocks, 0u);
  t.all_loaded();
  EXPECT_EQ(t->read(e.scheduler, hashes(0, 40), "a").hit_blocks, a.hit_blocks);
}

TEST(CoreLoad, lend_does_not_evict_own_run) {
  WorldOptions options;
  options.pool = ByteCount(slot_bytes().value * 12 / 4096 * 4096);
  options.core.eviction_batch = ByteCount(1);
  TierWorld t(options);
  Engine e(*t);
  t->store(e.worker, e.registration, hashes(0, 10));
  // The run's own resident blocks are the least recent ones.
  std::vector<BlockHash> list;
  for (std::uint64_t n = 0; n < 4; ++n) {
    list.push_back(hash_of(9 - n));
    list.push_back(hash_of(100 + n));
    t.tier.put(100 + n);
  }
  const QueryAnswer a = t->read(e.scheduler, list, "r");
  EXPECT_EQ(a.hit_blocks, 8u);
  t.all_loaded();
  EXPECT_TRUE(t->read(e.scheduler, list, "r").lease);
  EXPECT_EQ(t.stats().leased, 8 * slot_bytes());
}

TEST(CoreLoad, pinned_pool_refuses_loads) {
  WorldOptions options;
  options.pool = ByteCount(slot_bytes().value * 8 / 4096 * 4096);
  TierWorld t(options);
  Engine e(*t);
  t->store(e.worker, e.registration, hashes(0, 8));
  const std::uint32_t held = t->read(e.scheduler, hashes(0, 8), "all").hit_blocks;
  ASSERT_GT(held, 4u);
  t.tier.put(100);
  EXPECT_EQ(t->read(e.scheduler, {hash_of(100)}, "r").hit_blocks, 0u);
  EXPECT_EQ(t.stats().loads_refused_memory, 1u);
}

// ---- ends ----

TEST(CoreLoad, session_close_and_process_end_while_loading) {
  Mixed m;
  m.t.tier.most_loads = 2;
  m.read(0, 8);
  m.t->core->close_session(m.e.scheduler, m.t->now);
  EXPECT_TRUE(m.t->core->session_gone(m.e.scheduler));
  EXPECT_EQ(m.stats().loading, 2u);
  Engine other(*m.t, {.instance = 2});
  EXPECT_TRUE(m.t->read(other.scheduler, hashes(4, 4), "r", 2).loading);
  m.t->core->process_ended(other.scheduler, m.t->now);
  m.t->core->process_ended(other.worker, m.t->now);
  m.t->core->process_ended(m.e.worker, m.t->now);
  EXPECT_EQ(m.stats().leased, ByteCount(0));
  m.t.all_loaded();
  EXPECT_EQ(m.stats().blocks, 6u);
  m.t->core->evict(kGiB, m.t->now);
  EXPECT_EQ(m.t->used(), ByteCount(0));
}

TEST(CoreLoad, core_destroyed_with_transfers) {
  WorldOptions options;
  options.pool = 256 * kMiB;  // nothing is considered before eviction asks
  Mixed m(options);
  m.t.tier.at_leave = Tier::Answer::kStore;
  m.t.tier.most_loads = 2;
  m.read(4, 4);
  m.t->core->evict(ByteCount(1), m.t->now);
  ASSERT_GT(m.t.tier.count(false), 0u);
  const std::uint64_t held = m.t.tier.count(true) + m.t.tier.count(false);
  m.t.tier.under_way.clear();
  m.t->core.reset();
  EXPECT_EQ(m.t->pool->stats().quarantined, held * slot_bytes()) << "what the device may still use";
  EXPECT_EQ(m.t->used(), held * slot_bytes());
  EXPECT_TRUE(m.t.tier.open.empty()) << "every space was closed";
}

TEST(CoreLoad, an_unknown_transfer_is_ignored) {
  Mixed m;
  m.t->core->loaded(TransferId(99), true, m.t->now);
  m.t->core->stored(TransferId(99), true, m.t->now);
  EXPECT_EQ(m.stats().blocks, 4u);
}

TEST(CoreLoad, revision_survives_promotion_all_shards) {
  TierWorld t;
  const RankOptions r0{.rank = 0, .world = 3, .shards = 3}, r1{.rank = 1, .world = 3, .shards = 3},
      r2{.rank = 2, .world = 3, .shards = 3};
  const SessionId scheduler = t->open(), s0 = t->open(), s1 = t->open(), s2 = t->open();
  const RegistrationId ranks[] = {t->join(s0, r0), t->join(s1, r1), t->join(s2, r2)};
  const SessionId workers[] = {s0, s1, s2};
  t.tier.at_seal = Tier::Answer::kStore;
  std::vector<AllocationId> saved;
  for (int r = 0; r < 3; ++r) {
    const OperationKey op = t->next_op(workers[r]);
    ASSERT_TRUE(t->publish(op, ranks[r], hashes(0, 1)).ok());
    saved.push_back(t->ports.granted.at(op).entries[0].revision);
    t->commit(op);
  }
  t.all_stored();
  t->core->evict(kGiB, t->now);
  EXPECT_EQ(t->used(), ByteCount(0));
  EXPECT_TRUE(t->read(scheduler, hashes(0, 1), "r").loading);
  t.all_loaded();
  const LeaseId lease = t->read(scheduler, hashes(0, 1), "r").lease;
  ASSERT_TRUE(lease);
  for (std::size_t r = 0; r < 3; ++r) {
    const OperationKey op = t->next_op(workers[r]);
    ASSERT_TRUE(t->restore(op, ranks[r], lease, {7}).ok());
    const model::PlanEntry& entry = t->ports.granted.at(op).entries[0];
    EXPECT_EQ(entry.revision, saved[r]);
    EXPECT_EQ(entry.digest, saved[r].value * 1000003);
    t->verified(op);
  }
}

}  // namespace
}  // namespace orbitkv::cache
