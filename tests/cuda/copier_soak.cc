#include "tests/cuda/copier_soak.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "base/checksum.h"
#include "base/text.h"
#include "base/time.h"
#include "device/cuda/cuda_device.h"
#include "model/slot_image.h"
#include "tests/cuda/soak_layouts.h"

namespace orbitkv::device::cuda {
namespace {

constexpr std::uint64_t kArena = 24 << 20;  // pages on the device
constexpr std::uint64_t kSlab = 24 << 20;   // each of two
constexpr std::uint32_t kNoiseRoom = 4096;
constexpr std::byte kGuardByte{0xA5};
constexpr Duration kBetweenLines = seconds(5);
constexpr Duration kLongestRound = seconds(60);

// Ends the process, and says where it stood, when a round does not end.
class Watch {
 public:
  explicit Watch(std::uint64_t seed) : seed_(seed), thread_([this] { run(); }) {}
  ~Watch() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void at(const char* where) {
    std::lock_guard lock(mutex_);
    where_ = where;
    ++steps_;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (std::uint64_t seen = 0; !stop_; seen = steps_) {
      changed_.wait_for(lock, std::chrono::nanoseconds(kLongestRound.ns), [&] { return stop_; });
      if (stop_ || steps_ != seen) continue;
      std::fprintf(stderr, "soak seed %llu stands still: %s\n", static_cast<unsigned long long>(seed_),
                   where_);
      std::abort();
    }
  }

  const std::uint64_t seed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const char* where_ = "opening";
  std::uint64_t steps_ = 1;
  bool stop_ = false;
  std::thread thread_;
};

// ---- rounds ----

struct Image {
  std::uint32_t group = 0;
  SlotCopy slot;
  std::vector<std::byte> content;  // its fragments, one after the other
  bool damaged = false;
};

class Soak {
 public:
  Soak(const Bed& bed, const SoakOptions& options)
      : injector_(*bed.driver),
        bed_(bed),
        wrapped_{&injector_.table, bed.device},
        options_(options),
        random_(options.seed),
        memory_(make_memory(bed)),
        events_(make_events(bed)),
        watch_(options.seed),
        noise_(bed, kArena + kNoiseRoom),
        mirror_(bed, kArena),
        seen_(bed, kArena) {
    for (std::size_t i = 0; i < kArena + kNoiseRoom; i += 8) {
      const std::uint64_t word = random_.engine()();
      std::memcpy(noise_.data() + i, &word, 8);
    }
    arena_ = memory_->alloc(ByteCount(kArena));
    std::byte* slabs = memory_->alloc_slab(ByteCount(2 * kSlab));
    slabs_ = {std::span(slabs, kSlab), std::span(slabs + kSlab, kSlab)};
    for (int i = 0; i < kMostLayers; ++i) layer_events_.push_back(events_->make());
    open({});
    open({.wait_values = false, .batched_dma = false});
    open({.slabs = {.registers = false}, .bounce = 256 * kKiB});
  }
  ~Soak() {
    copiers_.clear();
    for (const auto& device : devices_)
      for (const auto slab : slabs_) device->remove_slab(slab);
  }

  SoakReport run() {
    TimePoint next = monotonic_now() + kBetweenLines;
    for (std::uint32_t i = 0; i < options_.rounds && report_.wrong_bytes == 0; ++i) {
      round();
      if (monotonic_now() < next) continue;
      next = monotonic_now() + kBetweenLines;
      say_progress();
    }
    return report_;
  }

 private:
  void say_progress() const {
    std::printf("soak seed %llu: %llu of %u rounds, %llu wrong bytes\n",
                static_cast<unsigned long long>(options_.seed),
                static_cast<unsigned long long>(report_.rounds), options_.rounds,
                static_cast<unsigned long long>(report_.wrong_bytes));
    std::fflush(stdout);
  }

  void open(const CudaDeviceOptions& options) {
    auto made = make_cuda_device(injector_.table, bed_.device, options);
    EXPECT_TRUE(made.ok()) << made.error().message();
    devices_.push_back(checked(wrapped_, *made, {.wait_for_slabs = options.slabs.registers}));
    for (const auto slab : slabs_) devices_.back()->add_slab(slab);
    for (const CopierOptions& each :
         {CopierOptions{.method = CopyMethod::kKernel}, CopierOptions{.method = CopyMethod::kDirect},
          CopierOptions{.pace = CopyPace::kGentle}}) {
      auto copier = devices_.back()->new_copier(each);
      EXPECT_TRUE(copier.ok()) << copier.error().message();
      copiers_.push_back({std::move(*copier), devices_.back().get()});
    }
  }

