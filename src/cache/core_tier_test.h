// A scripted tier for the core's tests: holds marks instead of bytes, takes as much as it
// is told to, and ends transfers when the test says so. Notices what the contract forbids:
// extents of two transfers that overlap, spaces closed twice or used after.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "cache/core_world_test.h"
#include "cache/tier.h"

namespace orbitkv::cache::testing {

class ScriptedTier : public Tier {
 public:
  using Name = std::pair<std::uint32_t, std::uint64_t>;  // space, block (of hash_of)
  struct Transfer {
    Name name;
    bool load = false;
    std::vector<mem::Extent::Words> extents;
    std::vector<LoadedSlot> marks;
  };
  struct Record {
    TierRef ref;
    std::vector<LoadedSlot> marks;
  };
  struct Told {
    std::uint32_t position = 0, length = 0;
    std::vector<std::uint64_t> blocks, resident, stored;
  };

  // What it does.
  std::size_t most_loads = 1000, most_stores = 1000;
  Answer at_seal = Answer::kLater, at_leave = Answer::kNo;
  bool opening = false;          // it has found none of what it holds yet
  std::set<std::uint64_t> gone;  // found, but no more when they are to be loaded

  // What happened.
  std::map<TransferId, Transfer> under_way;
  std::vector<TransferId> loads, stores;  // accepted ones, in order
  std::map<Name, Record> records;
  std::vector<Told> told;
  std::vector<std::pair<std::uint64_t, LoadedSlot>> suspects;
  std::vector<std::uint64_t> sealed_blocks, leaving_blocks;
  std::uint64_t finds = 0, busy_loads = 0;
  std::multiset<std::uint32_t> open;
  std::vector<Kind> reopened;
  std::set<std::uint32_t> closed;

  static std::uint64_t block_of(const BlockHash& hash) {
    std::uint64_t n = 0;
    std::memcpy(&n, hash.bytes.data() + 8, sizeof n);
    return n;
  }
  std::size_t count(bool load) const {
    std::size_t n = 0;
    for (const auto& [id, t] : under_way) n += t.load == load ? 1 : 0;
    return n;
  }
  // As if it had been stored long ago.
  void put(std::uint64_t block, std::uint16_t shards = 1, std::uint32_t space = 1) {
    std::vector<LoadedSlot> marks;
    for (std::uint16_t s = 0; s < shards; ++s) {
      ++last_mark_;
      marks.push_back({last_mark_ * 31, AllocationId(last_mark_)});
    }
    put(Name(space, block), marks);
  }
  void put(const Name& name, std::vector<LoadedSlot> marks) {
    records[name] = {{static_cast<std::uint32_t>(last_record_++ % 7), ++last_generation_}, std::move(marks)};
  }

  // ---- Tier ----

