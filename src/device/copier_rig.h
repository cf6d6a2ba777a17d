// What the conformance suites of device/copier_suite.h and device/copier_events_suite.h
// run on: the memory of a device behind an interface, the layouts that engines use, and a
// rig that holds the pages, a host mirror of them, and slot images between guard bytes.
// Pages are reached through DeviceMemory only, and a verdict only after the end of its
// batch. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "device/copier.h"
#include "model/slot_image.h"

namespace orbitkv::device::suite {

using Bytes = std::vector<std::byte>;

// Frees what it gave when it dies.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::byte* alloc(ByteCount bytes) = 0;  // device address, multiple of 64
  virtual void write(std::byte* to, std::span<const std::byte> bytes) = 0;
  virtual void read(std::span<std::byte> out, const std::byte* from) = 0;
  // Like a slab as it is mapped here: whole pages of this process, for add_slab().
  virtual std::byte* alloc_slab(ByteCount bytes) = 0;
};

// The device's events, and a stream that stands still.
class DeviceEvents {
 public:
  virtual ~DeviceEvents() = default;  // destroys what it made
  virtual EventHandle make() = 0;     // never recorded yet
  // As the device says it: an event that was never recorded is done.
  virtual bool done(EventHandle event) = 0;
  // From hold() to release() nothing of this stream is executed.
  virtual StreamHandle hold() = 0;
  virtual void release() = 0;
};

struct Implementation {
  std::string name;
  std::function<std::unique_ptr<DeviceMemory>()> memory;
  std::function<std::shared_ptr<Device>()> device;
  std::function<std::unique_ptr<DeviceEvents>()> events = nullptr;  // null: no streams
  bool header_first = false;  // a restore with a wrong header writes no page
};
inline void PrintTo(const Implementation& what, std::ostream* out) {
  *out << what.name;
}

// A geometry before it has addresses: base = buffer + offset.
struct FragmentLayout {
  std::size_t buffer = 0;
  std::uint64_t offset = 0;
  FragmentGeometry geometry;
};
struct EngineLayout {
  std::string name;
  std::vector<std::uint64_t> buffers;  // bytes of each
  std::vector<FragmentLayout> fragments;
};
inline void PrintTo(const EngineLayout& what, std::ostream* out) {
  *out << what.name;
}

inline constexpr std::uint32_t kBlocks = 9;

// Each fragment in a buffer of its own, blocks back to back.
inline EngineLayout contiguous(const std::string& name, std::vector<std::uint64_t> sizes) {
  EngineLayout layout{name, {}, {}};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    layout.buffers.push_back(kBlocks * sizes[i] + 128);
    layout.fragments.push_back(
        {i, 0, {.layer = static_cast<std::uint16_t>(i), .block_stride = sizes[i], .row_bytes = sizes[i]}});
  }
  return layout;
}

// All fragments in one buffer of pages; fragment i starts at i * pitch of every page.
inline EngineLayout paged(const std::string& name, std::uint64_t pitch, FragmentGeometry fragment,
                          std::uint16_t layers) {
  const std::uint64_t extent = (fragment.rows - 1) * fragment.row_stride + fragment.row_bytes;
  fragment.block_stride = std::max(pitch * layers, extent + (layers - 1u) * pitch);
  EngineLayout layout{name, {kBlocks * fragment.block_stride + 128}, {}};
  for (std::uint16_t i = 0; i < layers; ++i) {
    fragment.layer = i;
    layout.fragments.push_back({0, 64 + i * pitch, fragment});
  }
  return layout;
}

inline EngineLayout split_components() {
  EngineLayout layout = contiguous("kv_split", {2048, 2048, 2048, 2048});
  for (std::uint16_t i = 0; i < 4; ++i) {
    layout.fragments[i].geometry.layer = i / 2;
    layout.fragments[i].geometry.component = i % 2;
  }
  return layout;
}

// K and V as two halves of one tensor: [2][blocks][bytes].
inline EngineLayout halves(const std::string& name, std::uint64_t bytes) {
  EngineLayout layout{name, {2 * kBlocks * bytes}, {}};
  layout.fragments.push_back(
      {0, 0, {.block_stride = bytes, .rows = 2, .row_bytes = bytes, .row_stride = kBlocks * bytes}});
  return layout;
}

inline EngineLayout shifted(EngineLayout layout, std::uint64_t bytes) {
  for (FragmentLayout& fragment : layout.fragments) fragment.offset += bytes;
  layout.name = "shifted_" + layout.name;
  return layout;
}

