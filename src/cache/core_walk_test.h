// Seeded random walks over the whole core against a plain model: simulated memory
// that remembers which extent holds the bytes of which block. Engines publish, drain,
// fail, ask, release, restore, close, die and come back, with little memory, table and
// plan bank; a tier takes some blocks, brings them back late, or not, and forgets some.
// After every step the books must balance; at the end all comes back.
#pragma once

#include <algorithm>
#include <optional>
#include <random>

#include "cache/core_kept_test.h"
#include "cache/core_tier_test.h"

namespace orbitkv::cache::testing {

inline constexpr int kEngines = 3;
inline constexpr Duration kTtl = seconds(20);
inline constexpr std::uint64_t kChainBlocks = 24;

struct WalkOptions {
  std::uint64_t seed = 1;
  std::uint16_t shards = 1;  // = ranks of an engine
  bool roomy = false;        // nothing is ever evicted or abandoned: visibility is exact
  bool tier = false;
  bool budget = false;  // so little that queries wait for it
  int steps = 3000;
};

// What an extent holds, as the engine that wrote it would say.
struct Content {
  std::uint64_t block = 0;
  std::uint16_t shard = 0;
  AllocationId allocation;
  std::uint64_t digest = 0;
};

class Walk {
 public:
  explicit Walk(const WalkOptions& options)
      : o_(options), random_(options.seed), tier_(random_), w_(world(options, tier_)) {
    w_.ports.bank_plans = 3;
    for (int e = 0; e < kEngines; ++e) start_engine(e);
  }

  void run() {
    for (int i = 0; i < o_.steps && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("seed " + std::to_string(o_.seed) + " step " + std::to_string(i));
      step();
      give_bank_space();
      check();
    }
    finish();
  }

  CoreStats stats() { return w_.core->stats(); }

 private:
  struct Rank {
    SessionId session;
    RegistrationId registration;
  };
  struct EngineState {
    SessionId scheduler;
    std::vector<Rank> ranks;
  };
  struct HeldLease {
    int engine = 0;
    std::vector<std::uint64_t> blocks;              // the leased run
    std::vector<std::vector<AllocationId>> pinned;  // by block, by shard; early: empty until it lands
    std::set<std::size_t> lost;                     // that did not land
    std::vector<std::uint32_t> consumed;            // by rank
    TimePoint deadline;
  };
  struct OpenRestore {
    std::vector<std::uint64_t> blocks;  // in plan order
    std::vector<std::vector<AllocationId>> pinned;
    std::set<std::size_t> lost;
    std::uint16_t shard = 0;
  };
  struct OpenSave {
    std::vector<std::uint64_t> list;  // engine block i holds list[i]
    std::uint16_t shard = 0;
  };
  struct Committed {
    std::vector<AllocationId> shards;  // 0: not committed
  };

