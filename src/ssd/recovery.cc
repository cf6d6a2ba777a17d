#include "ssd/recovery.h"

#include <algorithm>

#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "base/time.h"
#include "ssd/format_builder.h"

namespace orbitkv::ssd {
namespace {

constexpr std::uint32_t kHardlyFilled = 4;  // one part in so many, at most: what reclaim may copy forward
constexpr std::uint32_t kLeastReads = 4, kMostReads = 64;
constexpr std::uint32_t kSegmentsAStep = 256;  // that are looked at without their entries
constexpr std::uint32_t kCostOfASegment = 16;  // in records: header and tail
constexpr std::uint32_t kEntriesDecoded = 4;   // in the time of one that is taken

std::vector<ScanPath> scanned(const StoreState& state) {
  std::vector<ScanPath> paths;
  for (const Path& path : state.paths) paths.push_back({path.file, path.superblock});
  return paths;
}

}  // namespace

Recovery::Recovery(const Parts& parts, const std::vector<SpaceDrop>& drops)
    : state_(parts.state),
      tombstones_(parts.tombstones),
      durability_(parts.durability),
      incomplete_(parts.incomplete),
      scan_(parts.state.io, scanned(parts.state),
            std::clamp(parts.state.segments.size() / 2, kLeastReads, kMostReads)),
      begun_(monotonic_now()) {
  for (const SpaceDrop& each : drops) drop(each);
  state_.segments.set_incomplete(true);
}

void Recovery::drop(const SpaceDrop& drop) {
  RecordSequence& last = drops_[drop.digest];
  last = std::max(last, drop.sequence);
}

OpenProgress Recovery::progress() const {
  OpenProgress out;
  out.state = open_;
  out.segments = scan_.segments();
  out.segments_read = scan_.totals().segments;
  out.records = state_.index.size();
  const double spent = static_cast<double>((monotonic_now() - begun_).ns) * 1e-9;
  if (out.segments_read > 0)
    out.seconds_left = spent * static_cast<double>(out.segments - out.segments_read) /
                       static_cast<double>(out.segments_read);
  return out;
}

void Recovery::step() {
  rests_ = false;
  switch (open_) {
    case OpenState::kReading: return read();
    case OpenState::kSettling: return settle();
    case OpenState::kGivingUp:
      scan_.give_up();
      while (scan_.next() != nullptr) {
      }
      rests_ = scan_.rests();
      if (scan_.over()) ssd::step(open_, OpenEvent::kQuiet);
      return;
    case OpenState::kReady:
    case OpenState::kGivenUp:
    case OpenState::kIllegal: break;
  }
}

// ---- segments ----

void Recovery::read() {
  for (std::uint32_t left = state_.config.recovered_a_step; left > 0;) {
    std::uint32_t cost = 0;
    if (in_hand_) {
      cost = take_some(left);
    } else if (const SegmentFound* found = scan_.next()) {
      begin(*found);
      cost = kCostOfASegment + static_cast<std::uint32_t>(scan_.entries().records.size()) / kEntriesDecoded;
    } else {
      rests_ = !scan_.over() && scan_.rests();
      if (!scan_.over()) return;
      state_.segments.set_incomplete(incomplete_);
      return ssd::step(open_, OpenEvent::kRead);
    }
    left -= std::min(left, cost);
  }
}

void Recovery::begin(const SegmentFound& segment) {
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
  take_spaces(scan_.entries());
  in_hand_ = InHand{index, segment};
}

// How many entries it has taken, at least one.
std::uint32_t Recovery::take_some(std::uint32_t most) {
  const EntryList& entries = scan_.entries();
  InHand& hand = *in_hand_;
  std::uint32_t taken = 0;
  for (; taken < most && hand.record < entries.records.size(); ++taken, ++hand.record) {
    const RecordEntry& record = entries.records[hand.record];
    take(hand.index, record, entries.marks_of(record));
  }
  for (; taken < most && hand.tombstone < entries.tombstones.size(); ++taken, ++hand.tombstone)
    tombstones_.recovered(entries.tombstones[hand.tombstone], hand.index);
  if (hand.record == entries.records.size() && hand.tombstone == entries.tombstones.size()) end_segment();
  return std::max(taken, 1u);
}

void Recovery::end_segment() {
  const InHand hand = *in_hand_;
  in_hand_.reset();
  if (hand.found.end <= state_.segment_pages() / kHardlyFilled) state_.hardly_filled.push_back(hand.index);
  if (hand.found.condition == SegmentCondition::kUnsealed)
    unsealed_.push_back({hand.index, hand.found, std::move(scan_.entries())});
  for (const auto& [number, space] : local_) --state_.spaces.at(space).holds;
}

// They stay until all of the segment is taken, whatever is dropped or released meanwhile.
void Recovery::take_spaces(const EntryList& entries) {
  local_.clear();
  for (const SpaceEntry& entry : entries.spaces) {
    const auto space = state_.spaces.enter(entry.shape);
    if (!space.ok()) {
      ORBITKV_WARN("SSD store: blocks of a namespace are not found again: %s",
                   space.error().message().c_str());
      continue;
    }
    if (local_.emplace(entry.number, *space).second) ++state_.spaces.at(*space).holds;
    const auto drop = drops_.find(entry.shape.digest);
    if (drop == drops_.end()) continue;
    RecordSequence& killed = state_.spaces.at(*space).killed;
    killed = std::max(killed, drop->second);
  }
}

void Recovery::take(SegmentIndex segment, const RecordEntry& entry, std::span<const ImageMark> marks) {
  Segment& holder = state_.segments.at(segment);
  holder.min_record = std::min(holder.min_record, entry.sequence);
  const auto space = local_.find(entry.space);
  if (space == local_.end() || entry.sequence <= state_.spaces.at(space->second).killed) return;
  const IndexRecord record{space->second,    entry.hash,        entry.sequence, segment,
                           entry.first_page, entry.image_pages, entry.shards,   std::uint8_t{0}};
  const Index::Placed placed = state_.enter(record, marks);
  if (placed.outcome == Index::Put::kFull) ++index_full_;
  // Nobody has used it since this life began.
  if (placed.outcome == Index::Put::kNew || placed.outcome == Index::Put::kReplaced)
    state_.index.minute(placed.ref.id) = 0;
  if (placed.outcome != Index::Put::kOlder) return;
  // A copy forward and what it was made of: the one that is reclaimed later.
  const IndexRecord held = state_.index.at(placed.ref.id);
  if (held.sequence == entry.sequence && state_.segments.at(held.segment).life < holder.life) {
    state_.move(placed.ref.id, segment, entry.first_page);
  }
}

void Recovery::tell_progress() {
  constexpr std::uint64_t kEvery = 4096;
  if (scan_.totals().segments % kEvery != 0 || !state_.config.progress) return;
  state_.config.progress("SSD store: " + std::to_string(scan_.totals().segments) + " segments read, " +
                         std::to_string(state_.index.size()) + " blocks found");
}

// ---- when all is read ----

void Recovery::settle() {
  const auto once = [this](bool over) {
    if (over) settle_ = static_cast<Settle>(static_cast<std::uint8_t>(settle_) + 1);
  };
  switch (settle_) {
    case Settle::kTombstones: return once(apply_tombstones());
    case Settle::kDrops: return once(drop_some());
    case Settle::kSync: return once(sync_all());
    case Settle::kSeal: return once(seal_all());
    case Settle::kFree: return once(free_some());
    case Settle::kHeat: return once(heat_some());
    case Settle::kEnd: return end();
  }
}

bool Recovery::apply_tombstones() {
  if (last_tombstone_ == TombstoneId()) tombstones_.recovery_ended(newest_);
  for (std::uint32_t i = 0; i < state_.config.recovered_a_step; ++i) {
    const Tombstones::Next next = tombstones_.after(last_tombstone_);
    if (next.tombstone == nullptr) return true;
    last_tombstone_ = next.id;
    apply(*next.tombstone);
  }
  return false;
}

void Recovery::apply(const Tombstone& tombstone) {
  if (tombstone.group == kAllGroups) {
    drop({tombstone.digest, tombstone.sequence});
    drops_of_log_ = true;
    return;
  }
  for (const SpaceIndex space : state_.spaces.of(tombstone.digest, tombstone.group)) {
    const StoredRef ref = state_.index.find(space, tombstone.hash);
    if (!ref || state_.index.at(ref.id).sequence > tombstone.sequence) continue;
    state_.forget(ref.id, Loss::kNone);
  }
}

// What the log says of whole namespaces, after all of it has been read.
bool Recovery::drop_some() {
  if (!drops_of_log_) return true;
  std::uint32_t looked_at = 0;
  std::vector<StoredId> gone;
  for (std::uint32_t i = 0; i < kSegmentsAStep && looked_at < state_.config.recovered_a_step; ++i) {
    if (next_segment_ == state_.segments.size()) {
      next_segment_ = 0;
      return true;
    }
    gone.clear();
    const SegmentIndex segment(next_segment_++);
    for (StoredId id = state_.index.first_in(segment); id != kNotStored; id = state_.index.next_in(id)) {
      ++looked_at;
      const IndexRecord record = state_.index.at(id);
      const auto drop = drops_.find(state_.spaces.at(record.space).shape.digest);
      if (drop != drops_.end() && record.sequence <= drop->second) gone.push_back(id);
    }
    for (const StoredId id : gone) state_.forget(id, Loss::kNone);
  }
  return false;
}

// Everything that was found is made durable before anything is made of it.
bool Recovery::sync_all() {
  if (!syncs_begun_) {
    syncs_begun_ = true;
    for (std::uint32_t i = 0; i < state_.paths.size(); ++i) sync(PathIndex(i));
  }
  rests_ = under_way_ > 0;
  return under_way_ == 0;
}

void Recovery::sync(PathIndex path) {
  ++under_way_;
  durability_.sync(path, [this](bool) {
    --under_way_;
    rests_ = false;
  });
}

bool Recovery::seal_all() {
  rests_ = under_way_ > 0;
  if (rests_) return false;
  if (next_unsealed_ == unsealed_.size()) return true;
  seal(unsealed_[next_unsealed_++]);
  return false;
}

// Without a footer it is read batch by batch at the next start as well.
void Recovery::seal(const Unsealed& each) {
  const PathIndex path = state_.segments.at(each.segment).path;
  SegmentBuilder builder(each.found.segment);
  if (!state_.paths[path.value].writable() || !builder.adopt(each.entries, each.found.end)) return;
  seal_ = PageBuffer(std::size_t{builder.seal_pages()} * kPageBytes);
  builder.encode_seal(seal_.span());
  const std::uint64_t offset = state_.offset_of(each.segment, builder.seal_place().first);
  ++under_way_;
  state_.io.submit({IoOp::kWrite, state_.paths[path.value].file, offset, {seal_.span()}},
                   [this, path](int error) {
                     --under_way_;
                     if (error != 0) return state_.write_failed(path, error);
                     state_.stats.device_written += ByteCount(seal_.size());
                     sync(path);
                   });
}

// Segments that had been reclaimed, and those without a record that counts.
bool Recovery::free_some() {
  for (std::uint32_t i = 0; i < kSegmentsAStep; ++i) {
    if (next_segment_ == state_.segments.size()) return true;
    const SegmentIndex segment(next_segment_++);
    if (state_.segments.at(segment).state != SegmentState::kSealed || !state_.path_of(segment).writable())
      continue;
    if (state_.index.count_in(segment) > 0 || tombstones_.needed_from(segment)) continue;
    state_.segments.step(segment, SegmentEvent::kReclaim);
    state_.segments.step(segment, SegmentEvent::kCopied);
    state_.segments.step(segment, SegmentEvent::kDurable);
  }
  return false;
}

// Records of what is hardly filled are copied forward like those that are used.
bool Recovery::heat_some() {
  std::vector<SegmentIndex>& all = state_.hardly_filled;
  if (hot_ == all.size()) return true;
  const SegmentIndex segment = all[hot_];
  if (state_.segments.at(segment).state != SegmentState::kSealed) {
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(hot_));
    return false;
  }
  ++hot_;
  for (StoredId id = state_.index.first_in(segment); id != kNotStored; id = state_.index.next_in(id))
    state_.index.flags(id) |= kHot;
  return false;
}

