#include "ssd/recovery.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/log.h"
#include "base/time.h"
#include "ssd/format_builder.h"
#include "ssd/scan.h"

namespace orbitkv::ssd {
namespace {

constexpr std::uint32_t kHardlyFilled = 4;  // one part in so many, at most: what reclaim may copy forward

struct Unsealed {
  SegmentIndex segment;
  SegmentFound found;
  EntryList entries;
};

class Recovery final : public ScanSink {
 public:
  Recovery(StoreState& state, Tombstones& tombstones, const std::vector<SpaceDrop>& drops)
      : state_(state), tombstones_(tombstones) {
    for (const SpaceDrop& drop : drops) drops_[drop.digest] = drop.sequence;
  }

  void found(const SegmentFound& segment, EntryList& entries) override {
    tell_progress();
    const SegmentIndex index = state_.segments.of(PathIndex(segment.path), segment.number);
    if (segment.condition == SegmentCondition::kFree) return;
    if (segment.condition == SegmentCondition::kBad) {
      // Whatever it holds is older than anything that will be written.
      state_.segments.set_content(index, SegmentSequence(1));
      state_.segments.at(index).min_record = RecordSequence();
      return;
    }
    state_.segments.step(index, SegmentEvent::kRecovered);
    state_.segments.set_content(index, segment.segment.life.sequence);
    newest_ = std::max(newest_, segment.segment.life.sequence);
    take_spaces(entries);
    for (const RecordEntry& record : entries.records) take(index, record, entries.marks_of(record));
    for (const Tombstone& tombstone : entries.tombstones) tombstones_.recovered(tombstone, index);
    if (segment.end <= state_.segment_pages() / kHardlyFilled) state_.hardly_filled.push_back(index);
    if (segment.condition == SegmentCondition::kUnsealed)
      unsealed_.push_back({index, segment, std::move(entries)});
  }

  void apply_tombstones() {
    tombstones_.recovery_ended(newest_);
    bool of_namespaces = false;
    tombstones_.each([&](const Tombstone& tombstone) {
      if (tombstone.group == kAllGroups) {
        RecordSequence& last = drops_[tombstone.digest];
        last = std::max(last, tombstone.sequence);
        of_namespaces = true;
        return;
      }
      for (const SpaceIndex space : state_.spaces.of(tombstone.digest, tombstone.group)) {
        const StoredRef ref = state_.index.find(space, tombstone.hash);
        if (!ref || state_.index.at(ref.id).sequence > tombstone.sequence) continue;
        state_.forget(ref.id, Loss::kNone);
      }
    });
    if (of_namespaces) drop_again();
  }

  // Everything that was found is made durable before anything is made of it.
  void settle() {
    for (std::uint32_t i = 0; i < state_.paths.size(); ++i) sync(PathIndex(i));
    for (Unsealed& each : unsealed_) seal(each);
    for (std::uint32_t i = 0; i < state_.paths.size(); ++i) free_empty(PathIndex(i));
    keep_what_is_hardly_filled();
    state_.spaces.let_all_go();
  }

  // Blocks that found no place in the index.
  std::uint64_t left_out() const { return index_full_; }

 private:
  void tell_progress() {
    constexpr std::uint64_t kEvery = 4096;
    if (++segments_ % kEvery != 0 || !state_.config.progress) return;
    state_.config.progress("SSD store: " + std::to_string(segments_) + " segments read, " +
                           std::to_string(state_.index.size()) + " blocks found");
  }

  // What the log says of whole namespaces, after all of it has been read.
  void drop_again() {
    std::vector<StoredId> gone;
    for (std::uint32_t i = 0; i < state_.segments.size(); ++i) {
      for (StoredId id = state_.index.first_in(SegmentIndex(i)); id != kNotStored;
           id = state_.index.next_in(id)) {
        const IndexRecord record = state_.index.at(id);
        const auto drop = drops_.find(state_.spaces.at(record.space).shape.digest);
        if (drop != drops_.end() && record.sequence <= drop->second) gone.push_back(id);
      }
    }
    for (const StoredId id : gone) state_.forget(id, Loss::kNone);
  }

  void take_spaces(const EntryList& entries) {
    local_.clear();
    for (const SpaceEntry& entry : entries.spaces) {
      const auto space = state_.spaces.enter(entry.shape);
      if (!space.ok()) {
        ORBITKV_WARN("SSD store: blocks of a namespace are not found again: %s",
                     space.error().message().c_str());
        continue;
      }
      local_[entry.number] = *space;
      const auto drop = drops_.find(entry.shape.digest);
      if (drop != drops_.end()) state_.spaces.at(*space).killed = drop->second;
    }
  }