  static World world(const WalkOptions& o, RandomTier& tier) {
    WorldOptions w;
    w.tier = o.tier ? &tier : nullptr;
    w.kept = true;
    w.pool = o.roomy ? 64 * kMiB : 2 * o.shards * kMiB;
    w.core.eviction_batch = 4 * slot_bytes();
    if (o.budget) w.core.query_budget = w.core.query_instance_budget = 60 * o.shards * slot_bytes();
    w.core.max_blocks = o.roomy ? 100000 : 80;
    w.core.lease_ttl = kTtl;
    w.core.incomplete_ttl = o.roomy ? seconds(1'000'000'000) : seconds(20);
    return World(w);
  }

  std::uint64_t pick(std::uint64_t n) { return random_() % n; }

  void start_engine(int e) {
    EngineState& engine = engines_[e];
    engine.scheduler = open();
    engine.ranks.clear();
    for (std::uint16_t r = 0; r < o_.shards; ++r) {
      const SessionId s = open();
      engine.ranks.push_back(
          {s, w_.join(s, {.instance = e + 1, .rank = r, .world = o_.shards, .shards = o_.shards})});
    }
  }
  // Slots of gone sessions are used again.
  SessionId open() {
    for (std::uint32_t s = 0; s < 60; ++s) {
      if (in_use_.contains(s) || !w_.core->session_gone(SessionId(s))) continue;
      in_use_.insert(s);
      w_.core->open_session(SessionId(s), w_.now);
      return SessionId(s);
    }
    ADD_FAILURE() << "no session slot";
    return SessionId(63);
  }

  std::vector<std::uint64_t> some_prefix() {
    const std::uint64_t chain = pick(o_.roomy ? 60 : 6), count = 1 + pick(kChainBlocks);
    std::vector<std::uint64_t> out;
    for (std::uint64_t i = 0; i < count; ++i) out.push_back(chain * 1000 + i);
    return out;
  }
  // Of several chains in their order: longer than memory.
  std::vector<std::uint64_t> some_long_list() {
    std::vector<std::uint64_t> out;
    const std::uint64_t first = pick(6), count = kChainBlocks * (2 + pick(4)) + pick(kChainBlocks);
    for (std::uint64_t i = 0; i < count; ++i) {
      out.push_back((first + i / kChainBlocks) % 6 * 1000 + i % kChainBlocks);
    }
    return out;
  }
  static std::vector<BlockHash> to_hashes(const std::vector<std::uint64_t>& blocks) {
    std::vector<BlockHash> out;
    for (const std::uint64_t b : blocks) out.push_back(hash_of(b));
    return out;
  }

  // ---- events ----

  void step() {
    if (o_.tier && pick(3) == 0) return tier_step();
    const std::uint64_t what = pick(100);
    if (what < 22) return publish();
    if (what < 40) return end_save();
    if (what < 56) return read();
    if (what < 68) return restore();
    if (what < 80) return end_restore();
    if (what < 84) return release();
    if (what < 90) return claim();
    if (what < 92) return end_engine();
    if (what < 93) return stall();
    if (what < 96 && !o_.roomy) {
      w_.core->evict(pick_count(10) * slot_bytes(), w_.now);
      return;
    }
    w_.now = w_.now + milliseconds(static_cast<std::int64_t>(pick(9000)));
    forget_expired();
    w_.core->tick(w_.now);
  }
  std::uint64_t pick_count(std::uint64_t n) { return 1 + pick(n); }

  void publish() {
    EngineState& engine = engines_[pick(kEngines)];
    const auto r = static_cast<std::uint16_t>(pick(engine.ranks.size()));
    auto list = some_prefix();
    if (pick(4) == 0) list.push_back(list[pick(list.size())]);
    const OperationKey op = w_.next_op(engine.ranks[r].session);
    saves_[op] = {list, r};
    const auto answer = w_.publish(op, engine.ranks[r].registration, to_hashes(list));
    ASSERT_TRUE(answer.ok()) << answer.error().to_string();
    ASSERT_EQ(answer->accepted + answer->resident + answer->waiting + answer->dropped, list.size());
  }

  // A new save grant clobbers what its extents held: nothing that is still needed may be there.
  void notice_grants() {
    for (const auto& [op, plan] : w_.ports.granted) {
      if (!seen_.insert(op).second) continue;
      if (plan.kind == model::PlanKind::kSave) {
        for (const model::PlanEntry& e : plan.entries) clobber(e, plan.slot_bytes);
      } else {
        check_sources(op, plan);
      }
    }
  }
  void clobber(const model::PlanEntry& e, std::uint64_t bytes) {
    for (const auto& [id, t] : tier_.under_way) {
      for (const auto& w : t.extents) {
        const bool apart = w.offset >= e.offset + bytes || e.offset >= w.offset + w.bytes.value;
        ASSERT_TRUE(apart || w.allocation == e.revision) << "memory that the device uses was lent";
      }
    }
    ASSERT_TRUE(allocations_.insert(e.revision).second) << "allocation id used twice";
    auto it = memory_.lower_bound(e.offset >= bytes ? e.offset - bytes + 1 : 0);
    while (it != memory_.end() && it->first < e.offset + bytes) {
      ASSERT_FALSE(is_protected(it->second.allocation)) << "extent of a lent, leased or lost slot lent again";
      it = memory_.erase(it);
    }
    memory_[e.offset] = {0, 0, e.revision, 0};
    lent_.insert(e.revision);
  }
  bool is_protected(AllocationId a) const {
    return lent_.contains(a) || quarantined_.contains(a) || pinned_allocations().contains(a);
  }
  void check_sources(const OperationKey& op, const model::Plan& plan) {
    const OpenRestore& restore = restores_.at(op);
    ASSERT_EQ(plan.entries.size(), restore.blocks.size());
    for (std::size_t i = 0; i < plan.entries.size(); ++i) {
      const model::PlanEntry& e = plan.entries[i];
      ASSERT_TRUE(memory_.contains(e.offset));
      const Content& c = memory_.at(e.offset);
      EXPECT_EQ(c.block, restore.blocks[i]) << "the bytes of another block";
      EXPECT_EQ(c.shard, restore.shard);
      EXPECT_EQ(c.allocation, e.revision);
      EXPECT_EQ(c.digest, e.digest);
    }
  }

  std::optional<OperationKey> some_grant(model::PlanKind kind) {
    std::vector<OperationKey> ops;
    for (const auto& [op, plan] : w_.ports.granted) {
      if (plan.kind == kind) ops.push_back(op);
    }
    if (ops.empty()) return std::nullopt;
    return ops[pick(ops.size())];
  }

  // ---- the tier ----

  void tier_step() {
    const std::uint64_t what = pick(20);
    if (what == 0 && !tier_.records.empty()) {
      auto it = tier_.records.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(pick(tier_.records.size())));
      reclaimed_.insert(it->first.second);
      tier_.records.erase(it);
    } else if (what == 1) {
      w_.core->tier_ready(w_.now);
    } else if (!tier_.under_way.empty()) {
      auto it = tier_.under_way.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(pick(tier_.under_way.size())));
      end_transfer(it->first, pick(5) != 0);
    }
  }
  void end_transfer(TransferId id, bool ok) {
    ok = ok && (tier_.under_way.at(id).load || !tier_.fenced(tier_.under_way.at(id)));
    const ScriptedTier::Transfer t = tier_.end(id, ok);
    if (t.load) {
      land(t, ok);
      w_.core->loaded(id, ok, w_.now);
      return;
    }
    for (std::size_t s = 0; s < t.extents.size(); ++s) {
      ASSERT_TRUE(memory_.contains(t.extents[s].offset));
      const Content& c = memory_.at(t.extents[s].offset);
      EXPECT_EQ(c.allocation, t.marks[s].revision) << "bytes changed while the device read them";
      EXPECT_EQ(c.digest, t.marks[s].digest);
      EXPECT_EQ(c.block, t.name.second);
    }
    w_.core->stored(id, ok, w_.now);
  }
  // Where the image lay before it is nowhere now.
  void land(const ScriptedTier::Transfer& t, bool ok) {
    std::vector<AllocationId> shards;
    for (std::size_t s = 0; s < t.extents.size(); ++s) {
      lent_.erase(t.extents[s].allocation);
      memory_.erase(t.extents[s].offset);
      if (!ok) continue;
      const LoadedSlot& mark = t.marks[s];
      std::erase_if(memory_, [&](const auto& m) { return m.second.allocation == mark.revision; });
      const auto shard = static_cast<std::uint16_t>(s);
      memory_[t.extents[s].offset] = {t.name.second, shard, mark.revision, mark.digest};
      shards.push_back(mark.revision);
    }
    if (ok) committed_[t.name.second].shards = shards;
    for (auto& [lease_id, lease] : leases_) land_in(lease, t.name.second, shards);
    for (auto& [op, restore] : restores_) land_in(restore, t.name.second, shards);
  }
  template <class Holder>
  static void land_in(Holder& holder, std::uint64_t block, const std::vector<AllocationId>& shards) {
    for (std::size_t i = 0; i < holder.blocks.size(); ++i) {
      if (holder.blocks[i] != block || !holder.pinned[i].empty() || holder.lost.contains(i)) continue;
      if (shards.empty()) holder.lost.insert(i);
      holder.pinned[i] = shards;
    }
  }
  // Restores that wait for blocks are told when they wait in vain.
  void notice_failures() {
    std::erase_if(restores_, [&](const auto& r) { return w_.ports.failed.contains(r.first); });
  }
  void notice_loads() {
    for (; loads_seen_ < tier_.loads.size(); ++loads_seen_) {
      for (const auto& w : tier_.under_way.at(tier_.loads[loads_seen_]).extents) {
        clobber({w_.pool->slab(w.slab).id, 0, w.offset, w.allocation, 0, 0}, w.bytes.value);
      }
    }
  }

