#include "bench/replay_rig.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <tuple>

#include "base/text.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint64_t kAlign = 256;
constexpr std::uint64_t kRoom = 4 * kGiB.value;  // of all buffers; their content is kept on the host too
constexpr std::uint32_t kSpoiled = 0xEEEEEEEE;

struct Extent {
  std::int64_t first = 0, end = 0;
};

Extent extent_of(const TracedFragment& f, std::uint32_t num_blocks) {
  const std::uint64_t bytes = (num_blocks - 1) * f.block_stride + (f.rows - 1) * f.row_stride + f.row_bytes;
  return {f.base, f.base + static_cast<std::int64_t>(bytes)};
}

// What overlaps or touches is one buffer.
std::vector<Extent> extents_of(const std::vector<TracedGroup>& groups) {
  std::vector<Extent> all, merged;
  for (const TracedGroup& g : groups)
    for (const TracedFragment& f : g.fragments) all.push_back(extent_of(f, g.num_blocks));
  std::sort(all.begin(), all.end(), [](const Extent& a, const Extent& b) { return a.first < b.first; });
  for (const Extent& e : all) {
    if (!merged.empty() && e.first <= merged.back().end)
      merged.back().end = std::max(merged.back().end, e.end);
    else
      merged.push_back(e);
  }
  return merged;
}

std::uint64_t bytes_of(const std::vector<Extent>& extents) {
  std::uint64_t all = 0;
  for (const Extent& e : extents) all += static_cast<std::uint64_t>(e.end - e.first);
  return all;
}

// Blocks get the numbers of their first mention: strides and the order of pages stay.
void renumber_blocks(TracedGroup& group) {
  std::map<std::uint32_t, std::uint32_t> numbers;
  for (TracedSlot& slot : group.slots)
    slot.block = numbers.try_emplace(slot.block, static_cast<std::uint32_t>(numbers.size())).first->second;
  group.num_blocks = std::max<std::uint32_t>(1, static_cast<std::uint32_t>(numbers.size()));
}

Status check_line(const TraceLine& line) {
  if (line.groups.empty()) return reject("it moved nothing");
  for (const TracedGroup& g : line.groups) {
    if (g.num_blocks == 0 || g.fragments.empty() || g.slots.empty()) return reject("a group without blocks");
    for (const TracedFragment& f : g.fragments)
      if (f.rows == 0 || f.row_bytes == 0) return reject("a fragment without bytes");
  }
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<ReplayRig>> ReplayRig::make(Gpu& gpu, const TraceLine& line,
                                                   const device::cuda::Windows& windows) {
  ORBITKV_RETURN_IF_ERROR(check_line(line));
  std::vector<TracedGroup> groups = line.groups;
  if (bytes_of(extents_of(groups)) > kRoom) std::for_each(groups.begin(), groups.end(), renumber_blocks);
  std::unique_ptr<ReplayRig> rig(new ReplayRig(gpu));
  ORBITKV_RETURN_IF_ERROR(rig->make_buffers(groups));
  ORBITKV_RETURN_IF_ERROR(rig->make_groups(groups));
  rig->parts_ = std::make_shared<device::cuda::DeviceParts>();
  rig->parts_->context = gpu.context();
  rig->parts_->slabs = std::make_shared<device::cuda::SlabTable>(gpu.context(), device::cuda::SlabOptions{});
  rig->parts_->set_windows(windows);
  ORBITKV_RETURN_IF_ERROR(rig->make_images(groups));
  return rig;
}

ReplayRig::~ReplayRig() {
  if (parts_ && slab_) parts_->slabs->remove(slab_->bytes());
}

Status ReplayRig::make_buffers(const std::vector<TracedGroup>& groups) {
  const std::vector<Extent> extents = extents_of(groups);
  if (bytes_of(extents) > kRoom)
    return reject(format_text("its pages span %llu MiB even with the moved blocks alone",
                              static_cast<unsigned long long>(bytes_of(extents) >> 20)));
  std::mt19937_64 random(1);
  for (const Extent& e : extents) {
    Buffer buffer{e.first, e.end, nullptr, {}, static_cast<std::uint64_t>(e.first) % kAlign};
    const std::uint64_t bytes = (buffer.lead + static_cast<std::uint64_t>(e.end - e.first) + 7) / 8 * 8;
    ORBITKV_ASSIGN_OR_RETURN(buffer.memory, GpuMemory::make(gpu_, ByteCount(bytes)));
    buffer.content.resize(bytes);
    for (std::uint64_t i = 0; i < bytes; i += 8) {
      const std::uint64_t word = random();
      std::memcpy(buffer.content.data() + i, &word, 8);
    }
    buffers_.push_back(std::move(buffer));
  }
  return ok_status();
}

const ReplayRig::Buffer& ReplayRig::buffer_at(std::int64_t base) const {
  return *std::find_if(buffers_.begin(), buffers_.end(),
                       [&](const Buffer& b) { return base >= b.first && base < b.end; });
}

Status ReplayRig::make_groups(const std::vector<TracedGroup>& groups) {
  for (const TracedGroup& traced : groups) {
    Group group;
    group.geometry.num_blocks = traced.num_blocks;
    for (const TracedFragment& f : traced.fragments) {
      const Buffer& buffer = buffer_at(f.base);
      std::byte* base = buffer.memory->data() + buffer.lead + (f.base - buffer.first);
      group.geometry.shape.fragments.push_back({f.layer, f.component, ByteCount(f.rows * f.row_bytes)});
      group.geometry.fragments.push_back(
          {f.layer, f.component, f.turn, base, f.block_stride, f.rows, f.row_bytes, f.row_stride});
    }
    group.geometry.shape.group = GroupId(traced.group);
    ORBITKV_RETURN_IF_ERROR(device::validate(group.geometry));
    group.layout = model::slot_layout(group.geometry.shape);
    for (const TracedSlot& slot : traced.slots) {
      if (slot.block >= traced.num_blocks) return reject("a block beyond the registered ones");
      group.slots.emplace_back().block = slot.block;
    }
    groups_.push_back(std::move(group));
  }
  return ok_status();
}

// One beside the other, in the order in which they lay in their slabs.
Status ReplayRig::make_images(const std::vector<TracedGroup>& groups) {
  std::vector<std::tuple<std::uint32_t, std::uint64_t, std::size_t, std::size_t>> places;
  std::uint64_t bytes = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t i = 0; i < groups[g].slots.size(); ++i)
      places.emplace_back(groups[g].slots[i].slab, groups[g].slots[i].offset, g, i);
    bytes += groups_[g].slots.size() * groups_[g].layout.slot_bytes;
  }
  std::sort(places.begin(), places.end());
  ORBITKV_ASSIGN_OR_RETURN(slab_, FileMemory::make(ByteCount(bytes)));
  std::byte* at = slab_->bytes().data();
  std::uint64_t number = 0;
  for (const auto& [slab, offset, g, i] : places) {
    device::SlotCopy& slot = groups_[g].slots[i];
    slot.image = at;
    slot.allocation = AllocationId(++number);
    slot.seed = number * 0x9E3779B97F4A7C15;
    at += groups_[g].layout.slot_bytes;
  }
  parts_->slabs->add(slab_->bytes());
  for (int i = 0; parts_->slabs->registered() == 0; ++i) {
    if (i > 60'000) return bug("the driver has not registered the bench's slab");
    usleep(1000);
  }
  return ok_status();
}

