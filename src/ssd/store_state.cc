#include "ssd/store_state.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "base/limits.h"
#include "base/log.h"

namespace orbitkv::ssd {
namespace {

constexpr Duration kProbeAfter = seconds(60);
constexpr std::uint32_t kFailuresInARow = 8;

// Errors after which the next write of the path would fail as well.
bool stops_writing(int error) {
  return error == ENOSPC || error == EDQUOT || error == EROFS || error == EACCES || error == EPERM;
}

std::string remedy_of(int error, StoreState::Stop stop) {
  if (stop == StoreState::Stop::kUntilRestart) {
    return "the device could not make writes durable, so what it held back is dropped; check the device, "
           "then "
           "restart the Manager";
  }
  switch (error) {
    case ENOSPC: return "free space on its file system; writing is tried again every minute";
    case EDQUOT: return "raise the quota or free space under it; writing is tried again every minute";
    case EROFS: return "remount its file system for writing; writing is tried again every minute";
    default: return "check the device and the permissions; writing is tried again every minute";
  }
}

const char* text_of(Refusal why) {
  switch (why) {
    case Refusal::kQueueFull:
      return "the SSD write queue is full: slower than what is published; try again later";
    case Refusal::kNoSpace: return "no SSD segment can be reclaimed: all are being read; try again later";
    case Refusal::kIndexFull:
      return "the index of the SSD store is full; raise its record limit or use larger blocks";
    case Refusal::kDeviceError: return "the SSD did not take the write";
    case Refusal::kWriteStopped: return "no SSD path takes writes; orbitkv status says why and what helps";
    case Refusal::kDropped: return "the block was dropped meanwhile";
    case Refusal::kOpening: return "what the SSD store holds is still being read; try again later";
    case Refusal::kNone:
    case Refusal::kCount: break;
  }
  return "refused";
}

// A sharded record needs a mark a shard; the table costs memory only where it is used.
constexpr std::uint32_t kFurtherMarksPerRecord = 4;

std::uint64_t random_seed() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

Index::Config index_config(const StoreConfig& config, const std::vector<Path>& paths) {
  Index::Config out;
  out.max_records = config.max_records;
  out.max_further = kFurtherMarksPerRecord * config.max_records;
  for (const Path& path : paths) out.segments += path.superblock.segments;
  out.seed = random_seed();
  return out;
}

}  // namespace

bool any_overlaps(std::span<const SlotMemory> slots, std::span<const std::byte> memory) {
  const std::byte* end = memory.data() + memory.size();
  return std::any_of(slots.begin(), slots.end(), [&](const SlotMemory& slot) {
    return slot.memory.data() < end && memory.data() < slot.memory.data() + slot.memory.size();
  });
}

StoreState::StoreState(const StoreConfig& store_config, Io& store_device, std::vector<Path> opened)
    : config(store_config),
      device(store_device),
      io(store_device),
      paths(std::move(opened)),
      index(index_config(store_config, paths)) {
  for (const Path& path : paths) {
    segments.add_path(path.superblock.segments);
    stats.capacity += path.superblock.segments * path.superblock.segment;
  }
}

SegmentLife StoreState::next_life(SegmentIndex segment) {
  return {uuid, SegmentSequence(next_life_++), segments.at(segment).number};
}

void StoreState::start_epoch(StoreEpoch epoch) {
  next_record_ = first_sequence(epoch);
  next_life_ = first_sequence(epoch);
}

bool StoreState::visible(StoredRef record) const {
  if (!index.live(record)) return false;
  const IndexRecord found = index.at(record.id);
  return found.sequence > spaces.at(found.space).killed;
}

void StoreState::count_in(const IndexRecord& record) {
  const std::uint64_t bytes = bytes_of(record);
  ++spaces.at(record.space).records;
  segments.at(record.segment).bytes += bytes;
  stats.live += ByteCount(bytes);
}

void StoreState::count_out(const IndexRecord& record, Loss why) {
  const std::uint64_t bytes = bytes_of(record);
  segments.at(record.segment).bytes -= bytes;
  stats.live -= ByteCount(bytes);
  Space& space = spaces.at(record.space);
  --space.records;
  const bool killed = record.sequence <= space.killed;
  if (killed) {
    --space.killed_records;
    --killed_records;
  } else {
    ++stats.lost[static_cast<std::size_t>(why)];
  }
  spaces.let_go(record.space);
}

Index::Placed StoreState::enter(const IndexRecord& record, std::span<const ImageMark> marks) {
  const Index::Placed placed = index.put(record, marks);
  if (placed.outcome == Index::Put::kNew || placed.outcome == Index::Put::kReplaced) {
    count_in(record);
    used_now(placed.ref.id);
  }
  if (placed.replaced) count_out(*placed.replaced, Loss::kReplaced);
  return placed;
}

// A minute that has begun may be almost over.
bool StoreState::unused_for(StoredId id, Duration least) {
  const std::int64_t last = std::max(index.minute(id), minute_of(begun));
  const std::int64_t minutes = (least.ns + seconds(60).ns - 1) / seconds(60).ns;
  return begun.ns != 0 && minute_of(now) - last > minutes;
}

void StoreState::forget(StoredId id, Loss why) {
  const IndexRecord record = index.at(id);
  index.erase(id);
  count_out(record, why);
}

void StoreState::move(StoredId id, SegmentIndex to, std::uint32_t first_page) {
  const IndexRecord record = index.at(id);
  segments.at(record.segment).bytes -= bytes_of(record);
  index.relocate(id, to, first_page);
  segments.at(to).bytes += bytes_of(record);
}

std::uint64_t StoreState::offset_of(SegmentIndex index_of, std::uint32_t page) const {
  const Segment& segment = segments.at(index_of);
  const Superblock& superblock = paths[segment.path.value].superblock;
  return superblock.first_segment.value + segment.number.value * superblock.segment.value + page * kPageBytes;
}

bool StoreState::above_reserve(PathIndex path) const {
  return segments.count(path, SegmentState::kFree) > limits::kReservedSegments;
}

void StoreState::stop(PathIndex index_of, int error, Stop how) {
  Path& path = paths[index_of.value];
  path.failures = 0;
  path.probe_at = now + kProbeAfter;
  if (path.until_restart) return;
  path.until_restart = how == Stop::kUntilRestart;
  std::string why = path.name + ": " + std::strerror(error) + "; " + remedy_of(error, how);
  if (path.writable() || path.why != why) {
    ORBITKV_WARN("SSD store: writing stops, reads go on: %s", why.c_str());
  }
  path.state = PathState::kWriteStopped;
  path.why = std::move(why);
}

void StoreState::write_failed(PathIndex index_of, int error) {
  Path& path = paths[index_of.value];
  ORBITKV_WARN("SSD store: a write to %s failed: %s; its blocks are not stored", path.name.c_str(),
               std::strerror(error));
  ++path.failures;
  if (stops_writing(error) || path.failures >= kFailuresInARow) stop(index_of, error, Stop::kUntilProbe);
}

void StoreState::look_for_names() {
  for (Path& path : paths) {
    if (!path.linked || device.linked(path.file)) continue;
    path.linked = false;
    ORBITKV_WARN(
        "SSD store: %s was deleted or replaced while in use; what it holds is lost at the end of this "
        "process: restart the Manager to begin a new file",
        path.name.c_str());
  }
}

void StoreState::report(const StoreEvent& event) {
  if (event.refusal != Refusal::kNone) ++stats.refused[static_cast<std::size_t>(event.refusal)];
  events.push_back(event);
}

Error StoreState::refuse(Refusal why) {
  ++stats.refused[static_cast<std::size_t>(why)];
  return busy(text_of(why));
}

}  // namespace orbitkv::ssd
