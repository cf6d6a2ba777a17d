#include "bench/core_rig.h"

#include <time.h>

#include <algorithm>

#include "base/limits.h"
#include "bench/manager.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint32_t kPiece = 500;  // blocks of a save

model::RankRegistration rank_of(std::uint32_t engine, std::uint32_t blocks) {
  model::GroupShape group;
  group.fragments = {{0, 0, ByteCount(CoreRig::kSlotBytes)}};
  model::RankRegistration rank;
  rank.instance = CoreRig::instance(engine);
  rank.name_space = "bench";
  rank.device = "cpu:0";
  rank.num_blocks = blocks;
  rank.block_tokens = 16;
  rank.groups = {group};
  return rank;
}

}  // namespace

TimePoint thread_cpu_now() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return TimePoint{} + seconds(t.tv_sec) + nanoseconds(t.tv_nsec);
}

ByteCount CoreRig::block_bytes() {
  return ByteCount(model::slot_layout(rank_of(0, 1).groups[0]).slot_bytes);
}

InstanceId CoreRig::instance(std::uint32_t engine) {
  InstanceId id;
  id.bytes[0] = static_cast<std::byte>(engine + 1);
  return id;
}

Status CoreRig::open(const Shape& shape) {
  mem::PoolConfig config;
  const std::uint64_t blocks = std::uint64_t{shape.engines} * shape.blocks;
  config.bytes = std::max(64 * kMiB, ByteCount(2 * blocks * block_bytes().value));
  config.huge_pages = mem::HugePages::kOff;
  config.prefault = false;
  ORBITKV_ASSIGN_OR_RETURN(pool_, mem::Pool::create(config));
  pool_->collect_offered();
  cache::CoreConfig core = shape.core;
  core.max_blocks = static_cast<std::uint32_t>(blocks * 5 / 4);
  core_ = std::make_unique<cache::Core>(core, *pool_, ports_, shape.tier);
  const TimePoint now = monotonic_now();
  for (std::uint32_t e = 0; e < shape.engines; ++e) {
    core_->open_session(SessionId(e), now);
    ORBITKV_ASSIGN_OR_RETURN(const auto registration,
                             core_->register_rank(SessionId(e), rank_of(e, shape.blocks), now));
    registrations_.push_back(registration);
    ORBITKV_RETURN_IF_ERROR(fill(e, shape.blocks, now));
  }
  return ok_status();
}

void CoreRig::drain(TimePoint now) {
  for (const InstantPorts::Granted& each : std::exchange(ports_.granted, {})) {
    const std::vector<std::uint64_t> digests(each.entries, 1);
    core_->drained(each.op, {true, digests, {}, {}}, now);
  }
}

Status CoreRig::fill(std::uint32_t engine, std::uint32_t count, TimePoint now) {
  const SessionId session(engine);
  for (std::uint32_t at = 0; at < count; at += kPiece) {
    std::vector<std::uint32_t> blocks(std::min(kPiece, count - at));
    for (std::uint32_t i = 0; i < blocks.size(); ++i) blocks[i] = at + i;
    const auto list =
        hashes_from(std::uint64_t{engine} * count + at, static_cast<std::uint32_t>(blocks.size()));
    const auto saved =
        core_->publish({next_operation(session), registrations_[engine], GroupId(0), blocks, list}, now);
    if (!saved.ok()) return saved.error();
    drain(now);
  }
  return ok_status();
}

}  // namespace orbitkv::bench
