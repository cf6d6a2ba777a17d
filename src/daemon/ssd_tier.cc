#include "daemon/ssd_tier.h"

#include <cstring>
#include <utility>

#include "base/log.h"

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
  std::unique_ptr<SsdTier> tier(new SsdTier(std::move(io), options.admission));
  ORBITKV_ASSIGN_OR_RETURN(tier->store_, ssd::Store::open(options.store, *tier->io_));
  return tier;
}

Status SsdTier::add_slab(const mem::SlabInfo& slab) {
  ORBITKV_RETURN_IF_ERROR(mapping_->add(slab));
  io_->add_memory(mapping_->slab(slab.id));
  return ok_status();
}

bool SsdTier::poll(cache::Core& core, TimePoint now) {
  events_.clear();
  store_->poll(now, events_);
  for (const ssd::StoreEvent& event : events_) {
    switch (event.kind) {
      case ssd::StoreEvent::Kind::kRead: core.loaded(transfer_of(event.transfer), event.ok, now); break;
      case ssd::StoreEvent::Kind::kWritten: {
        auto charged = writes_.extract(event.transfer);
        if (!event.ok && !charged.empty()) admission_.refused(charged.mapped());
        core.stored(transfer_of(event.transfer), event.ok, now);
        break;
      }
      case ssd::StoreEvent::Kind::kFlushed: flushed_.push_back(event); break;
    }
  }
  if (!events_.empty()) core.tier_ready(now);
  return !events_.empty();
}

// ---- spaces ----

cache::TierSpace SsdTier::open_space(const model::RankRegistration& rank, GroupId group) {
  for (const model::GroupShape& shape : rank.groups) {
    if (shape.group != group) continue;
    auto space = store_->intern(shape_of(rank, shape));
    if (space.ok()) return cache::TierSpace(space->value);
    ORBITKV_WARN("blocks of group %u are not kept on SSD: %s", group.value, space.error().message().c_str());
  }
  return cache::kNoTierSpace;
}

void SsdTier::close_space(cache::TierSpace space) {
  store_->release(space_of(space));
}

// ---- blocks ----

void SsdTier::find(cache::TierSpace space, std::span<const BlockHash> hashes, std::span<cache::TierRef> out) {
  if (found_.size() < hashes.size()) found_.resize(hashes.size());
  store_->find_batch(space_of(space), hashes, std::span(found_).first(hashes.size()));
  for (std::size_t i = 0; i < hashes.size(); ++i) out[i] = tier_of(found_[i]);
}

Result<cache::TransferId> SsdTier::load(const Key&, cache::TierRef record,
                                        std::span<const mem::Extent::Words> slots,
                                        std::span<cache::LoadedSlot> slots_out) {
  slots_.clear();
  for (const mem::Extent::Words& slot : slots) slots_.push_back({mapping_->extent(slot), {}});
  ORBITKV_ASSIGN_OR_RETURN(const ssd::TransferId id, store_->read(stored_of(record), slots_));
  for (std::size_t i = 0; i < slots.size(); ++i)
    slots_out[i] = {slots_[i].mark.digest, slots_[i].mark.revision};
  return transfer_of(id);
}

Result<cache::TransferId> SsdTier::store(const Key& key, std::span<const cache::SlotWords> slots) {
  slots_.clear();
  ByteCount bytes;
  for (const cache::SlotWords& slot : slots) {
    slots_.push_back({mapping_->extent(slot.extent), {slot.digest, slot.revision}});
    bytes += slot.extent.bytes;
  }
  auto id = store_->write(space_of(key.space), key.hash, slots_);
  if (!id.ok()) {
    admission_.refused(bytes);
    return id.error();
  }
  writes_.emplace(*id, bytes);
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
    admission_.asked(admission_key({space, blocks.hashes[i]}), context, found);
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