inline std::vector<EngineLayout> engine_layouts() {
  return {
      contiguous("contiguous", {4096, 4096}),
      contiguous("odd_sizes", {8, 65544, 56, 4104, 72}),
      contiguous("large", {72 * 1024, 64 * 1024}),
      contiguous("mla", {16 * 576 * 2}),
      shifted(contiguous("contiguous", {4096, 8192}), 2),
      split_components(),
      halves("kv_halves", 512),
      halves("kv_large_halves", 36 * 1024),
      paged("page_first", 576, {.row_bytes = 576}, 4),
      paged("strided_views", 1088, {.row_bytes = 1024}, 3),
      // Tokens of one head, the other head between them.
      paged("heads", 128, {.rows = 16, .row_bytes = 128, .row_stride = 256}, 2),
      paged("long_rows", 4096, {.rows = 4, .row_bytes = 4096, .row_stride = 8192}, 2),
      paged("short_rows", 4096, {.rows = 8, .row_bytes = 24, .row_stride = 40}, 2),
      paged("odd_rows", 4096, {.rows = 8, .row_bytes = 13, .row_stride = 29}, 2),
      paged("odd_long_rows", 64, {.rows = 8, .row_bytes = 4099, .row_stride = 4100}, 1),
      paged("single_bytes", 4096, {.rows = 64, .row_bytes = 1, .row_stride = 3}, 1),
      paged("dense_rows", 4096, {.rows = 8, .row_bytes = 72, .row_stride = 72}, 1),
  };
}

inline Bytes random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::size_t at = 0; at < size; at += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(8, size - at));
  }
  return bytes;
}

// Memory, device and copier of one test.
struct Stand {
  Stand(const Implementation& implementation, const CopierOptions& options)
      : memory(implementation.memory()), device(implementation.device()) {
    auto made = device->new_copier(options);
    EXPECT_TRUE(made.ok()) << made.error().message();
    copier = std::move(*made);
  }
  ~Stand() {
    copier.reset();
    for (const auto slab : slabs) device->remove_slab(slab);
  }
  // A piece of a slab, multiple of 64.
  std::byte* take(std::uint64_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (slabs.empty() || bytes > slabs.back().size() - used) {
      const std::uint64_t slab = std::max(kSlab, bytes);
      slabs.emplace_back(memory->alloc_slab(ByteCount(slab)), slab);
      device->add_slab(slabs.back());
      used = 0;
    }
    used += bytes;
    return slabs.back().data() + used - bytes;
  }

  static constexpr std::uint64_t kSlab = 2 << 20;
  std::unique_ptr<DeviceMemory> memory;
  std::shared_ptr<Device> device;
  std::unique_ptr<Copier> copier;
  std::vector<std::span<std::byte>> slabs;
  std::uint64_t used = 0;  // of the last slab
};

// Which places the layers of a rig have in the engine's order.
struct Turns {
  std::uint16_t first = 0;
  std::uint16_t step = 1;
  std::uint16_t of(std::uint16_t layer) const { return static_cast<std::uint16_t>(first + layer * step); }
};

// One group of an engine: its pages and some images, with a mirror that says what the
// pages should hold. Several rigs may share a stand.
class Rig {
 public:
  static constexpr std::uint64_t kGuard = 128;
  static constexpr std::byte kGuardByte{0xA5};

  Rig(const Implementation& implementation, const EngineLayout& layout, const CopierOptions& options = {})
      : Rig(std::make_shared<Stand>(implementation, options), layout, Turns()) {}
  Rig(std::shared_ptr<Stand> stand, const EngineLayout& layout, Turns turns) : stand_(std::move(stand)) {
    for (const std::uint64_t bytes : layout.buffers) {
      buffers_.push_back(memory().alloc(ByteCount(bytes)));
      mirrors_.emplace_back(bytes);
    }
    fragments_ = layout.fragments;
    group_.num_blocks = kBlocks;
    for (const FragmentLayout& fragment : fragments_) {
      FragmentGeometry geometry = fragment.geometry;
      geometry.base = buffers_[fragment.buffer] + fragment.offset;
      geometry.turn = turns.of(geometry.layer);
      group_.fragments.push_back(geometry);
      group_.shape.fragments.push_back({geometry.layer, geometry.component, ByteCount(geometry.bytes())});
    }
    layout_ = model::slot_layout(group_.shape);
  }

  const std::shared_ptr<Stand>& stand() const { return stand_; }
  Copier& copier() { return *stand_->copier; }
  const GroupGeometry& group() const { return group_; }
  const model::SlotLayout& layout() const { return layout_; }

