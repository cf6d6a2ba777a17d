#include "bench/copy_host.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>

#include "device/host/host_copier.h"
#include "model/slot_image.h"

namespace orbitkv::bench {

namespace {

using device::Direction;

constexpr std::uint64_t kRegionBytes = 192 * kMiB.value;  // of each side; several times the caches
constexpr std::uint64_t kHotBytes = 16 * kMiB.value;      // moved in one run of a hot case
constexpr std::uint64_t kSeed = 0x0123456789abcdef;

enum class Kind : std::uint8_t { kCold, kHot, kUnfused };

struct CopyCase {
  const char* name;
  std::uint64_t fragment_bytes;
  std::uint32_t fragments = 1;  // a block
  std::uint32_t blocks_per_batch = 1;
  Kind kind = Kind::kCold;
};

constexpr CopyCase kCases[] = {
    {"2KiB", 2048},
    {"4KiB", 4096},
    {"16KiB", 16384},
    {"64KiB", 65536},
    {"256KiB", 262144},
    {"1MiB", 1048576},
    {"4MiB", 4194304},
    {"64KiB_x64", 65536, 1, 64},
    {"36x128x4KiB_split", 2048, 72, 128},
    {"4KiB_hot", 4096, 1, 1, Kind::kHot},
    {"64KiB_hot", 65536, 1, 1, Kind::kHot},
    {"256KiB_hot", 262144, 1, 1, Kind::kHot},
    {"64KiB_unfused", 65536, 1, 1, Kind::kUnfused},
    {"1MiB_unfused", 1048576, 1, 1, Kind::kUnfused},
};

// Memory of one side, touched, in huge pages where the kernel gives them.
class Region {
 public:
  explicit Region(std::uint64_t bytes) : bytes_(bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ORBITKV_CHECK(at != MAP_FAILED, "no memory for the bench; it needs about 400 MiB");
    ::madvise(at, bytes, MADV_HUGEPAGE);
    base_ = static_cast<std::byte*>(at);
    std::mt19937_64 random(bytes);
    for (std::uint64_t i = 0; i < bytes; i += 8) {
      const std::uint64_t word = random();
      std::memcpy(base_ + i, &word, 8);
    }
  }
  Region(const Region&) = delete;
  ~Region() { ::munmap(base_, bytes_); }
  std::byte* base() const { return base_; }

 private:
  std::byte* base_ = nullptr;
  std::uint64_t bytes_;
};

// The pages, images and batches of one case.
class Rig {
 public:
  Rig(const CopyCase& what, Region& pages, Region& images) : what_(what) {
    for (std::uint32_t f = 0; f < what.fragments; ++f)
      group_.shape.fragments.push_back({static_cast<std::uint16_t>(f), 0, ByteCount(what.fragment_bytes)});
    layout_ = model::slot_layout(group_.shape);
    blocks_ = static_cast<std::uint32_t>(kRegionBytes / layout_.slot_bytes);
    group_.num_blocks = blocks_;
    const std::uint64_t layer_bytes = blocks_ * what.fragment_bytes;
    for (std::uint32_t f = 0; f < what.fragments; ++f)
      group_.fragments.push_back({.layer = static_cast<std::uint16_t>(f),
                                  .base = pages.base() + f * layer_bytes,
                                  .block_stride = what.fragment_bytes,
                                  .row_bytes = what.fragment_bytes});
    slots_.resize(blocks_);
    std::vector<std::uint32_t> order(blocks_);
    std::iota(order.begin(), order.end(), 0u);
    std::mt19937 random(7);
    std::shuffle(order.begin(), order.end(), random);
    for (std::uint32_t i = 0; i < blocks_; ++i) {
      slots_[i] = {images.base() + order[i] * layout_.slot_bytes, i, AllocationId(i + 1), kSeed + i};
    }
    std::shuffle(slots_.begin(), slots_.end(), random);
  }

  bool ready() const { return device::validate(group_).ok(); }
  std::size_t batches() const { return slots_.size() / what_.blocks_per_batch; }
  std::span<device::SlotCopy> batch(std::size_t i) {
    return std::span(slots_).subspan(i * what_.blocks_per_batch, what_.blocks_per_batch);
  }
  std::uint64_t batch_bytes() const {
    return std::uint64_t{what_.blocks_per_batch} * what_.fragments * what_.fragment_bytes;
  }
  const device::GroupGeometry& group() const { return group_; }