  void round() {
    ++report_.rounds;
    watch_.at("writing pages");
    groups_ = Layouts(random_, arena_).make(used_);
    new_pages();
    new_images();
    if (images_.empty()) return;
    transfer(Direction::kSave);
    check_images();
    new_pages();
    damage();
    choose_destinations();
    transfer(Direction::kRestore);
    check_pages();
  }

  void new_pages() {
    held_ = std::span(noise_.data() + random_.upto(kNoiseRoom - 1), used_);
    memory_->write(arena_, held_);
  }

  // Somewhere in the slabs, guards between them.
  void new_images() {
    images_.clear();
    std::array<std::uint64_t, 2> at{};
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      std::vector<std::uint32_t> blocks = shuffled(g);
      blocks.resize(random_.once_in(3) ? blocks.size()
                                       : std::min<std::size_t>(blocks.size(), 1 + random_.upto(5)));
      for (const std::uint32_t block : blocks) {
        const std::uint32_t s = random_.upto(1);
        const std::uint64_t bytes = groups_[g].layout.slot_bytes;
        at[s] += kGuard * (1 + random_.upto(3));
        if (at[s] + bytes + kGuard > kSlab) continue;
        std::byte* image = slabs_[s].data() + at[s];
        std::memset(image - kGuard, static_cast<int>(kGuardByte), bytes + 2 * kGuard);
        at[s] += bytes;
        const std::uint64_t id = ++allocations_;
        images_.push_back(
            {g, {.image = image, .block = block, .allocation = AllocationId(id), .seed = id * 77}, {}});
        images_.back().content = page(images_.back());
      }
    }
    std::shuffle(images_.begin(), images_.end(), random_.engine());
    report_.images += images_.size();
  }
  std::vector<std::uint32_t> shuffled(std::uint32_t g) {
    std::vector<std::uint32_t> blocks(groups_[g].geometry.num_blocks);
    for (std::uint32_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
    std::shuffle(blocks.begin(), blocks.end(), random_.engine());
    return blocks;
  }

  template <class Body>
  void each_row(const Image& image, Body body) {
    for (const FragmentGeometry& f : groups_[image.group].geometry.fragments) {
      const std::uint64_t at =
          static_cast<std::uint64_t>(f.base - arena_) + image.slot.block * f.block_stride;
      for (std::uint32_t row = 0; row < f.rows; ++row) body(at + row * f.row_stride, f.row_bytes);
    }
  }
  std::vector<std::byte> page(const Image& image) {
    std::vector<std::byte> bytes(groups_[image.group].layout.slot_bytes);
    std::byte* to = bytes.data();
    each_row(image, [&](std::uint64_t at, std::uint64_t n) {
      std::memcpy(to, held_.data() + at, n);
      to += n;
    });
    bytes.resize(static_cast<std::size_t>(to - bytes.data()));
    return bytes;
  }

  void damage() {
    for (Image& image : images_) {
      const model::SlotLayout& layout = groups_[image.group].layout;
      if (!random_.once_in(8)) continue;
      ++report_.damaged;
      image.damaged = true;
      std::uint64_t at = random_.upto(layout.header_bytes - 1);
      if (random_.once_in(2)) {
        const auto& fragments = groups_[image.group].geometry.fragments;
        const std::uint32_t f = random_.upto(fragments.size() - 1);
        at = layout.fragment_offsets[f] + random_.upto(fragments[f].bytes() - 1);
      }
      image.slot.image[at] ^= static_cast<std::byte>(1u << random_.upto(7));
    }
  }
  void choose_destinations() {
    std::vector<std::vector<std::uint32_t>> blocks;
    for (std::uint32_t g = 0; g < groups_.size(); ++g) blocks.push_back(shuffled(g));
    for (Image& image : images_) {
      image.slot.block = blocks[image.group].back();
      blocks[image.group].pop_back();
    }
  }

  // ---- batches ----

  // By one batch; once more if a call was made to fail.
  void transfer(Direction direction) {
    std::vector<SlotCopy> slots;
    for (const Image& image : images_) slots.push_back(image.slot);
    failing_ = random_.once_in(5) ? 1 + random_.upto(random_.once_in(2) ? 3 : 40) : 0;
    if (!attempt(direction, slots)) {
      ++report_.failed_batches;
      failing_ = 0;
      // A save overwrites what the failed one left; a restore likewise.
      if (!attempt(direction, slots)) ++report_.wrong_ends;
    }
    for (std::size_t i = 0; i < images_.size(); ++i) images_[i].slot = slots[i];
  }

  bool attempt(Direction direction, std::vector<SlotCopy>& slots) {
    auto& [copier, device] = copiers_[random_.upto(copiers_.size() - 1)];
    // A batch takes the slots of a group in one piece.
    std::vector<std::vector<SlotCopy>> parts(groups_.size());
    for (std::size_t i = 0; i < slots.size(); ++i) parts[images_[i].group].push_back(slots[i]);
    CopyBatch batch;
    batch.direction = direction;
    for (std::size_t g = 0; g < groups_.size(); ++g) batch.groups.push_back({&groups_[g].geometry, parts[g]});
    const bool held = random_.once_in(3);
    if (held) {
      auto fence = device->fence(events_->hold());
      if (fence.ok()) batch.ready = std::move(*fence);
      if (!fence.ok() || !batch.ready) ++report_.wrong_ends;
    }
    if (direction == Direction::kRestore && random_.once_in(2)) batch.events = some_events();
    const std::vector<LayerEvent> events = batch.events;
    injector_.arm(failing_);
    watch_.at(held ? "submit() behind an event" : "submit()");
    auto ticket = copier->submit(std::move(batch));
    if (held) events_->release();
    watch_.at("waiting for the copies");
    const bool ok = ticket.ok() && finish(*copier, *ticket, events);
    const bool failed = injector_.disarm() && failing_ > 0;
    watch_.at("comparing");
    report_.failed_calls += failed;
    if (!ok && !failed) ++report_.wrong_ends;
    std::vector<std::size_t> next(groups_.size());
    for (std::size_t i = 0; i < slots.size(); ++i)
      slots[i] = parts[images_[i].group][next[images_[i].group]++];
    return ok;
  }

  std::vector<LayerEvent> some_events() {
    std::vector<LayerEvent> made;
    for (std::uint16_t turn = 0; turn < kMostLayers; ++turn)
      if (random_.upto(3) > 0) made.push_back({turn, layer_events_[turn]});
    return made;
  }

  bool finish(Copier& copier, CopyTicket ticket, const std::vector<LayerEvent>& events) {
    std::optional<CopyEnd> end;
    bool watch = false;
    std::size_t fired = 0;
    while (!end) {
      if (!watch && !events.empty() && copier.enqueued(ticket)) watch = true;
      if (watch) check_order(events, fired);
      end = copier.poll(ticket);
    }
    report_.bytes += end->stats.bytes;
    if (!end->status.ok() || events.empty()) return end->status.ok();
    // The record that tells the copier of its events may be what failed: then they are only near.
    const bool near = failing_ > 0 && injector_.hit();
    for (const LayerEvent& event : events)
      report_.late_layers += !(near ? comes(event) : events_->done(event.event));
    return true;
  }
  bool comes(const LayerEvent& event) {
    for (int i = 0; i < 100000; ++i) {
      if (events_->done(event.event)) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return false;
  }
  // From the last on: one that fires in between is seen with the earlier ones. The first
  // `fired` have been seen, and stay as they are.
  void check_order(const std::vector<LayerEvent>& events, std::size_t& fired) {
    std::size_t done_from = events.size();
    bool later = false;
    for (std::size_t i = events.size(); i > fired; --i) {
      const bool done = events_->done(events[i - 1].event);
      report_.late_layers += later && !done;
      later |= done;
      if (!done) done_from = i - 1;
    }
    fired = done_from;
  }

  // ---- what came of it ----

  static std::uint64_t differences(const std::byte* a, const std::byte* b, std::uint64_t n) {
    if (std::memcmp(a, b, n) == 0) return 0;
    std::uint64_t count = 0;
    for (std::uint64_t i = 0; i < n; ++i) count += a[i] != b[i];
    return count;
  }
  void check_guards(const Image& image) {
    const std::uint64_t bytes = groups_[image.group].layout.slot_bytes;
    for (std::uint64_t i = 0; i < kGuard; ++i)
      report_.wrong_bytes +=
          (image.slot.image[i - kGuard] != kGuardByte) + (image.slot.image[bytes + i] != kGuardByte);
  }

  // Headers by the reference, payload by the mirror.
  void check_images() {
    for (const Image& image : images_) {
      const Group& group = groups_[image.group];
      model::SlotHeader header{image.slot.allocation, group.layout.slot_bytes, {}};
      std::uint64_t at = 0;
      for (std::size_t f = 0; f < group.geometry.fragments.size(); ++f) {
        const FragmentGeometry& g = group.geometry.fragments[f];
        const std::span bytes(&image.content[at], g.bytes());
        const std::uint64_t id = checksum::fragment_id(image.slot.seed, {g.layer, g.component, 0});
        header.checks.push_back(checksum::check(checksum::raw(bytes), id, bytes.size()));
        report_.wrong_bytes +=
            differences(image.slot.image + group.layout.fragment_offsets[f], bytes.data(), bytes.size());
        at += g.bytes();
      }
      std::vector<std::byte> expected(group.layout.header_bytes);
      const std::uint64_t digest = model::write_slot_header(header, image.slot.seed, expected);
      report_.wrong_bytes += differences(image.slot.image, expected.data(), expected.size());
      report_.wrong_verdicts += digest != image.slot.digest;
      check_guards(image);
    }
    compare_arena();
  }

  void check_pages() {
    std::memcpy(mirror_.data(), held_.data(), used_);
    held_ = mirror_.first(used_);
    for (const Image& image : images_) {
      report_.wrong_verdicts += image.slot.verified == image.damaged;
      check_guards(image);
      if (image.damaged) continue;
      std::uint64_t from = 0;
      each_row(image, [&](std::uint64_t at, std::uint64_t n) {
        std::memcpy(mirror_.data() + at, &image.content[from], n);
        from += n;
      });
    }
    compare_arena();
  }
  // All of it, guards and gaps too. The pages of a damaged image are anybody's guess.
  void compare_arena() {
    memory_->read(seen_.first(used_), arena_);
    for (const Image& image : images_) {
      if (!image.damaged) continue;
      each_row(image, [&](std::uint64_t at, std::uint64_t n) {
        std::memcpy(seen_.data() + at, held_.data() + at, n);
      });
    }
    report_.wrong_bytes += differences(seen_.data(), held_.data(), used_);
  }

  Injector injector_;
  const Bed bed_, wrapped_;
  const SoakOptions options_;
  Random random_;
  std::unique_ptr<suite::DeviceMemory> memory_;
  std::unique_ptr<suite::DeviceEvents> events_;
  std::vector<EventHandle> layer_events_;
  Watch watch_;
  Pinned noise_, mirror_, seen_;
  std::span<const std::byte> held_;  // what the pages should hold
  std::byte* arena_ = nullptr;
  std::array<std::span<std::byte>, 2> slabs_;
  std::vector<std::shared_ptr<Device>> devices_;
  std::vector<std::pair<std::unique_ptr<Copier>, Device*>> copiers_;

  std::vector<Group> groups_;
  std::uint64_t used_ = 0;
  std::vector<Image> images_;
  std::uint64_t allocations_ = 0;
  std::uint32_t failing_ = 0;
  SoakReport report_;
};

}  // namespace

std::string SoakReport::line() const {
  const auto n = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  return format_text(
      "soak: %llu rounds, %llu images, %.3f GB copied, %llu images damaged, %llu calls failed, %llu batches "
      "failed; wrong bytes %llu, wrong verdicts %llu, wrong ends %llu, late layers %llu",
      n(rounds), n(images), static_cast<double>(bytes) / 1e9, n(damaged), n(failed_calls), n(failed_batches),
      n(wrong_bytes), n(wrong_verdicts), n(wrong_ends), n(late_layers));
}

SoakReport run_soak(const Bed& bed, const SoakOptions& options) {
  return Soak(bed, options).run();
}

}  // namespace orbitkv::device::cuda
