#include "ssd/scan_reads.h"

#include <poll.h>

#include <algorithm>

#include "base/check.h"

namespace orbitkv::ssd {
namespace {

constexpr std::uint64_t kSlotBytes = ScanReads::kSlotPages * kPageBytes;
constexpr Duration kWait = milliseconds(50);  // between looks at stop_fd

}  // namespace

ScanReads::ScanReads(Io& io, int stop_fd, std::uint32_t slots)
    : io_(io),
      stop_fd_(stop_fd),
      memory_(std::max(slots, kLeastSlots) * kSlotBytes),
      slots_(std::max(slots, kLeastSlots)) {}

void ScanReads::drain() {
  in_flight_ -= static_cast<std::uint32_t>(waiting_.size() + (result_count_ - result_));
  waiting_.clear();
  result_ = result_count_ = 0;
  while (in_flight_ > 0) in_flight_ -= static_cast<std::uint32_t>(io_.reap(results_, kWait));
}

std::span<std::byte> ScanReads::buffer(ReadSlot slot) {
  return {memory_.data() + slot.value * kSlotBytes, kSlotBytes};
}

void ScanReads::start(ReadSlot slot, FileIndex file, std::uint64_t offset, std::uint32_t pages) {
  start(slot, file, offset, buffer(slot).first(pages * kPageBytes));
}

void ScanReads::start(ReadSlot slot, FileIndex file, std::uint64_t offset, std::span<std::byte> memory) {
  Slot& to = slots_[slot.value];
  to.piece = memory;
  to.request.tag = IoTag(slot.value);
  to.request.op = IoOp::kRead;
  to.request.file = file;
  to.request.offset = offset;
  to.request.pieces = std::span(&to.piece, 1);
  waiting_.push_back(slot.value);
  ++in_flight_;
}

bool ScanReads::stopped() const {
  pollfd watched{stop_fd_, POLLIN, 0};
  return stop_fd_ >= 0 && ::poll(&watched, 1, 0) > 0;
}

void ScanReads::submit() {
  std::array<IoRequest, 64> requests;
  while (!waiting_.empty()) {
    const std::size_t n = std::min(waiting_.size(), requests.size());
    for (std::size_t i = 0; i < n; ++i) requests[i] = slots_[waiting_[i]].request;
    const std::size_t taken = io_.submit(std::span(requests).first(n));
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(taken));
    if (taken < n) return;
  }
}

Result<ScanReads::Done> ScanReads::wait() {
  ORBITKV_CHECK(in_flight_ > 0, "nothing to wait for");
  while (result_ == result_count_) {
    if (stopped()) return busy("recovery of the SSD store was given up because the Manager is to stop");
    submit();
    result_ = 0;
    result_count_ = io_.reap(results_, kWait);
  }
  const IoResult& result = results_[result_++];
  --in_flight_;
  const auto slot = static_cast<std::uint32_t>(result.tag.value);
  if (result.error == 0) read_ += ByteCount(slots_[slot].piece.size());
  return Done{ReadSlot(slot), result.error};
}

Status ScanReads::read_all(FileIndex file, std::uint64_t offset, std::span<std::byte> memory) {
  std::uint64_t next = 0;
  Status status = ok_status();
  for (std::uint32_t slot = 0; next < memory.size() && slot < slots(); ++slot, next += kSlotBytes)
    start(ReadSlot(slot), file, offset + next,
          memory.subspan(next, std::min(kSlotBytes, memory.size() - next)));
  while (in_flight_ > 0) {
    const auto done = wait();
    if (!done.ok() || done->error != 0) {
      status = done.ok() ? recompute("the device did not read") : done.error();
      break;
    }
    if (next >= memory.size()) continue;
    start(done->slot, file, offset + next, memory.subspan(next, std::min(kSlotBytes, memory.size() - next)));
    next += kSlotBytes;
  }
  drain();
  return status;
}

}  // namespace orbitkv::ssd
