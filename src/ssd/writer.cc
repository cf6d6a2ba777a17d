#include "ssd/writer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace orbitkv::ssd {
namespace {

constexpr std::uint32_t kBatchesOfPath = 2;
constexpr ByteCount kWorthABatch = kMiB;
constexpr Duration kWaitForMore = milliseconds(2);
// Four requests: so that two batches keep a device busy at the size where it is fastest.
constexpr std::uint32_t kBatchPages = 1024;
constexpr std::uint64_t kRequestBytes = std::uint64_t{1} << 20;

// Cuts what follows each other in the file into requests.
class Cutter {
 public:
  Cutter(FileIndex file, std::uint64_t offset) : file_(file), offset_(offset) {}
  void add(std::span<std::byte> piece) {
    while (!piece.empty()) {
      if (requests_.empty() || bytes_ == kRequestBytes || requests_.back().pieces.size() == kPieces) begin();
      const auto part = piece.first(std::min<std::uint64_t>(piece.size(), kRequestBytes - bytes_));
      requests_.back().pieces.push_back(part);
      bytes_ += part.size();
      piece = piece.subspan(part.size());
    }
  }
  std::vector<Dispatch::Request>&& requests() { return std::move(requests_); }

 private:
  void begin() {
    offset_ += bytes_;
    bytes_ = 0;
    requests_.push_back({IoOp::kWrite, file_, offset_, {}});
  }
  FileIndex file_;
  std::uint64_t offset_, bytes_ = 0;
  std::vector<Dispatch::Request> requests_;
};

}  // namespace

void Writer::hurry() {
  if (!queue_.users().empty()) hurry_ = queue_.users().back().sequence;
}

void Writer::fence(SpaceIndex space, const BlockHash& hash, const ImageMark& mark) {
  const auto look = [&](Writes& writes) {
    for (PendingWrite& write : writes) {
      const ImageMark& own = write.slots.front().mark;
      const bool same = write.space == space && write.hash == hash && own.digest == mark.digest &&
                        own.revision == mark.revision;
      if (same && !write.forward()) write.fenced = true;
    }
  };
  look(queue_.users());
  for (Batch& batch : batches_) look(batch.writes);
}

bool Writer::users_ready() const {
  if (queue_.users().empty()) return false;
  const PendingWrite& first = queue_.users().front();
  return state_.closing || first.sequence <= hurry_ || queue_.waiting() >= kWorthABatch ||
         state_.now - first.arrived >= kWaitForMore;
}

// The one with the most free segments, so that paths fill alike; in turn where they are even.
std::optional<PathIndex> Writer::choose(Use use) {
  const auto count = static_cast<std::uint32_t>(state_.paths.size());
  struct Candidate {
    std::optional<PathIndex> path;
    std::uint32_t free = 0;
  } best, closed;
  for (std::uint32_t i = 1; i <= count; ++i) {
    const PathIndex path((last_path_ + i) % count);
    if (!state_.paths[path.value].writable() || batches_of_[path.value] >= kBatchesOfPath) continue;
    const std::uint32_t free = state_.segments.count(path, SegmentState::kFree);
    const bool open = open_.current(path, use) != nullptr;
    if (!open && use == Use::kUsers) open_.prepare(path, use);
    auto& [chosen, most] = open ? best : closed;
    if (chosen && free <= most) continue;
    chosen = path;
    most = free;
  }
  // Any path will do for the store's own, so that no more than one reserved segment is opened.
  if (!best.path && use == Use::kStore && closed.path) open_.prepare(*closed.path, use);
  return best.path;
}

void Writer::step() {
  while (form_one()) {
  }
  blocked_ = users_ready();
}

bool Writer::form_one() {
  std::optional<PathIndex> path;
  const bool store_waits = store_ready();
  if (store_waits) path = choose(Use::kStore);
  if (!path && users_ready()) path = choose(Use::kUsers);
  if (!path) return false;
  last_path_ = path->value;
  OpenSegment& segment = *open_.current(*path, Use::kStore);
  Batches one(1);
  Batch& batch = one.front();
  batch.path = *path;
  batch.segment = &segment;
  const Fit fit = fill(segment, batch);
  const bool empty = segment.builder.batch_empty();
  if (!empty) send(std::move(one));
  if (fit == Fit::kSegmentFull) {
    open_.retire(*path);
  } else if (segment.builder.pages_left() < state_.segment_pages() / 4) {
    open_.prepare(*path, segment.use);
  }
  return !empty || fit == Fit::kSegmentFull || store_waits != store_ready();
}

