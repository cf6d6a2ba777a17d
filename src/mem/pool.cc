#include "mem/pool.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/fault.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "mem/host_memory.h"
#include "mem/kept_scan.h"
#include "mem/node_allocator.h"
#include "mem/placement.h"
#include "mem/pool_size.h"
#include "mem/slab_builder.h"

namespace orbitkv::mem {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint32_t kMostThreads = 4;

ByteCount rounded_up(ByteCount bytes, std::uint64_t step) {
  return ByteCount((bytes.value + step - 1) / step * step);
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
  std::vector<UniqueFd> memory;    // by slot
  std::vector<PageSource> source;  // by slot
  std::vector<SlabSlot> unused;    // slots whose slab is gone
  std::uint32_t next_name = 0;
  std::vector<SlabInfo> news;  // offered at once, not yet collected
  UniqueFd ready;
  std::unique_ptr<SlabBuilder> builder;  // of the last slabs
  std::optional<Error> failure;
  NodePolicy policy;
  NodeAllocator allocator{policy};
  std::uint64_t last_allocation = first_allocation();
  KeptTable* kept = nullptr;
  std::uint32_t planned = 0;
  PoolStats stats;
  ByteCount offered_used;  // of stats.used: lent from slabs that are offered

  Status make_slabs(std::span<const ByteCount> sizes, ByteCount reserved_huge);
  Status make_slab(ByteCount bytes, ByteCount& reserved_huge);
  void place(UniqueFd fd, PageSource from, ByteCount bytes);
  void bind(std::span<const SlabSlot> fresh);
  void note_node(SlabInfo& slab, NodeId found);
  Status start(std::span<const SlabSlot> fresh);
  void ring() const { ::eventfd_write(ready.get(), 1); }
  void offer(SlabInfo& slab, Placement placement, std::span<const UsedRun> used = {});
  void take_over(KeptPool& from);
  void adopt_slab(KeptPool::Slab& from);
  void forget(SlabInfo& slab);
  void settle_failure();
  void drop_unbuilt();
  void count_lent(SlabInfo& slab, ByteCount bytes);
  void count_returned(SlabInfo& slab, ByteCount bytes);
};

// Reserved huge pages go to the first slabs that they suffice for.
Status Pool::Impl::make_slabs(std::span<const ByteCount> sizes, ByteCount reserved_huge) {
  ByteCount reserved = config.prefault && config.huge_pages != HugePages::kOff ? reserved_huge : ByteCount(0);
  std::vector<SlabSlot> fresh;
  for (const ByteCount bytes : sizes) {
    fresh.push_back(unused.empty() ? SlabSlot(static_cast<std::uint32_t>(slabs.size())) : unused.back());
    ORBITKV_RETURN_IF_ERROR(make_slab(bytes, reserved));
  }
  bind(fresh);
  return start(fresh);
}

Status Pool::Impl::make_slab(ByteCount bytes, ByteCount& reserved) {
  const SlabId name(next_name);
  const bool whole = bytes.value % limits::kHugePageBytes.value == 0;
  if (whole && bytes <= reserved) {
    if (auto huge = make_slab_memory(name, bytes, PageSource::kReservedHuge)) {
      place(std::move(huge).value(), PageSource::kReservedHuge, bytes);
      reserved -= bytes;
      return ok_status();
    }
    reserved = ByteCount(0);  // somebody else was quicker
  }
  ORBITKV_ASSIGN_OR_RETURN(UniqueFd shared, make_slab_memory(name, bytes, PageSource::kShared));
  place(std::move(shared), PageSource::kShared, bytes);
  return ok_status();
}

void Pool::Impl::place(UniqueFd fd, PageSource from, ByteCount bytes) {
  if (unused.empty()) {
    unused.emplace_back(static_cast<std::uint32_t>(slabs.size()));
    slabs.emplace_back();
    memory.emplace_back();
    source.emplace_back();
  }
  const SlabSlot slot = unused.back();
  unused.pop_back();
  SlabInfo& slab = slabs[slot.value];
  slab = {};
  slab.slot = slot;
  slab.id = SlabId(next_name++);
  if (kept) kept->name_given(SlabId(next_name));
  slab.bytes = bytes;
  memory[slot.value] = std::move(fd);
  source[slot.value] = from;
  stats.building += bytes;
}

// Before the first touch; afterwards pages stay where they are.
void Pool::Impl::bind(std::span<const SlabSlot> fresh) {
  if (!policy.active()) return;
  std::optional<Error> refused;
  for (const SlabSlot slot : fresh) {
    SlabInfo& slab = slabs[slot.value];
    slab.node = policy.place(slab.bytes);
    if (config.topology) continue;
    const Status bound = bind_memory(memory[slot.value], slab.bytes, slab.node);
    if (bound.ok()) continue;
    policy.move(slab.bytes, std::exchange(slab.node, kAnyNode), kAnyNode);
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

Status Pool::Impl::start(std::span<const SlabSlot> fresh) {
  if (!config.prefault) {
    for (const SlabSlot slot : fresh) offer(slabs[slot.value], Placement::kSparse);
    ring();
    return ok_status();
  }
  std::vector<SlabBuilder::Slab> todo;
  for (const SlabSlot slot : fresh) {
    const SlabInfo& slab = slabs[slot.value];
    todo.push_back({slot, slab.id, slab.bytes, &memory[slot.value], source[slot.value]});
  }
  UniqueFd bell(::fcntl(ready.get(), F_DUPFD_CLOEXEC, 0));
  if (!bell.valid()) return errno_error("cannot duplicate an eventfd");
  builder =
      std::make_unique<SlabBuilder>(todo, config.huge_pages, thread_count(config.threads), std::move(bell));
  return ok_status();
}

void Pool::Impl::offer(SlabInfo& slab, Placement placement, std::span<const UsedRun> used) {
  advance(slab, SlabState::kOffered, placement);
  allocator.add_slab({slab.slot, slab.bytes, slab.node}, used);
  stats.building -= slab.bytes;
  stats.capacity += slab.bytes;
  stats.huge += slab.huge;
  news.push_back(slab);
}

void Pool::Impl::forget(SlabInfo& slab) {
  advance(slab, SlabState::kGone);
  if (policy.active()) policy.move(slab.bytes, slab.node, kAnyNode);
  if (kept) kept->drop_slab(slab.slot);
  memory[slab.slot.value].reset();
  unused.push_back(slab.slot);
}

// What could not be built was never handed out, so closing it gives its pages back.
void Pool::Impl::settle_failure() {
  if (failure || !builder || !builder->failure()) return;
  failure = builder->failure();
  builder->join();
  ORBITKV_WARN("the pool stays smaller than it should be: %s", failure->message().c_str());
}

void Pool::Impl::drop_unbuilt() {
  for (SlabInfo& slab : slabs) {
    if (slab.state != SlabState::kRaw) continue;
    stats.building -= slab.bytes;
    forget(slab);
  }
}

void Pool::Impl::count_lent(SlabInfo& slab, ByteCount bytes) {
  slab.used += bytes;
  stats.used += bytes;
  offered_used += bytes;
}

void Pool::Impl::count_returned(SlabInfo& slab, ByteCount bytes) {
  slab.used -= bytes;
  stats.used -= bytes;
  if (slab.state == SlabState::kOffered) offered_used -= bytes;
}

// Its images are adopted one by one; what else a tainted slab has is out of use for good.
void Pool::Impl::adopt_slab(KeptPool::Slab& from) {
  const SlabSlot slot(static_cast<std::uint32_t>(slabs.size()));
  SlabInfo& slab = slabs.emplace_back();
  memory.push_back(std::move(from.memory));
  source.push_back(PageSource::kShared);
  slab.slot = slot;
  slab.id = from.name;
  slab.bytes = from.bytes;
  slab.huge = from.huge;
  slab.node = policy.active() ? from.node : kAnyNode;
  stats.building += slab.bytes;
  if (policy.active()) policy.move(slab.bytes, kAnyNode, slab.node);
  advance(slab, SlabState::kTouched);
  const UsedRun all{0, static_cast<std::uint32_t>(slab.bytes.value / kExtentUnit)};
  offer(slab, Placement::kBeforeOffer,
        from.tainted ? std::span(&all, 1) : std::span(from.used.data(), from.used.size()));
  if (!from.tainted) return;
  ByteCount rest = slab.bytes;
  for (const UsedRun& run : from.used) rest -= run.units * ByteCount(kExtentUnit);
  count_lent(slab, rest);
  slab.quarantined += rest;
  stats.quarantined += rest;
}

void Pool::Impl::take_over(KeptPool& from) {
  id = from.id;
  next_name = from.next_name;
  last_allocation = std::max(last_allocation, from.allocations.value);
  for (KeptPool::Slab& slab : from.slabs) adopt_slab(slab);
  config.kept = nullptr;
  ring();
}

Result<std::unique_ptr<Pool>> Pool::create(const PoolConfig& config) {
  ORBITKV_RETURN_IF_ERROR(check_config(config));
  auto impl = std::make_unique<Impl>();
  impl->config = config;
  if (config.life != 0) {
    impl->id = config.life;
    impl->last_allocation = std::uint64_t{config.life} << 32;
  }
  const bool on = config.huge_pages == HugePages::kOn;
  impl->config.bytes = rounded_up(config.bytes, on ? limits::kHugePageBytes.value : kPage);
  const HostMemory memory = config.prefault ? read_host_memory() : HostMemory{};
  std::vector<ByteCount> sizes = slab_sizes(impl->config.bytes, config.slab);
  impl->planned = static_cast<std::uint32_t>(sizes.size());
  PoolConfig missing = impl->config;
  if (config.kept != nullptr) missing.bytes = leave_out(*config.kept, sizes);
  ORBITKV_RETURN_IF_ERROR(check_memory(missing, memory));
  impl->ready = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!impl->ready.valid()) return errno_error("cannot make an eventfd");
  impl->stats.configured = impl->config.bytes;
  ORBITKV_RETURN_IF_ERROR(allow_descriptors(sizes.size() + (config.kept ? config.kept->slabs.size() : 0)));
  // Builders are told where descriptors stand.
  impl->memory.reserve(limits::kSlabs);
  if (config.numa) impl->policy = NodePolicy(config.topology ? *config.topology : read_topology());
  if (config.kept != nullptr) impl->take_over(*config.kept);
  if (sizes.empty()) return std::unique_ptr<Pool>(new Pool(std::move(impl)));
  ORBITKV_RETURN_IF_ERROR(impl->make_slabs(sizes, memory.reserved_huge));
  if (on) {
    ORBITKV_RETURN_IF_ERROR(impl->builder->wait(impl->config.stop_fd, impl->config.goes_on));
    if (auto refused = impl->builder->failure()) return std::move(*refused);
  }
  return std::unique_ptr<Pool>(new Pool(std::move(impl)));
}

Pool::Pool(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Pool::~Pool() = default;

std::vector<SlabInfo> Pool::collect_offered() {
  eventfd_t count = 0;
  ::eventfd_read(impl_->ready.get(), &count);
  if (!impl_->builder) return std::exchange(impl_->news, {});
  impl_->settle_failure();
  for (const SlabBuilder::Built& built : impl_->builder->take_built()) {
    SlabInfo& slab = impl_->slabs[built.slot.value];
    slab.huge = built.huge;
    impl_->note_node(slab, built.node);
    advance(slab, SlabState::kTouched);
    if (built.reached == SlabState::kCollapsed) advance(slab, SlabState::kCollapsed);
    impl_->offer(slab, Placement::kBeforeOffer);
  }
  if (impl_->failure) impl_->drop_unbuilt();
  return std::exchange(impl_->news, {});
}

int Pool::ready_fd() const {
  return impl_->ready.get();
}

bool Pool::building() const {
  return impl_->stats.building.value > 0;
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
  if (impl_->kept) impl_->kept->allocation_given(extent.allocation_);
  impl_->count_lent(impl_->slabs[place->slab.value], extent.bytes_);
  return extent;
}

ReleaseReceipt Pool::release(Extent extent) {
  ORBITKV_CHECK(extent.open(), "release of no extent");
  const Extent::Words words = extent.dissolve();
  ORBITKV_CHECK(words.allocation.value <= impl_->last_allocation && words.slab.value < impl_->slabs.size() &&
                    words.bytes <= impl_->slabs[words.slab.value].used,
                "released extent was not lent by this pool");
  impl_->allocator.release({words.slab, words.offset}, words.bytes);
  impl_->count_returned(impl_->slabs[words.slab.value], words.bytes);
  return {words.bytes};
}

ReleaseReceipt Pool::quarantine(Extent extent) {
  ORBITKV_CHECK(extent.open(), "quarantine of no extent");
  const Extent::Words words = extent.dissolve();
  impl_->slabs[words.slab.value].quarantined += words.bytes;
  impl_->stats.quarantined += words.bytes;
  return {words.bytes};
}

// ---- what outlives the process ----

void Pool::keep_in(KeptTable& table) {
  impl_->kept = &table;
  table.name_given(SlabId(impl_->next_name));
  table.allocation_given(AllocationId(impl_->last_allocation));
}

Extent Pool::adopt(SlabSlot slot, std::uint64_t offset, ByteCount bytes) {
  Extent extent;
  extent.slab_ = slot;
  extent.offset_ = offset;
  extent.bytes_ = bytes;
  extent.allocation_ = AllocationId(++impl_->last_allocation);
  if (impl_->kept) impl_->kept->allocation_given(extent.allocation_);
  impl_->count_lent(impl_->slabs.at(slot.value), bytes);
  return extent;
}

// ---- slabs at run time ----

Result<SlabId> Pool::add(ByteCount bytes) {
  if (building()) return busy("a slab is being built; add the next one when it is there");
  if (bytes.value == 0 || bytes > limits::kSlabBytes || bytes.value % kPage != 0)
    return reject(format_text("a slab has whole pages and at most %llu bytes",
                              static_cast<unsigned long long>(limits::kSlabBytes.value)));
  if (impl_->unused.empty() && impl_->slabs.size() == limits::kSlabs)
    return busy(format_text("all %u slabs are taken; drain one first", limits::kSlabs));
  if (impl_->next_name == ~std::uint32_t{0}) return reject("no names of slabs are left; restart the Manager");
  PoolConfig more = impl_->config;
  more.bytes = bytes;
  const HostMemory memory = more.prefault ? read_host_memory() : HostMemory{};
  if (Status room = check_memory(more, memory); !room.ok()) return busy(room.error().message());
  ORBITKV_RETURN_IF_ERROR(allow_descriptors(impl_->slabs.size() + 1));
  impl_->failure.reset();
  const SlabId name(impl_->next_name);
  if (Status made = impl_->make_slabs({&bytes, 1}, memory.reserved_huge); !made.ok()) {
    impl_->drop_unbuilt();
    return made.error();
  }
  return name;
}

void Pool::begin_retire(SlabSlot slot) {
  SlabInfo& slab = impl_->slabs.at(slot.value);
  if (impl_->kept) {
    impl_->kept->retire_slab(slot);
    fault_hit(FaultPoint::kManagerRetireMarked);
  }
  advance(slab, SlabState::kRetiring);
  impl_->allocator.retire_slab(slot);
  impl_->stats.capacity -= slab.bytes;
  impl_->stats.huge -= slab.huge;
  impl_->stats.retiring += slab.bytes;
  impl_->offered_used -= slab.used;
}

void Pool::abandon(SlabSlot slot) {
  SlabInfo& slab = impl_->slabs.at(slot.value);
  ORBITKV_CHECK(slab.used == slab.quarantined, "an abandoned slab has extents that may come back");
  impl_->forget(slab);
  impl_->allocator.remove_slab(slot);
  impl_->stats.retiring -= slab.bytes;
  impl_->stats.used -= slab.used;
  impl_->stats.quarantined -= slab.quarantined;
}

const UniqueFd& Pool::slab_memory(SlabSlot slab) const {
  ORBITKV_CHECK(slab.value < impl_->memory.size(), "no such slab in this pool");
  return impl_->memory[slab.value];
}

const std::vector<SlabInfo>& Pool::slabs() const {
  return impl_->slabs;
}

const SlabInfo& Pool::slab(SlabSlot slab) const {
  ORBITKV_CHECK(slab.value < impl_->slabs.size(), "no such slab in this pool");
  return impl_->slabs[slab.value];
}

std::uint64_t Pool::id() const {
  return impl_->id;
}

std::uint32_t Pool::planned_slabs() const {
  return impl_->planned;
}

ByteCount Pool::capacity() const {
  return impl_->stats.capacity;
}

ByteCount Pool::free_bytes() const {
  return impl_->stats.capacity - impl_->offered_used;
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
