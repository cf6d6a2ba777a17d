#include "ssd/uring_io.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <vector>

#include "ssd/depth_tuner.h"
#include "ssd/io_front.h"
#include "ssd/turns.h"
#include "ssd/uring_memory.h"
#include "ssd/uring_ring.h"

namespace orbitkv::ssd {
namespace {

class UringIo final : public IoFront {
 public:
  UringIo(std::unique_ptr<UringRing> ring, const IoOptions& options);
  ~UringIo() override;

  const char* name() const override { return "io_uring"; }
  int completion_fd() const override { return ring_->fd(); }
  void add_memory(std::span<std::byte> memory) override {
    memory_.add(memory);
    if (memory_.waiting()) ring_->call_again();
    show();
  }
  void remove_memory(std::span<std::byte> memory) override {
    memory_.remove(memory);
    show();
  }

 private:
  // A request on the device.
  struct Slot {
    Transfer transfer;
    Transfer::Step step;
    std::uint32_t chunks = 0;   // on the ring
    std::uint64_t reached = 0;  // of the request's bytes: all before it were moved
    std::int64_t error = 0;     // of the chunk at `reached`: -errno; 0: it was short, or none failed
    __kernel_timespec delay{};  // the ring reads it when it is submitted
    bool delayed = false;
  };

  void hand_over(const Accepted& accepted) override { turns_.push(accepted); }
  void handed_over() override;
  void file_opened(FileIndex file, int fd) override;
  void refused(const Finished& finished) override;
  std::size_t take(std::span<Finished> out) override;
  void wait_for_some(Duration wait) override { ring_->enter_and_wait(wait); }

  void start_what_may();
  // The next step of a request. False: it is over without one.
  bool go_on(std::uint32_t slot, TimePoint now);
  void submit_delay(std::uint32_t slot);
  void submit_step(std::uint32_t slot);
  void submit_chunk(const Chunk& chunk, void* memory);
  // True: the request is over.
  bool ended(const io_uring_cqe& result, TimePoint now);
  bool step_ended(std::uint32_t slot, TimePoint now);
  Finished finish(std::uint32_t slot, TimePoint now);
  void show();

