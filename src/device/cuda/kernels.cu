// The copy kernels: what plan.h says, between mapped host memory and HBM, with the
// raw checksum of every chunk and a flag a layer. orbitkv_copy_bulk needs sm_90 (bulk
// copies through shared memory, a bounded window of bytes in flight) and rows that are
// multiples of 16 bytes at multiples of 16; orbitkv_copy_<n> runs anywhere and takes rows
// that are multiples of n bytes at multiples of n. Also compiled at run time by NVRTC, so
// it includes only plan.h. Checks nothing: the host checked every range before it planned.
#ifdef __CUDACC_RTC__
using int32_t = int;
namespace std {
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
}  // namespace std
#endif
#include "device/cuda/plan.h"

using namespace orbitkv::device::cuda;
using u32 = unsigned int;
using u64 = unsigned long long;

namespace {

constexpr u64 kGolden = 0x9E3779B97F4A7C15ull;
constexpr u64 kMul1 = 0xD6E8FEB86659FD93ull;
constexpr u64 kMul2 = 0x9FB21C651E98DF25ull;

__device__ __forceinline__ u64 rotate_right(u64 x, int n) {
  return (x >> n) | (x << (64 - n));
}
// g(w, i) of the checksum with key = (i + 1) * kGolden (docs/protocol.md).
__device__ __forceinline__ u64 mix(u64 word, u64 key) {
  u64 x = word ^ key;
  x ^= rotate_right(x, 25) ^ rotate_right(x, 50);
  x *= kMul1;
  x ^= x >> 32;
  x *= kMul2;
  return x ^ (x >> 32);
}
__device__ __forceinline__ u64 mix_vector(uint4 v, u64 key) {
  return mix(v.x | (u64{v.y} << 32), key) + mix(v.z | (u64{v.w} << 32), key + kGolden);
}
__device__ __forceinline__ u64 warp_sum(u64 x) {
  for (int step = 16; step > 0; step >>= 1) x += __shfl_down_sync(~0u, x, step);
  return x;
}

// The plan as it lies in shared memory.
struct Tables {
  const PlanFragment* fragments;
  const PlanSlot* slots;
};

// A small plan came with the launch; a read over the link costs more than the copy of a page.
__device__ void load_tables(const PlanLaunch& plan, PlanFragment* fragments, PlanSlot* slots) {
  const bool small = plan.fragments == 0;
  const uint4* from =
      reinterpret_cast<const uint4*>(small ? reinterpret_cast<u64>(plan.small.fragments) : plan.fragments);
  const uint4* slot_from =
      reinterpret_cast<const uint4*>(small ? reinterpret_cast<u64>(plan.small.slots) : plan.slots);
  uint4* to = reinterpret_cast<uint4*>(fragments);
  uint4* slot_to = reinterpret_cast<uint4*>(slots);
  const u32 vectors = plan.fragment_count * (sizeof(PlanFragment) / 16);
  for (u32 i = threadIdx.x; i < vectors + plan.slot_count; i += blockDim.x) {
    if (i < vectors)
      to[i] = from[i];
    else
      slot_to[i - vectors] = slot_from[i - vectors];
  }
}

// One unit of work, and the cursor that finds it: units of one CTA come in order.
struct Unit {
  const PlanFragment* fragment;
  u32 slot;    // first
  u32 count;   // slots
  u32 offset;  // in the fragment
  u32 bytes;   // of each slot
  u32 sum;     // index of the first sum
};
struct Cursor {
  u32 fragment = 0;