  void end_save() {
    const auto op = some_grant(model::PlanKind::kSave);
    if (!op) return;
    const model::Plan plan = w_.ports.granted.at(*op);
    const bool success = pick(4) != 0;
    const OpenSave save = saves_.at(*op);
    for (const model::PlanEntry& e : plan.entries) {
      lent_.erase(e.revision);
      if (!success) continue;
      const std::uint64_t block = save.list[e.block];
      memory_[e.offset] = {block, save.shard, e.revision, digest_of(e)};
      auto& shards = committed_[block].shards;
      shards.resize(o_.shards);
      if (o_.roomy) {
        EXPECT_EQ(shards[save.shard].value, 0u) << "published twice";
      }
      shards[save.shard] = e.revision;
    }
    success ? w_.commit(*op) : w_.drain_failed(*op);
  }

  std::uint32_t model_run(const std::vector<std::uint64_t>& list) const {
    std::uint32_t run = 0;
    while (run < list.size() && complete(list[run])) ++run;
    return run;
  }
  bool complete(std::uint64_t block) const {
    return sealed_once(block) || tier_.records.contains({1, block}) || reclaimed_.contains(block);
  }
  bool sealed_once(std::uint64_t block) const {
    const auto it = committed_.find(block);
    return it != committed_.end() && std::none_of(it->second.shards.begin(), it->second.shards.end(),
                                                  [](AllocationId a) { return a.value == 0; });
  }

