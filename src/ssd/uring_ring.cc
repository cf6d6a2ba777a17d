#include "ssd/uring_ring.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/text.h"

namespace orbitkv::ssd {
namespace {

constexpr unsigned kEntries = 256;
constexpr unsigned kResultEntries = 4096;
constexpr std::size_t kCommandsBesideRequests = 256;
constexpr std::uint64_t kChunk = kMiB.value;
constexpr std::uint64_t kBell = ~std::uint64_t{0} - 1;

// What an entry of the ring carries: the slot, and where in the request it lies, in units
// of the least alignment.
constexpr std::uint64_t kUnit = 512;
constexpr unsigned kBeginBits = 32, kLengthBits = 16;
static_assert(kMostRequest.value / kUnit <= std::uint64_t{1} << kBeginBits);
static_assert(kChunk / kUnit < std::uint64_t{1} << kLengthBits);

struct Chunk {
  std::uint32_t slot;
  std::uint64_t begin, bytes;
};
std::uint64_t pack(const Chunk& chunk) {
  return std::uint64_t{chunk.slot} << (kBeginBits + kLengthBits) | chunk.begin / kUnit << kLengthBits |
         chunk.bytes / kUnit;
}
Chunk unpack(std::uint64_t word) {
  constexpr std::uint64_t kBegin = (std::uint64_t{1} << kBeginBits) - 1;
  constexpr std::uint64_t kLength = (std::uint64_t{1} << kLengthBits) - 1;
  return {static_cast<std::uint32_t>(word >> (kBeginBits + kLengthBits)),
          (word >> kLengthBits & kBegin) * kUnit, (word & kLength) * kUnit};
}

Error refusal(int error) {
  const char* why = "";
  if (error == EPERM || error == EACCES)
    why = "; kernel.io_uring_disabled or the seccomp profile of a container forbids it: allow it there";
  if (error == ENOSYS) why = "; this kernel or sandbox has none: Linux 5.13 or newer is needed";
  if (error == ENOMEM) why = "; raise the limit of locked memory (LimitMEMLOCK= of the unit, ulimit -l)";
  if (error == EMFILE || error == ENFILE) why = "; raise the limit of open files";
  return reject(format_text("io_uring cannot be used: %s%s", std::strerror(error), why));
}

// The newest way of waiting that the kernel takes.
int make_ring(io_uring& ring) {
  int status = -EINVAL;
  for (const unsigned how :
       {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, unsigned{IORING_SETUP_COOP_TASKRUN}, 0u}) {
    io_uring_params parameters{};
    parameters.flags = how | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
    parameters.cq_entries = kResultEntries;
    status = ::io_uring_queue_init_params(kEntries, &ring, &parameters);
    if (status != -EINVAL) break;
  }
  return status;
}

}  // namespace

UringShared::UringShared(std::uint32_t queue)
    : commands(2 * queue + kCommandsBesideRequests), bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  ORBITKV_CHECK(bell.valid(), "no descriptor left for an eventfd; raise the limit of open files");
}

void UringShared::wake() {
  if (!sleeping.load(std::memory_order_seq_cst)) return;
  if (!sleeping.exchange(false, std::memory_order_seq_cst)) return;
  const std::uint64_t one = 1;
  ORBITKV_CHECK(::write(bell.get(), &one, sizeof one) == sizeof one, "the ring's bell takes no event");
}

Result<std::unique_ptr<UringRing>> UringRing::make(UringShared& shared, Completions& completions,
                                                   IoGauges& gauges, const IoOptions& options) {
  std::unique_ptr<UringRing> ring(new UringRing(shared, completions, gauges, options));
  ORBITKV_RETURN_IF_ERROR(ring->set_up());
  return ring;
}

UringRing::UringRing(UringShared& shared, Completions& completions, IoGauges& gauges,
                     const IoOptions& options)
    : shared_(shared),
      completions_(completions),
      gauges_(gauges),
      options_(options),
      tuner_(options.depth, options.tune_depth ? DepthTuner::Tune::kYes : DepthTuner::Tune::kNo),
      slots_(options.depth) {
  for (std::uint32_t i = options.depth; i > 0; --i) free_.push_back(i - 1);
}

UringRing::~UringRing() {
  if (made_) ::io_uring_queue_exit(&ring_);
}

Status UringRing::set_up() {
  const int status = make_ring(ring_);
  if (status < 0) return refusal(-status);
  made_ = true;
  if ((ring_.features & IORING_FEAT_RSRC_TAGS) == 0) return refusal(ENOSYS);
  ::io_uring_register_ring_fd(&ring_);  // saves a look-up a call; nothing is lost without
  if (::io_uring_register_files_sparse(&ring_, kIoFiles) == 0) registered_files_.resize(kIoFiles);
  memory_ = std::make_unique<UringMemory>(ring_);
  arm_bell();
  show();
  return ok_status();
}

