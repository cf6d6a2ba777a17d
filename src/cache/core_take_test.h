// A list that is looked up over turns, and a recovery of the same pages.
#pragma once

#include <algorithm>
#include <string>

#include "cache/core_tier_test.h"

namespace orbitkv::cache::testing {

inline constexpr std::uint32_t kTurn = 4, kBlocks = 18;

// A list of which the first block is stored and the others are in memory, so that what is known of it
// is kept until its last part. Its recovery is of the same pages.
struct LongList {
  TierWorld t;
  Engine e;
  Revision revision;
  static WorldOptions options(std::uint64_t budget) {
    WorldOptions o;
    o.core.turn_hashes = kTurn;
    o.core.query_budget = o.core.query_instance_budget = budget * slot_bytes();
    return o;
  }
  explicit LongList(std::uint64_t budget = 1000) : t(options(budget)), e(*t) {
    t->store(e.worker, e.registration, hashes(1, kBlocks - 1));
    t.tier.put(0);
  }
  QueryAnswer read(std::string_view id = "r", std::uint64_t from = 0) {
    const auto list = hashes(from, kBlocks);
    QueryAnswer answer;
    for (std::uint32_t first = 0; first < kBlocks; first += 3) {
      QueryPart part = t->part(list, id);
      part.first = first;
      part.hashes = part.hashes.subspan(first, 3);
      auto asked = t->core->query(e.scheduler, part, t->now);
      EXPECT_TRUE(asked.ok()) << asked.error().to_string();
      if (asked.ok()) answer = *asked;
    }
    revision = answer.revision;
    return answer;
  }
  TicketAnswer recover(std::string_view id = "r") {
    const auto list = hashes(0, kBlocks);
    auto asked = t->core->read_recovery(e.scheduler,
                                        {instance_id(1), id, {0, kBlocks * 16}, 0, kBlocks, list}, t->now);
    EXPECT_TRUE(asked.ok()) << asked.error().to_string();
    revision = asked->revision;
    return *asked;
  }
  TicketName name(TicketKind kind = TicketKind::kPrefix) const { return {instance_id(1), {}, "r", kind}; }
  TicketAnswer poll(TicketKind kind = TicketKind::kPrefix) {
    auto answer = t->core->poll(e.scheduler, name(kind), revision, t->now);
    EXPECT_TRUE(answer.ok()) << answer.error().to_string();
    return *answer;
  }
  // It fails verification: from now on it is not there.
  void lose(std::uint64_t block) {
    lose(t->read(e.scheduler, hashes(block, 1), "lose " + std::to_string(block)).lease);
  }
  void lose(LeaseId lease_of_one) {
    const OperationKey op = t->next_op(e.worker);
    ASSERT_TRUE(t->restore(op, e.registration, lease_of_one, blocks(0, 1)).ok());
    t->drain_failed(op, {1});
  }
  template <class State>
  std::uint32_t in(State state) {
    const Census census = t->core->census();
    EXPECT_EQ(census.pins, census.pinned);
    EXPECT_EQ(census.charged, t.stats().budgets.used);
    const auto i = static_cast<std::size_t>(state);
    if constexpr (std::is_same_v<State, LeaseState>) return census.leases[i];
    if constexpr (std::is_same_v<State, RecoveryState>) return census.recoveries[i];
  }
  // Each looks at a bounded part of the list, and the line at its next one. Returns how many were needed
  // until `over`.
  template <class Over>
  int turns(Over over) {
    int count = 0;
    for (; !over() && count < 100; ++count) {
      const std::uint64_t before = t.stats().looked_up;
      t->core->turn(t->now);
      EXPECT_LE(t.stats().looked_up - before, t.stats().recovery_waits > 0 ? 2 * kTurn : kTurn);
    }
    EXPECT_TRUE(over());
    return count;
  }
  void holds_nothing() {
    while (t->core->turn(t->now)) continue;
    EXPECT_EQ(t->core->census().pins, 0u);
    EXPECT_EQ(t->core->census().pinned, 0u);
    EXPECT_EQ(t.stats().budgets.used, ByteCount());
    EXPECT_EQ(t.stats().tickets, 0u);
    EXPECT_EQ(t.stats().loading, 0u);
  }
};

}  // namespace orbitkv::cache::testing