  std::unique_ptr<UringRing> ring_;
  UringMemory memory_;
  std::vector<bool> registered_files_;
  Turns turns_;
  DepthTuner tuner_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::deque<Finished> undevised_;
};

constexpr unsigned kBatch = 4;  // entries a system call
// The slot of results that needed no device; they stand in `undevised_`.
constexpr std::uint32_t kNoSlot = kMostSlots - 1;

UringIo::UringIo(std::unique_ptr<UringRing> ring, const IoOptions& options)
    : IoFront(options),
      ring_(std::move(ring)),
      memory_(ring_->raw()),
      tuner_(this->options().depth, options.tune_depth ? DepthTuner::Tune::kYes : DepthTuner::Tune::kNo),
      slots_(this->options().depth) {
  for (std::uint32_t i = this->options().depth; i > 0; --i) free_.push_back(i - 1);
  if (::io_uring_register_files_sparse(&ring_->raw(), kIoFiles) == 0) registered_files_.resize(kIoFiles);
  show();
}

UringIo::~UringIo() {
  std::array<Finished, 64> ended;
  while (tuner_.in_flight() > 0 || !turns_.empty())
    if (take(ended) == 0) ring_->enter_and_wait(nanoseconds(-1));
}

void UringIo::file_opened(FileIndex file, int fd) {
  if (file.value >= registered_files_.size()) return;
  registered_files_[file.value] = ::io_uring_register_files_update(&ring_->raw(), file.value, &fd, 1) == 1;
}

void UringIo::handed_over() {
  start_what_may();
  ring_->enter();
  show();
}

// Comes back by the ring, so that its descriptor tells of it.
void UringIo::refused(const Finished& finished) {
  undevised_.push_back(finished);
  io_uring_sqe* entry = ring_->entry();
  ::io_uring_prep_nop(entry);
  ::io_uring_sqe_set_data64(entry, pack({kNoSlot, 0, 0}));
}

void UringIo::start_what_may() {
  if (turns_.empty()) return;
  const TimePoint now = monotonic_now();
  while (!turns_.empty() && tuner_.admits()) {
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    slots_[slot] = {};
    slots_[slot].transfer = Transfer(turns_.front());
    tuner_.started(turns_.front().bytes);
    turns_.pop();
    if (!go_on(slot, now)) refused(finish(slot, now));
    // The block layer holds a batch back until its end: the device would wait for the last.
    if (::io_uring_sq_ready(&ring_->raw()) >= kBatch) ring_->enter();
  }
}

bool UringIo::go_on(std::uint32_t slot, TimePoint now) {
  Slot& it = slots_[slot];
  for (;;) {
    it.step = it.transfer.next(options().faults, now);
    if (!it.step.skip) break;
    if (it.transfer.ended(0)) return false;
  }
  if (it.step.delay > Duration{})
    submit_delay(slot);
  else
    submit_step(slot);
  return true;
}

void UringIo::submit_delay(std::uint32_t slot) {
  Slot& it = slots_[slot];
  it.delayed = true;
  it.delay = {it.step.delay.ns / 1'000'000'000, it.step.delay.ns % 1'000'000'000};
  io_uring_sqe* entry = ring_->entry();
  ::io_uring_prep_timeout(entry, &it.delay, 0, 0);
  ::io_uring_sqe_set_data64(entry, pack({slot, 0, 0}));
}

void UringIo::submit_step(std::uint32_t slot) {
  Slot& it = slots_[slot];
  std::uint64_t at = it.transfer.done();
  it.reached = at + it.step.bytes;
  it.error = 0;
  if (it.transfer.accepted().request.op == IoOp::kSync) return submit_chunk({slot, 0, 0}, nullptr);
  std::array<iovec, kPieces> memory;
  const std::size_t count = it.transfer.memory_of(at, it.step.bytes, memory);
  for (const iovec& piece : std::span(memory).first(count)) {
    for (std::size_t done = 0, bytes; done < piece.iov_len; done += bytes, at += bytes) {
      bytes = std::min<std::size_t>(piece.iov_len - done, kChunk.value);
      submit_chunk({slot, at, bytes}, static_cast<std::byte*>(piece.iov_base) + done);
    }
  }
}

void UringIo::submit_chunk(const Chunk& chunk, void* memory) {
  Slot& it = slots_[chunk.slot];
  const Accepted& accepted = it.transfer.accepted();
  const auto file = accepted.request.file.value;
  const bool registered = file < registered_files_.size() && registered_files_[file];
  const int fd = registered ? static_cast<int>(file) : accepted.fd;
  const auto bytes = static_cast<unsigned>(chunk.bytes);
  const std::uint64_t offset = accepted.request.offset + chunk.begin;
  const int buffer = memory_.index_of(static_cast<const std::byte*>(memory), bytes);
  io_uring_sqe* entry = ring_->entry();
  if (accepted.request.op == IoOp::kSync)
    ::io_uring_prep_fsync(entry, fd, IORING_FSYNC_DATASYNC);
  else if (accepted.request.op == IoOp::kRead && buffer >= 0)
    ::io_uring_prep_read_fixed(entry, fd, memory, bytes, offset, buffer);
  else if (accepted.request.op == IoOp::kRead)
    ::io_uring_prep_read(entry, fd, memory, bytes, offset);
  else if (buffer >= 0)
    ::io_uring_prep_write_fixed(entry, fd, memory, bytes, offset, buffer);
  else
    ::io_uring_prep_write(entry, fd, memory, bytes, offset);
  if (registered) entry->flags |= IOSQE_FIXED_FILE;
  ::io_uring_sqe_set_data64(entry, pack(chunk));
  ++it.chunks;
}

std::size_t UringIo::take(std::span<Finished> out) {
  io_uring& ring = ring_->raw();
  // Entries that the kernel would not take before are still to be handed to it.
  if (!ring_->begin_take() && turns_.empty() && ::io_uring_sq_ready(&ring) == 0) return 0;
  if (memory_.waiting()) memory_.step();
  const TimePoint now = monotonic_now();
  std::size_t taken = 0;
  io_uring_cqe* result;
  while (taken < out.size() && ::io_uring_peek_cqe(&ring, &result) == 0) {
    const std::uint32_t slot = unpack(result->user_data).slot;
    if (slot == kNoSlot) {
      out[taken++] = undevised_.front();
      undevised_.pop_front();
    } else if (ended(*result, now)) {
      out[taken++] = finish(slot, now);
    }
    ::io_uring_cqe_seen(&ring, result);
  }
  start_what_may();
  if (::io_uring_sq_ready(&ring) > 0) ring_->enter();
  ring_->end_take();
  if (memory_.waiting()) ring_->call_again();
  show();
  return taken;
}

bool UringIo::ended(const io_uring_cqe& result, TimePoint now) {
  const Chunk chunk = unpack(result.user_data);
  Slot& it = slots_[chunk.slot];
  if (it.delayed) {
    it.delayed = false;
    submit_step(chunk.slot);
    return false;
  }
  const std::uint64_t moved = static_cast<std::uint64_t>(std::max(result.res, 0));
  const bool sync = it.transfer.accepted().request.op == IoOp::kSync;
  if (sync) it.error = std::min(result.res, 0);
  if (!sync && moved < chunk.bytes && chunk.begin + moved < it.reached) {
    it.reached = chunk.begin + moved;
    it.error = std::min(result.res, 0);
  }
  return --it.chunks == 0 && step_ended(chunk.slot, now);
}

bool UringIo::step_ended(std::uint32_t slot, TimePoint now) {
  Slot& it = slots_[slot];
  // What lies behind a gap is moved once more.
  const std::uint64_t moved = it.reached - it.transfer.done();
  if (it.transfer.ended(moved > 0 ? static_cast<std::int64_t>(moved) : it.error)) return true;
  return !go_on(slot, now);
}

Finished UringIo::finish(std::uint32_t slot, TimePoint now) {
  const Slot& it = slots_[slot];
  tuner_.ended(it.transfer.accepted().bytes, now,
               turns_.empty() ? DepthTuner::Waiting::kNo : DepthTuner::Waiting::kYes);
  free_.push_back(slot);
  return it.transfer.finished(now);
}

void UringIo::show() {
  gauges().in_flight.store(tuner_.in_flight(), std::memory_order_relaxed);
  gauges().depth.store(tuner_.depth(), std::memory_order_relaxed);
  gauges().window.store(tuner_.window().value, std::memory_order_relaxed);
  gauges().registered.store(memory_.registered().value, std::memory_order_relaxed);
}

}  // namespace

Result<std::unique_ptr<Io>> make_uring_io(const IoOptions& options) {
  auto ring = UringRing::make();
  if (!ring.ok()) return ring.error();
  return std::unique_ptr<Io>(std::make_unique<UringIo>(std::move(*ring), options));
}

}  // namespace orbitkv::ssd
