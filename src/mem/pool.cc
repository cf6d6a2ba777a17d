#include "mem/pool.h"

#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "mem/extent_allocator.h"
#include "mem/host_memory.h"
#include "mem/node_allocator.h"
#include "mem/placement.h"
#include "mem/slab_builder.h"

namespace orbitkv::mem {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint32_t kMostThreads = 4;
constexpr rlim_t kOtherDescriptors = 1024;  // sessions, sockets, logs
// Left to the rest of the machine when a pool is given a size.
constexpr std::uint64_t kHeadroomShare = 64;

double gibibytes(ByteCount bytes) {
  return static_cast<double>(bytes.value) / static_cast<double>(kGiB.value);
}

ByteCount rounded_up(ByteCount bytes, std::uint64_t step) {
  return ByteCount((bytes.value + step - 1) / step * step);
}

std::vector<SlabInfo> cut_into_slabs(ByteCount bytes) {
  std::vector<SlabInfo> slabs;
  for (ByteCount left = bytes; left.value > 0; left -= slabs.back().bytes) {
    SlabInfo slab;
    slab.id = SlabId(static_cast<std::uint32_t>(slabs.size()));
    slab.bytes = std::min(left, limits::kSlabBytes);
    slabs.push_back(slab);
  }
  return slabs;
}

Status check_config(const PoolConfig& config) {
  if (config.bytes.value == 0) return reject("the pool has no bytes; give --pool-size");
  const ByteCount most = limits::kSlabs * limits::kSlabBytes;
  if (config.bytes > most) {
    return reject(
        format_text("a pool of %.1f GiB is more than the %.0f GiB that %u slabs make; lower --pool-size",
                    gibibytes(config.bytes), gibibytes(most), limits::kSlabs));
  }
  if (!std::has_single_bit(config.unit) || config.unit < kExtentUnit || config.unit > kPage) {
    return reject(format_text("extents in units of %u bytes cannot be; a power of two from %llu to %llu can",
                              config.unit, static_cast<unsigned long long>(kExtentUnit),
                              static_cast<unsigned long long>(kPage)));
  }
  if (config.huge_pages == HugePages::kOn && !config.prefault)
    return reject("--hugepages on needs --prefault: pages become huge before a slab is offered");
  return ok_status();
}

// Sparse pools are taken at their word: they are for tests and for trying sizes.
Status check_memory(const PoolConfig& config, const HostMemory& memory) {
  if (!config.prefault) return ok_status();
  const ByteCount reserved = config.huge_pages == HugePages::kOff ? ByteCount(0) : memory.reserved_huge;
  const ByteCount needed = config.bytes - std::min(config.bytes, reserved);
  const ByteCount room(memory.available.value - memory.available.value / kHeadroomShare);
  if (needed <= room) return ok_status();
  return reject(
      format_text("a pool of %.2f GiB does not fit: %.2f GiB of memory are available (by %s) and %.2f GiB "
                  "in reserved huge pages; lower --pool-size or free memory",
                  gibibytes(config.bytes), gibibytes(memory.available), memory.bound_by.c_str(),
                  gibibytes(memory.reserved_huge)));
}

Status allow_descriptors(std::size_t slabs) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return errno_error("cannot read the limit of open files");
  const rlim_t needed = slabs + kOtherDescriptors;
  if (limit.rlim_cur >= needed) return ok_status();
  if (limit.rlim_max < slabs + kOtherDescriptors / 4) {
    return reject(format_text(
        "%zu slabs need about %llu open files, the hard limit is %llu; raise it (ulimit -Hn, "
        "LimitNOFILE=) or lower --pool-size",
        slabs, static_cast<unsigned long long>(needed), static_cast<unsigned long long>(limit.rlim_max)));
  }
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return errno_error("cannot raise the limit of open files");
  return ok_status();
}

std::uint64_t random_id() {
  std::uint64_t id = 0;
  while (id == 0) {
    const auto got = ::getrandom(&id, sizeof id, 0);
    ORBITKV_CHECK(got == static_cast<ssize_t>(sizeof id) || errno == EINTR, "getrandom failed");
  }
  return id;
}

// Where allocation ids of this pool start: a later process starts above every id that this
// one can reach (2^32 a second), and a clock that was set back finds other low bits.
std::uint64_t first_allocation() {
  timespec now{};
  ORBITKV_CHECK(::clock_gettime(CLOCK_REALTIME, &now) == 0, "no clock");
  constexpr std::uint64_t kSecondsMask = 0x7FFFFFFF, kRandomBits = 31;
  return (static_cast<std::uint64_t>(now.tv_sec) & kSecondsMask) << 32 | random_id() >> (64 - kRandomBits);
}

