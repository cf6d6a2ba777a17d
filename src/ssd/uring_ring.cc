#include "ssd/uring_ring.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/text.h"

namespace orbitkv::ssd {
namespace {

constexpr unsigned kEntries = 256;
constexpr unsigned kResultEntries = 1024;

// In units of the least alignment.
constexpr std::uint64_t kUnit = 512;
constexpr unsigned kBeginBits = 32, kLengthBits = 16;
static_assert(kMostRequest.value / kUnit <= std::uint64_t{1} << kBeginBits);
static_assert(kChunk.value / kUnit < std::uint64_t{1} << kLengthBits);
static_assert(kMostSlots <= std::uint64_t{1} << (64 - kBeginBits - kLengthBits));

Error refusal(int error) {
  const char* why = "";
  if (error == EPERM || error == EACCES)
    why = "; kernel.io_uring_disabled or the seccomp profile of a container forbids it: allow it there";
  if (error == ENOSYS) why = "; this kernel or sandbox has none: Linux 5.13 or newer is needed";
  if (error == ENOMEM) why = "; raise the limit of locked memory (LimitMEMLOCK= of the unit, ulimit -l)";
  if (error == EMFILE || error == ENFILE) why = "; raise the limit of open files";
  return reject(format_text("io_uring cannot be used: %s%s", std::strerror(error), why));
}

// Results are let in when the owner enters, not in the middle of its other work.
int make_ring(io_uring& ring) {
  int status = -EINVAL;
  constexpr unsigned kOwn = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_R_DISABLED;
  for (const unsigned how : {kOwn | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
                             IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0u}) {
    io_uring_params parameters{};
    parameters.flags = how | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
    parameters.cq_entries = kResultEntries;
    status = ::io_uring_queue_init_params(kEntries, &ring, &parameters);
    if (status != -EINVAL) break;
  }
  return status;
}

}  // namespace

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

Result<std::unique_ptr<UringRing>> UringRing::make() {
  std::unique_ptr<UringRing> ring(new UringRing());
  const int status = make_ring(ring->ring_);
  if (status < 0) return refusal(-status);
  ring->made_ = true;
  // Waits with a time, entries that are never lost, changes of single buffers.
  constexpr unsigned kNeeded = IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP | IORING_FEAT_RSRC_TAGS;
  if ((ring->ring_.features & kNeeded) != kNeeded) return refusal(ENOSYS);
  ring->told_ = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!ring->told_.valid()) return refusal(errno);
  const int registered = ::io_uring_register_eventfd(&ring->ring_, ring->told_.get());
  if (registered < 0) return refusal(-registered);
  return ring;
}

UringRing::~UringRing() {
  if (made_) ::io_uring_queue_exit(&ring_);
}

bool UringRing::begin_take() {
  const auto wait_outside = [this] {
    return (IO_URING_READ_ONCE(*ring_.sq.kflags) & IORING_SQ_TASKRUN) != 0;
  };
  const auto any = [&] { return wait_outside() || ::io_uring_cq_ready(&ring_) > 0; };
  if (quiet_ && !any()) return false;
  // Read before they are looked for: what ends behind the read makes it readable again.
  eventfd_t events = 0;
  if (::eventfd_read(told_.get(), &events) != 0)
    ORBITKV_CHECK(errno == EAGAIN || errno == EINTR, "reading the eventfd of a ring");
  quiet_ = !any();
  if (wait_outside()) enter();
  return true;
}

void UringRing::end_take() {
  if (::io_uring_cq_ready(&ring_) > 0) ::eventfd_write(told_.get(), 1);
}

void UringRing::call_again() {
  ::eventfd_write(told_.get(), 1);
  quiet_ = false;
}

void UringRing::start() {
  if (started_) return;
  started_ = true;
  if ((ring_.flags & IORING_SETUP_R_DISABLED) != 0) check(::io_uring_enable_rings(&ring_));
}

void UringRing::check(int status) const {
  const bool passing = status == -EINTR || status == -ETIME || status == -EAGAIN || status == -EBUSY;
  ORBITKV_CHECK(status != -EEXIST, "a ring is used by the thread that submitted first, and by no other");
  ORBITKV_CHECK(status >= 0 || passing, "the kernel refuses to go on with a ring that it made");
}

io_uring_sqe* UringRing::entry() {
  start();
  io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
  while (entry == nullptr) {
    enter();
    entry = ::io_uring_get_sqe(&ring_);
  }
  return entry;
}

void UringRing::enter() {
  start();
  check(::io_uring_submit(&ring_));
}

void UringRing::enter_and_wait(Duration most) {
  start();
  if (most < Duration{}) return check(::io_uring_submit_and_wait(&ring_, 1));
  __kernel_timespec time{most.ns / 1'000'000'000, most.ns % 1'000'000'000};
  io_uring_cqe* first = nullptr;
  check(::io_uring_submit_and_wait_timeout(&ring_, &first, 1, &time, nullptr));
}

}  // namespace orbitkv::ssd