  // What memcpy needs to move the same bytes the same way.
  template <class Body>
  void each_fragment(std::size_t batch_index, Direction direction, Body body) {
    for (const device::SlotCopy& slot : batch(batch_index)) {
      for (std::uint32_t f = 0; f < what_.fragments; ++f) {
        std::byte* page = group_.fragments[f].base + slot.block * what_.fragment_bytes;
        std::byte* image = slot.image + layout_.fragment_offsets[f];
        if (direction == Direction::kSave) body(image, page);
        if (direction == Direction::kRestore) body(page, image);
      }
    }
  }
  void copy_plain(std::size_t i, Direction direction) {
    each_fragment(i, direction,
                  [&](std::byte* to, const std::byte* from) { std::memcpy(to, from, what_.fragment_bytes); });
  }
  // memcpy, then the checksum over the destination.
  std::uint64_t copy_unfused(std::size_t i, Direction direction) {
    const device::MixKernel kernel = device::mix_kernel(device::best_isa());
    std::uint64_t sum = 0;
    each_fragment(i, direction, [&](std::byte* to, const std::byte* from) {
      std::memcpy(to, from, what_.fragment_bytes);
      sum += kernel.mix({.from = to, .row_bytes = what_.fragment_bytes}, device::Stores::kNone);
    });
    return sum;
  }

 private:
  CopyCase what_;
  device::GroupGeometry group_;
  model::SlotLayout layout_;
  std::uint32_t blocks_ = 0;
  std::vector<device::SlotCopy> slots_;
};

class CopyBench {
 public:
  CopyBench(const CopyCase& what, Region& pages, Region& images)
      : what_(what), rig_(what, pages, images), copier_(device::make_host_copier()) {}

  // Images that a restore will find right.
  bool prepare() {
    if (!rig_.ready()) return false;
    for (std::size_t i = 0; i < rig_.batches(); ++i) {
      if (!submit(i, Direction::kSave)) return false;
    }
    return true;
  }

  // Ours and memcpy by turns, on different batches, so that both see the same load beside.
  // Rates are of the median operation: a time slice lost to another process is no copying.
  bool run(Direction direction, Run& out) {
    Samples ours, plain;
    const bool hot = what_.kind == Kind::kHot;
    const std::size_t operations = hot ? kHotBytes / rig_.batch_bytes() : rig_.batches();
    for (std::size_t i = 0; i + 1 < operations; i += 2) {
      const std::size_t mine = hot ? 0 : i + turn_ % 2;
      const std::size_t other = hot ? 1 : i + 1 - turn_ % 2;
      const TimePoint start = monotonic_now();
      if (!operate(mine, direction)) return false;
      const TimePoint middle = monotonic_now();
      rig_.copy_plain(other, direction);
      ours.add(middle - start);
      plain.add(monotonic_now() - middle);
    }
    ++turn_;
    out.p50 = ours.percentile(0.5);
    out.p99 = ours.percentile(0.99);
    out.gb_per_s = gb_per_s(out.p50);
    out.ceiling = gb_per_s(plain.percentile(0.5));
    return true;
  }

  ByteCount bytes() const { return ByteCount(rig_.batch_bytes()); }

 private:
  double gb_per_s(Duration time) const {
    return static_cast<double>(rig_.batch_bytes()) / static_cast<double>(std::max<std::int64_t>(1, time.ns));
  }
  bool operate(std::size_t i, Direction direction) {
    if (what_.kind != Kind::kUnfused) return submit(i, direction);
    sink_ = sink_ + rig_.copy_unfused(i, direction);
    return true;
  }
  bool submit(std::size_t i, Direction direction) {
    const auto slots = rig_.batch(i);
    device::CopyBatch batch;
    batch.direction = direction;
    batch.groups.push_back({&rig_.group(), slots});
    const auto ticket = copier_->submit(std::move(batch));
    if (!ticket.ok() || !copier_->drain(*ticket).status.ok()) return false;
    return direction == Direction::kSave ||
           std::all_of(slots.begin(), slots.end(), [](const auto& slot) { return slot.verified; });
  }

  CopyCase what_;
  Rig rig_;
  std::unique_ptr<device::Copier> copier_;
  std::size_t turn_ = 0;
  volatile std::uint64_t sink_ = 0;
};

int run_case(const CopyCase& what, Direction direction, const Options& options) {
  const std::string name = std::string(direction == Direction::kSave ? "save_" : "restore_") + what.name;
  if (!options.wants(name)) return 0;
  Region pages(kRegionBytes);
  Region images(kRegionBytes);
  CopyBench bench(what, pages, images);
  std::vector<Run> runs(static_cast<std::size_t>(options.runs));
  bool right = bench.prepare();
  for (Run& run : runs) right = right && bench.run(direction, run);
  if (!right) {
    std::fprintf(stderr, "copy %s: a checksum was wrong or a batch was refused\n", name.c_str());
    return 1;
  }
  const std::uint64_t fragments = std::uint64_t{what.fragments} * what.blocks_per_batch;
  report({"copy", name, bench.bytes(), fragments, {}, Ceiling{"memcpy", Ceiling::Unit::kGigabytesPerSecond}},
         std::move(runs), options);
  return 0;
}

}  // namespace

int run_copy_host_bench(const Options& options) {
  pin_thread(usable_cpus().front());
  int status = 0;
  for (const CopyCase& what : kCases) {
    status |= run_case(what, Direction::kSave, options);
    status |= run_case(what, Direction::kRestore, options);
  }
  return status;
}

}  // namespace orbitkv::bench
