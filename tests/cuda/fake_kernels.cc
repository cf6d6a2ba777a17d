// The copy kernels as plan.h describes them, thread block by thread block: each takes every
// grid-th unit, and the one that finishes a layer last raises its flag. Which block goes on
// is drawn, so that layers, sums and flags come in every order that the hardware could give.
#include <algorithm>
#include <cstring>

#include "base/checksum.h"
#include "base/text.h"
#include "device/cuda/plan.h"
#include "tests/cuda/fake_state.h"

namespace orbitkv::device::cuda::fake {
namespace {

struct Kernel {
  std::string name;
  std::uint64_t width = 1;  // of an access
  bool bulk = false;
};

Kernel kernel_of(const std::string& name) {
  if (name == "orbitkv_copy_bulk") return {name, 16, true};
  if (name == "orbitkv_copy_16") return {name, 16};
  if (name == "orbitkv_copy_8") return {name, 8};
  return {name, 1};
}

// One stretch of one fragment of one slot.
struct Piece {
  const PlanSlot* slot = nullptr;
  std::uint64_t offset = 0, bytes = 0;
  std::uint64_t sum = 0;  // index
};
struct Sum {
  std::uint64_t index = 0;
  std::uint64_t value = 0;
};
struct Block {
  std::uint32_t next = 0;       // unit
  std::uint32_t announced = 0;  // layers
  bool done = false;
  std::vector<Sum> sums = {};  // on their way
};

class Run {
 public:
  Run(State& state, const Context& context, const std::string& kernel, const LaunchShape& shape,
      const PlanLaunch& plan)
      : state_(state), context_(context), kernel_(kernel_of(kernel)), shape_(shape), plan_(plan) {}

  Step step() {
    if (blocks_.empty()) return start();
    std::size_t i = state_.draw(blocks_.size());
    while (blocks_[i].done) i = (i + 1) % blocks_.size();
    Block& block = blocks_[i];
    if (block.next < plan_.units) {
      if (!copy_unit(block)) return fault("a unit leaves the memory that the GPU reaches");
      block.next += shape_.grid;
    }
    const std::uint32_t reached = block.next < plan_.units ? fragment_of(block.next).signal : plan_.signals;
    if (!announce(block, reached)) return fault("sums, flags or counters are out of the GPU's reach");
    block.done = block.next >= plan_.units;
    return std::all_of(blocks_.begin(), blocks_.end(), [](const Block& b) { return b.done; }) ? end()
                                                                                              : Step::kMore;
  }

 private:
  Step start() {
    const std::string wrong = load();
    if (!wrong.empty()) return fault(wrong);
    state_.note((plan_.sum_only ? "sum " : "launch ") + kernel_.name);
    for (std::uint32_t i = 0; i < shape_.grid; ++i) {
      blocks_.push_back({.next = i});
      // Layers before its first unit owe a block nothing.
      const std::uint32_t reached = i < plan_.units ? fragment_of(i).signal : plan_.signals;
      if (!announce(blocks_.back(), reached)) return fault("flags or counters are out of the GPU's reach");
      blocks_.back().done = i >= plan_.units;
    }
    return plan_.units == 0 ? end() : Step::kMore;
  }
  // Nothing may have been written over under a running kernel.
  Step end() {
    const auto fragments = fragments_;
    const auto slots = slots_;
    if (!read_tables() ||
        std::memcmp(fragments.data(), fragments_.data(), fragments.size() * sizeof(PlanFragment)) ||
        std::memcmp(slots.data(), slots_.data(), slots.size() * sizeof(PlanSlot)))
      return fault("the plan has changed under the kernel");
    return Step::kDone;
  }
  Step fault(const std::string& what) {
    state_.complain(kernel_.name + ": " + what);
    return Step::kFault;
  }

