#include "mem/slab_builder.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "mem/placement.h"
#include "mem/touch.h"

namespace orbitkv::mem {
namespace {

constexpr std::uint64_t kHuge = limits::kHugePageBytes.value;

std::uint64_t mebibytes(std::uint64_t bytes) {
  return bytes >> 20;
}

Error touch_error(SlabId id, std::uint64_t offset, int error) {
  return reject(
      format_text("cannot place the memory of slab %u beyond %llu MiB: %s; give --pool-size less than is "
                  "available, or free memory",
                  id.value, static_cast<unsigned long long>(mebibytes(offset)), std::strerror(error)));
}

Error huge_error(SlabId id, std::uint64_t offset, int error) {
  return reject(
      format_text("--hugepages on: slab %u has no 2 MiB page at %llu MiB (%s); reserve pages "
                  "(sysctl vm.nr_hugepages), free memory, or use --hugepages auto",
                  id.value, static_cast<unsigned long long>(mebibytes(offset)),
                  error == EINVAL ? explain_collapse_refusal().c_str() : std::strerror(error)));
}

}  // namespace

SlabBuilder::SlabBuilder(const std::vector<Slab>& slabs, HugePages huge_pages, std::uint32_t threads,
                         UniqueFd ready)
    : huge_pages_(huge_pages),
      count_(slabs.size()),
      jobs_(std::make_unique<Job[]>(slabs.size())),
      ready_(ready.valid() ? std::move(ready) : UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {
  ORBITKV_CHECK(ready_.valid(), "no eventfd to be had");
  for (std::size_t i = 0; i < count_; ++i) {
    ORBITKV_CHECK(slabs[i].bytes <= limits::kSlabBytes, "a slab has at most limits::kSlabBytes");
    jobs_[i].slab = slabs[i];
    jobs_[i].chunks_left = (slabs[i].bytes.value + kChunkBytes - 1) / kChunkBytes;
  }
  // Signals are the core thread's.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  for (std::uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

SlabBuilder::~SlabBuilder() {
  stop_ = true;
  join();
}

void SlabBuilder::join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  for (std::size_t i = 0; i < count_; ++i) jobs_[i].mapping.reset();
}

std::vector<SlabBuilder::Built> SlabBuilder::take_built() {
  std::uint64_t count = 0;
  // Emptied before the list is taken: what comes later rings again.
  [[maybe_unused]] const auto got = ::read(ready_.get(), &count, sizeof count);
  const std::lock_guard lock(mutex_);
  return std::exchange(built_, {});
}

bool SlabBuilder::finished() const {
  const std::lock_guard lock(mutex_);
  return failure_.has_value() || built_count_ == count_;
}

std::optional<Error> SlabBuilder::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

Status SlabBuilder::wait(int stop_fd, const std::function<void()>& goes_on) const {
  pollfd fds[2] = {{ready_.get(), POLLIN, 0}, {stop_fd, POLLIN, 0}};
  constexpr int kLookMs = 1000;
  for (std::uint64_t begun = 0; !finished();) {
    const std::uint64_t chunk = next_chunk_;
    if (std::exchange(begun, chunk) != chunk && goes_on) goes_on();
    if (::poll(fds, 2, kLookMs) < 0 && errno != EINTR)
      return errno_error("cannot wait for the pool's memory");
    if (fds[1].revents != 0) return Error(Code::kReject, "stopped while the pool's memory was being placed");
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(ready_.get(), &count, sizeof count);
  }
  ring();  // the built slabs are still to be taken
  return ok_status();
}

void SlabBuilder::ring() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto put = ::write(ready_.get(), &one, sizeof one);
}

void SlabBuilder::work() {
  while (!stop_) {
    const std::uint64_t chunk = next_chunk_.fetch_add(1);
    if (chunk / kChunksPerSlab >= count_) return;
    Job& job = jobs_[chunk / kChunksPerSlab];
    const std::uint64_t first = chunk % kChunksPerSlab * kChunkBytes;
    if (first >= job.slab.bytes.value) continue;  // behind the end of a short slab
    if (Status done = build_chunk(job, first); !done) return fail(done.error());
    if (stop_) return;
    if (job.chunks_left.fetch_sub(1) != 1) continue;
    if (Status done = finish(job); !done) return fail(done.error());
  }
}

Result<std::byte*> SlabBuilder::mapping_of(Job& job) {
  const std::lock_guard lock(mutex_);
  if (!job.mapping) {
    ORBITKV_ASSIGN_OR_RETURN(job.mapping, MappedSlab::map(*job.slab.memory, job.slab.id, job.slab.bytes));
    // Refused where the kernel has no huge pages; collapse will say so.
    const int advice = huge_pages_ == HugePages::kOff ? MADV_NOHUGEPAGE : MADV_HUGEPAGE;
    ::madvise(job.mapping->base(), job.slab.bytes.value, advice);
  }
  return job.mapping->base();
}

Status SlabBuilder::build_chunk(Job& job, std::uint64_t first) {
  ORBITKV_ASSIGN_OR_RETURN(std::byte* const base, mapping_of(job));
  const std::uint64_t end = std::min(first + kChunkBytes, job.slab.bytes.value);
  for (std::uint64_t offset = first; offset < end && !stop_; offset += kHuge) {
    const Piece piece{base + offset, ByteCount(std::min(kHuge, end - offset)), offset};
    ORBITKV_RETURN_IF_ERROR(build_piece(job, piece));
  }
  return ok_status();
}

Status SlabBuilder::build_piece(Job& job, const Piece& piece) {
  const bool whole = piece.bytes.value == kHuge;
  if (job.slab.source == PageSource::kReservedHuge) {
    if (const int error = touch(piece.at, piece.bytes)) return touch_error(job.slab.id, piece.offset, error);
    job.huge += kHuge;
    return ok_status();
  }
  if (huge_pages_ != HugePages::kOff && whole && !collapse_refused_) return build_huge(job, piece);
  if (const int error = touch(piece.at, piece.bytes)) return touch_error(job.slab.id, piece.offset, error);
  return ok_status();
}

// One page of the 2 MiB is enough for collapse to fill in the rest.
Status SlabBuilder::build_huge(Job& job, const Piece& piece) {
  if (const int error = touch(piece.at, ByteCount(4096)))
    return touch_error(job.slab.id, piece.offset, error);
  const int error = collapse(piece.at, stop_);
  if (error == 0) {
    job.huge += kHuge;
    return ok_status();
  }
  if (stop_) return ok_status();
  if (huge_pages_ == HugePages::kOn) return huge_error(job.slab.id, piece.offset, error);
  if (error == EINVAL) note_refusal(error);
  if (const int failed = touch(piece.at, piece.bytes)) return touch_error(job.slab.id, piece.offset, failed);
  return ok_status();
}

void SlabBuilder::note_refusal(int error) {
  if (collapse_refused_.exchange(true)) return;
  ORBITKV_WARN("the pool stays at 4 KiB pages: %s (%s)", explain_collapse_refusal().c_str(),
               std::strerror(error));
}

Status SlabBuilder::finish(Job& job) {
  std::optional<MappedSlab> mapping;
  {
    const std::lock_guard lock(mutex_);
    mapping.swap(job.mapping);
  }
  const NodeId node = mapping ? node_of_pages({mapping->base(), job.slab.bytes.value}) : kAnyNode;
  mapping.reset();  // takes a while, so not under the lock
  // Whatever was left out above; afterwards no access to the slab can want for memory.
  if (const int error = fill_holes(*job.slab.memory, job.slab.bytes))
    return touch_error(job.slab.id, 0, error);
  const ByteCount huge(job.huge.load());
  if (huge_pages_ != HugePages::kOff && huge.value / kHuge < job.slab.bytes.value / kHuge) {
    ORBITKV_INFO("slab %u: %llu of %llu MiB in 2 MiB pages", job.slab.id.value,
                 static_cast<unsigned long long>(mebibytes(huge.value)),
                 static_cast<unsigned long long>(mebibytes(job.slab.bytes.value)));
  }
  {
    const std::lock_guard lock(mutex_);
    const bool collapsed = huge_pages_ != HugePages::kOff;
    built_.push_back({job.slab.slot, collapsed ? SlabState::kCollapsed : SlabState::kTouched, huge, node});
    ++built_count_;
  }
  ring();
  return ok_status();
}

void SlabBuilder::fail(Error error) {
  stop_ = true;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(error);
  }
  ring();
}

}  // namespace orbitkv::mem