  TierSpace open_space(const model::RankRegistration& rank, GroupId) override {
    const auto space = static_cast<std::uint32_t>(spaces_.size() + 1);
    const std::string digest(reinterpret_cast<const char*>(model::namespace_digest(rank).bytes.data()), 32);
    return TierSpace(*open.insert(spaces_.emplace(digest, space).first->second));
  }
  TierSpace reopen_space(const Kind& kind) override {
    reopened.push_back(kind);
    if (opening) return kNoTierSpace;
    const auto it = spaces_.find(std::string(reinterpret_cast<const char*>(kind.digest.bytes.data()), 32));
    return it == spaces_.end() ? kNoTierSpace : TierSpace(*open.insert(it->second));
  }
  void close_space(TierSpace space) override {
    const auto it = open.find(space.value);
    ASSERT_TRUE(it != open.end()) << "closed twice, or never opened";
    open.erase(it);
    closed.insert(space.value);
    if (open.contains(space.value)) return;
    for (const auto& [id, t] : under_way) EXPECT_NE(t.name.first, space.value) << "closed in use";
  }
  void find(TierSpace space, std::span<const BlockHash> hashes, std::span<TierRef> out) override {
    expect_open(space);
    ++finds;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const auto it = records.find({space.value, block_of(hashes[i])});
      out[i] = it == records.end() ? TierRef{} : it->second.ref;
    }
  }
  Result<TransferId> load(const Key& key, TierRef record, std::span<const mem::Extent::Words> slots,
                          std::span<LoadedSlot> slots_out) override {
    expect_open(key.space);
    if (count(true) >= most_loads) {
      ++busy_loads;
      return busy("scripted");
    }
    const Name name(key.space.value, block_of(key.hash));
    const auto it = records.find(name);
    if (gone.contains(name.second) || it == records.end() || it->second.ref.generation != record.generation) {
      return recompute("scripted");
    }
    EXPECT_EQ(it->second.marks.size(), slots.size());
    for (std::size_t i = 0; i < slots.size(); ++i) slots_out[i] = it->second.marks[i];
    return begin({name, true, {slots.begin(), slots.end()}, it->second.marks});
  }
  Result<TransferId> store(const Key& key, std::span<const SlotWords> slots) override {
    expect_open(key.space);
    if (count(false) >= most_stores) return busy("scripted");
    Transfer t{Name(key.space.value, block_of(key.hash)), false, {}, {}};
    for (const SlotWords& s : slots) {
      t.extents.push_back(s.extent);
      t.marks.push_back({s.digest, s.revision});
    }
    return begin(std::move(t));
  }
  void suspect(const Key& key, const LoadedSlot& first_shard) override {
    expect_open(key.space);
    suspects.emplace_back(block_of(key.hash), first_shard);
  }
  void asked(TierSpace space, const Asked& blocks, const TierContext& first) override {
    expect_open(space);
    Told t{first.position, first.length, {}, {}, {}};
    for (const BlockHash& h : blocks.hashes) t.blocks.push_back(block_of(h));
    t.resident.assign(blocks.resident.begin(), blocks.resident.end());
    t.stored.assign(blocks.stored.begin(), blocks.stored.end());
    told.push_back(std::move(t));
  }
  Answer sealed(const Key& key, ByteCount) override {
    expect_open(key.space);
    sealed_blocks.push_back(block_of(key.hash));
    return at_seal;
  }
  Answer leaving(const Key& key, ByteCount) override {
    expect_open(key.space);
    leaving_blocks.push_back(block_of(key.hash));
    if (records.contains({key.space.value, block_of(key.hash)})) return Answer::kNo;
    return at_leave;
  }

  // ---- the device ----

  // The oldest one that is under way.
  std::optional<TransferId> oldest(bool load) const {
    for (const auto& [id, t] : under_way) {
      if (t.load == load) return id;
    }
    return std::nullopt;
  }
  std::optional<TransferId> of_block(std::uint64_t block, bool load = true) const {
    for (const auto& [id, t] : under_way) {
      if (t.load == load && t.name.second == block) return id;
    }
    return std::nullopt;
  }
  // It has ended on the device; the core hears of it next.
  Transfer end(TransferId id, bool ok) {
    Transfer t = under_way.at(id);
    under_way.erase(id);
    if (!t.load && ok) put(t.name, t.marks);
    return t;
  }

 private:
  void expect_open(TierSpace space) { EXPECT_TRUE(open.contains(space.value)) << "space is closed"; }
  Result<TransferId> begin(Transfer t) {
    for (const auto& [id, other] : under_way) {
      for (const auto& a : t.extents) {
        for (const auto& b : other.extents) {
          EXPECT_TRUE(a.slab != b.slab || a.offset >= b.offset + b.bytes.value ||
                      b.offset >= a.offset + a.bytes.value)
              << "memory that the device still uses";
        }
      }
    }
    const TransferId id(++last_transfer_);
    (t.load ? loads : stores).push_back(id);
    under_way.emplace(id, std::move(t));
    return id;
  }

  std::uint64_t last_transfer_ = 0, last_mark_ = 1000, last_record_ = 0;
  std::uint32_t last_generation_ = 0;
  std::map<std::string, std::uint32_t> spaces_;  // by namespace digest
};

