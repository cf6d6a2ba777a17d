#include "mem/pool_mapping.h"

#include "base/check.h"

namespace orbitkv::mem {

Status PoolMapping::add(const SlabInfo& slab) {
  if (slabs_.size() <= slab.slot.value) slabs_.resize(slab.slot.value + 1);
  ORBITKV_CHECK(!slabs_[slab.slot.value], "slab mapped twice");
  ORBITKV_ASSIGN_OR_RETURN(MappedSlab mapped,
                           MappedSlab::map(pool_.slab_memory(slab.slot), slab.id, slab.bytes));
  slabs_[slab.slot.value].emplace(std::move(mapped));
  return ok_status();
}

std::span<std::byte> PoolMapping::slab(SlabSlot slot) const {
  if (slot.value >= slabs_.size() || !slabs_[slot.value]) return {};
  return {slabs_[slot.value]->base(), slabs_[slot.value]->bytes().value};
}

void PoolMapping::remove(SlabSlot slot) {
  ORBITKV_CHECK(!this->slab(slot).empty(), "no such slab is mapped");
  slabs_[slot.value].reset();
}

std::span<std::byte> PoolMapping::extent(const Extent::Words& words) const {
  const std::span<std::byte> whole = slab(words.slab);
  ORBITKV_CHECK(words.offset <= whole.size() && words.bytes.value <= whole.size() - words.offset,
                "extent does not lie in a slab that was added");
  return whole.subspan(words.offset, words.bytes.value);
}

}  // namespace orbitkv::mem