  void take(SegmentIndex segment, const RecordEntry& entry, std::span<const ImageMark> marks) {
    Segment& holder = state_.segments.at(segment);
    holder.min_record = std::min(holder.min_record, entry.sequence);
    const auto space = local_.find(entry.space);
    if (space == local_.end() || entry.sequence <= state_.spaces.at(space->second).killed) return;
    const IndexRecord record{space->second,    entry.hash,        entry.sequence, segment,
                             entry.first_page, entry.image_pages, entry.shards,   std::uint8_t{0}};
    const Index::Placed placed = state_.enter(record, marks);
    if (placed.outcome == Index::Put::kFull) ++index_full_;
    if (placed.outcome != Index::Put::kOlder) return;
    // A copy forward and what it was made of: the one that is reclaimed later.
    const IndexRecord held = state_.index.at(placed.ref.id);
    if (held.sequence == entry.sequence && state_.segments.at(held.segment).life < holder.life) {
      state_.move(placed.ref.id, segment, entry.first_page);
    }
  }

  bool sync(PathIndex path) {
    const int error = state_.io.wait({IoOp::kSync, state_.paths[path.value].file, 0, {}});
    if (error != 0) state_.stop(path, error, StoreState::Stop::kUntilRestart);
    return error == 0;
  }

  // Without a footer it is read batch by batch at the next start as well.
  void seal(const Unsealed& each) {
    const PathIndex path = state_.segments.at(each.segment).path;
    SegmentBuilder builder(each.found.segment);
    if (!state_.paths[path.value].writable() || !builder.adopt(each.entries, each.found.end)) return;
    const PageBuffer seal(std::size_t{builder.seal_pages()} * kPageBytes);
    builder.encode_seal(seal.span());
    const std::uint64_t offset = state_.offset_of(each.segment, builder.seal_place().first);
    const int error = state_.io.wait({IoOp::kWrite, state_.paths[path.value].file, offset, {seal.span()}});
    if (error != 0) return state_.write_failed(path, error);
    state_.stats.device_written += ByteCount(seal.size());
    sync(path);
  }

  // Segments that had been reclaimed, and those without a record that counts.
  void free_empty(PathIndex path) {
    if (!state_.paths[path.value].writable()) return;
    const auto sealed = state_.segments.sealed(path);
    for (const auto& [life, segment] : sealed) {
      if (state_.index.count_in(segment) > 0 || tombstones_.needed_from(segment)) continue;
      state_.segments.step(segment, SegmentEvent::kReclaim);
      state_.segments.step(segment, SegmentEvent::kCopied);
      state_.segments.step(segment, SegmentEvent::kDurable);
    }
  }

  // Their records are copied forward like those that are used.
  void keep_what_is_hardly_filled() {
    std::erase_if(state_.hardly_filled, [this](SegmentIndex segment) {
      return state_.segments.at(segment).state != SegmentState::kSealed;
    });
    for (const SegmentIndex segment : state_.hardly_filled) {
      for (StoredId id = state_.index.first_in(segment); id != kNotStored; id = state_.index.next_in(id))
        state_.index.flags(id) |= kHot;
    }
  }

  StoreState& state_;
  Tombstones& tombstones_;
  std::map<model::NamespaceDigest, RecordSequence> drops_;
  std::map<LocalSpace, SpaceIndex> local_;  // of the segment in hand
  std::vector<Unsealed> unsealed_;
  SegmentSequence newest_;
  std::uint64_t segments_ = 0, index_full_ = 0;
};

}  // namespace

Status recover(StoreState& state, Tombstones& tombstones, Io& io, const std::vector<SpaceDrop>& drops) {
  const TimePoint begin = monotonic_now();
  std::vector<ScanPath> paths;
  for (const Path& path : state.paths) paths.push_back({path.file, path.superblock});
  Recovery recovery(state, tombstones, drops);
  ScanOptions options;
  options.stop_fd = state.config.stop_fd;
  options.depth = std::clamp(state.segments.size() / 2, 4u, options.depth);
  ORBITKV_ASSIGN_OR_RETURN(const ScanTotals totals, scan(io, paths, recovery, options));
  recovery.apply_tombstones();
  recovery.settle();
  if (recovery.left_out() > 0) {
    ORBITKV_WARN("SSD store: the index has room for %u blocks; %llu more on the SSD are not found",
                 state.index.capacity(), static_cast<unsigned long long>(recovery.left_out()));
  }
  state.stats.recovered = state.index.size();
  state.stats.lost = {};
  state.stats.damaged_batches = totals.damaged;
  state.stats.recovery_seconds = static_cast<double>((monotonic_now() - begin).ns) * 1e-9;
  if (state.config.progress) {
    state.config.progress("SSD store: " + std::to_string(state.index.size()) + " blocks found in " +
                          std::to_string(totals.segments) + " segments");
  }
  return ok_status();
}

}  // namespace orbitkv::ssd
