#include "ssd/scan_reads.h"

#include <algorithm>

namespace orbitkv::ssd {
namespace {

constexpr std::uint64_t kSlotBytes = ScanReads::kSlotPages * kPageBytes;

}  // namespace

ScanReads::ScanReads(Dispatch& io, std::uint32_t slots)
    : io_(io), slots_(std::max(slots, kLeastSlots)), memory_(slots_ * kSlotBytes) {}

std::span<std::byte> ScanReads::buffer(ReadSlot slot) {
  return {memory_.data() + slot.value * kSlotBytes, kSlotBytes};
}

void ScanReads::start(ReadSlot slot, const Place& place, std::uint32_t pages) {
  start(slot, place, buffer(slot).first(pages * kPageBytes));
}

void ScanReads::start(ReadSlot slot, const Place& place, std::span<std::byte> memory) {
  ++in_flight_;
  submit({slot, place, memory, false});
}

void ScanReads::submit(const Read& read) {
  io_.submit({IoOp::kRead, read.place.file, read.place.offset, {read.memory}},
             [this, read](int error) { ended(read, error); });
}

void ScanReads::ended(const Read& read, int error) {
  if (error == 0) read_ += ByteCount(read.memory.size());
  if (error == 0 || read.again) return done_.push_back({read.slot, error});
  submit({read.slot, read.place, read.memory, true});
}

std::optional<ScanReads::Done> ScanReads::next() {
  if (done_.empty()) return std::nullopt;
  const Done done = done_.front();
  done_.pop_front();
  --in_flight_;
  return done;
}

}  // namespace orbitkv::ssd