// Answers by chance.
class RandomTier : public ScriptedTier {
 public:
  explicit RandomTier(std::mt19937_64& random) : random_(random) {}
  Result<TransferId> load(const Key& key, TierRef record, std::span<const mem::Extent::Words> slots,
                          std::span<LoadedSlot> slots_out) override {
    most_loads = random_() % 12;
    if (random_() % 12 == 0) return recompute("reclaimed");
    return ScriptedTier::load(key, record, slots, slots_out);
  }
  Result<TransferId> store(const Key& key, std::span<const SlotWords> slots) override {
    most_stores = random_() % 12;
    return ScriptedTier::store(key, slots);
  }
  Answer sealed(const Key& key, ByteCount bytes) override {
    at_seal = static_cast<Answer>(random_() % 3);
    return ScriptedTier::sealed(key, bytes);
  }
  Answer leaving(const Key& key, ByteCount bytes) override {
    at_leave = random_() % 3 == 0 ? Answer::kNo : Answer::kStore;
    return ScriptedTier::leaving(key, bytes);
  }
  void suspect(const Key& key, const LoadedSlot& first_shard) override {
    ScriptedTier::suspect(key, first_shard);
    suspected_.insert(first_shard.revision);
    const auto it = records.find({key.space.value, block_of(key.hash)});
    if (it != records.end() && it->second.marks[0].revision == first_shard.revision) records.erase(it);
  }
  // A store of what is suspected ends without a record.
  bool fenced(const Transfer& t) const { return suspected_.contains(t.marks[0].revision); }

 private:
  std::mt19937_64& random_;
  std::set<AllocationId> suspected_;
};

// A tier and, before it goes, a world on it.
struct TierWorld {
  explicit TierWorld(WorldOptions options = {}) {
    options.tier = &tier;
    world = std::make_unique<World>(options);
  }
  ~TierWorld() { tier.under_way.clear(); }  // the core may go with transfers under way
  World* operator->() { return world.get(); }
  World& operator*() { return *world; }
  CoreStats stats() { return world->core->stats(); }
  void loaded(std::uint64_t block, bool ok = true) {
    const auto id = tier.of_block(block);
    ASSERT_TRUE(id.has_value()) << "block " << block << " is not under way";
    tier.end(*id, ok);
    world->core->loaded(*id, ok, world->now);
  }
  void stored(std::uint64_t block, bool ok = true) {
    const auto id = tier.of_block(block, false);
    ASSERT_TRUE(id.has_value()) << "block " << block << " is not under way";
    tier.end(*id, ok);
    world->core->stored(*id, ok, world->now);
  }
  void all_loaded(bool ok = true) {
    while (const auto id = tier.oldest(true)) {
      tier.end(*id, ok);
      world->core->loaded(*id, ok, world->now);
    }
  }
  void all_stored(bool ok = true) {
    while (const auto id = tier.oldest(false)) {
      tier.end(*id, ok);
      world->core->stored(*id, ok, world->now);
    }
  }
  void wait(Duration d) {
    world->now = world->now + d;
    world->core->tick(world->now);
  }

  ScriptedTier tier;
  std::unique_ptr<World> world;
};

// A tier and one engine, whose query budget is so many blocks.
struct TierBed {
  static WorldOptions options_of(std::uint64_t budget, ByteCount pool = WorldOptions().pool) {
    WorldOptions o;
    o.pool = pool;
    o.core.query_budget = o.core.query_instance_budget = budget * slot_bytes();
    return o;
  }
  explicit TierBed(const WorldOptions& options) : t(options), e(*t) {}
  QueryAnswer read(std::uint64_t first, std::uint64_t count, std::string_view id = "r") {
    return t->read(e.scheduler, hashes(first, count), id);
  }
  BudgetStats stats() {
    const BudgetStats s = t.stats().budgets;
    EXPECT_EQ(s.used, t->core->census().charged) << "by a recount";
    return s;
  }

  TierWorld t;
  Engine e;
};

}  // namespace orbitkv::cache::testing