void Recovery::end() {
  state_.spaces.let_all_go();
  if (index_full_ > 0) {
    ORBITKV_WARN("SSD store: the index has room for %u blocks; %llu more on the SSD are not found",
                 state_.index.capacity(), static_cast<unsigned long long>(index_full_));
  }
  StoreStats& stats = state_.stats;
  stats.recovered = state_.index.size() - state_.killed_records;
  for (const Loss each : {Loss::kNone, Loss::kReplaced}) stats.lost[static_cast<std::size_t>(each)] = 0;
  stats.damaged_batches = scan_.totals().damaged;
  if (stats.damaged_batches > 0) {
    ORBITKV_WARN(
        "SSD store: %llu segments or batches are damaged, as a device does or the end of power: the blocks "
        "that only they named are not found",
        static_cast<unsigned long long>(stats.damaged_batches));
  }
  stats.recovery_seconds = static_cast<double>((monotonic_now() - begun_).ns) * 1e-9;
  if (state_.config.progress) {
    state_.config.progress(format_text("SSD store: %llu blocks found in %llu segments, in %.2f s",
                                       static_cast<unsigned long long>(stats.recovered),
                                       static_cast<unsigned long long>(scan_.totals().segments),
                                       stats.recovery_seconds));
  }
  ssd::step(open_, OpenEvent::kSettled);
}

}  // namespace orbitkv::ssd