  void read() {
    const int e = static_cast<int>(pick(kEngines));
    const auto list = o_.tier && pick(4) == 0 ? some_long_list() : some_prefix();
    ask(e, "request-" + std::to_string(pick(4)), list);
  }
  void ask(int e, const std::string& id, const std::vector<std::uint64_t>& list) {
    const auto wanted = to_hashes(list);
    QueryPart part = w_.part(wanted, id, QueryMode::kRead, e + 1);
    part.early_lease = e == 0;
    const CoreStats before = w_.core->stats();
    const auto asked = w_.core->query(engines_[e].scheduler, part, w_.now);
    ASSERT_TRUE(asked.ok()) << asked.error().to_string();
    const QueryAnswer& answer = *asked;
    check_misses(before, answer, list.size());
    // An old lease under the same id is gone unless it is answered again.
    const auto name = std::pair(e, id);
    if (names_.contains(name) && names_[name] != answer.lease) leases_.erase(names_[name]);
    names_.erase(name);
    waiting_.erase(name);
    const std::uint32_t run = model_run(list);
    // Who waits for budget holds nothing: what was there may have gone since.
    if (answer.admitted) {
      EXPECT_LE(answer.hit_blocks, run) << "a hit on a block that is neither sealed nor stored";
    }
    if (answer.loading) {
      EXPECT_FALSE(answer.lease);
      waiting_[name] = list;
    }
    if (!answer.lease) return;
    names_[name] = answer.lease;
    auto [it, fresh] = leases_.try_emplace(answer.lease);
    it->second.deadline = w_.now + kTtl;
    if (!fresh) return;
    if (o_.roomy) {
      EXPECT_EQ(answer.hit_blocks, run);
    }
    it->second.engine = e;
    it->second.blocks.assign(list.begin(), list.begin() + answer.hit_blocks);
    for (std::size_t i = 0; i < it->second.blocks.size(); ++i) {
      const bool there = answer.resident[i / 64] >> (i % 64) & 1;
      EXPECT_TRUE(there || part.early_lease);
      it->second.pinned.push_back(there ? committed_[list[i]].shards : std::vector<AllocationId>());
    }
    it->second.consumed.assign(o_.shards, 0);
    const bool all_there = std::none_of(it->second.pinned.begin(), it->second.pinned.end(),
                                        [](const auto& shards) { return shards.empty(); });
    for (int i = 0; i < 2 && !all_there && leases_.contains(answer.lease); ++i) restore(answer.lease);
  }

  // A run ends early for a reason only; for want of memory when none was left to evict.
  void check_misses(const CoreStats& before, const QueryAnswer& answer, std::size_t asked) {
    const CoreStats s = w_.core->stats();
    // The answer to a lease or a wait that is there already has no run of its own.
    const bool first_time = s.hits + s.misses != before.hits + before.misses;
    const bool cut = s.budgets.cut != before.budgets.cut;
    if (!first_time || cut || s.loads_gone != before.loads_gone) return;
    const auto bit = [](const std::vector<std::uint64_t>& bits, std::size_t i) {
      return i / 64 < bits.size() && (bits[i / 64] >> (i % 64) & 1) != 0;
    };
    std::size_t run = 0;
    while (run < asked && bit(answer.resident, run)) ++run;
    EXPECT_GE(answer.hit_blocks, run) << "what is there at the front is a hit";
    const bool in_hand = s.inflight_images > 0;  // by publishers, perhaps: never loaded over
    if (answer.hit_blocks == run && bit(answer.stored, run) && !in_hand) {
      EXPECT_GT(s.loads_refused_memory + s.loads_refused_bounds,
                before.loads_refused_memory + before.loads_refused_bounds);
    }
    if (s.loads_refused_memory == before.loads_refused_memory) return;
    EXPECT_GE(s.leased.value / slot_bytes().value + s.spilling * o_.shards, s.blocks * o_.shards)
        << "memory for a load was refused though some could be evicted";
  }