void UringRing::arm_bell() {
  io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
  ORBITKV_CHECK(entry != nullptr, "the ring has no room for its bell");
  ::io_uring_prep_poll_multishot(entry, shared_.bell.get(), POLLIN);
  ::io_uring_sqe_set_data64(entry, kBell);
}

void UringRing::run() {
  for (;;) {
    take_commands();
    start_what_may();
    if (!delayed_.empty()) start_delayed(monotonic_now());
    report();  // what ended without the device
    show();
    // Stop is set behind the last command.
    if (shared_.stop && shared_.commands.empty() && turns_.empty() && tuner_.in_flight() == 0) return;
    wait();
    take_completions();
  }
}

void UringRing::take_commands() {
  UringCommand command;
  while (shared_.commands.pop(command)) {
    switch (command.kind) {
      case UringCommand::Kind::kRequest: turns_.push(command.accepted); break;
      case UringCommand::Kind::kAddFile: {
        const auto file = command.accepted.request.file.value;
        if (file < registered_files_.size())
          registered_files_[file] =
              ::io_uring_register_files_update(&ring_, file, &command.accepted.fd, 1) == 1;
        break;
      }
      case UringCommand::Kind::kAddMemory: memory_->add(command.memory); break;
      case UringCommand::Kind::kRemoveMemory: memory_->remove(command.memory); break;
    }
  }
}

void UringRing::start_what_may() {
  if (turns_.empty()) return;
  const TimePoint now = monotonic_now();
  while (!turns_.empty() && tuner_.admits(turns_.front().bytes)) {
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    slots_[slot] = {};
    slots_[slot].transfer = Transfer(turns_.front());
    tuner_.started(turns_.front().bytes);
    turns_.pop();
    go_on(slot, now);
  }
}

void UringRing::start_delayed(TimePoint now) {
  const auto due = std::partition(delayed_.begin(), delayed_.end(),
                                  [&](std::uint32_t slot) { return slots_[slot].due > now; });
  const std::vector<std::uint32_t> start(due, delayed_.end());
  delayed_.erase(due, delayed_.end());
  for (const std::uint32_t slot : start) submit_step(slot);
}

void UringRing::go_on(std::uint32_t slot, TimePoint now) {
  Slot& it = slots_[slot];
  for (;;) {
    it.step = it.transfer.next(options_.faults, now);
    if (it.step.delay > Duration{}) {
      it.due = now + it.step.delay;
      return delayed_.push_back(slot);
    }
    if (!it.step.skip) return submit_step(slot);
    if (it.transfer.ended(0)) return finish(slot, now);
  }
}

io_uring_sqe* UringRing::new_entry() {
  io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
  while (entry == nullptr) {
    ::io_uring_submit(&ring_);
    entry = ::io_uring_get_sqe(&ring_);
  }
  return entry;
}

void UringRing::submit_step(std::uint32_t slot) {
  Slot& it = slots_[slot];
  const std::uint64_t begin = it.transfer.done();
  const std::uint64_t end = begin + it.step.bytes;
  it.reached = end;
  it.error = 0;
  it.chunks = 0;
  if (it.transfer.accepted().request.op == IoOp::kSync) return submit_chunk(slot, 0, {});
  std::array<iovec, kPieces> memory;
  const std::size_t count = it.transfer.memory_of(begin, it.step.bytes, memory);
  std::uint64_t at = begin;
  for (iovec piece : std::span(memory).first(count)) {
    while (piece.iov_len > 0) {
      const std::size_t bytes = std::min<std::size_t>(piece.iov_len, kChunk);
      submit_chunk(slot, at, {piece.iov_base, bytes});
      piece = {static_cast<std::byte*>(piece.iov_base) + bytes, piece.iov_len - bytes};
      at += bytes;
    }
  }
}