  __device__ __forceinline__ void seek(const PlanLaunch& plan, const Tables& tables, u32 unit) {
    while (fragment + 1 < plan.fragment_count && unit >= tables.fragments[fragment + 1].first_unit)
      ++fragment;
  }
  __device__ __forceinline__ Unit at(const PlanLaunch& plan, const Tables& tables, u32 unit) {
    seek(plan, tables, unit);
    const PlanFragment& f = tables.fragments[fragment];
    const u32 local = unit - f.first_unit;
    if (f.chunks == 1) {
      const u32 slot = local * f.pack;
      return {&f, f.first_slot + slot, min(f.pack, f.slots - slot), 0, f.bytes, f.first_sum + slot};
    }
    const u32 slot = local / f.chunks, chunk = local % f.chunks, offset = chunk * plan.stage_bytes;
    return {&f,
            f.first_slot + slot,
            1,
            offset,
            min(plan.stage_bytes, f.bytes - offset),
            f.first_sum + slot * f.chunks + chunk};
  }
};

// Tells the world that this CTA has finished the layers [from, to). Whoever finishes a
// layer last raises its flag. Called by one warp, after its stores have landed. `last`: the
// flags say that nothing of the launch is under way any more, in host memory either. Before
// that they order consumers on this device only, for whom a page is there once its stores
// have completed; a fence over the link would wait for all that the CTA has in flight.
__device__ void announce(const PlanLaunch& plan, u32 from, u32 to, bool last) {
  __syncwarp();
  if (last)
    __threadfence_system();
  else
    __threadfence();
  u32* counters = reinterpret_cast<u32*>(plan.counters);
  for (u32 layer = from + threadIdx.x % 32; layer < to; layer += 32) {
    if (gridDim.x > 1) {
      if (atomicAdd(counters + layer, 1) != gridDim.x - 1) continue;
      counters[layer] = 0;
      if (last) __threadfence_system();
    }
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(plan.flags + 4ull * layer), "r"(plan.sequence)
                 : "memory");
  }
}

__device__ __forceinline__ void put_sum(const PlanLaunch& plan, u32 index, u64 sum) {
  const u64 at = plan.sums + u64{index} * sizeof(PlanSum);
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(sum ^ plan.nonce),
               "l"(sum * kSumFactor + plan.nonce)
               : "memory");
}

// Warps share a unit: `each` warps a slot, or several slots a warp.
__device__ __forceinline__ u32 warps_each(u32 warps, u32 slots) {
  return slots >= warps ? 1 : warps / slots;
}

__device__ __forceinline__ u64 page_address(const PlanFragment& f, const PlanSlot& slot, u32 offset) {
  const u64 page = f.base + slot.block * f.block_stride;
  if (f.row_bytes == f.bytes) return page + offset;
  const u32 row = offset / f.row_bytes;
  return page + row * f.row_stride + (offset - row * f.row_bytes);
}

#if __CUDA_ARCH__ >= 900

// Warps of a CTA: one loads, one stores, one announces, the others sum.
constexpr u32 kSumWarps = kBulkSumWarps;

