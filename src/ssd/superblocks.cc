#include "ssd/superblocks.h"

#include <algorithm>
#include <limits>

#include "base/limits.h"
#include "base/log.h"

namespace orbitkv::ssd {
namespace {

constexpr Duration kProbeAgain = seconds(60);

}  // namespace

void Superblocks::recovered(const std::vector<SpaceDrop>& drops, SegmentSequence newest) {
  for (const SpaceDrop& drop : drops) drops_.push_back({drop, newest});
}

void Superblocks::forget_old() {
  std::erase_if(drops_, [this](const Entry& entry) {
    return !state_.segments.may_hold({entry.newest, entry.drop.sequence}, std::nullopt);
  });
}

Status Superblocks::drop(const SpaceDrop& drop, TransferId transfer) {
  forget_old();
  const auto same = std::find_if(drops_.begin(), drops_.end(),
                                 [&drop](const Entry& entry) { return entry.drop.digest == drop.digest; });
  const bool full = same == drops_.end() && drops_.size() >= limits::kSpaceDrops;
  if (full || waiting_.size() >= limits::kSpaceDrops) {
    return busy(
        std::to_string(limits::kSpaceDrops) +
        " namespaces were dropped whose blocks still lie on the SSD; try again when more has been written");
  }
  if (same == drops_.end()) {
    drops_.push_back({drop, state_.newest_life()});
  } else {
    *same = {drop, state_.newest_life()};
  }
  ++version_;
  waiting_.push_back({transfer, version_, static_cast<std::uint32_t>(lanes_.size()), 0, true});
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) write(PathIndex(i));
  return ok_status();
}

void Superblocks::write(PathIndex path) {
  Lane& lane = lanes_[path.value];
  if (lane.busy) {
    lane.again = true;
    return;
  }
  lane.busy = true;
  lane.again = false;
  lane.version = version_;
  ++in_flight_;
  Superblock& superblock = state_.paths[path.value].superblock;
  ++superblock.update;
  superblock.drops.clear();
  for (const Entry& entry : drops_) superblock.drops.push_back(entry.drop);
  if (lane.page.size() == 0) lane.page = PageBuffer(kPageBytes);
  write_copy(path, 0);
}

void Superblocks::write_copy(PathIndex path, std::uint32_t nth) {
  const Path& target = state_.paths[path.value];
  const std::uint32_t copy = (target.write_first + nth) % kSuperblockCopies;
  encode_superblock(target.superblock, copy, lanes_[path.value].page.span());
  state_.io.submit({IoOp::kWrite, target.file, copy * kPageBytes, {lanes_[path.value].page.span()}},
                   [this, path, nth](int error) { copy_ended(path, nth, error); });
}

void Superblocks::copy_ended(PathIndex path, std::uint32_t nth, int error) {
  if (error != 0) {
    // It may be torn now: next time it is written while the other one is whole.
    Path& target = state_.paths[path.value];
    target.write_first = (target.write_first + nth) % kSuperblockCopies;
    state_.write_failed(path, error);
    return ended(path, false);
  }
  durability_.sync(path, [this, path, nth](bool ok) {
    if (!ok || nth + 1 == kSuperblockCopies) return ended(path, ok);
    write_copy(path, nth + 1);
  });
}

void Superblocks::ended(PathIndex path, bool ok) {
  Lane& lane = lanes_[path.value];
  lane.busy = false;
  --in_flight_;
  Path& target = state_.paths[path.value];
  if (ok && !target.writable() && !target.until_restart) {
    ORBITKV_INFO("SSD store: %s takes writes again", target.name.c_str());
    target.state = PathState::kOk;
    target.why.clear();
  }
  // Each writing answers for all lists up to its own.
  std::erase_if(waiting_, [&](Waiting& waiting) {
    if (waiting.version > lane.version || (waiting.done & (std::uint64_t{1} << path.value)) != 0)
      return false;
    waiting.done |= std::uint64_t{1} << path.value;
    waiting.ok = waiting.ok && ok;
    if (--waiting.paths > 0) return false;
    state_.report({StoreEvent::Kind::kFlushed, waiting.transfer, waiting.ok, Refusal::kNone, Loss::kNone});
    return true;
  });
  if (lane.again) write(path);
}

bool Superblocks::may_try(PathIndex index) const {
  const Path& path = state_.paths[index.value];
  return !path.writable() && !path.until_restart && !lanes_[index.value].busy && !state_.closing;
}

TimePoint Superblocks::due() const {
  TimePoint due{std::numeric_limits<std::int64_t>::max()};
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    if (may_try(PathIndex(i))) due = std::min(due, state_.paths[i].probe_at);
  }
  return due;
}

void Superblocks::step() {
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    Path& path = state_.paths[i];
    if (!may_try(PathIndex(i)) || state_.now < path.probe_at) continue;
    path.probe_at = state_.now + kProbeAgain;
    write(PathIndex(i));
  }
}

}  // namespace orbitkv::ssd