  template <class T>
  bool read(std::uint64_t at, std::uint32_t count, std::vector<T>& out) const {
    out.resize(count);
    if (count == 0) return true;
    const Reach reach = state_.reach(context_, {at, count * sizeof(T)});
    if (reach.bytes == nullptr) return false;
    std::memcpy(out.data(), reach.bytes, count * sizeof(T));
    return true;
  }
  bool read_tables() {
    if (plan_.fragments == 0) {
      fragments_.assign(plan_.small.fragments, plan_.small.fragments + plan_.fragment_count);
      slots_.assign(plan_.small.slots, plan_.small.slots + plan_.slot_count);
      return true;
    }
    return plan_.fragments % 16 == 0 && plan_.slots % 16 == 0 &&
           read(plan_.fragments, plan_.fragment_count, fragments_) &&
           read(plan_.slots, plan_.slot_count, slots_);
  }

  std::string load() {
    if (plan_.fragments == 0 && (plan_.fragment_count > kSmallFragments || plan_.slot_count > kSmallSlots))
      return "a small plan that is not small";
    if (plan_.fragment_count > kMaxFragmentsPerLaunch || plan_.slot_count > kMaxSlotsPerLaunch)
      return "more fragments or slots than a launch may have";
    if (!read_tables()) return "the plan is not where the GPU reaches";
    std::uint32_t unit = 0, signal = 0;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> sums;
    for (const PlanFragment& f : fragments_) {
      const std::string wrong = check(f);
      if (!wrong.empty()) return wrong;
      if (f.first_unit != unit) return "first_unit is not the number of units before the fragment";
      if (f.signal < signal || f.signal >= plan_.signals) return "signals do not ascend";
      unit += f.chunks > 1 ? f.slots * f.chunks : (f.slots + f.pack - 1) / f.pack;
      signal = f.signal;
      sums.emplace_back(f.first_sum, f.first_sum + std::uint64_t{f.slots} * f.chunks);
    }
    if (unit != plan_.units) return "units is not the sum over the fragments";
    std::sort(sums.begin(), sums.end());
    for (std::size_t i = 1; i < sums.size(); ++i)
      if (sums[i].first < sums[i - 1].second) return "two fragments share sums";
    if (!sums.empty() && sums.back().second > kMaxSumsPerLaunch) return "more sums than a launch may have";
    return check_rest(sums.empty() ? 0 : sums.back().second);
  }

  std::string check(const PlanFragment& f) const {
    const std::uint64_t w = kernel_.width;
    if (f.slots == 0 || f.bytes == 0 || f.row_bytes == 0 || f.bytes % f.row_bytes != 0)
      return "an empty fragment, or rows that are not whole";
    if (f.first_slot + std::uint64_t{f.slots} > plan_.slot_count) return "slots behind the last";
    if (f.image_offset % 128 != 0) return "an image offset that is no multiple of 128";
    if ((f.base | f.block_stride | f.row_bytes) % w != 0 || (f.row_bytes != f.bytes && f.row_stride % w != 0))
      return "an address or length that the kernel's accesses do not fit";
    if (f.pack == 0 || f.pack > kMaxPack || f.chunks == 0 || (f.pack > 1 && f.chunks > 1))
      return "pack or chunks";
    if (f.chunks > 1 && (f.chunks - 1) * std::uint64_t{plan_.stage_bytes} >= f.bytes) return "an empty chunk";
    if (f.chunks * std::uint64_t{plan_.stage_bytes} < f.bytes) return "chunks that do not hold the fragment";
    if (f.chunks > 1 && plan_.stage_bytes % 16 != 0) return "chunks that begin within a word";
    if (kernel_.bulk && f.pack * std::uint64_t{f.bytes} > plan_.stage_bytes && f.chunks == 1)
      return "a pack that does not fit a stage";
    return "";
  }