  void fill_pages(std::uint64_t seed) {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      mirrors_[i] = random_bytes(mirrors_[i].size(), seed + i);
      memory().write(buffers_[i], mirrors_[i]);
    }
  }

  // The fragment as an image holds it: its rows one after the other.
  Bytes page(std::size_t f, std::uint32_t block) {
    Bytes bytes;
    each_row(f, block, [&](std::span<std::byte> row) { bytes.insert(bytes.end(), row.begin(), row.end()); });
    return bytes;
  }
  std::vector<Bytes> pages(std::uint32_t block) {
    std::vector<Bytes> all;
    for (std::size_t f = 0; f < fragments_.size(); ++f) all.push_back(page(f, block));
    return all;
  }
  // Only in the mirror: what a restore is expected to do.
  void expect_pages(std::uint32_t block, const std::vector<Bytes>& content) {
    for (std::size_t f = 0; f < fragments_.size(); ++f) {
      std::size_t at = 0;
      each_row(f, block, [&](std::span<std::byte> row) {
        std::copy_n(content[f].begin() + static_cast<std::ptrdiff_t>(at), row.size(), row.begin());
        at += row.size();
      });
    }
  }
  // Every byte of every buffer, named blocks or not, is what the mirror says.
  bool pages_are_as_expected() {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      Bytes actual(mirrors_[i].size());
      memory().read(actual, buffers_[i]);
      if (std::memcmp(actual.data(), mirrors_[i].data(), actual.size()) != 0) return false;
    }
    return true;
  }

  // A new image for a block, guard bytes on both sides.
  SlotCopy new_slot(std::uint32_t block) {
    const std::uint64_t bytes = layout_.slot_bytes + 2 * kGuard;
    std::byte* at = stand_->take(bytes);
    std::memset(at, static_cast<int>(kGuardByte), bytes);
    guarded_.push_back(at);
    const std::uint64_t id = guarded_.size();
    return {.image = at + kGuard, .block = block, .allocation = AllocationId(id), .seed = 0x5EED0 + id};
  }
  std::vector<SlotCopy> new_slots(std::vector<std::uint32_t> blocks) {
    std::vector<SlotCopy> slots;
    for (const std::uint32_t block : blocks) slots.push_back(new_slot(block));
    return slots;
  }
  bool guards_are_whole() const {
    for (const std::byte* at : guarded_) {
      for (std::uint64_t i = 0; i < kGuard; ++i) {
        if (at[i] != kGuardByte || at[kGuard + layout_.slot_bytes + i] != kGuardByte) return false;
      }
    }
    return true;
  }

  CopyBatch batch(Direction direction, std::span<SlotCopy> slots) const {
    CopyBatch made;
    made.direction = direction;
    made.groups.push_back({&group_, slots});
    return made;
  }
  Status run(Direction direction, std::span<SlotCopy> slots) { return run(batch(direction, slots)); }
  Status run(CopyBatch what) {
    ORBITKV_ASSIGN_OR_RETURN(const CopyTicket ticket, copier().submit(std::move(what)));
    return copier().drain(ticket).status;
  }
  // The verdict on one slot; a refused batch is a test failure.
  bool restores(SlotCopy& slot) {
    const Status status = run(Direction::kRestore, {&slot, 1});
    EXPECT_TRUE(status.ok()) << status.error().message();
    return slot.verified;
  }

  // The header and its digest, by the scalar reference only.
  std::uint64_t expected_header(const SlotCopy& slot, std::span<std::byte> out) {
    model::SlotHeader header{slot.allocation, layout_.slot_bytes, {}};
    for (std::size_t f = 0; f < fragments_.size(); ++f) {
      const Bytes bytes = page(f, slot.block);
      const FragmentGeometry& geometry = group_.fragments[f];
      const std::uint64_t id = checksum::fragment_id(slot.seed, {geometry.layer, geometry.component, 0});
      header.checks.push_back(checksum::check(checksum::raw(bytes), id, bytes.size()));
    }
    return model::write_slot_header(header, slot.seed, out);
  }

  std::span<std::byte> header_of(const SlotCopy& slot) const { return {slot.image, layout_.header_bytes}; }
  std::span<std::byte> image_of(const SlotCopy& slot) const { return {slot.image, layout_.slot_bytes}; }
  std::span<std::byte> fragment_of(const SlotCopy& slot, std::size_t f) const {
    return {slot.image + layout_.fragment_offsets[f], group_.fragments[f].bytes()};
  }

 private:
  template <class Body>
  void each_row(std::size_t f, std::uint32_t block, Body body) {
    const FragmentGeometry& geometry = group_.fragments[f];
    std::byte* at =
        mirrors_[fragments_[f].buffer].data() + fragments_[f].offset + block * geometry.block_stride;
    for (std::uint32_t row = 0; row < geometry.rows; ++row)
      body(std::span(at + row * geometry.row_stride, geometry.row_bytes));
  }

  DeviceMemory& memory() { return *stand_->memory; }

  std::shared_ptr<Stand> stand_;
  std::vector<std::byte*> buffers_;
  std::vector<Bytes> mirrors_;
  std::vector<FragmentLayout> fragments_;
  GroupGeometry group_;
  model::SlotLayout layout_;
  std::vector<std::byte*> guarded_;
};

}  // namespace orbitkv::device::suite
