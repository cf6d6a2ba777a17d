// What the soak is made of: draws, geometries that engines could have and many that they
// would not, pinned memory, and a driver table in which a call to come fails. Tests only.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <span>
#include <vector>

#include "device/copier.h"
#include "device/cuda/driver.h"
#include "model/slot_image.h"
#include "tests/cuda/driver_bed.h"

namespace orbitkv::device::cuda {

inline constexpr std::uint64_t kGuard = 128;
inline constexpr std::uint16_t kMostLayers = 12;

// A table in which one call to come fails with "invalid value" and does nothing.
class Injector {
 public:
  explicit Injector(const Driver& base) : table(base) {
    real() = base;
    countdown() = 0;
    table.cuLaunchKernel = [](auto... a) { return due() ? kFailure : real().cuLaunchKernel(a...); };
    table.cuMemcpyHtoDAsync = [](auto... a) { return due() ? kFailure : real().cuMemcpyHtoDAsync(a...); };
    table.cuMemcpyDtoHAsync = [](auto... a) { return due() ? kFailure : real().cuMemcpyDtoHAsync(a...); };
    table.cuMemcpy2DAsync = [](auto... a) { return due() ? kFailure : real().cuMemcpy2DAsync(a...); };
    table.cuStreamWaitEvent = [](auto... a) { return due() ? kFailure : real().cuStreamWaitEvent(a...); };
    table.cuEventRecord = [](auto... a) { return due() ? kFailure : real().cuEventRecord(a...); };
    if (base.cuMemcpyBatchAsync != nullptr)
      table.cuMemcpyBatchAsync = [](auto... a) { return due() ? kFailure : real().cuMemcpyBatchAsync(a...); };
    if (base.cuStreamWaitValue32 != nullptr)
      table.cuStreamWaitValue32 = [](auto... a) {
        return due() ? kFailure : real().cuStreamWaitValue32(a...);
      };
  }
  // 1: the next one; 0: none.
  void arm(std::uint32_t call) { countdown() = call; }
  bool hit() const { return countdown() == 0; }
  // Whether it came to that.
  bool disarm() { return countdown().exchange(0) == 0; }

  Driver table;

 private:
  static constexpr CuResult kFailure = 1;
  static Driver& real() {
    static Driver driver;
    return driver;
  }
  static std::atomic<std::uint32_t>& countdown() {
    static std::atomic<std::uint32_t> left{0};
    return left;
  }
  static bool due() {
    if (countdown() == 0) return false;
    return --countdown() == 0;
  }
};

// Pinned on this side, so that a round costs little.
class Pinned {
 public:
  Pinned(const Bed& bed, std::uint64_t bytes) : bed_(bed) {
    PrimaryScope scope(bed_);
    void* at = nullptr;
    EXPECT_EQ(bed_.driver->cuMemHostAlloc(&at, bytes, kHostAllocPortable | kHostAllocDeviceMap), kCuSuccess);
    bytes_ = {static_cast<std::byte*>(at), bytes};
  }
  ~Pinned() {
    PrimaryScope scope(bed_);
    bed_.driver->cuMemFreeHost(bytes_.data());
  }
  Pinned(const Pinned&) = delete;
  std::byte* data() const { return bytes_.data(); }
  std::span<std::byte> first(std::uint64_t n) const { return bytes_.first(n); }

 private:
  const Bed bed_;
  std::span<std::byte> bytes_;
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint32_t upto(std::uint64_t most) { return static_cast<std::uint32_t>(engine_() % (most + 1)); }
  bool once_in(std::uint32_t n) { return upto(n - 1) == 0; }
  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

struct Group {
  GroupGeometry geometry;
  model::SlotLayout layout;
};

class Layouts {
 public:
  Layouts(Random& random, std::byte* arena) : random_(random), arena_(arena) {}

  // Groups side by side in the arena, and how much of it they use.
  std::vector<Group> make(std::uint64_t& used) {
    std::vector<Group> groups(1 + (random_.once_in(4) ? random_.upto(2) : 0));
    used = kGuard;
    const std::uint64_t budget = random_.once_in(20) ? 6 << 20 : 512 << 10;
    for (Group& group : groups) fill(group, budget, used);
    used += kGuard;
    return groups;
  }

 private:
  std::uint64_t unit() { return std::array<std::uint64_t, 5>{1, 2, 8, 16, 128}[random_.upto(4)]; }

  void fill(Group& group, std::uint64_t budget, std::uint64_t& used) {
    const std::uint32_t fragments = 1 + random_.upto(random_.once_in(3) ? 2 * kMostLayers - 1 : 3);
    group.geometry.num_blocks = 1 + random_.upto(random_.once_in(3) ? 127 : 15);
    const std::uint64_t step = unit();
    // Bytes cross the link one by one where the step is that small, and hold all others up.
    const std::uint64_t room = step < 8 ? budget / 16 : budget;
    const std::uint64_t most = std::max<std::uint64_t>(16, room / fragments / group.geometry.num_blocks);
    used = (used + 255) / 256 * 256 + step * random_.upto(8);
    FragmentGeometry shape;
    shape.rows = random_.once_in(3) ? 1 + random_.upto(7) : 1;
    shape.row_bytes = (1 + random_.upto(std::max<std::uint64_t>(most / shape.rows / step, 1) - 1)) * step;
    if (random_.once_in(4)) {  // page-first: the fragments of a block lie side by side
      shape.row_stride = shape.row_bytes + step * random_.upto(2);
      const std::uint64_t pitch =
          (shape.rows - 1) * shape.row_stride + shape.row_bytes + step * random_.upto(2);
      shape.block_stride = pitch * fragments;
      for (std::uint32_t f = 0; f < fragments; ++f) add(group, shape, used + f * pitch);
      used += shape.block_stride * group.geometry.num_blocks;
    } else {
      for (std::uint32_t f = 0; f < fragments; ++f) {
        if (random_.once_in(2))
          shape.row_bytes =
              (1 + random_.upto(std::max<std::uint64_t>(most / shape.rows / step, 1) - 1)) * step;
        used += spread(group, shape, step, used) + step * random_.upto(3);
      }
    }
    group.layout = model::slot_layout(group.geometry.shape);
  }
  // A fragment in a range of its own: its rows within the block, or blocks within the rows.
  std::uint64_t spread(Group& group, FragmentGeometry shape, std::uint64_t step, std::uint64_t at) {
    const std::uint64_t blocks = group.geometry.num_blocks;
    std::uint64_t extent = 0;
    if (shape.rows > 1 && random_.once_in(2)) {
      shape.block_stride = shape.row_bytes + step * random_.upto(1);
      shape.row_stride = shape.block_stride * blocks;
      extent = shape.row_stride * shape.rows;
    } else {
      shape.row_stride = shape.row_bytes + step * random_.upto(1);
      shape.block_stride = shape.row_stride * shape.rows + step * random_.upto(1);
      extent = shape.block_stride * blocks;
    }
    add(group, shape, at);
    return extent;
  }
  void add(Group& group, FragmentGeometry shape, std::uint64_t at) {
    const std::size_t f = group.geometry.fragments.size();
    shape.layer = static_cast<std::uint16_t>(f / 2);
    shape.component = static_cast<std::uint16_t>(f % 2);
    shape.turn = shape.layer;
    shape.base = arena_ + at;
    group.geometry.fragments.push_back(shape);
    group.geometry.shape.fragments.push_back({shape.layer, shape.component, ByteCount(shape.bytes())});
  }

  Random& random_;
  std::byte* arena_;
};

}  // namespace orbitkv::device::cuda