Fit Writer::fill(OpenSegment& segment, Batch& batch) {
  while (tombstones_.pending()) {
    const Tombstones::Next next = tombstones_.next();
    const Fit fit = segment.builder.add_tombstone(*next.tombstone);
    if (fit != Fit::kYes) return fit;
    tombstones_.started(segment.index);
    batch.tombstones.push_back(next.id);
  }
  const Fit fit = fill_forwards(segment, batch);
  if (fit != Fit::kYes || segment.use == Use::kStore) return fit;
  return fill_users(segment, batch);
}

Fit Writer::add(OpenSegment& segment, const PendingWrite& write) {
  if (!segment.builder.batch_empty() && segment.builder.batch_pages() >= kBatchPages) return Fit::kBatchFull;
  std::vector<ImageMark> marks;
  for (const SlotMemory& slot : write.slots) marks.push_back(slot.mark);
  return segment.builder.add_record(write.space, state_.spaces.at(write.space).shape,
                                    {write.hash, write.sequence, marks});
}

Fit Writer::fill_forwards(OpenSegment& segment, Batch& batch) {
  Writes& waiting = queue_.forwards();
  while (!waiting.empty()) {
    PendingWrite& first = waiting.front();
    // Replaced or dropped since it was read: nothing to keep, and nothing that a tombstone
    // written meanwhile would have to end in a later segment.
    if (!state_.visible(first.origin) || state_.index.at(first.origin.id).segment != first.from) {
      const auto done = std::move(first.done);
      waiting.pop_front();
      done();
      continue;
    }
    const Fit fit = add(segment, first);
    if (fit != Fit::kYes) return fit;
    batch.writes.splice(batch.writes.end(), waiting, waiting.begin());
  }
  return Fit::kYes;
}

Fit Writer::fill_users(OpenSegment& segment, Batch& batch) {
  while (!queue_.users().empty()) {
    if (queue_.users().front().fenced) {
      queue_.end_user(queue_.take_user().front(), Refusal::kDropped);
      continue;
    }
    const Fit fit = add(segment, queue_.users().front());
    if (fit != Fit::kYes) return fit;
    Writes taken = queue_.take_user();
    batch.writes.splice(batch.writes.end(), taken);
  }
  return Fit::kYes;
}

void Writer::send(Batches&& one) {
  const auto batch = one.begin();
  batches_.splice(batches_.end(), one);
  SegmentBuilder& builder = batch->segment->builder;
  batch->closed = builder.close_batch();
  const BatchHead& head = batch->closed.head;
  batch->descriptor = PageBuffer(std::size_t{head.descriptor_pages} * kPageBytes);
  builder.encode_descriptor(batch->closed, batch->descriptor.span());
  Segment& segment = state_.segments.at(batch->segment->index);
  Cutter cutter(state_.paths[batch->path.value].file,
                state_.offset_of(batch->segment->index, head.pages.first));
  cutter.add(batch->descriptor.span());
  for (const PendingWrite& write : batch->writes) {
    segment.min_record = std::min(segment.min_record, write.sequence);
    const std::uint64_t image = std::uint64_t{state_.spaces.at(write.space).image_pages} * kPageBytes;
    for (const SlotMemory& slot : write.slots) {
      cutter.add(slot.memory);
      cutter.add(zero_page().first(image - slot.memory.size()));
    }
  }
  auto requests = cutter.requests();
  batch->left = static_cast<std::uint32_t>(requests.size());
  open_.batch_started(*batch->segment);
  ++batches_of_[batch->path.value];
  for (Dispatch::Request& request : requests) {
    state_.io.submit(std::move(request), [this, batch](int error) {
      if (batch->error == 0) batch->error = error;
      if (--batch->left == 0) ended(batch);
    });
  }
}

void Writer::ended(Batches::iterator at) {
  Batch& batch = *at;
  const PathIndex path = batch.path;
  OpenSegment& segment = *batch.segment;
  --batches_of_[path.value];
  state_.stats.device_written += ByteCount(std::uint64_t{batch.closed.head.pages.count} * kPageBytes);
  // Behind a sync that failed none is to come that could cover it.
  const bool failed = batch.error != 0 || state_.paths[path.value].until_restart;
  if (failed) {
    lost(batch);
  } else {
    state_.write_went_well(path);
    durability_.written(path, enter(batch));
    for (const TombstoneId id : batch.tombstones) tombstones_.written(id);
    segment.builder.committed(std::move(batch.closed));
  }
  batches_.erase(at);
  open_.batch_ended(path, segment);
  // What a failed write left behind is a hole: nothing more goes behind it.
  if (failed && open_.current(path, Use::kStore) == &segment) open_.retire(path);
}

