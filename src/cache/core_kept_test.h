// The next life of a core, for tests: what a scan of its kept memory finds at this moment,
// and a pool and a core that are made of it. Both leave the living ones as they are.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cache/core_world_test.h"
#include "mem/kept_scan.h"
#include "mem/kept_table.h"

namespace orbitkv::cache::testing {

inline std::vector<mem::KeptMemory> memories_of(const World& w) {
  std::vector<mem::KeptMemory> out;
  for (const mem::SlabInfo& slab : w.pool->slabs())
    if (w.pool->slab_memory(slab.slot).valid())
      out.push_back({slab.id, UniqueFd(::fcntl(w.pool->slab_fd(slab.slot), F_DUPFD_CLOEXEC, 0))});
  return out;
}

inline mem::KeptPool scan(const World& w) {
  auto memories = memories_of(w);
  auto found = mem::scan_kept(*w.kept, memories, 64);
  EXPECT_TRUE(found.ok()) << found.error().to_string();
  return found.ok() ? std::move(found).value() : mem::KeptPool{};
}

inline bool is_lent(const mem::KeptPool& next, std::uint64_t offset, const OperationKey& op) {
  return std::any_of(next.lent.begin(), next.lent.end(), [&](const mem::KeptPool::Lent& each) {
    return each.lent.place.offset == offset && each.lent.writer.operation == op.operation &&
           each.lent.writer.record == op.record;
  });
}

// Every image has the bytes, the revision and the digest that `memory`, by offset, remembers.
template <class Memory>
void expect_contents(const mem::KeptPool& next, const Memory& memory) {
  for (const mem::KeptSlot& each : next.images) {
    ASSERT_TRUE(memory.contains(each.slot.place.offset));
    const auto& content = memory.at(each.slot.place.offset);
    EXPECT_EQ(hash_of(content.block).bytes, each.slot.hash) << "the bytes of another block";
    EXPECT_EQ(content.shard, each.slot.shard.value);
    EXPECT_EQ(content.allocation, each.slot.revision);
    EXPECT_EQ(content.digest, each.slot.digest);
  }
}
inline void expect_lent(const mem::KeptPool& next, const ScriptedPorts& ports) {
  for (const auto& [op, plan] : ports.granted) {
    if (plan.kind != model::PlanKind::kSave) continue;
    for (const model::PlanEntry& e : plan.entries)
      EXPECT_TRUE(is_lent(next, e.offset, op)) << "a copy may be under way that nobody would know of";
  }
}

// The table as it stands, for one who goes on with it while its writer does.
inline mem::KeptTable copy_of(const mem::KeptTable& table) {
  struct stat status{};
  EXPECT_EQ(::fstat(table.memory().get(), &status), 0);
  UniqueFd fd(::memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  std::vector<std::byte> bytes(static_cast<std::size_t>(status.st_size));
  EXPECT_EQ(::pread(table.memory().get(), bytes.data(), bytes.size(), 0), status.st_size);
  EXPECT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), 0), status.st_size);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL), 0);
  return mem::KeptTable::open(std::move(fd)).value();
}

// Blocks of the list that are in memory.
inline std::uint32_t resident(World& w, SessionId scheduler, const std::vector<BlockHash>& list) {
  const auto answer = w.core->query(scheduler, w.part(list, "", QueryMode::kDiscover), w.now);
  EXPECT_TRUE(answer.ok()) << answer.error().to_string();
  std::uint32_t n = 0;
  for (std::size_t i = 0; answer.ok() && i < list.size(); ++i)
    n += answer->resident[i / 64] >> (i % 64) & 1 ? 1 : 0;
  return n;
}

class NextLife {
 public:
  explicit NextLife(World& w, std::uint16_t shards = 1, std::span<const mem::KeptRead> reads = {},
                    Tier* tier = nullptr) {
    auto memories = memories_of(w);
    const mem::KeptTable table = copy_of(*w.kept);
    auto found = mem::scan_kept(table, memories, 64);
    EXPECT_TRUE(found.ok()) << found.error().to_string();
    kept = std::move(found).value();
    mem::PoolConfig config;
    config.bytes = w.pool->capacity();
    config.prefault = false;
    config.numa = false;
    config.kept = &kept;
    world.pool = std::move(mem::Pool::create(config)).value();
    world.pool->collect_offered();
    CoreConfig core;
    core.max_blocks = table.shape().first;
    world.kept.emplace(mem::KeptTable::create(table.shape()).value());
    world.pool->keep_in(*world.kept);
    for (const mem::SlabInfo& slab : world.pool->slabs())
      world.kept->put_slab(slab.slot, {slab.id, slab.bytes, {}, kAnyNode, mem::KeptSlabState::kLive});
    core.kept = &*world.kept;
    world.core = std::make_unique<Core>(core, *world.pool, world.ports, tier);
    for (const mem::KeptPool::Lent& each : kept.lent)
      lent.push_back(world.pool->adopt(each.slab, each.lent.place.offset, each.lent.place.bytes));
    blocks = world.core->adopt(kept, world.now, reads);
    world.kept->set_complete();
    scheduler = world.open();
    for (std::uint16_t r = 0; r < shards; ++r)
      world.join(world.open(), {.rank = r, .world = shards, .shards = shards});
  }
  ~NextLife() {
    world.core.reset();
    for (mem::Extent& extent : lent) world.pool->release(std::move(extent));
    // All that was lent has come back, but for what must not.
    EXPECT_EQ(world.pool->stats().used, world.pool->stats().quarantined);
  }
  std::uint32_t resident(const std::vector<BlockHash>& list) {
    return testing::resident(world, scheduler, list);
  }

  mem::KeptPool kept;
  World world;
  std::vector<mem::Extent> lent;
  std::uint64_t blocks = 0;
  SessionId scheduler;
};

// Were this the Manager's last moment: what the next life would find. Memory: what lies where, by
// offset; the tier: what it has under way.
struct Moment {
  std::uint16_t shards = 1;
  bool quarantined = false;
};
template <class Memory, class TierOfTest>
void expect_kept(World& w, const Moment& moment, const Memory& memory, const TierOfTest& tier) {
  const mem::KeptPool next = scan(w);
  EXPECT_EQ(next.images.size(), w.core->stats().blocks * moment.shards);
  EXPECT_EQ(next.counts.wrong + next.counts.overlapping + next.counts.misplaced, 0u);
  expect_contents(next, memory);
  expect_lent(next, w.ports);
  for (const auto& [id, t] : tier.under_way) {
    if (!t.load) continue;
    for (const auto& words : t.extents) EXPECT_TRUE(is_lent(next, words.offset, {}));
  }
  if (moment.quarantined) {
    EXPECT_TRUE(next.slabs.at(0).tainted);
  }
}
inline void expect_next_life(World& w, SessionId scheduler, std::uint16_t shards,
                             std::uint64_t chain_blocks) {
  NextLife next(w, shards);
  for (std::uint64_t chain = 0; chain < 6; ++chain) {
    for (std::uint64_t i = 0; i < chain_blocks; ++i) {
      const std::vector<BlockHash> block = {hash_of(chain * 1000 + i)};
      EXPECT_EQ(next.resident(block), resident(w, scheduler, block));
    }
  }
}

}  // namespace orbitkv::cache::testing
