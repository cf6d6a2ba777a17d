#include <string>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "mem/pool.h"

namespace orbitkv::mem {
namespace {

std::string name_of(const Extent& extent, const char* end) {
  return format_text("extent of allocation %llu %s: slab %u, offset %llu, %llu bytes",
                     static_cast<unsigned long long>(extent.allocation().value), end, extent.slab().value,
                     static_cast<unsigned long long>(extent.offset()),
                     static_cast<unsigned long long>(extent.bytes().value));
}

}  // namespace

Extent::Extent(Extent&& other) noexcept
    : slab_(other.slab_),
      offset_(other.offset_),
      bytes_(other.bytes_),
      allocation_(std::exchange(other.allocation_, AllocationId{})) {}

Extent& Extent::operator=(Extent&& other) noexcept {
  if (this == &other) return *this;
  ORBITKV_CHECK(!open(), name_of(*this, "overwritten unreleased").c_str());
  slab_ = other.slab_;
  offset_ = other.offset_;
  bytes_ = other.bytes_;
  allocation_ = std::exchange(other.allocation_, AllocationId{});
  return *this;
}

Extent::~Extent() {
  ORBITKV_CHECK(!open(), name_of(*this, "died unreleased").c_str());
}

Extent::Words Extent::dissolve() {
  ORBITKV_CHECK(open(), "dissolve() of no extent");
  return {slab_, offset_, bytes_, std::exchange(allocation_, AllocationId{})};
}

Extent Extent::restore(const Words& words) {
  ORBITKV_CHECK(words.allocation.value != 0, "restore() of words that no extent was dissolved into");
  Extent extent;
  extent.slab_ = words.slab;
  extent.offset_ = words.offset;
  extent.bytes_ = words.bytes;
  extent.allocation_ = words.allocation;
  return extent;
}

}  // namespace orbitkv::mem
