// What the core's tests share: a scripted Ports that keeps what it was told, a small
// real pool, and an engine (scheduler session plus one worker session a rank).
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/log.h"
#include "cache/core.h"
#include "mem/kept_table.h"

namespace orbitkv::cache::testing {

class ScriptedPorts : public Ports {
 public:
  std::uint32_t bank_plans = 1000;              // of one session at a time
  std::map<OperationKey, model::Plan> granted;  // and neither revoked nor reaped
  std::set<OperationKey> claimed;               // of those
  std::map<OperationKey, Code> failed, revoked;
  std::set<OperationKey> reaped;
  std::map<OperationKey, Dropped> dropped;

  Grant grant(const OperationKey& op, const model::Plan& plan) override {
    if (in_bank(op.session) >= bank_plans) return Grant::kBankFull;
    EXPECT_TRUE(granted.emplace(op, plan).second) << "granted twice";
    return Grant::kGranted;
  }
  Revoke revoke(const OperationKey& op, const Error& why) override {
    EXPECT_TRUE(granted.contains(op));
    if (claimed.contains(op)) return Revoke::kAlreadyClaimed;
    granted.erase(op);
    revoked.emplace(op, why.code());
    return Revoke::kRevoked;
  }
  void fail(const OperationKey& op, const Error& why) override {
    EXPECT_FALSE(granted.contains(op)) << "a granted record cannot fail";
    failed.emplace(op, why.code());
  }
  void reap(const OperationKey& op) override {
    granted.erase(op);
    claimed.erase(op);
    EXPECT_TRUE(reaped.insert(op).second) << "reaped twice";
  }
  void drop(const OperationKey& op, const Dropped& what) override {
    EXPECT_FALSE(granted.contains(op) || reaped.contains(op)) << "too late for the client";
    dropped[op] = what;
  }
  std::uint32_t in_bank(SessionId session) const {
    std::uint32_t n = 0;
    for (const auto& [op, plan] : granted) n += op.session == session ? 1 : 0;
    return n;
  }
};

inline BlockHash hash_of(std::uint64_t n) {
  BlockHash h;
  std::memcpy(h.bytes.data() + 8, &n, sizeof n);
  return h;
}
inline std::vector<BlockHash> hashes(std::uint64_t first, std::uint64_t count) {
  std::vector<BlockHash> out;
  for (std::uint64_t i = 0; i < count; ++i) out.push_back(hash_of(first + i));
  return out;
}
inline std::vector<std::uint32_t> blocks(std::uint32_t first, std::size_t count) {
  std::vector<std::uint32_t> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back(first + static_cast<std::uint32_t>(i));
  return out;
}
inline InstanceId instance_id(int n) {
  InstanceId id;
  id.bytes[0] = static_cast<std::byte>(n);
  return id;
}
// The digest that the scripted client reports for an extent.
inline std::uint64_t digest_of(const model::PlanEntry& e) {
  return e.revision.value * 1000003 + e.block;
}

struct RankOptions {
  int instance = 1;
  std::uint16_t rank = 0, world = 1;
  std::uint16_t shards = 1;  // rank r has shard r % shards; the first of a shard writes
  std::string name_space = "model-a";
  std::uint64_t fragment_bytes = 4096;
  std::string device = "cpu:0";
  NodeId node = kAnyNode;
};
inline model::RankRegistration rank_of(const RankOptions& o) {
  model::GroupShape g;
  g.shard = ShardId(static_cast<std::uint16_t>(o.rank % o.shards));
  g.shards = o.shards;
  g.writer = o.rank < o.shards;
  g.fragments = {{0, 0, ByteCount(o.fragment_bytes)}, {1, 0, ByteCount(o.fragment_bytes)}};
  model::RankRegistration r;
  r.instance = instance_id(o.instance);
  r.name_space = o.name_space;
  r.rank = o.rank;
  r.world_size = o.world;
  r.device = o.device;
  r.node = o.node;
  r.num_blocks = 10000;
  r.block_tokens = 16;
  r.groups = {g};
  return r;
}

struct WorldOptions {
  ByteCount pool = 16 * kMiB;
  CoreConfig core;
  Tier* tier = nullptr;
  std::optional<mem::Topology> topology = {};
  bool kept = false;        // written to a table for the next life
  bool being_made = false;  // the pool's memory, until have_memory()
};

class World {
 public:
  explicit World(const WorldOptions& options = {}) {
    set_log_level(LogLevel::kOff);
    mem::PoolConfig config;
    config.bytes = options.pool;
    config.huge_pages = mem::HugePages::kOff;
    config.prefault = options.being_made;
    config.topology = options.topology;
    auto made = mem::Pool::create(config);
    EXPECT_TRUE(made.ok()) << made.error().to_string();
    pool = std::move(made).value();
    if (!options.being_made) pool->collect_offered();
    CoreConfig config_of_core = options.core;
    if (options.kept) {
      const std::uint32_t blocks = options.core.max_blocks;
      kept.emplace(mem::KeptTable::create({pool->id(), 64, blocks, 8 * blocks, 64}).value());
      pool->keep_in(*kept);
      for (const mem::SlabInfo& slab : pool->slabs())
        kept->put_slab(slab.slot, {slab.id, slab.bytes, {}, kAnyNode, mem::KeptSlabState::kLive});
      kept->set_complete();
      config_of_core.kept = &*kept;
    }
    core = std::make_unique<Core>(config_of_core, *pool, ports, options.tier);
  }

