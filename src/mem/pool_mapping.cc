#include "mem/pool_mapping.h"

#include "base/check.h"

namespace orbitkv::mem {

Status PoolMapping::add(const SlabInfo& slab) {
  if (slabs_.size() <= slab.id.value) slabs_.resize(slab.id.value + 1);
  ORBITKV_CHECK(!slabs_[slab.id.value], "slab mapped twice");
  ORBITKV_ASSIGN_OR_RETURN(MappedSlab mapped,
                           MappedSlab::map(pool_.slab_memory(slab.id), slab.id, slab.bytes));
  slabs_[slab.id.value].emplace(std::move(mapped));
  return ok_status();
}

std::span<std::byte> PoolMapping::slab(SlabId id) const {
  if (id.value >= slabs_.size() || !slabs_[id.value]) return {};
  return {slabs_[id.value]->base(), slabs_[id.value]->bytes().value};
}

std::span<std::byte> PoolMapping::extent(const Extent::Words& words) const {
  const std::span<std::byte> whole = slab(words.slab);
  ORBITKV_CHECK(words.offset <= whole.size() && words.bytes.value <= whole.size() - words.offset,
                "extent does not lie in a slab that was added");
  return whole.subspan(words.offset, words.bytes.value);
}

}  // namespace orbitkv::mem
