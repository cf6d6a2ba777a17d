#include "device/cuda/batch.h"

#include <algorithm>
#include <cstring>

#include "model/slot_image.h"

namespace orbitkv::device::cuda {
namespace {

model::ExpectedSlot expected_of(const Batch::Group& group, const SlotCopy& slot) {
  return {slot.digest, slot.seed, slot.allocation, group.layout.slot_bytes,
          static_cast<std::uint32_t>(group.geometry->fragments.size())};
}

}  // namespace

Result<std::unique_ptr<Batch>> Batch::open(CopyBatch batch, SlabTable& slabs, bool verify) {
  std::unique_ptr<Batch> made(new Batch(std::move(batch), verify));
  for (const GroupCopy& copy : made->batch_.groups) ORBITKV_RETURN_IF_ERROR(validate(copy));
  if (made->direction() == Direction::kRestore)
    ORBITKV_RETURN_IF_ERROR(validate_destinations(made->batch_.groups));
  for (const GroupCopy& copy : made->batch_.groups) ORBITKV_RETURN_IF_ERROR(made->add_group(copy, slabs));
  return made;
}

Status Batch::add_group(const GroupCopy& copy, SlabTable& slabs) {
  Group group;
  group.geometry = copy.group;
  group.layout = model::slot_layout(copy.group->shape);
  group.slots = copy.slots;
  const std::size_t fragments = copy.group->fragments.size();
  if (direction() == Direction::kRestore) group.expected.resize(copy.slots.size() * fragments);
  if (direction() == Direction::kSave) group.headers.reserve(copy.slots.size());
  group.wrong.resize(copy.slots.size());
  for (SlotCopy& slot : group.slots) slot.verified = false;
  ORBITKV_RETURN_IF_ERROR(locate(group, slabs));
  groups_.push_back(std::move(group));
  return ok_status();
}

// `images` of all slots; one slab that the device does not reach makes the batch bounce.
Status Batch::locate(Group& group, SlabTable& slabs) {
  SlabTable::Found at;
  for (const SlotCopy& slot : group.slots) {
    const bool here = !at.slab.empty() && slot.image >= at.slab.data() &&
                      slot.image + group.layout.slot_bytes <= at.slab.data() + at.slab.size();
    if (!here) {
      ORBITKV_ASSIGN_OR_RETURN(auto found, slabs.find(slot.image, ByteCount(group.layout.slot_bytes)));
      at.slab = found.slab;
      at.registered = found.registered;
      at.device = found.device;
      uses_.push_back(std::move(found.use));
    }
    if (!at.registered) bounces_ = true;
    group.images.push_back(at.registered ? at.device + static_cast<CuPtr>(slot.image - at.slab.data()) : 0);
  }
  return ok_status();
}

// The slab may change at any time: what is checked and what is used is one private copy.
void Batch::read_header(Group& group, std::size_t i) {
  const std::size_t fragments = group.geometry->fragments.size();
  const SlotCopy& slot = group.slots[i];
  header_.assign(slot.image, slot.image + group.layout.header_bytes);
  auto header = model::read_slot_header(header_, expected_of(group, slot));
  if (header.ok())
    std::copy(header->checks.begin(), header->checks.end(),
              group.expected.begin() + static_cast<std::ptrdiff_t>(i * fragments));
  else
    group.wrong[i] = 1;
}

bool Batch::take_headers(std::uint32_t most) {
  if (direction() == Direction::kRestore && !verify_) return true;
  for (; header_group_ < groups_.size(); ++header_group_, header_slot_ = 0) {
    Group& group = groups_[header_group_];
    for (; header_slot_ < group.slots.size(); ++header_slot_) {
      if (most-- == 0) return false;
      const SlotCopy& slot = group.slots[header_slot_];
      if (direction() == Direction::kRestore)
        read_header(group, header_slot_);
      else
        group.headers.emplace_back(expected_of(group, slot), slot.image);
    }
  }
  return true;
}

// ---- rounds ----

std::uint64_t Batch::largest_slot() const {
  std::uint64_t most = 0;
  for (const Group& group : groups_) most = std::max(most, group.layout.slot_bytes);
  return most;
}

std::uint64_t Batch::bytes() const {
  std::uint64_t sum = 0;
  for (const Group& group : groups_)
    sum += group.slots.size() * (group.layout.slot_bytes - group.layout.header_bytes);
  return sum;
}

std::uint64_t Batch::typical_fragment() const {
  return groups_.empty() || groups_[0].geometry->fragments.empty()
             ? 0
             : groups_[0].geometry->fragments[0].bytes();
}

std::byte* Batch::image_of(const Window& window, std::uint32_t slot) const {
  const Group& group = groups_[window.group];
  return group.slots[window.first + slot].image;
}

bool Batch::next_window(ByteCount room) {
  window_.first += window_.slots;
  window_.slots = 0;
  while (window_.group < groups_.size() && window_.first == groups_[window_.group].slots.size())
    window_ = {window_.group + 1, 0, 0};
  if (window_.group == groups_.size()) return false;
  const Group& group = groups_[window_.group];
  const std::uint64_t fit = std::max<std::uint64_t>(1, room.value / group.layout.slot_bytes);
  window_.slots =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(fit, group.slots.size() - window_.first));
  return true;
}

