#include "ssd/reclaim.h"

#include <algorithm>

#include "base/limits.h"

namespace orbitkv::ssd {
namespace {

constexpr ByteCount kCopiedAtOnce = 8 * kMiB;  // private memory; one larger record goes alone

}  // namespace

struct Reclaim::Copy {
  StoredRef ref;
  IndexRecord record;
  std::vector<ImageMark> marks;
  PageBuffer images;
};

// Segments are freed ahead, so that writes seldom wait for it; and records while the index
// has hardly room for another one.
bool Reclaim::wanted(PathIndex path) const {
  const std::uint32_t ahead = 1 + std::min(state_.segments.count(path) / 64, 7u);
  const std::uint32_t coming =
      state_.segments.count(path, SegmentState::kFree) + awaiting_[path.value] + (jobs_[path.value] ? 1 : 0);
  return coming < limits::kReservedSegments + ahead || state_.index.nearly_full();
}

std::optional<SegmentIndex> Reclaim::victim(PathIndex path) {
  const auto may_go = [this](SegmentIndex segment) {
    if (state_.segments.at(segment).readers > 0) return false;
    return !tombstones_.needed_from(segment) || writer_.room_for_store();
  };
  if (writer_.room_for_store()) {
    for (const SegmentIndex segment : state_.hardly_filled)
      if (state_.segments.at(segment).path == path && may_go(segment)) return segment;
  }
  for (const auto& [life, segment] : state_.segments.sealed(path))
    if (may_go(segment)) return segment;
  return std::nullopt;
}

void Reclaim::step() {
  release_waiting();
  for (std::uint32_t i = 0; i < jobs_.size(); ++i) {
    const PathIndex path(i);
    if (!jobs_[i] && !state_.closing && state_.paths[i].writable() && wanted(path)) {
      if (const auto segment = victim(path)) start(path, *segment);
    }
    if (jobs_[i]) copy_some(path);
  }
}

std::vector<StoredRef> Reclaim::records_in(SegmentIndex segment) const {
  std::vector<StoredRef> out;
  out.reserve(state_.index.count_in(segment));
  for (StoredId id = state_.index.first_in(segment); id != kNotStored; id = state_.index.next_in(id)) {
    out.push_back(state_.index.ref(id));
  }
  return out;
}

// What goes, goes now; returns what is worth keeping.
std::vector<StoredRef> Reclaim::sort_out(SegmentIndex segment) {
  std::uint64_t budget =
      writer_.room_for_store() ? state_.config.segment.value / 100 * state_.config.reinsert_percent : 0;
  std::vector<StoredRef> kept;
  for (const StoredRef ref : records_in(segment)) {
    const std::uint64_t bytes = bytes_of(state_.index.at(ref.id));
    const bool hot = (state_.index.flags(ref.id) & kHot) != 0 && state_.visible(ref);
    if (hot && bytes <= budget) {
      budget -= bytes;
      kept.push_back(ref);
    } else {
      state_.forget(ref.id, Loss::kReclaimed);
    }
  }
  return kept;
}

void Reclaim::start(PathIndex path, SegmentIndex segment) {
  state_.segments.step(segment, SegmentEvent::kReclaim);
  std::erase(state_.hardly_filled, segment);
  Job& job = jobs_[path.value].emplace();
  job.segment = segment;
  job.hot = sort_out(segment);
  job.tombstones = tombstones_.needed_from(segment);
  if (job.tombstones) tombstones_.copy_from(segment);
}

void Reclaim::copy_some(PathIndex path) {
  Job& job = *jobs_[path.value];
  if (state_.closing) job.hot.clear();
  while (!job.hot.empty()) {
    const StoredRef ref = job.hot.back();
    if (state_.visible(ref)) {
      const ByteCount bytes(bytes_of(state_.index.at(ref.id)));
      if (copied_ > ByteCount() && copied_ + bytes > kCopiedAtOnce) return;
      copy_one(path, ref);
    }
    job.hot.pop_back();
  }
  const bool buried = !job.tombstones || (!tombstones_.pending() && !tombstones_.in_flight());
  if (job.copying == 0 && buried && !state_.closing) finish(path);
}

void Reclaim::copy_one(PathIndex path, StoredRef ref) {
  const IndexRecord record = state_.index.at(ref.id);
  const auto copy = std::make_shared<Copy>(Copy{ref, record, {}, PageBuffer(bytes_of(record))});
  copy->marks.resize(record.shards);
  state_.index.marks(ref.id, copy->marks);
  copied_ += ByteCount(copy->images.size());
  ++jobs_[path.value]->copying;
  ++state_.segments.at(record.segment).readers;
  state_.io.submit({IoOp::kRead,
                    state_.path_of(record.segment).file,
                    state_.offset_of(record.segment, record.first_page),
                    {copy->images.span()}},
                   [this, path, copy](int error) { landed(path, copy, error); });
}

void Reclaim::landed(PathIndex path, const std::shared_ptr<Copy>& copy, int error) {
  --state_.segments.at(copy->record.segment).readers;
  const auto done = [this, path, copy] {
    copied_ -= ByteCount(copy->images.size());
    --jobs_[path.value]->copying;
  };
  PendingWrite write;
  write.space = copy->record.space;
  write.hash = copy->record.hash;
  write.sequence = copy->record.sequence;
  write.origin = copy->ref;
  write.from = copy->record.segment;
  const std::size_t image = copy->images.size() / copy->record.shards;
  for (std::size_t i = 0; i < copy->marks.size(); ++i) {
    write.slots.push_back({copy->images.span().subspan(i * image, image), copy->marks[i]});
  }
  const bool usable = error == 0 && state_.visible(copy->ref);
  if (!usable || !headers_right(state_.spaces.at(write.space), write.hash, write.slots)) {
    if (error != 0) reader_.device_failed(copy->ref);
    return done();  // finish() forgets it
  }
  write.done = done;
  writer_.queue().add_forward(std::move(write));
}

void Reclaim::finish(PathIndex path) {
  const SegmentIndex segment = jobs_[path.value]->segment;
  jobs_[path.value].reset();
  // What could not be copied.
  for (const StoredRef ref : records_in(segment)) state_.forget(ref.id, Loss::kReclaimed);
  state_.segments.step(segment, SegmentEvent::kCopied);
  ++awaiting_[path.value];
  durability_.sync_all([this, path, segment](bool ok) {
    --awaiting_[path.value];
    // Otherwise it stays as it is until the next start, which finds its content again.
    if (ok) durable_.push_back(segment);
    release_waiting();
  });
}

void Reclaim::release_waiting() {
  std::erase_if(durable_, [this](SegmentIndex segment) {
    if (state_.segments.at(segment).readers > 0) return false;
    state_.segments.step(segment, SegmentEvent::kDurable);
    return true;
  });
}

bool Reclaim::may_yield() {
  if (!durable_.empty()) return true;
  for (std::uint32_t i = 0; i < jobs_.size(); ++i) {
    if (awaiting_[i] > 0) return true;
    if (state_.closing) continue;  // nothing more is begun or ended
    if (jobs_[i]) return true;
    if (state_.paths[i].writable() && victim(PathIndex(i))) return true;
  }
  return false;
}

bool Reclaim::idle() const {
  return std::all_of(jobs_.begin(), jobs_.end(), [](const auto& job) { return !job || job->copying == 0; });
}

}  // namespace orbitkv::ssd