  // Those who wait ask again, and so learn of their lease before anything else happens.
  void ask_again() {
    // One's asking may end another's wait for budget, which was asked before it.
    for (int i = 0; i < 4; ++i) {
      const auto waiting = waiting_;
      for (const auto& [name, list] : waiting) ask(name.first, name.second, list);
      if (w_.core->stats().leases == leases_.size()) break;
    }
  }

  std::optional<LeaseId> some_lease() {
    if (leases_.empty()) return std::nullopt;
    auto it = leases_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(pick(leases_.size())));
    return it->first;
  }

  void restore() {
    if (const auto id = some_lease()) restore(*id);
  }
  void restore(LeaseId id) {
    HeldLease& lease = leases_.at(id);
    const auto r = static_cast<std::uint16_t>(pick(o_.shards));
    const std::uint32_t first = lease.consumed[r];
    if (first == lease.blocks.size()) return;
    const auto count = static_cast<std::uint32_t>(pick_count(lease.blocks.size() - first));
    std::vector<std::uint32_t> targets;
    OpenRestore open;
    open.shard = r;
    for (std::uint32_t i = 0; i < count; ++i) {
      const bool hole = pick(5) == 0;
      targets.push_back(hole ? kHole : 500 + i);
      if (hole) continue;
      if (lease.lost.contains(first + i)) open.lost.insert(open.blocks.size());
      open.blocks.push_back(lease.blocks[first + i]);
      open.pinned.push_back(lease.pinned[first + i]);
    }
    const Rank& rank = engines_[lease.engine].ranks[r];
    const OperationKey op = w_.next_op(rank.session);
    const auto granted = w_.restore(op, rank.registration, id, targets, first);
    if (!granted.ok()) {
      // Only a source that was dropped since, or did not come, or never another reason.
      EXPECT_EQ(granted.error().code(), Code::kRecompute) << granted.error().to_string();
      bool dropped = false;
      for (const auto& shards : open.pinned) dropped |= shards.empty() || dropped_.contains(shards[0]);
      EXPECT_TRUE(dropped) << granted.error().to_string();
      return;
    }
    if (*granted > 0) restores_[op] = open;
    lease.consumed[r] += count;
    const bool over = std::all_of(lease.consumed.begin(), lease.consumed.end(),
                                  [&](std::uint32_t c) { return c == lease.blocks.size(); });
    if (over) leases_.erase(id);
  }

  void end_restore() {
    const auto op = some_grant(model::PlanKind::kRestore);
    if (!op) return;
    const OpenRestore open = restores_.at(*op);
    restores_.erase(*op);
    if (pick(5) != 0) return w_.verified(*op);
    std::vector<std::uint64_t> failed(1, 0);
    for (std::size_t i = 0; i < open.blocks.size() && i < 64; ++i) {
      if (pick(6) != 0) continue;
      failed[0] |= std::uint64_t{1} << i;
      drop(open.blocks[i], open.pinned[i]);
    }
    w_.drain_failed(*op, failed);
  }
  void drop(std::uint64_t block, const std::vector<AllocationId>& shards) {
    dropped_.insert(shards[0]);
    // Unless another restore dropped it before and it was published anew since.
    const auto it = committed_.find(block);
    if (it != committed_.end() && it->second.shards == shards) committed_.erase(it);
  }

  void release() {
    const auto id = some_lease();
    if (!id) return;
    const int e = leases_.at(*id).engine;
    EXPECT_TRUE(w_.core->release(engines_[e].scheduler, *id).ok());
    leases_.erase(*id);
  }

  void claim() {
    for (const auto& [op, plan] : w_.ports.granted) {
      if (pick(3) == 0) w_.ports.claimed.insert(op);
    }
  }

  // Polite close, then death, of a whole engine; a new one takes its place.
  void end_engine() {
    const int e = static_cast<int>(pick(kEngines));
    const EngineState engine = engines_[e];
    std::vector<SessionId> sessions{engine.scheduler};
    for (const Rank& r : engine.ranks) sessions.push_back(r.session);
    std::shuffle(sessions.begin(), sessions.end(), random_);
    std::erase_if(leases_, [&](const auto& l) { return l.second.engine == e; });
    std::erase_if(names_, [&](const auto& n) { return n.first.first == e; });
    std::erase_if(waiting_, [&](const auto& n) { return n.first.first == e; });
    for (const SessionId s : sessions) end_session(s);
    start_engine(e);
  }
  // One that stands still for a while, and goes on.
  void stall() {
    const EngineState& engine = engines_[pick(kEngines)];
    const auto r = pick(engine.ranks.size());
    const SessionId s = engine.ranks[r].session;
    const auto unclaimed = [&](const OperationKey& op) {
      return op.session == s && !w_.ports.claimed.contains(op);
    };
    for (const auto& [op, plan] : w_.ports.granted) {
      if (!unclaimed(op) || plan.kind != model::PlanKind::kSave) continue;
      for (const auto& e : plan.entries) lent_.erase(e.revision);
    }
    std::erase_if(restores_, [&](const auto& each) { return unclaimed(each.first); });
    w_.core->stall_session(s, w_.now);
    for (const auto& [op, plan] : w_.ports.granted) EXPECT_FALSE(unclaimed(op));
    const auto refused = w_.publish(w_.next_op(s), engine.ranks[r].registration, to_hashes({1}));
    EXPECT_EQ(code_of(refused), Code::kBusy);
    notice_grants();  // others may go on
    w_.core->revive_session(s);
  }
  void end_session(SessionId s) {
    std::vector<OperationKey> lost;
    for (const auto& [op, plan] : w_.ports.granted) {
      if (op.session != s) continue;
      const bool claimed = w_.ports.claimed.contains(op);
      if (claimed) lost.push_back(op);
      if (plan.kind != model::PlanKind::kSave) continue;
      for (const auto& e : plan.entries) {
        lent_.erase(e.revision);
        if (claimed) quarantined_.insert(e.revision);
      }
    }
    std::erase_if(restores_, [&](const auto& r) { return r.first.session == s; });
    if (pick(2) == 0) w_.core->close_session(s, w_.now);
    w_.core->process_ended(s, w_.now);
    for (const OperationKey& op : lost) {
      w_.ports.granted.erase(op);
      w_.ports.claimed.erase(op);
    }
    notice_grants();
    EXPECT_TRUE(w_.core->session_gone(s));
    in_use_.erase(s.value);
  }

  void forget_expired() {
    std::erase_if(leases_, [&](const auto& l) { return l.second.deadline <= w_.now; });
  }

  void give_bank_space() {
    for (const std::uint32_t s : in_use_) w_.core->bank_freed(SessionId(s), w_.now);
  }

  // ---- invariants ----

  std::set<AllocationId> pinned_allocations() const {
    std::set<AllocationId> out;
    const auto add = [&](const std::vector<std::vector<AllocationId>>& blocks) {
      for (const auto& shards : blocks) out.insert(shards.begin(), shards.end());
    };
    for (const auto& [id, lease] : leases_) add(lease.pinned);
    for (const auto& [op, restore] : restores_) add(restore.pinned);
    return out;
  }

  void check() {
    notice_loads();
    ask_again();
    notice_loads();
    notice_failures();
    notice_grants();
    const CoreStats s = w_.core->stats();
    EXPECT_EQ(s.leases, leases_.size());
    // A query that waits pins what is there already.
    EXPECT_GE(s.leased, pinned_allocations().size() * slot_bytes());
    if (waiting_.empty()) {
      EXPECT_EQ(s.leased, pinned_allocations().size() * slot_bytes());
    }
    EXPECT_EQ(s.spilling, tier_.count(false));
    if (s.loading == 0) reclaimed_.clear();
    EXPECT_GE(s.loading, tier_.count(true));
    const Census census = w_.core->census();
    EXPECT_EQ(census.pins, census.pinned);
    EXPECT_EQ(s.budgets.used, census.charged);
    EXPECT_LE(s.budgets.used - s.budgets.draining, s.budgets.limit);
    EXPECT_EQ(w_.used(), census.held + s.quarantined);
    EXPECT_EQ(census.images[static_cast<std::size_t>(ImageState::kSealed)], s.blocks);
    EXPECT_EQ(s.quarantined_extents, quarantined_.size());
    EXPECT_EQ(s.quarantined, quarantined_.size() * slot_bytes());
    if (o_.shards == 1) {
      // Every live image has one extent; dropped ones live while they are pinned or stored.
      std::set<AllocationId> kept = pinned_allocations();
      for (const auto& [id, t] : tier_.under_way) {
        if (!t.load) kept.insert(t.marks[0].revision);
      }
      std::uint64_t dropped = 0;
      for (const AllocationId a : kept) dropped += dropped_.contains(a) ? 1 : 0;
      const std::uint64_t extents = s.blocks + s.inflight_images + s.loading + dropped + quarantined_.size();
      if (waiting_.empty()) {
        EXPECT_EQ(w_.used(), extents * slot_bytes());
      } else {
        EXPECT_GE(w_.used(), extents * slot_bytes()) << "it may wait with a block that was dropped";
      }
    }
    check_visibility(s);
    if (pick(32) == 0) expect_kept(w_, {o_.shards, !quarantined_.empty()}, memory_, tier_);
    if (!o_.roomy && pick(400) == 0) expect_next_life(w_, engines_[0].scheduler, o_.shards, kChainBlocks);
  }
  void check_visibility(const CoreStats& s) {
    std::uint64_t complete_blocks = 0;
    for (const auto& [block, c] : committed_) complete_blocks += sealed_once(block) ? 1 : 0;
    if (o_.roomy) {
      EXPECT_EQ(s.blocks, complete_blocks);
      EXPECT_EQ(s.evicted + s.abandoned, 0u);
    } else {
      EXPECT_LE(s.blocks, complete_blocks);
    }
    // What a lease holds stays visible, whatever was evicted, unless it did not verify.
    if (leases_.empty()) return;
    const HeldLease& lease = leases_.at(*some_lease());
    for (std::size_t i = 0; i < lease.blocks.size(); ++i) {
      if (lease.pinned[i].empty() || dropped_.contains(lease.pinned[i][0])) continue;
      EXPECT_EQ(w_.discover(engines_[lease.engine].scheduler, {hash_of(lease.blocks[i])}, lease.engine + 1),
                1u);
    }
  }

  void finish() {
    leases_.clear();
    waiting_.clear();
    for (int e = 0; e < kEngines; ++e) {
      const EngineState engine = engines_[e];
      for (const Rank& r : engine.ranks) end_session(r.session);
      end_session(engine.scheduler);
    }
    w_.now = w_.now + seconds(2'000'000'000);
    w_.core->tick(w_.now);
    do {
      while (!tier_.under_way.empty()) end_transfer(tier_.under_way.begin()->first, pick(2) == 0);
      w_.core->evict(kGiB, w_.now);  // what the tier wants and refuses stays for the next time
    } while (!tier_.under_way.empty() || w_.core->stats().blocks > 0);
    EXPECT_TRUE(tier_.open.empty());
    const CoreStats s = w_.core->stats();
    EXPECT_EQ(s.operations + s.leases + s.sessions + s.instances, 0u);
    EXPECT_EQ(s.blocks + s.inflight_images + s.loading + s.spilling, 0u);
    EXPECT_EQ(s.leased, ByteCount(0));
    EXPECT_EQ(s.budgets.used, ByteCount(0));
    EXPECT_EQ(w_.used(), quarantined_.size() * slot_bytes()) << "all but the quarantine came back";
  }

  WalkOptions o_;
  std::mt19937_64 random_;
  RandomTier tier_;
  World w_;
  EngineState engines_[kEngines];
  std::set<std::uint32_t> in_use_;
  std::map<OperationKey, OpenSave> saves_;
  std::map<OperationKey, OpenRestore> restores_;
  std::set<OperationKey> seen_;
  std::map<LeaseId, HeldLease> leases_;
  std::map<std::pair<int, std::string>, LeaseId> names_;
  std::map<std::pair<int, std::string>, std::vector<std::uint64_t>> waiting_;
  std::map<std::uint64_t, Committed> committed_;  // by block, until dropped
  std::map<std::uint64_t, Content> memory_;       // by offset: the pool has one slab
  std::set<AllocationId> allocations_, lent_, quarantined_, dropped_;
  std::size_t loads_seen_ = 0;
  std::set<std::uint64_t> reclaimed_;  // by the tier, and perhaps on their way all the same
};

}  // namespace orbitkv::cache::testing
