#include "mem/node_allocator.h"

#include <algorithm>

#include "base/check.h"

namespace orbitkv::mem {

NodeAllocator::Part* NodeAllocator::find(NodeId node) const {
  for (const auto& part : parts_)
    if (part->node == node) return part.get();
  return nullptr;
}

void NodeAllocator::add_slab(const NewSlab& slab, std::span<const UsedRun> used) {
  Part* part = find(slab.node);
  if (!part) {
    parts_.push_back(std::make_unique<Part>());
    part = parts_.back().get();
    part->node = slab.node;
  }
  part->allocator.add_slab(slab.slot, slab.bytes, used);
  ByteCount lent;
  for (const UsedRun& run : used) lent += run.units * ByteCount(kExtentUnit);
  part->capacity += slab.bytes;
  part->used += lent;
  if (slabs_.size() <= slab.slot.value) slabs_.resize(slab.slot.value + 1);
  slabs_[slab.slot.value] = {part, slab.bytes, lent, false};
}

void NodeAllocator::retire_slab(SlabSlot slot) {
  Slab& slab = slabs_.at(slot.value);
  slab.part->allocator.retire_slab(slot);
  slab.part->capacity -= slab.bytes;
  slab.part->used -= slab.used;
  slab.retiring = true;
}

void NodeAllocator::remove_slab(SlabSlot slot) {
  slabs_.at(slot.value).part->allocator.remove_slab(slot);
  slabs_[slot.value] = {};
}

std::optional<NodeAllocator::Place> NodeAllocator::take(Part& part, ByteCount bytes) {
  const auto place = part.allocator.allocate(bytes);
  if (!place) return place;
  part.used += ExtentAllocator::footprint(bytes);
  slabs_[place->slab.value].used += ExtentAllocator::footprint(bytes);
  return place;
}

std::optional<NodeAllocator::Place> NodeAllocator::allocate(ByteCount bytes, NodeId near) {
  if (parts_.size() == 1 && policy_.nearest(near).empty()) return take(*parts_.front(), bytes);
  const auto order = policy_.nearest(near);
  for (const NodeId node : order) {
    Part* const part = find(node);
    const auto place = part ? take(*part, bytes) : std::nullopt;
    if (!place) continue;
    ++(node == order.front() ? local_ : remote_);
    return place;
  }
  // No order, or what is left lies on nodes that it does not name.
  std::vector<Part*> rest;
  for (const auto& part : parts_)
    if (std::find(order.begin(), order.end(), part->node) == order.end()) rest.push_back(part.get());
  std::stable_sort(rest.begin(), rest.end(),
                   [](const Part* a, const Part* b) { return a->free() > b->free(); });
  for (Part* const part : rest) {
    const auto place = take(*part, bytes);
    if (!place) continue;
    if (!order.empty()) ++remote_;
    return place;
  }
  return std::nullopt;
}

void NodeAllocator::release(Place place, ByteCount bytes) {
  ORBITKV_CHECK(place.slab.value < slabs_.size() && slabs_[place.slab.value].part,
                "released extent is not of this pool");
  Slab& slab = slabs_[place.slab.value];
  slab.part->allocator.release(place, bytes);
  slab.used -= ExtentAllocator::footprint(bytes);
  if (!slab.retiring) slab.part->used -= ExtentAllocator::footprint(bytes);
}

ByteCount NodeAllocator::largest() const {
  ByteCount most;
  for (const auto& part : parts_) most = std::max(most, part->allocator.largest());
  return most;
}

std::vector<NodeStats> NodeAllocator::stats() const {
  std::vector<NodeStats> out;
  for (const auto& part : parts_) out.push_back({part->node, part->capacity, part->used});
  std::sort(out.begin(), out.end(), [](const NodeStats& a, const NodeStats& b) { return a.node < b.node; });
  return out;
}

}  // namespace orbitkv::mem