std::uint32_t thread_count(std::uint32_t wanted) {
  if (wanted > 0) return wanted;
  return std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads);
}

}  // namespace

struct Pool::Impl {
  PoolConfig config;
  std::uint64_t id = random_id();
  std::vector<SlabInfo> slabs;
  std::vector<UniqueFd> memory;    // by slab
  std::vector<PageSource> source;  // by slab
  std::vector<SlabInfo> news;      // offered at once, not yet collected
  UniqueFd ready;                  // without a builder
  std::unique_ptr<SlabBuilder> builder;
  std::optional<Error> failure;
  NodePolicy policy;
  NodeAllocator allocator{policy};
  std::uint64_t last_allocation = first_allocation();
  PoolStats stats;

  Status make_slabs(ByteCount reserved_huge);
  void place_slabs();
  void note_node(SlabInfo& slab, NodeId found);
  Status start();
  void offer(SlabInfo& slab, Placement placement);
  void settle_failure();
};

// Reserved huge pages go to the first slabs that they suffice for.
Status Pool::Impl::make_slabs(ByteCount reserved_huge) {
  ByteCount reserved = config.prefault && config.huge_pages != HugePages::kOff ? reserved_huge : ByteCount(0);
  for (const SlabInfo& slab : slabs) {
    const bool whole = slab.bytes.value % limits::kHugePageBytes.value == 0;
    if (whole && slab.bytes <= reserved) {
      if (auto huge = make_slab_memory(slab.id, slab.bytes, PageSource::kReservedHuge)) {
        memory.push_back(std::move(huge).value());
        source.push_back(PageSource::kReservedHuge);
        reserved -= slab.bytes;
        continue;
      }
      reserved = ByteCount(0);  // somebody else was quicker
    }
    ORBITKV_ASSIGN_OR_RETURN(UniqueFd shared, make_slab_memory(slab.id, slab.bytes, PageSource::kShared));
    memory.push_back(std::move(shared));
    source.push_back(PageSource::kShared);
  }
  return ok_status();
}

// Before the first touch; afterwards pages stay where they are.
void Pool::Impl::place_slabs() {
  if (!config.numa) return;
  policy = NodePolicy(config.topology ? *config.topology : read_topology());
  if (!policy.active()) return;
  std::optional<Error> refused;
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    slabs[i].node = policy.place(slabs[i].bytes);
    if (config.topology) continue;
    const Status bound = bind_memory(memory[i], slabs[i].bytes, slabs[i].node);
    if (bound.ok()) continue;
    policy.move(slabs[i].bytes, std::exchange(slabs[i].node, kAnyNode), kAnyNode);
    if (!refused) refused = bound.error();
  }
  if (refused)
    ORBITKV_WARN(
        "slabs lie wherever the kernel puts them: %s; in a container, allow mbind or serve with --numa off",
        refused->message().c_str());
}

// A node that had run full left its pages to others.
void Pool::Impl::note_node(SlabInfo& slab, NodeId found) {
  if (!policy.active() || config.topology || found == kAnyNode || found == slab.node) return;
  if (slab.node != kAnyNode)
    ORBITKV_INFO("slab %u was meant for NUMA node %d; its pages came from node %d", slab.id.value,
                 slab.node.value, found.value);
  policy.move(slab.bytes, slab.node, found);
  slab.node = found;
}

Status Pool::Impl::start() {
  if (config.prefault) {
    std::vector<SlabBuilder::Slab> todo;
    for (std::size_t i = 0; i < slabs.size(); ++i)
      todo.push_back({slabs[i].id, slabs[i].bytes, &memory[i], source[i]});
    builder = std::make_unique<SlabBuilder>(todo, config.huge_pages, thread_count(config.threads));
    if (config.huge_pages != HugePages::kOn) return ok_status();
    ORBITKV_RETURN_IF_ERROR(builder->wait(config.stop_fd));
    if (auto refused = builder->failure()) return std::move(*refused);
    return ok_status();
  }
  ready = UniqueFd(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!ready.valid()) return errno_error("cannot make an eventfd");
  for (SlabInfo& slab : slabs) offer(slab, Placement::kSparse);
  return ok_status();
}

void Pool::Impl::offer(SlabInfo& slab, Placement placement) {
  advance(slab, SlabState::kOffered, placement);
  allocator.add_slab(slab.id, slab.bytes, slab.node);
  stats.capacity += slab.bytes;
  stats.huge += slab.huge;
  news.push_back(slab);
}

// What could not be built was never handed out, so closing it gives its pages back.
void Pool::Impl::settle_failure() {
  if (failure || !builder || !builder->failure()) return;
  failure = builder->failure();
  builder->join();
  ORBITKV_WARN("the pool stays smaller than --pool-size: %s", failure->message().c_str());
}