bool Batch::next_round(const PlanRules& rules, const BounceBuffer& buffer) {
  launches.clear();
  next_launch = 0;
  if (rounds_done_) return false;
  if (!bounces_) {
    launches = build_launches(plan_groups(0), rules);
    rounds_done_ = true;
    return true;
  }
  if (!next_window(buffer.room)) {
    rounds_done_ = true;
    return false;
  }
  const std::uint64_t bytes = groups_[window_.group].layout.slot_bytes;
  if (direction() == Direction::kRestore)
    for (std::uint32_t i = 0; i < window_.slots; ++i)
      std::memcpy(buffer.host + i * bytes, image_of(window_, i), bytes);
  launches = build_launches(plan_groups(buffer.device), rules);
  return true;
}

void Batch::end_round(const std::byte* buffer) {
  if (!bounces_ || direction() == Direction::kRestore || window_.slots == 0) return;
  const model::SlotLayout& layout = groups_[window_.group].layout;
  for (std::uint32_t i = 0; i < window_.slots; ++i)
    std::memcpy(image_of(window_, i) + layout.header_bytes,
                buffer + i * layout.slot_bytes + layout.header_bytes,
                layout.slot_bytes - layout.header_bytes);
}

// All slots, or those of the window with their images in the buffer.
std::vector<PlanGroup> Batch::plan_groups(CuPtr device_buffer) const {
  std::vector<PlanGroup> out;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    PlanGroup plan{group.geometry, &group.layout, {}, {}};
    if (!bounces_) {
      plan.images = group.images;
      for (const SlotCopy& slot : group.slots) plan.blocks.push_back(slot.block);
    } else if (g == window_.group) {
      for (std::uint32_t i = 0; i < window_.slots; ++i) {
        plan.images.push_back(device_buffer + i * group.layout.slot_bytes);
        plan.blocks.push_back(group.slots[window_.first + i].block);
      }
    }
    out.push_back(std::move(plan));
  }
  return out;
}

// ---- sums ----

bool Batch::collect(Running& launch) {
  const LaunchPlan& plan = launches[launch.plan];
  for (; launch.entry < plan.fragments.size(); ++launch.entry, launch.slot = 0) {
    const PlanFragment& f = plan.fragments[launch.entry];
    if (f.signal != launch.signal) break;
    for (; launch.slot < f.slots; ++launch.slot)
      if (!collect_slot(plan, launch)) return false;
  }
  ++launch.signal;
  return true;
}

bool Batch::collect_slot(const LaunchPlan& plan, const Running& launch) {
  const PlanFragment& f = plan.fragments[launch.entry];
  const FragmentRef& ref = plan.refs[launch.entry];
  std::uint64_t raw = 0;
  for (std::uint32_t chunk = 0; chunk < f.chunks; ++chunk) {
    std::uint64_t sum = 0;
    if (!launch.transfer->sum_at(f.first_sum + std::size_t{launch.slot} * f.chunks + chunk, sum))
      return false;
    raw += sum;
  }
  Group& group = groups_[ref.group];
  const std::size_t fragments = group.geometry->fragments.size();
  const std::uint32_t slot = (bounces_ ? window_.first : 0) + ref.first_slot + launch.slot;
  const std::uint64_t found = fragment_check(group.geometry->fragments[ref.fragment], group.slots[slot], raw);
  if (direction() == Direction::kSave)
    group.headers[slot].put(ref.fragment, found);
  else if (verify_ && group.expected[slot * fragments + ref.fragment] != found)
    group.wrong[slot] = 1;
  return true;
}

void Batch::settle() {
  for (Group& group : groups_) {
    for (std::size_t i = 0; i < group.slots.size(); ++i) {
      SlotCopy& slot = group.slots[i];
      if (direction() == Direction::kRestore)
        slot.verified = group.wrong[i] == 0;
      else
        slot.digest = group.headers[i].digest(slot.seed);
    }
  }
}

}  // namespace orbitkv::device::cuda