  void have_memory() const {
    while (pool->building()) {
      pollfd ready{pool->ready_fd(), POLLIN, 0};
      ASSERT_EQ(::poll(&ready, 1, 30'000), 1);
      pool->collect_offered();
    }
  }
  SessionId open() {
    const SessionId s(next_session_++);
    core->open_session(s, now);
    return s;
  }
  RegistrationId join(SessionId session, const RankOptions& options = {}) {
    auto r = core->register_rank(session, rank_of(options), now);
    EXPECT_TRUE(r.ok()) << r.error().to_string();
    return r.ok() ? *r : RegistrationId(0);
  }
  OperationKey next_op(SessionId session) {
    const std::uint64_t id = ++operations_[session];
    return {session, RecordIndex(static_cast<std::uint32_t>(id % 1024)), OperationId(id)};
  }

  Result<PublishAnswer> publish(const OperationKey& op, RegistrationId registration,
                                const std::vector<BlockHash>& list) {
    const auto engine_blocks = blocks(0, list.size());
    return core->publish({op, registration, GroupId(0), engine_blocks, list}, now);
  }
  void commit(const OperationKey& op) {
    std::vector<std::uint64_t> digests;
    for (const auto& e : ports.granted.at(op).entries) digests.push_back(digest_of(e));
    DrainReport report;
    report.success = true;
    report.digests = digests;
    core->drained(op, report, now);
  }
  void drain_failed(const OperationKey& op, std::vector<std::uint64_t> failed = {}) {
    DrainReport report;
    report.failed = failed;
    report.text = "scripted";
    core->drained(op, report, now);
  }
  void verified(const OperationKey& op) {
    DrainReport report;
    report.success = true;
    core->drained(op, report, now);
  }
  // Publishes and commits.
  void store(SessionId session, RegistrationId registration, const std::vector<BlockHash>& list) {
    const OperationKey op = next_op(session);
    ASSERT_TRUE(publish(op, registration, list).ok());
    if (ports.granted.contains(op)) commit(op);
  }

  QueryPart part(const std::vector<BlockHash>& list, std::string_view id, QueryMode mode = QueryMode::kRead,
                 int instance = 1) const {
    return {instance_id(instance), GroupId(0), mode, id, 0, static_cast<std::uint32_t>(list.size()), list};
  }
  QueryAnswer read(SessionId session, const std::vector<BlockHash>& list, std::string_view id,
                   int instance = 1) {
    auto r = core->query(session, part(list, id, QueryMode::kRead, instance), now);
    EXPECT_TRUE(r.ok()) << r.error().to_string();
    return r.ok() ? *r : QueryAnswer{};
  }
  std::uint32_t discover(SessionId session, const std::vector<BlockHash>& list, int instance = 1) {
    auto r = core->query(session, part(list, "", QueryMode::kDiscover, instance), now);
    EXPECT_TRUE(r.ok()) << r.error().to_string();
    return r.ok() ? r->hit_blocks : 0;
  }
  Result<std::uint32_t> restore(const OperationKey& op, RegistrationId registration, LeaseId lease,
                                const std::vector<std::uint32_t>& targets, std::uint32_t first = 0) {
    return core->restore({op, registration, lease, first, targets}, now);
  }
  std::vector<NamespaceBlocks> drop(const DropWhat& what, DropRun run = DropRun::kDrop) const {
    const DropId id = core->begin_drop(what, run, now);
    while (core->turn(now)) continue;
    auto gone = core->take_dropped(id);
    EXPECT_TRUE(gone.has_value());
    return gone.value_or(std::vector<NamespaceBlocks>());
  }
  ByteCount used() const { return pool->stats().used; }

  ScriptedPorts ports;
  std::optional<mem::KeptTable> kept;
  std::unique_ptr<mem::Pool> pool;
  std::unique_ptr<Core> core;
  TimePoint now{1'000'000'000};

 private:
  std::uint32_t next_session_ = 0;
  std::map<SessionId, std::uint64_t> operations_;
};

// One engine of one rank: scheduler and worker.
struct Engine {
  explicit Engine(World& w, const RankOptions& options = {})
      : scheduler(w.open()), worker(w.open()), registration(w.join(worker, options)) {}
  SessionId scheduler, worker;
  RegistrationId registration;
};

inline ByteCount slot_bytes(const RankOptions& options = {}) {
  return ByteCount(model::slot_layout(rank_of(options).groups[0]).slot_bytes);
}

template <class T>
Code code_of(const Result<T>& r) {
  return r.ok() ? Code::kOk : r.error().code();
}

}  // namespace orbitkv::cache::testing
