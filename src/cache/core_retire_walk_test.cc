// Slabs that retire at any moment of a random schedule.
#include <random>
#include <string>

#include "cache/core_tier_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

// Engines save, read, restore, claim, die; slabs retire at random and are replaced. Nothing
// is granted on a slab whose grants have been taken back, no extent is lent twice, and in
// the end all comes back.
class RetireWalk {
 public:
  explicit RetireWalk(std::uint64_t seed) : random_(seed), tier_(random_), w_(options()) {
    for (int e = 0; e < 2; ++e) engines_.push_back(start(e));
    for (int i = 0; i < 2; ++i) add();
  }
  ~RetireWalk() { tier_.under_way.clear(); }
  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      step();
      check();
    }
    finish();
  }
  std::uint64_t abandoned() const { return abandoned_; }
  const RetireStats stats() const { return w_.core->retire_stats(); }

 private:
  struct Living {
    SessionId scheduler, worker;
    RegistrationId registration;
  };
  WorldOptions options() {
    WorldOptions o;
    o.pool = 512 * kKiB;
    o.tier = &tier_;
    o.core.lease_ttl = seconds(20);
    o.core.max_blocks = 300;
    return o;
  }
  std::uint64_t pick(std::uint64_t n) { return random_() % n; }
  SessionId open() {
    for (std::uint32_t s = 0; s < 60; ++s) {
      if (used_.contains(s) || !w_.core->session_gone(SessionId(s))) continue;
      used_.insert(s);
      w_.core->open_session(SessionId(s), w_.now);
      return SessionId(s);
    }
    ADD_FAILURE() << "no session slot";
    return SessionId(63);
  }
  Living start(int e) {
    Living living{open(), open(), {}};
    living.registration = w_.join(living.worker, {.instance = e + 1});
    return living;
  }
  void add() {
    if (w_.pool->stats().capacity > 3 * kMiB) return;
    EXPECT_TRUE(w_.pool->add(512 * kKiB).ok());
    w_.pool->collect_offered();
  }
  std::vector<BlockHash> some() { return hashes(pick(8) * 1000, 1 + pick(24)); }

  void step() {
    const auto e = static_cast<std::size_t>(pick(engines_.size()));
    Living& engine = engines_[e];
    switch (pick(14)) {
      case 0:
      case 1: {
        const OperationKey op = w_.next_op(engine.worker);
        EXPECT_TRUE(w_.publish(op, engine.registration, some()).ok());
        return;
      }
      case 2:
      case 3: return drain();
      case 4: {
        const auto list = some();
        const std::string id = "r" + std::to_string(pick(4));
        QueryPart part = w_.part(list, id, QueryMode::kRead, static_cast<int>(e) + 1);
        part.hashes = list;
        part.early_lease = pick(2) == 0;
        const auto answer = w_.core->query(engine.scheduler, part, w_.now);
        ASSERT_TRUE(answer.ok());
        if (!answer->lease) return;
        const OperationKey op = w_.next_op(engine.worker);
        const auto got = w_.restore(op, engine.registration, answer->lease, blocks(100, answer->hit_blocks));
        EXPECT_TRUE(got.ok() || got.error().code() == Code::kRecompute || got.error().code() == Code::kReject)
            << got.error().to_string();
        return;
      }
      case 5:
        for (const auto& [op, plan] : w_.ports.granted)
          if (pick(2) == 0) w_.ports.claimed.insert(op);
        return;
      case 6:
        if (pick(3) == 0) end_engine(e);
        return;
      case 7:
      case 8: return tier_step();
      case 9: {
        const SlabSlot slot(static_cast<std::uint32_t>(pick(w_.pool->slabs().size())));
        (void)w_.core->retire_slab(slot, w_.now);
        return;
      }
      case 10:
      case 11: w_.core->retire_turn(w_.now); return;
      case 12:
        if (w_.core->retiring().state == RetireState::kDrained) {
          w_.core->abandon_slab();
          ++abandoned_;
          add();
        }
        return;
      default: w_.now = w_.now + milliseconds(static_cast<std::int64_t>(pick(2500))); w_.core->tick(w_.now);
    }
  }
  void drain() {
    if (w_.ports.granted.empty()) return;
    auto it = w_.ports.granted.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(pick(w_.ports.granted.size())));
    const OperationKey op = it->first;
    const bool save = it->second.kind == model::PlanKind::kSave;
    lent_.erase(op);
    if (pick(5) == 0) return w_.drain_failed(op, {pick(16)});
    save ? w_.commit(op) : w_.verified(op);
  }
  void tier_step() {
    if (tier_.under_way.empty()) return;
    auto it = tier_.under_way.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(pick(tier_.under_way.size())));
    const TransferId id = it->first;
    const bool load = it->second.load, ok = pick(5) != 0 && (load || !tier_.fenced(it->second));
    tier_.end(id, ok);
    load ? w_.core->loaded(id, ok, w_.now) : w_.core->stored(id, ok, w_.now);
  }
  void end_engine(std::size_t e) {
    for (const SessionId s : {engines_[e].worker, engines_[e].scheduler}) {
      std::vector<OperationKey> gone;
      for (const auto& [op, plan] : w_.ports.granted)
        if (op.session == s) gone.push_back(op);
      if (pick(2) == 0) w_.core->close_session(s, w_.now);
      w_.core->process_ended(s, w_.now);
      for (const OperationKey& op : gone) {
        // Quarantined: its extents are lent to nobody as long as their slab lives.
        w_.ports.granted.erase(op);
        w_.ports.claimed.erase(op);
      }
      EXPECT_TRUE(w_.core->session_gone(s));
      used_.erase(s.value);
    }
    engines_[e] = start(static_cast<int>(e));
  }

  void check() {
    for (const std::uint32_t s : used_) w_.core->bank_freed(SessionId(s), w_.now);
    const RetireReport report = w_.core->retiring();
    const bool taken_back = report.state >= RetireState::kClaims && report.state <= RetireState::kDrained;
    const std::uint32_t name = report.state == RetireState::kIdle ? ~0u : w_.pool->slab(report.slab).id.value;
    std::set<std::uint32_t> living;
    for (const mem::SlabInfo& slab : w_.pool->slabs())
      if (slab.state == mem::SlabState::kOffered || slab.state == mem::SlabState::kRetiring)
        living.insert(slab.id.value);
    std::erase_if(lent_, [&](const auto& each) { return w_.ports.revoked.contains(each.first); });
    for (const auto& [op, plan] : w_.ports.granted) {
      const bool fresh = seen_.insert(op).second;
      if (fresh && plan.kind == model::PlanKind::kSave) take(op, plan);
      const bool claimed = w_.ports.claimed.contains(op);
      for (const model::PlanEntry& entry : plan.entries) {
        if (fresh) {
          EXPECT_TRUE(living.contains(entry.slab.value)) << "granted on a slab that is gone";
        }
        if (!claimed) {
          EXPECT_FALSE(taken_back && entry.slab.value == name) << "may still be claimed on a retiring slab";
        }
      }
    }
    const mem::PoolStats stats = w_.pool->stats();
    ByteCount used;
    for (const mem::SlabInfo& slab : w_.pool->slabs())
      if (slab.state != mem::SlabState::kGone) used += slab.used;
    EXPECT_EQ(stats.used, used);
  }
  // An extent of a save that has not ended is in nobody else's plan, by slab name and offset.
  void take(const OperationKey& op, const model::Plan& plan) {
    for (const auto& [other, entries] : lent_)
      for (const auto& a : entries)
        for (const auto& b : plan.entries)
          ASSERT_FALSE(a.slab == b.slab && a.offset == b.offset) << "lent to two saves";
    lent_[op] = plan.entries;
  }
  void finish() {
    for (const Living& engine : engines_) {
      for (const SessionId s : {engine.worker, engine.scheduler}) w_.core->process_ended(s, w_.now);
    }
    for (int round = 0; round < 200; ++round) {
      w_.now = w_.now + seconds(30);
      w_.core->tick(w_.now);
      while (w_.core->retire_turn(w_.now)) {
      }
      if (w_.core->retiring().state == RetireState::kDrained) w_.core->abandon_slab();
      for (const mem::SlabInfo& slab : w_.pool->slabs())
        if (slab.state == mem::SlabState::kOffered && w_.core->retire_slab(slab.slot, w_.now).ok()) break;
      while (!tier_.under_way.empty()) tier_step();
    }
    const CoreStats s = w_.core->stats();
    EXPECT_EQ(s.operations + s.leases + s.sessions, 0u);
    EXPECT_EQ(s.blocks + s.inflight_images + s.loading + s.spilling, 0u);
    EXPECT_EQ(s.leased, ByteCount(0));
    EXPECT_EQ(w_.pool->stats().capacity, ByteCount(0));
    EXPECT_EQ(w_.used(), ByteCount(0)) << "quarantine went with its slabs";
  }

  std::mt19937_64 random_;
  RandomTier tier_;
  World w_;
  std::vector<Living> engines_;
  std::set<std::uint32_t> used_;
  std::set<OperationKey> seen_;
  std::map<OperationKey, std::vector<model::PlanEntry>> lent_;
  std::uint64_t abandoned_ = 0;
};

TEST(CoreRetire, AtAnyMomentOfARandomSchedule) {
  std::uint64_t abandoned = 0, detached = 0, revoked = 0, images = 0;
  for (std::uint64_t seed = 1; seed <= 20 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RetireWalk walk(seed);
    walk.run(5000);
    abandoned += walk.abandoned();
    detached += walk.stats().detached;
    revoked += walk.stats().revoked;
    images += walk.stats().images;
  }
  EXPECT_GT(abandoned, 100u);
  EXPECT_GT(detached, 20u);
  EXPECT_GT(revoked, 50u);
  EXPECT_GT(images, 1000u);
}

}  // namespace
}  // namespace orbitkv::cache
