#include "daemon/ssd_tier.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/checksum.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/text.h"

namespace orbitkv::daemon {
namespace {

ssd::SpaceIndex space_of(cache::TierSpace space) {
  return ssd::SpaceIndex(space.value);
}
ssd::StoredRef stored_of(cache::TierRef ref) {
  return {ssd::StoredId(ref.record), ref.generation};
}
cache::TierRef tier_of(ssd::StoredRef ref) {
  return ref ? cache::TierRef{ref.id.value, ref.generation} : cache::TierRef{};
}
cache::TransferId transfer_of(ssd::TransferId id) {
  return cache::TransferId(id.value);
}

const char* policy_name(ssd::WritePolicy policy) {
  switch (policy) {
    case ssd::WritePolicy::kAll: return "all";
    case ssd::WritePolicy::kReuse: return "reuse";
    case ssd::WritePolicy::kAuto: break;
  }
  return "auto";
}

ssd::SpaceShape shape_of(const model::RankRegistration& rank, const model::GroupShape& group) {
  ssd::SpaceShape shape;
  shape.digest = model::namespace_digest(rank);
  shape.text = rank.name_space;
  shape.group = group.group;
  shape.shards = group.shards;
  shape.slot_bytes = model::slot_layout(group).slot_bytes;
  for (const model::FragmentShape& f : group.fragments)
    shape.fragments.push_back({f.layer, f.component, 0, f.bytes.value});
  return shape;
}

}  // namespace

Result<std::unique_ptr<SsdTier>> SsdTier::open(const Options& options) {
  ORBITKV_ASSIGN_OR_RETURN(auto io, ssd::make_io(options.io, options.io_options));
  return open(options, std::move(io));
}

Result<std::unique_ptr<SsdTier>> SsdTier::open(const Options& options, std::unique_ptr<ssd::Io> io) {
  std::unique_ptr<SsdTier> tier(new SsdTier(std::move(io), options.admission));
  ORBITKV_ASSIGN_OR_RETURN(tier->store_, ssd::Store::begin_open(options.store, *tier->io_));
  return tier;
}

void SsdTier::add_slab(const mem::SlabInfo& slab) {
  if (!map(slab)) unmapped_.push_back(slab);
}

bool SsdTier::map(const mem::SlabInfo& slab) {
  const Status mapped = mapping_->add(slab);
  if (mapped.ok()) {
    io_->add_memory(mapping_->slab(slab.slot));
  } else if (unmapped_.empty()) {
    ORBITKV_WARN(
        "blocks in a slab of %llu MiB are not kept on SSD: %s; raise vm.max_map_count or the limit of "
        "address space (ulimit -v); it is tried again",
        static_cast<unsigned long long>(slab.bytes.value >> 20), mapped.error().message().c_str());
  }
  return mapped.ok();
}

void SsdTier::map_waiting() {
  if (unmapped_.empty()) return;
  std::erase_if(unmapped_, [this](const mem::SlabInfo& slab) { return map(slab); });
}

std::string SsdTier::opened_text() const {
  std::string text = "SSD store:";
  const char* before = " ";
  for (const ssd::PathStatus& path : store_->paths()) {
    text += format_text("%s%s, %llu MiB", std::exchange(before, "; "), path.path.c_str(),
                        static_cast<unsigned long long>(path.capacity.value >> 20));
  }
  text += format_text("; policy %s, ", policy_name(admission_config_.policy));
  if (const std::uint64_t daily = admission_config_.daily_budget.value; daily > 0)
    text += format_text("%llu MiB a day, ", static_cast<unsigned long long>(daily >> 20));
  return text + format_text("by %s; its %llu segments are read while the Manager serves", io_->name(),
                            static_cast<unsigned long long>(store_->opening().segments));
}

std::string SsdTier::opening_text() const {
  const ssd::OpenProgress at = store_->opening();
  std::string text = format_text("%llu of %llu segments", static_cast<unsigned long long>(at.segments_read),
                                 static_cast<unsigned long long>(at.segments));
  if (at.seconds_left > 0) text += format_text(", about %.0f s left", std::ceil(at.seconds_left));
  return text;
}

mem::DeviceFiles SsdTier::files() const {
  std::vector<ssd::Io::FileIdentity> files = store_->files();
  std::sort(files.begin(), files.end());
  std::vector<std::uint64_t> words;
  for (const ssd::Io::FileIdentity& each : files) {
    if (each == ssd::Io::FileIdentity{}) return {};
    words.insert(words.end(), {each.device, each.inode});
  }
  return mem::DeviceFiles(checksum::check(checksum::raw(std::as_bytes(std::span(words))), 0, words.size()));
}

// What reclaim copies forward wears the drive as a write of a block does.
void SsdTier::charge_copies(TimePoint now) {
  const ByteCount copied = store_->reinserted();
  if (copied == copies_charged_) return;
  admission_.copied(copied - copies_charged_, now);
  copies_charged_ = copied;
}

void SsdTier::remove_slab(SlabSlot slab) {
  const auto waits = [&](const mem::SlabInfo& each) { return each.slot == slab; };
  if (std::erase_if(unmapped_, waits) > 0) return;
  io_->remove_memory(mapping_->slab(slab));
  mapping_->remove(slab);
}

TimePoint SsdTier::due() const {
  return held_up_ ? TimePoint{std::numeric_limits<std::int64_t>::max()} : store_->due();
}

bool SsdTier::poll(cache::Core& core, TimePoint now) {
  events_.clear();
  held_up_ = store_->opening().state == ssd::OpenState::kReading && fault_hit(FaultPoint::kManagerOpening);
  if (held_up_) return false;
  store_->poll(now, events_);
  charge_copies(now);
  for (const ssd::StoreEvent& event : events_) {
    switch (event.kind) {
      case ssd::StoreEvent::Kind::kRead: core.loaded(transfer_of(event.transfer), event.ok, now); break;
      case ssd::StoreEvent::Kind::kWritten: {
        auto charged = writes_.extract(event.transfer);
        if (!event.ok && !charged.empty()) admission_.refused(charged.mapped().key, charged.mapped().bytes);
        core.stored(transfer_of(event.transfer), event.ok, now);
        break;
      }
      case ssd::StoreEvent::Kind::kFlushed: flushed_.push_back(event); break;
    }
  }
  const bool opened = ready() && !std::exchange(told_ready_, true);
  if (opened)
    core.tier_opened(now);
  else if (!events_.empty())
    core.tier_ready(now);
  return opened || !events_.empty() || (!ready() && due() <= now);
}

// ---- spaces ----

// An eighth of the day's bytes may come at once: a block that is larger never fits.
void SsdTier::warn_of_budget(const ssd::SpaceShape& shape) const {
  const ByteCount daily = admission_config_.daily_budget;
  const ByteCount block(shape.slot_bytes * shape.shards);
  if (daily == ByteCount() || daily.value / 8 >= block.value) return;
  ORBITKV_WARN(
      "blocks of group %u are not written to SSD: eight of them, of %llu bytes each, are more than "
      "--ssd-daily-write-budget, %llu bytes; give at least %llu",
      shape.group.value, static_cast<unsigned long long>(block.value),
      static_cast<unsigned long long>(daily.value), static_cast<unsigned long long>(8 * block.value));
}

cache::TierSpace SsdTier::open_space(const model::RankRegistration& rank, GroupId group) {
  asked_for_any_ = true;
  for (const model::GroupShape& shape : rank.groups) {
    if (shape.group != group) continue;
    const ssd::SpaceShape stored = shape_of(rank, shape);
    auto space = store_->intern(stored);
    if (space.ok()) warn_of_budget(stored);
    if (space.ok()) return cache::TierSpace(space->value);
    ORBITKV_WARN("blocks of group %u are not kept on SSD: %s", group.value, space.error().message().c_str());
  }
  return cache::kNoTierSpace;
}

cache::TierSpace SsdTier::reopen_space(const Kind& kind) {
  ssd::SpaceShape like;
  like.digest = kind.digest;
  like.group = kind.group;
  like.shards = kind.shards;
  like.slot_bytes = kind.bytes.value;
  const auto space = store_->reopen(like);
  return space ? cache::TierSpace(space->value) : cache::kNoTierSpace;
}

void SsdTier::close_space(cache::TierSpace space) {
  store_->release(space_of(space));
}

// ---- blocks ----

void SsdTier::find(cache::TierSpace space, std::span<const BlockHash> hashes, std::span<cache::TierRef> out) {
  if (!ready()) missed_unready_ += hashes.size();
  if (found_.size() < hashes.size()) found_.resize(hashes.size());
  store_->find_batch(space_of(space), hashes, std::span(found_).first(hashes.size()));
  for (std::size_t i = 0; i < hashes.size(); ++i) out[i] = tier_of(found_[i]);
}

Result<cache::TransferId> SsdTier::load(const Key&, cache::TierRef record,
                                        std::span<const mem::Extent::Words> slots,
                                        std::span<cache::LoadedSlot> slots_out) {
  if (loads_stopped_) return busy("the Manager makes place for its successor");
  slots_.clear();
  for (const mem::Extent::Words& slot : slots)
    if (!mapped(slot)) return recompute("a slab of the pool is not mapped for SSD I/O");
  for (const mem::Extent::Words& slot : slots) slots_.push_back({mapping_->extent(slot), {}});
  ORBITKV_ASSIGN_OR_RETURN(const ssd::TransferId id, store_->read(stored_of(record), slots_));
  for (std::size_t i = 0; i < slots.size(); ++i)
    slots_out[i] = {slots_[i].mark.digest, slots_[i].mark.revision};
  return transfer_of(id);
}

Result<cache::TransferId> SsdTier::store(const Key& key, std::span<const cache::SlotWords> slots) {
  slots_.clear();
  ByteCount bytes;
  bool reachable = true;
  for (const cache::SlotWords& slot : slots) {
    reachable = reachable && mapped(slot.extent);
    bytes += slot.extent.bytes;
  }
  if (!reachable) {
    admission_.refused(admission_key(key), bytes);
    return busy("a slab of the pool is not mapped for SSD I/O");
  }
  for (const cache::SlotWords& slot : slots)
    slots_.push_back({mapping_->extent(slot.extent), {slot.digest, slot.revision}});
  auto id = store_->write(space_of(key.space), key.hash, slots_);
  if (!id.ok()) {
    admission_.refused(admission_key(key), bytes);
    return id.error();
  }
  writes_.emplace(*id, Charged{admission_key(key), bytes});
  return transfer_of(*id);
}

void SsdTier::suspect(const Key& key, const cache::LoadedSlot& first_shard) {
  store_->suspect(space_of(key.space), key.hash, {first_shard.digest, first_shard.revision});
}

// ---- admission ----

// Block hashes are hashes already; one key space for all namespaces.
ssd::AdmissionKey SsdTier::admission_key(const Key& key) const {
  std::uint64_t word = 0;
  std::memcpy(&word, key.hash.bytes.data(), sizeof word);
  return ssd::AdmissionKey(word ^ (key.space.value + 1) * 0x9E3779B97F4A7C15u);
}

void SsdTier::asked(cache::TierSpace space, const Asked& blocks, const cache::TierContext& first) {
  const auto in = [](std::span<const std::uint64_t> bitmap, std::size_t i) {
    return i / 64 < bitmap.size() && (bitmap[i / 64] >> (i % 64) & 1) != 0;
  };
  ssd::BlockContext context{first.position, first.length};
  for (std::size_t i = 0; i < blocks.hashes.size(); ++i) {
    const bool found = in(blocks.resident, i) || in(blocks.stored, i);
    // What is not known yet is no evidence.
    if (found || ready()) admission_.asked(admission_key({space, blocks.hashes[i]}), context, found);
    ++context.position;
  }
}

cache::Tier::Answer SsdTier::answer(ssd::Verdict verdict) {
  switch (verdict) {
    case ssd::Verdict::kWrite: return Answer::kStore;
    case ssd::Verdict::kWait: return Answer::kLater;
    case ssd::Verdict::kUnlikely:
    case ssd::Verdict::kBudget: break;
  }
  return Answer::kNo;
}

cache::Tier::Answer SsdTier::sealed(const Key& key, ByteCount bytes) {
  if (store_->find(space_of(key.space), key.hash)) return Answer::kNo;
  return answer(admission_.saved(admission_key(key), bytes, monotonic_now()));
}

cache::Tier::Answer SsdTier::leaving(const Key& key, ByteCount bytes) {
  if (store_->find(space_of(key.space), key.hash)) return Answer::kNo;
  return answer(admission_.leaving(admission_key(key), bytes, monotonic_now()));
}

}  // namespace orbitkv::daemon