__device__ __forceinline__ u32 shared_address(const void* at) {
  return static_cast<u32>(__cvta_generic_to_shared(at));
}
__device__ __forceinline__ void barrier_init(u64* barrier, u32 count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count));
}
__device__ __forceinline__ void barrier_arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void barrier_expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_wait(u64* barrier, u32 parity) {
  u32 done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
}
__device__ __forceinline__ void bulk_load(u32 to, u64 from, u32 bytes, u64* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void bulk_store(u64 to, u32 from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until at most `pending` of this lane's groups still run: their bytes have landed, not
// merely left shared memory. That is what bounds the bytes in flight.
__device__ __forceinline__ void bulk_wait(u32 pending) {
  switch (pending) {
    case 0: asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); break;
    case 1: asm volatile("cp.async.bulk.wait_group 1;" ::: "memory"); break;
    case 2: asm volatile("cp.async.bulk.wait_group 2;" ::: "memory"); break;
    case 3: asm volatile("cp.async.bulk.wait_group 3;" ::: "memory"); break;
    case 4: asm volatile("cp.async.bulk.wait_group 4;" ::: "memory"); break;
    case 5: asm volatile("cp.async.bulk.wait_group 5;" ::: "memory"); break;
    case 6: asm volatile("cp.async.bulk.wait_group 6;" ::: "memory"); break;
    default: asm volatile("cp.async.bulk.wait_group 7;" ::: "memory"); break;
  }
}

// Calls body(address in HBM, offset in the stage, bytes) for the pieces of this lane.
template <class Body>
__device__ __forceinline__ void page_pieces(const Tables& tables, const Unit& unit, Body body) {
  const PlanFragment& f = *unit.fragment;
  const u32 lane = threadIdx.x % 32;
  if (f.row_bytes == f.bytes) {
    if (lane < unit.count)
      body(f.base + tables.slots[unit.slot + lane].block * f.block_stride + unit.offset, lane * unit.bytes,
           unit.bytes);
    return;
  }
  const u32 first = unit.offset / f.row_bytes, last = (unit.offset + unit.bytes - 1) / f.row_bytes;
  const u32 rows = last - first + 1;
  for (u32 i = lane; i < unit.count * rows; i += 32) {
    const u32 slot = i / rows, row = first + i % rows;
    const u32 begin = max(unit.offset, row * f.row_bytes);
    const u32 end = min(unit.offset + unit.bytes, (row + 1) * f.row_bytes);
    const u64 page = f.base + tables.slots[unit.slot + slot].block * f.block_stride;
    body(page + row * f.row_stride + (begin - row * f.row_bytes), slot * unit.bytes + (begin - unit.offset),
         end - begin);
  }
}
template <class Body>
__device__ __forceinline__ void image_pieces(const Tables& tables, const Unit& unit, Body body) {
  const u32 lane = threadIdx.x % 32;
  if (lane < unit.count)
    body(tables.slots[unit.slot + lane].image + unit.fragment->image_offset + unit.offset, lane * unit.bytes,
         unit.bytes);
}

// Shared memory of a CTA: stages, then tables, partial sums, barriers (bulk_shared_bytes).
struct Stage {
  unsigned char* bytes;
  u64* partials;  // kMaxPack
  u64 *full, *summed, *empty;
};
struct Ring {
  unsigned char* base;
  u64* partials;
  u64* barriers;
  u32 stages, stage_bytes;
  __device__ __forceinline__ Stage at(u32 i) const {
    return {base + u64{i} * stage_bytes, partials + i * kMaxPack, barriers + 3 * i, barriers + 3 * i + 1,
            barriers + 3 * i + 2};
  }
};
// The i-th pass of a CTA over its ring.
struct Turn {
  u32 stage = 0, parity = 0;
  __device__ __forceinline__ void next(u32 stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ void load_units(const PlanLaunch& plan, const Tables& tables, const Ring& ring) {
  Cursor cursor;
  Turn turn;
  u32 filled = 0;
  for (u32 u = blockIdx.x; u < plan.units; u += gridDim.x, turn.next(ring.stages)) {
    const Unit unit = cursor.at(plan, tables, u);
    const Stage stage = ring.at(turn.stage);
    if (filled++ >= ring.stages) barrier_wait(stage.empty, turn.parity ^ 1);
    if (threadIdx.x % 32 == 0) barrier_expect(stage.full, unit.count * unit.bytes);
    __syncwarp();
    const u32 to = shared_address(stage.bytes);
    const auto load = [&](u64 from, u32 at, u32 bytes) { bulk_load(to + at, from, bytes, stage.full); };
    if (plan.to_image)
      page_pieces(tables, unit, load);
    else
      image_pieces(tables, unit, load);
  }
}

__device__ __forceinline__ u64 sum_stage(const unsigned char* bytes, u32 first, u32 step, u32 end, u32 word) {
  const uint4* vectors = reinterpret_cast<const uint4*>(bytes);
  u64 key = (u64{word} + 2 * first + 1) * kGolden, sum = 0;
  const u64 key_step = 2 * u64{step} * kGolden;
#pragma unroll 4
  for (u32 v = first; v < end; v += step, key += key_step) sum += mix_vector(vectors[v], key);
  return sum;
}

__device__ void sum_units(const PlanLaunch& plan, const Tables& tables, const Ring& ring) {
  const u32 warp = threadIdx.x / 32 - kBulkFirstSumWarp, lane = threadIdx.x % 32;
  Cursor cursor;
  Turn turn;
  for (u32 u = blockIdx.x; u < plan.units; u += gridDim.x, turn.next(ring.stages)) {
    const Unit unit = cursor.at(plan, tables, u);
    const Stage stage = ring.at(turn.stage);
    const u32 each = warps_each(kSumWarps, unit.count), part = warp % each;
    barrier_wait(stage.full, turn.parity);
    for (u32 slot = warp / each; slot < unit.count; slot += kSumWarps / each) {
      const u64 sum = plan.skip_sums ? 0
                                     : warp_sum(sum_stage(stage.bytes + slot * unit.bytes, part * 32 + lane,
                                                          each * 32, unit.bytes / 16, unit.offset / 8));
      if (lane == 0) stage.partials[slot * each + part] = sum;
    }
    if (lane == 0) barrier_arrive(stage.summed);
    __syncwarp();
  }
}

// Announcing takes a fence, the last one over the link, so a warp of its own does it: the
// store warp says how many layers this CTA has finished, and goes on.
__device__ void announce_layers(const PlanLaunch& plan, const volatile u32* finished) {
  for (u32 announced = 0; announced < plan.signals;) {
    const u32 reached = __shfl_sync(~0u, *finished, 0);  // one value for all lanes
    if (reached == announced) {
      __nanosleep(32);
      continue;
    }
    __threadfence_block();
    announce(plan, announced, reached, reached == plan.signals);
    announced = reached;
  }
}

// Stores complete in order; a unit is retired once its bytes have landed and are summed.
__device__ void store_units(const PlanLaunch& plan, const Tables& tables, const Ring& ring,
                            volatile u32* finished) {
  const u32 lane = threadIdx.x % 32;
  Cursor storing, retiring;
  Turn store_turn, retire_turn;
  u32 retired = blockIdx.x;
  const auto finish = [&] {
    u32 reached = plan.signals;
    if (retired < plan.units) {
      retiring.seek(plan, tables, retired);
      reached = tables.fragments[retiring.fragment].signal;
    }
    __threadfence_block();
    __syncwarp();
    if (lane == 0) *finished = reached;
  };
  const auto retire = [&] {
    const Unit unit = retiring.at(plan, tables, retired);
    const Stage stage = ring.at(retire_turn.stage);
    barrier_wait(stage.summed, retire_turn.parity);
    const u32 each = warps_each(kSumWarps, unit.count);
    if (lane < unit.count) {
      u64 sum = 0;
      for (u32 part = 0; part < each; ++part) sum += stage.partials[lane * each + part];
      put_sum(plan, unit.sum + lane, sum);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(stage.empty);
    retire_turn.next(ring.stages);
    retired += gridDim.x;
    finish();
  };
  finish();  // layers before our first unit owe us nothing
  u32 stored = 0;
  for (u32 u = blockIdx.x; u < plan.units; u += gridDim.x, store_turn.next(ring.stages)) {
    const Unit unit = storing.at(plan, tables, u);
    const Stage stage = ring.at(store_turn.stage);
    barrier_wait(stage.full, store_turn.parity);
    const u32 from = shared_address(stage.bytes);
    const auto store = [&](u64 to, u32 at, u32 bytes) { bulk_store(to, from + at, bytes); };
    if (plan.to_image)
      image_pieces(tables, unit, store);
    else
      page_pieces(tables, unit, store);
    bulk_commit();
    if (++stored < plan.stores) continue;
    bulk_wait(plan.stores - 1);
    __syncwarp();
    retire();
  }
  bulk_wait(0);
  __syncwarp();
  while (retired < plan.units) retire();
}

// Two bulk copies, where a read by every thread would take a request over the link for
// every 32 bytes.
__device__ void fetch_tables(const PlanLaunch& plan, PlanFragment* fragments, PlanSlot* slots, u64* there) {
  if (plan.fragments == 0) {
    load_tables(plan, fragments, slots);
    __syncthreads();
    return;
  }
  if (threadIdx.x == 0) {
    const u32 fragment_bytes = plan.fragment_count * u32{sizeof(PlanFragment)};
    const u32 slot_bytes = plan.slot_count * u32{sizeof(PlanSlot)};
    barrier_expect(there, fragment_bytes + slot_bytes);
    bulk_load(shared_address(fragments), plan.fragments, fragment_bytes, there);
    bulk_load(shared_address(slots), plan.slots, slot_bytes, there);
  }
  __syncthreads();
  barrier_wait(there, 0);
}

__device__ void copy_bulk(const PlanLaunch& plan, unsigned char* shared) {
  Ring ring{shared, nullptr, nullptr, plan.loads + plan.stores, plan.stage_bytes};
  auto* fragments = reinterpret_cast<PlanFragment*>(shared + u64{ring.stages} * ring.stage_bytes);
  auto* slots = reinterpret_cast<PlanSlot*>(fragments + plan.fragment_count);
  ring.partials = reinterpret_cast<u64*>(slots + plan.slot_count);
  ring.barriers = ring.partials + ring.stages * kMaxPack;
  auto* finished = reinterpret_cast<u32*>(ring.barriers + 3 * ring.stages);
  if (threadIdx.x == 0) *finished = 0;
  if (threadIdx.x < ring.stages) {
    const Stage stage = ring.at(threadIdx.x);
    barrier_init(stage.full, 1);
    barrier_init(stage.summed, kSumWarps);
    barrier_init(stage.empty, 1);
  }
  u64* tables_there = ring.barriers + 3 * ring.stages + 1;
  if (threadIdx.x == 0) barrier_init(tables_there, 1);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  fetch_tables(plan, fragments, slots, tables_there);
  const Tables tables{fragments, slots};
  if (threadIdx.x < 32)
    load_units(plan, tables, ring);
  else if (threadIdx.x < 64)
    store_units(plan, tables, ring, finished);
  else if (threadIdx.x < 96)
    announce_layers(plan, finished);
  else
    sum_units(plan, tables, ring);
}

#endif  // sm_90

// ---- any part: loads and stores of kWidth bytes ----

template <u32 kWidth>
struct Access;
template <>
struct Access<16> {
  using Word = uint4;
  static __device__ __forceinline__ u64 sum(Word word, u64 key) { return mix_vector(word, key); }
};
template <>
struct Access<8> {
  using Word = u64;
  static __device__ __forceinline__ u64 sum(Word word, u64 key) { return mix(word, key); }
};

// Copies words [first, end) of a slot's piece in steps and returns their sum.
template <u32 kWidth>
__device__ u64 copy_words(const PlanLaunch& plan, const Unit& unit, const PlanSlot& slot, u32 first,
                          u32 step) {
  using Word = typename Access<kWidth>::Word;
  const u64 image = slot.image + unit.fragment->image_offset + unit.offset;
  const u32 end = unit.bytes / kWidth;
  u64 sum = 0;
#pragma unroll 4
  for (u32 i = first; i < end; i += step) {
    const u64 page = page_address(*unit.fragment, slot, unit.offset + i * kWidth);
    const u64 from = plan.to_image | plan.sum_only ? page : image + u64{i} * kWidth;
    const Word word = __ldcs(reinterpret_cast<const Word*>(from));
    const u64 to = plan.to_image ? image + u64{i} * kWidth : page;
    if (!plan.sum_only) __stcs(reinterpret_cast<Word*>(to), word);
    const u64 key = (u64{unit.offset} / 8 + u64{i} * (kWidth / 8) + 1) * kGolden;
    sum += Access<kWidth>::sum(word, key);
  }
  return sum;
}
// Byte by byte: rows of any size at any address.
template <>
__device__ u64 copy_words<1>(const PlanLaunch& plan, const Unit& unit, const PlanSlot& slot, u32 first,
                             u32 step) {
  const u64 image = slot.image + unit.fragment->image_offset + unit.offset;
  u64 sum = 0;
  for (u32 i = first; i * 8 < unit.bytes; i += step) {
    u64 word = 0;
    for (u32 b = 0; b < 8 && i * 8 + b < unit.bytes; ++b) {
      const u64 page = page_address(*unit.fragment, slot, unit.offset + i * 8 + b);
      const u64 at = image + i * 8 + b;
      const auto byte =
          *reinterpret_cast<const volatile unsigned char*>(plan.to_image | plan.sum_only ? page : at);
      if (!plan.sum_only) *reinterpret_cast<volatile unsigned char*>(plan.to_image ? at : page) = byte;
      word |= u64{byte} << (8 * b);
    }
    sum += mix(word, (u64{unit.offset} / 8 + i + 1) * kGolden);
  }
  return sum;
}

template <u32 kWidth>
__device__ void copy_any(const PlanLaunch& plan, unsigned char* shared) {
  auto* fragments = reinterpret_cast<PlanFragment*>(shared);
  auto* slots = reinterpret_cast<PlanSlot*>(fragments + plan.fragment_count);
  auto* partials = reinterpret_cast<u64*>(slots + plan.slot_count);  // two turns of kMaxPack
  load_tables(plan, fragments, slots);
  __syncthreads();
  const Tables tables{fragments, slots};
  const u32 warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Cursor cursor;
  u32 announced = 0, turn = 0;
  if (blockIdx.x < plan.units) {
    cursor.seek(plan, tables, blockIdx.x);
    announced = tables.fragments[cursor.fragment].signal;
    if (announced > 0 && warp == 0) announce(plan, 0, announced, true);
  }
  for (u32 u = blockIdx.x; u < plan.units; u += gridDim.x, turn ^= 1) {
    const Unit unit = cursor.at(plan, tables, u);
    const u32 each = warps_each(warps, unit.count), part = warp % each;
    u64* sums = partials + turn * kMaxPack;
    for (u32 slot = warp / each; slot < unit.count; slot += warps / each) {
      const u64 sum = warp_sum(
          copy_words<kWidth>(plan, unit, tables.slots[unit.slot + slot], part * 32 + lane, each * 32));
      if (lane == 0) sums[slot * each + part] = sum;
    }
    cursor.seek(plan, tables, min(u + gridDim.x, plan.units));
    const bool last = u + gridDim.x >= plan.units;
    const u32 reached = last ? plan.signals : tables.fragments[cursor.fragment].signal;
    if (reached > announced) __threadfence_system();
    __syncthreads();
    if (threadIdx.x < unit.count) {
      u64 sum = 0;
      for (u32 p = 0; p < each; ++p) sum += sums[threadIdx.x * each + p];
      put_sum(plan, unit.sum + threadIdx.x, sum);
    }
    if (reached > announced && warp == 0) announce(plan, announced, reached, true);
    announced = reached;
  }
  if (announced < plan.signals && warp == 0) announce(plan, announced, plan.signals, true);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kBulkThreads, 1)
    orbitkv_copy_bulk(const __grid_constant__ PlanLaunch plan) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char shared[];
  copy_bulk(plan, shared);
#endif
}
extern "C" __global__ void __launch_bounds__(kAnyThreads, 1)
    orbitkv_copy_16(const __grid_constant__ PlanLaunch plan) {
  extern __shared__ __align__(128) unsigned char shared[];
  copy_any<16>(plan, shared);
}
extern "C" __global__ void __launch_bounds__(kAnyThreads, 1)
    orbitkv_copy_8(const __grid_constant__ PlanLaunch plan) {
  extern __shared__ __align__(128) unsigned char shared[];
  copy_any<8>(plan, shared);
}
extern "C" __global__ void __launch_bounds__(kAnyThreads, 1)
    orbitkv_copy_1(const __grid_constant__ PlanLaunch plan) {
  extern __shared__ __align__(128) unsigned char shared[];
  copy_any<1>(plan, shared);
}