  // Memory at rest as the plan promises it.
  std::string check_rest(std::uint64_t sums) const {
    for (const PlanSlot& slot : slots_)
      if (slot.image % kernel_.width != 0) return "an image that the kernel's accesses do not fit";
    if (sums > 0 &&
        (plan_.sums % 16 != 0 || !state_.reach(context_, {plan_.sums, sums * sizeof(PlanSum)}).host))
      return "sums are not in host memory";
    for (std::uint32_t i = 0; i < plan_.signals; ++i) {
      const Reach flag = state_.reach(context_, {plan_.flags + 4 * i, 4});
      const Reach counter = state_.reach(context_, {plan_.counters + 4 * i, 4});
      if (flag.bytes == nullptr || !flag.host) return "flags are not in host memory";
      if (counter.bytes == nullptr || counter.host) return "counters are not in device memory";
      if (load_word(flag) == plan_.sequence) return "a flag is up before the kernel has begun";
      if (load_word(counter) != 0) return "a counter is not zero at rest";
    }
    return check_shared();
  }
  std::string check_shared() const {
    const std::uint64_t stages = std::uint64_t{plan_.loads} + plan_.stores;
    const std::uint64_t tables = fragments_.size() * 64 + slots_.size() * 16;
    if (!kernel_.bulk) return shape_.shared < tables + 2 * kMaxPack * 8 ? "too little shared memory" : "";
    if (plan_.loads == 0 || plan_.stores == 0 || plan_.stores > 8) return "loads or stores in flight";
    if (plan_.stage_bytes % 16 != 0 || plan_.sum_only != 0) return "a plan that is not for bulk copies";
    const std::uint64_t needed = stages * (plan_.stage_bytes + kMaxPack * 8 + 24) + tables + 4;
    return shape_.shared < needed ? "too little shared memory" : "";
  }

  static std::uint32_t load_word(const Reach& at) {
    return __atomic_load_n(reinterpret_cast<const std::uint32_t*>(at.bytes), __ATOMIC_ACQUIRE);
  }
  static void store_word(const Reach& at, std::uint32_t value) {
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(at.bytes), value, __ATOMIC_RELEASE);
  }

  const PlanFragment& fragment_of(std::uint32_t unit) const {
    auto after = std::upper_bound(fragments_.begin(), fragments_.end(), unit,
                                  [](std::uint32_t u, const PlanFragment& f) { return u < f.first_unit; });
    return *std::prev(after);
  }
  std::vector<Piece> pieces_of(const PlanFragment& f, std::uint32_t unit) const {
    const std::uint32_t local = unit - f.first_unit;
    if (f.chunks > 1) {
      const std::uint32_t slot = local / f.chunks, chunk = local % f.chunks;
      const std::uint64_t offset = std::uint64_t{chunk} * plan_.stage_bytes;
      return {{&slots_[f.first_slot + slot], offset,
               std::min<std::uint64_t>(plan_.stage_bytes, f.bytes - offset),
               f.first_sum + std::uint64_t{slot} * f.chunks + chunk}};
    }
    std::vector<Piece> pieces;
    for (std::uint32_t slot = local * f.pack; slot < std::min(f.slots, (local + 1) * f.pack); ++slot)
      pieces.push_back({&slots_[f.first_slot + slot], 0, f.bytes, f.first_sum + slot});
    return pieces;
  }
  bool copy_unit(Block& block) {
    const PlanFragment& f = fragment_of(block.next);
    const std::vector<Piece> pieces = pieces_of(f, block.next);
    return std::all_of(pieces.begin(), pieces.end(),
                       [&](const Piece& piece) { return copy_piece(f, piece, block); });
  }

  // Row by row: as far as a row or the piece goes.
  bool copy_piece(const PlanFragment& f, const Piece& piece, Block& block) {
    std::vector<std::byte> bytes(piece.bytes);
    const bool from_page = plan_.to_image != 0 || plan_.sum_only != 0;
    const std::uint64_t image_at = piece.slot->image + f.image_offset + piece.offset;
    const Reach image = plan_.sum_only ? Reach{} : state_.reach(context_, {image_at, piece.bytes});
    if (!plan_.sum_only && (image.bytes == nullptr || !image.host)) return false;
    if (!from_page) std::memcpy(bytes.data(), image.bytes, piece.bytes);
    for (std::uint64_t done = 0; done < piece.bytes;) {
      const std::uint64_t at = piece.offset + done, row = at / f.row_bytes, within = at % f.row_bytes;
      const std::uint64_t n = std::min<std::uint64_t>(f.row_bytes - within, piece.bytes - done);
      const std::uint64_t page = f.base + piece.slot->block * f.block_stride + row * f.row_stride + within;
      const Reach reach = state_.reach(context_, {page, n});
      if (reach.bytes == nullptr || reach.host) return false;
      if (from_page)
        std::memcpy(bytes.data() + done, reach.bytes, n);
      else
        std::memcpy(reach.bytes, bytes.data() + done, n);
      done += n;
    }
    if (plan_.to_image != 0 && plan_.sum_only == 0) std::memcpy(image.bytes, bytes.data(), piece.bytes);
    block.sums.push_back({piece.sum, plan_.skip_sums ? 0 : checksum::raw(bytes, piece.offset / 8)});
    return true;
  }