void UringRing::submit_chunk(std::uint32_t slot, std::uint64_t begin, const iovec& memory) {
  Slot& it = slots_[slot];
  const Accepted& accepted = it.transfer.accepted();
  const auto file = accepted.request.file.value;
  const bool registered = file < registered_files_.size() && registered_files_[file];
  const int fd = registered ? static_cast<int>(file) : accepted.fd;
  const auto length = static_cast<unsigned>(memory.iov_len);
  const std::uint64_t offset = accepted.request.offset + begin;
  const int buffer = memory_->index_of(static_cast<const std::byte*>(memory.iov_base), length);
  io_uring_sqe* entry = new_entry();
  switch (accepted.request.op) {
    case IoOp::kSync: ::io_uring_prep_fsync(entry, fd, IORING_FSYNC_DATASYNC); break;
    case IoOp::kRead:
      if (buffer >= 0)
        ::io_uring_prep_read_fixed(entry, fd, memory.iov_base, length, offset, buffer);
      else
        ::io_uring_prep_read(entry, fd, memory.iov_base, length, offset);
      break;
    case IoOp::kWrite:
      if (buffer >= 0)
        ::io_uring_prep_write_fixed(entry, fd, memory.iov_base, length, offset, buffer);
      else
        ::io_uring_prep_write(entry, fd, memory.iov_base, length, offset);
      break;
  }
  if (registered) entry->flags |= IOSQE_FIXED_FILE;
  ::io_uring_sqe_set_data64(entry, pack({slot, begin, length}));
  ++it.chunks;
}

void UringRing::wait() {
  shared_.sleeping.store(true, std::memory_order_seq_cst);
  const bool idle = shared_.commands.empty() && !shared_.stop;
  int status;
  if (idle && !delayed_.empty()) {
    TimePoint first = slots_[delayed_.front()].due;
    for (const std::uint32_t slot : delayed_) first = std::min(first, slots_[slot].due);
    const Duration left = std::max(first - monotonic_now(), Duration{});
    __kernel_timespec time{left.ns / 1'000'000'000, left.ns % 1'000'000'000};
    io_uring_cqe* result = nullptr;
    status = ::io_uring_submit_and_wait_timeout(&ring_, &result, 1, &time, nullptr);
  } else {
    // With `stop` set it still waits for what is on the device.
    const bool waits = idle || (shared_.commands.empty() && delayed_.empty() && tuner_.in_flight() > 0);
    status = ::io_uring_submit_and_wait(&ring_, waits ? 1 : 0);
  }
  shared_.sleeping.store(false, std::memory_order_relaxed);
  const bool passing = status == -EINTR || status == -ETIME || status == -EAGAIN || status == -EBUSY;
  ORBITKV_CHECK(status >= 0 || passing, "the kernel refuses to go on with a ring that it made");
}

void UringRing::take_completions() {
  const TimePoint now = monotonic_now();
  unsigned head, count = 0;
  io_uring_cqe* result;
  io_uring_for_each_cqe(&ring_, head, result) {
    ++count;
    if (result->user_data == kBell) {
      if ((result->flags & IORING_CQE_F_MORE) == 0) arm_bell();
    } else if (result->user_data != LIBURING_UDATA_TIMEOUT) {
      chunk_ended(result->user_data, result->res, now);
    }
  }
  ::io_uring_cq_advance(&ring_, count);
  report();
}

void UringRing::report() {
  completions_.push(finished_);
  finished_.clear();
}

void UringRing::chunk_ended(std::uint64_t packed, std::int64_t result, TimePoint now) {
  const Chunk chunk = unpack(packed);
  Slot& it = slots_[chunk.slot];
  const std::uint64_t moved = static_cast<std::uint64_t>(std::max<std::int64_t>(result, 0));
  const bool whole = result >= 0 && moved == chunk.bytes;
  if (!whole && chunk.begin + moved < it.reached) {
    it.reached = chunk.begin + moved;
    it.error = std::min<std::int64_t>(result, 0);
  }
  if (result < 0 && it.transfer.accepted().request.op == IoOp::kSync) it.error = result;
  if (--it.chunks > 0) return;
  const std::uint64_t prefix = it.reached - it.transfer.done();
  if (it.transfer.ended(prefix > 0 ? static_cast<std::int64_t>(prefix) : it.error))
    finish(chunk.slot, now);
  else
    go_on(chunk.slot, now);
}

void UringRing::finish(std::uint32_t slot, TimePoint now) {
  Slot& it = slots_[slot];
  finished_.push_back(it.transfer.finished(now));
  tuner_.ended(it.transfer.accepted().bytes, now,
               turns_.empty() ? DepthTuner::Waiting::kNo : DepthTuner::Waiting::kYes);
  free_.push_back(slot);
}

void UringRing::show() {
  gauges_.in_flight.store(tuner_.in_flight(), std::memory_order_relaxed);
  gauges_.depth.store(tuner_.depth(), std::memory_order_relaxed);
  gauges_.window.store(tuner_.window().value, std::memory_order_relaxed);
  gauges_.registered.store(memory_->registered().value, std::memory_order_relaxed);
}

}  // namespace orbitkv::ssd