Result<std::unique_ptr<Pool>> Pool::create(const PoolConfig& config) {
  ORBITKV_RETURN_IF_ERROR(check_config(config));
  auto impl = std::make_unique<Impl>();
  impl->config = config;
  const bool on = config.huge_pages == HugePages::kOn;
  impl->config.bytes = rounded_up(config.bytes, on ? limits::kHugePageBytes.value : kPage);
  const HostMemory memory = read_host_memory();
  ORBITKV_RETURN_IF_ERROR(check_memory(impl->config, memory));
  impl->slabs = cut_into_slabs(impl->config.bytes);
  impl->stats.configured = impl->config.bytes;
  ORBITKV_RETURN_IF_ERROR(allow_descriptors(impl->slabs.size()));
  ORBITKV_RETURN_IF_ERROR(impl->make_slabs(memory.reserved_huge));
  impl->place_slabs();
  ORBITKV_RETURN_IF_ERROR(impl->start());
  return std::unique_ptr<Pool>(new Pool(std::move(impl)));
}

Pool::Pool(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Pool::~Pool() = default;

std::vector<SlabInfo> Pool::collect_offered() {
  if (!impl_->builder) {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(impl_->ready.get(), &count, sizeof count);
    return std::exchange(impl_->news, {});
  }
  impl_->settle_failure();
  for (const SlabBuilder::Built& built : impl_->builder->take_built()) {
    SlabInfo& slab = impl_->slabs[built.id.value];
    slab.huge = built.huge;
    impl_->note_node(slab, built.node);
    advance(slab, SlabState::kTouched, Placement::kBeforeOffer);
    if (built.reached == SlabState::kCollapsed) advance(slab, SlabState::kCollapsed, Placement::kBeforeOffer);
    impl_->offer(slab, Placement::kBeforeOffer);
  }
  if (impl_->failure) {
    for (const SlabInfo& slab : impl_->slabs)
      if (slab.state == SlabState::kRaw) impl_->memory[slab.id.value].reset();
  }
  return std::exchange(impl_->news, {});
}

int Pool::ready_fd() const {
  return impl_->builder ? impl_->builder->ready_fd() : impl_->ready.get();
}

bool Pool::building() const {
  return !impl_->failure && impl_->stats.capacity < impl_->stats.configured;
}

const std::optional<Error>& Pool::build_failure() const {
  return impl_->failure;
}

std::optional<Extent> Pool::allocate(ByteCount bytes, NodeId near) {
  // A multiple of the unit has a footprint that is one too: both step by powers of two.
  const ByteCount rounded = rounded_up(bytes, impl_->config.unit);
  const auto place = impl_->allocator.allocate(rounded, near);
  if (!place) return std::nullopt;
  Extent extent;
  extent.slab_ = place->slab;
  extent.offset_ = place->offset;
  extent.bytes_ = rounded;
  extent.allocation_ = AllocationId(++impl_->last_allocation);
  impl_->stats.used += extent.bytes_;
  return extent;
}

ReleaseReceipt Pool::release(Extent extent) {
  ORBITKV_CHECK(extent.open(), "release of no extent");
  const Extent::Words words = extent.dissolve();
  ORBITKV_CHECK(words.allocation.value <= impl_->last_allocation && words.bytes <= impl_->stats.used,
                "released extent was not lent by this pool");
  impl_->allocator.release({words.slab, words.offset}, words.bytes);
  impl_->stats.used -= words.bytes;
  return {words.bytes};
}

ReleaseReceipt Pool::quarantine(Extent extent) {
  ORBITKV_CHECK(extent.open(), "quarantine of no extent");
  const Extent::Words words = extent.dissolve();
  impl_->stats.quarantined += words.bytes;
  return {words.bytes};
}

const UniqueFd& Pool::slab_memory(SlabId slab) const {
  ORBITKV_CHECK(slab.value < impl_->memory.size(), "no such slab in this pool");
  return impl_->memory[slab.value];
}

const std::vector<SlabInfo>& Pool::slabs() const {
  return impl_->slabs;
}

std::uint64_t Pool::id() const {
  return impl_->id;
}

ByteCount Pool::capacity() const {
  return impl_->stats.capacity;
}

ByteCount Pool::free_bytes() const {
  return impl_->stats.capacity - impl_->stats.used;
}

PoolStats Pool::stats() const {
  PoolStats stats = impl_->stats;
  stats.largest_free = impl_->allocator.largest();
  stats.nodes = impl_->allocator.stats();
  stats.local = impl_->allocator.local();
  stats.remote = impl_->allocator.remote();
  return stats;
}

}  // namespace orbitkv::mem