  bool put(const Sum& sum) {
    const Reach out = state_.reach(context_, {plan_.sums + sizeof(PlanSum) * sum.index, sizeof(PlanSum)});
    if (out.bytes == nullptr) return false;
    auto* words = reinterpret_cast<std::uint64_t*>(out.bytes);
    __atomic_store_n(words, sum.value ^ plan_.nonce, __ATOMIC_RELAXED);
    __atomic_store_n(words + 1, sum.value * kSumFactor + plan_.nonce, __ATOMIC_RELAXED);
    return true;
  }
  // A flag says nothing about the sums, but for a block's last one and those of the kernels
  // without bulk copies.
  bool put_sums(Block& block, bool all) {
    std::shuffle(block.sums.begin(), block.sums.end(), state_.random);
    while (!block.sums.empty() && (all || state_.draw(3) > 0)) {
      if (!put(block.sums.back())) return false;
      block.sums.pop_back();
    }
    return true;
  }

  // The layers before `to` are finished in this block; in any order among themselves.
  bool announce(Block& block, std::uint32_t to) {
    if (!put_sums(block, !kernel_.bulk || to == plan_.signals)) return false;
    std::vector<std::uint32_t> layers;
    for (std::uint32_t layer = block.announced; layer < to; ++layer) layers.push_back(layer);
    block.announced = to;
    std::shuffle(layers.begin(), layers.end(), state_.random);
    for (const std::uint32_t layer : layers) {
      const Reach counter = state_.reach(context_, {plan_.counters + 4 * layer, 4});
      const Reach flag = state_.reach(context_, {plan_.flags + 4 * layer, 4});
      if (counter.bytes == nullptr || flag.bytes == nullptr) return false;
      const std::uint32_t count = load_word(counter) + 1;
      store_word(counter, count % shape_.grid);
      if (count < shape_.grid) continue;
      if (state_.flags_to_drop > 0) {
        --state_.flags_to_drop;
        continue;
      }
      if (state_.flags_until_stall != State::kAllFlags && state_.flags_until_stall > 0)
        --state_.flags_until_stall;
      state_.note("flag " + std::to_string(layer));
      store_word(flag, plan_.sequence);
    }
    return true;
  }

  State& state_;
  const Context& context_;
  const Kernel kernel_;
  const LaunchShape shape_;
  const PlanLaunch plan_;
  std::vector<PlanFragment> fragments_;
  std::vector<PlanSlot> slots_;
  std::vector<Block> blocks_;
};

}  // namespace

CuResult enqueue_kernel(State& state, const Function& function, const LaunchShape& shape, Stream& stream,
                        const void* parameters) {
  state.grids.push_back(shape.grid);
  if (function.name == "orbitkv_bench_compute") {  // nothing comes of it
    state.enqueue(stream, {.entry = "cuLaunchKernel"});
    return kCuSuccess;
  }
  const Kernel kernel = kernel_of(function.name);
  const Gpu& gpu = state.config.gpus[static_cast<std::size_t>(stream.context->device)];
  const std::uint32_t most = kernel.bulk ? kBulkThreads : kAnyThreads;
  if (shape.grid == 0 || shape.block == 0 || shape.block > most) return kCuInvalidValue;
  if (shape.shared > function.dynamic_shared) return kCuInvalidValue;
  if ((kernel.bulk && shape.block != most) || shape.block % 32 != 0)
    state.complain(kernel.name + ": threads");
  if (kernel.bulk && gpu.major < 9) state.complain("bulk copies on a part that has none");
  auto run = std::make_shared<Run>(state, *stream.context, function.name, shape,
                                   *static_cast<const PlanLaunch*>(parameters));
  state.enqueue(stream, {.entry = "cuLaunchKernel",
                         .ready = [&state] { return state.flags_until_stall > 0; },
                         .run = [run] { return run->step(); }});
  return kCuSuccess;
}

}  // namespace orbitkv::device::cuda::fake
