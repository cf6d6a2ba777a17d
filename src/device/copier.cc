#include "device/copier.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/checksum.h"
#include "base/limits.h"
#include "model/plan.h"
#include "model/slot_image.h"

namespace orbitkv::device {

namespace {

std::string name_of(const FragmentGeometry& fragment) {
  return "layer " + std::to_string(fragment.layer) + " component " + std::to_string(fragment.component);
}

std::string said(const char* field, std::uint64_t value) {
  return std::string(field) + " " + std::to_string(value);
}

// A sum of products that remembers whether it ever left 64 bits.
class Extent {
 public:
  Extent& add(std::uint64_t count, ByteCount stride) {
    std::uint64_t product = 0;
    overflowed_ |= __builtin_mul_overflow(count, stride.value, &product);
    overflowed_ |= __builtin_add_overflow(bytes_, product, &bytes_);
    return *this;
  }
  bool overflowed() const { return overflowed_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t bytes_ = 0;
  bool overflowed_ = false;
};

Status validate_shape(const FragmentGeometry& fragment, const model::FragmentShape& shape) {
  const std::string name = name_of(fragment);
  if (fragment.layer != shape.layer || fragment.component != shape.component)
    return reject(name + ": the shape at this position is layer " + std::to_string(shape.layer) +
                  " component " + std::to_string(shape.component) + "; give both lists in the same order");
  if (fragment.base == nullptr) return reject(name + ": base is null; give the address of block 0");
  if (fragment.rows == 0) return reject(name + ": rows is 0; a contiguous block has one row");
  if (fragment.row_bytes == 0) return reject(name + ": row_bytes is 0");
  const Extent bytes = Extent().add(fragment.rows, ByteCount(fragment.row_bytes));
  if (bytes.overflowed()) return reject(name + ": rows x row_bytes exceeds 64 bits");
  if (bytes.bytes() != shape.bytes.value)
    return reject(name + ": " + said("rows", fragment.rows) + " of " + said("row_bytes", fragment.row_bytes) +
                  " are not the shape's " + std::to_string(shape.bytes.value) + " bytes");
  return ok_status();
}

// From the first byte of block 0 to the last byte of the last block, inside the address space.
Status validate_extent(const FragmentGeometry& fragment, std::uint32_t num_blocks) {
  Extent extent;
  extent.add(1, ByteCount(reinterpret_cast<std::uintptr_t>(fragment.base)))
      .add(num_blocks - 1, ByteCount(fragment.block_stride))
      .add(fragment.rows - 1, ByteCount(fragment.row_stride))
      .add(1, ByteCount(fragment.row_bytes));
  if (!extent.overflowed()) return ok_status();
  return reject(name_of(fragment) + ": the last of " + std::to_string(num_blocks) +
                " blocks ends beyond the address space; check " +
                said("block_stride", fragment.block_stride) + " and " +
                said("row_stride", fragment.row_stride));
}

// One level nests in the other: rows in blocks (page layouts), or blocks in rows
// (K and V as halves of one tensor). No overflow: validate_extent has been passed.
Status validate_nesting(const FragmentGeometry& fragment, std::uint32_t num_blocks) {
  const std::string name = name_of(fragment);
  const bool has_rows = fragment.rows > 1;
  const bool has_blocks = num_blocks > 1;
  if (has_rows && fragment.row_stride < fragment.row_bytes)
    return reject(name + ": rows overlap: " + said("row_stride", fragment.row_stride) + " is less than " +
                  said("row_bytes", fragment.row_bytes));
  if (has_blocks && fragment.block_stride < fragment.row_bytes)
    return reject(name + ": blocks overlap: " + said("block_stride", fragment.block_stride) +
                  " is less than " + said("row_bytes", fragment.row_bytes));
  if (!has_rows || !has_blocks) return ok_status();
  const std::uint64_t block_extent = (fragment.rows - 1) * fragment.row_stride + fragment.row_bytes;
  const std::uint64_t row_extent = (num_blocks - 1) * fragment.block_stride + fragment.row_bytes;
  if (block_extent <= fragment.block_stride || row_extent <= fragment.row_stride) return ok_status();
  return reject(name + ": blocks overlap or interleave: a block spans " + std::to_string(block_extent) +
                " bytes at " + said("block_stride", fragment.block_stride) + ", a row of all blocks spans " +
                std::to_string(row_extent) + " at " + said("row_stride", fragment.row_stride) +
                "; one must fit into the other, anything else cannot be said with one level of rows");
}

// Finds the likely mistakes: one tensor given twice, a component longer than its distance to
// the next. Only first rows are compared, so a geometry that is right is never refused.
Status validate_distinct(const GroupGeometry& group) {
  std::vector<const FragmentGeometry*> by_base;
  by_base.reserve(group.fragments.size());
  for (const FragmentGeometry& fragment : group.fragments) by_base.push_back(&fragment);
  std::sort(by_base.begin(), by_base.end(), [](auto* a, auto* b) {
    return std::tuple(a->base, a->layer, a->component) < std::tuple(b->base, b->layer, b->component);
  });
  for (std::size_t i = 1; i < by_base.size(); ++i) {
    const FragmentGeometry& before = *by_base[i - 1];
    const FragmentGeometry& here = *by_base[i];
    if (static_cast<std::uint64_t>(here.base - before.base) < before.row_bytes)
      return reject(name_of(before) + " and " + name_of(here) +
                    " overlap in block 0; register memory that layers share once");
  }
  return ok_status();
}

}  // namespace

Status validate(const GroupGeometry& group) {
  const std::vector<model::FragmentShape>& shapes = group.shape.fragments;
  if (group.num_blocks == 0) return reject("num_blocks is 0; give the number of engine blocks");
  if (group.fragments.empty() || group.fragments.size() > limits::kFragmentsPerSlot)
    return reject(std::to_string(group.fragments.size()) + " fragments a block; 1 to " +
                  std::to_string(limits::kFragmentsPerSlot) + " are allowed");
  if (group.fragments.size() != shapes.size())
    return reject(std::to_string(group.fragments.size()) + " fragments have a geometry and " +
                  std::to_string(shapes.size()) + " a shape; give one geometry for each shape");
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    ORBITKV_RETURN_IF_ERROR(validate_shape(group.fragments[i], shapes[i]));
    ORBITKV_RETURN_IF_ERROR(validate_extent(group.fragments[i], group.num_blocks));
    ORBITKV_RETURN_IF_ERROR(validate_nesting(group.fragments[i], group.num_blocks));
  }
  return validate_distinct(group);
}

Status validate(const GroupCopy& copy) {
  if (copy.group == nullptr) return bug("a copy batch without a group geometry");
  for (const SlotCopy& slot : copy.slots) {
    if (slot.block >= copy.group->num_blocks)
      return reject("block " + std::to_string(slot.block) + " of a copy batch is outside the " +
                    std::to_string(copy.group->num_blocks) + " registered blocks");
    if (slot.image == nullptr || reinterpret_cast<std::uintptr_t>(slot.image) % model::kImageAlign != 0)
      return bug("the slot image for block " + std::to_string(slot.block) + " is missing or not aligned");
  }
  return ok_status();
}

std::uint64_t fragment_check(const FragmentGeometry& fragment, const SlotCopy& slot, std::uint64_t raw) {
  constexpr auto kRaw = static_cast<std::uint16_t>(model::Encoding::kRaw);
  const checksum::FragmentName name{fragment.layer, fragment.component, kRaw};
  return checksum::check(raw, checksum::fragment_id(slot.seed, name), fragment.bytes());
}

Status validate_destinations(std::span<const GroupCopy> groups) {
  if (groups.size() == 1 && groups[0].slots.size() == 1) return ok_status();
  std::map<const GroupGeometry*, std::vector<bool>> named;
  for (const GroupCopy& copy : groups) {
    std::vector<bool>& blocks = named[copy.group];
    blocks.resize(copy.group->num_blocks);
    for (const SlotCopy& slot : copy.slots) {
      if (blocks[slot.block])
        return reject("block " + std::to_string(slot.block) +
                      " is the destination of two images in one restore; give each its own");
      blocks[slot.block] = true;
    }
  }
  return ok_status();
}

}  // namespace orbitkv::device