device::CopyBatch ReplayRig::batch(device::Direction direction) {
  device::CopyBatch made;
  made.direction = direction;
  for (Group& group : groups_) made.groups.push_back({&group.geometry, group.slots});
  return made;
}

std::vector<device::cuda::PlanGroup> ReplayRig::plan_groups() const {
  std::vector<device::cuda::PlanGroup> out;
  for (const Group& group : groups_) {
    device::cuda::PlanGroup plan{&group.geometry, &group.layout, {}, {}};
    for (const device::SlotCopy& slot : group.slots) {
      plan.images.push_back(reinterpret_cast<std::uint64_t>(slot.image));
      plan.blocks.push_back(slot.block);
    }
    out.push_back(std::move(plan));
  }
  return out;
}

std::uint64_t ReplayRig::payload() const {
  std::uint64_t bytes = 0;
  for (const Group& group : groups_)
    for (const device::FragmentGeometry& f : group.geometry.fragments)
      bytes += f.bytes() * group.slots.size();
  return bytes;
}

// ---- content ----

Status ReplayRig::fill() {
  for (Buffer& buffer : buffers_) ORBITKV_RETURN_IF_ERROR(buffer.memory->write(0, buffer.content));
  return ok_status();
}

Status ReplayRig::spoil() {
  for (Buffer& buffer : buffers_) ORBITKV_RETURN_IF_ERROR(buffer.memory->fill(kSpoiled));
  return ok_status();
}

Result<bool> ReplayRig::restored() const {
  for (const Buffer& buffer : buffers_) {
    std::vector<std::byte> expected(buffer.content.size(), std::byte{kSpoiled & 0xFF}),
        found(expected.size());
    for (const Group& group : groups_) {
      for (const device::FragmentGeometry& f : group.geometry.fragments) {
        if (f.base < buffer.memory->data() || f.base >= buffer.memory->data() + buffer.memory->size())
          continue;
        for (const device::SlotCopy& slot : group.slots) {
          for (std::uint32_t row = 0; row < f.rows; ++row) {
            const std::uint64_t at = static_cast<std::uint64_t>(f.base - buffer.memory->data()) +
                                     slot.block * f.block_stride + row * f.row_stride;
            std::memcpy(expected.data() + at, buffer.content.data() + at, f.row_bytes);
          }
        }
      }
    }
    ORBITKV_RETURN_IF_ERROR(buffer.memory->read(found, 0));
    if (found != expected) return false;
  }
  return true;
}

}  // namespace orbitkv::bench