void Writer::lost(Batch& batch) {
  if (batch.error != 0) state_.write_failed(batch.path, batch.error);
  const bool stopped = !state_.paths[batch.path.value].writable();
  for (const TombstoneId id : batch.tombstones) tombstones_.failed(id);
  for (PendingWrite& write : batch.writes) {
    if (write.forward()) {
      write.done();
    } else {
      queue_.end_user(write, stopped ? Refusal::kWriteStopped : Refusal::kDeviceError);
    }
  }
}

std::vector<StoredRef> Writer::enter(Batch& batch) {
  std::vector<StoredRef> entered;
  std::size_t i = 0;
  for (PendingWrite& write : batch.writes) {
    const std::uint32_t first_page = batch.closed.first_pages[i++];
    const Space& space = state_.spaces.at(write.space);
    if (write.forward()) {
      enter_forward(write, batch.segment->index, first_page);
      entered.push_back(write.origin);
      write.done();
      continue;
    }
    const IndexRecord record{write.space, write.hash,        write.sequence,     batch.segment->index,
                             first_page,  space.image_pages, space.shape.shards, std::uint8_t{0}};
    queue_.end_user(write, enter_user(write, record, entered));
  }
  return entered;
}

void Writer::enter_forward(PendingWrite& write, SegmentIndex segment, std::uint32_t first_page) {
  if (!state_.visible(write.origin)) return;
  const IndexRecord now = state_.index.at(write.origin.id);
  if (now.segment != write.from) return;
  state_.move(write.origin.id, segment, first_page);
  state_.index.flags(write.origin.id) = 0;
  state_.stats.reinserted += ByteCount(bytes_of(now));
}

Refusal Writer::enter_user(const PendingWrite& write, const IndexRecord& record,
                           std::vector<StoredRef>& entered) {
  const Space& space = state_.spaces.at(write.space);
  if (write.sequence <= space.killed) return Refusal::kDropped;
  if (write.fenced) {
    // It is on the disk, and a start would find it.
    tombstones_.bury({space.shape.digest, space.shape.group, write.hash, write.sequence},
                     state_.newest_life());
    return Refusal::kDropped;
  }
  std::vector<ImageMark> marks;
  for (const SlotMemory& slot : write.slots) marks.push_back(slot.mark);
  const Index::Placed placed = state_.enter(record, marks);
  if (placed.outcome == Index::Put::kFull) return Refusal::kIndexFull;
  if (placed.outcome != Index::Put::kOlder) entered.push_back(placed.ref);
  return Refusal::kNone;
}

bool Writer::stuck() const {
  if (queue_.users().empty()) return false;
  for (std::uint32_t i = 0; i < state_.paths.size(); ++i) {
    if (!state_.paths[i].writable()) continue;
    if (batches_of_[i] > 0 || open_.may_serve_users(PathIndex(i))) return false;
  }
  return true;
}

bool Writer::room_for_store() const {
  for (std::uint32_t i = 0; i < state_.paths.size(); ++i) {
    if (state_.paths[i].writable() && open_.may_prepare(PathIndex(i), Use::kStore)) return true;
  }
  return false;
}

std::optional<RecordSequence> Writer::oldest() const {
  std::optional<RecordSequence> oldest;
  const auto look = [&oldest](const Writes& writes) {
    for (const PendingWrite& write : writes) {
      if (write.forward()) continue;
      if (!oldest || write.sequence < *oldest) oldest = write.sequence;
      return;  // they ascend
    }
  };
  look(queue_.users());
  for (const Batch& batch : batches_) look(batch.writes);
  return oldest;
}

bool Writer::idle() const {
  return batches_.empty() && queue_.users().empty() && queue_.forwards().empty() &&
         (!tombstones_.pending() || !room_for_store());
}

void Writer::drop_forwards() {
  while (!queue_.forwards().empty()) {
    const auto done = std::move(queue_.forwards().front().done);
    queue_.forwards().pop_front();
    done();
  }
}

bool Writer::uses(std::span<const std::byte> memory) const {
  if (any_overlaps(queue_.users(), memory)) return true;
  return std::any_of(batches_.begin(), batches_.end(),
                     [memory](const Batch& batch) { return any_overlaps(batch.writes, memory); });
}

TimePoint Writer::due() const {
  // What found no path in the last step goes on when the device or a reader has ended something.
  if (queue_.users().empty() || blocked_) return {std::numeric_limits<std::int64_t>::max()};
  if (users_ready()) return state_.now;
  return queue_.users().front().arrived + kWaitForMore;
}

}  // namespace orbitkv::ssd
