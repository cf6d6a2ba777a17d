#include "ssd/uring_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/limits.h"
#include "base/log.h"
#include "base/time.h"

namespace orbitkv::ssd {
namespace {

constexpr unsigned kBuffers = 4 * limits::kSlabs;   // the kernel takes 16384
constexpr std::size_t kPiece = 128 * kMiB.value;    // of one buffer; 1 GiB at most, says the kernel
constexpr std::size_t kPopulated = 2 * kMiB.value;  // at a time
constexpr Duration kStep = milliseconds(2);         // and what the last piece takes

}  // namespace

UringMemory::UringMemory(io_uring& ring) : ring_(ring) {
  const int status = ::io_uring_register_buffers_sparse(&ring_, kBuffers);
  if (status < 0) say_once(-status);
  if (status < 0) return;
  free_.reserve(kBuffers);
  for (unsigned i = kBuffers; i > 0; --i) free_.push_back(i - 1);
}

void UringMemory::say_once(int error) {
  if (said_) return;
  said_ = true;
  const char* remedy = error == ENOMEM || error == EPERM
                           ? "raise the limit of locked memory (LimitMEMLOCK= of the unit, ulimit -l)"
                           : "a newer kernel may take it";
  ORBITKV_WARN("memory cannot be registered for SSD I/O (%s); requests cost more CPU; %s",
               std::strerror(error), remedy);
}

bool UringMemory::add_part(std::span<std::byte> part) {
  if (free_.empty()) {
    say_once(ENOSPC);
    return false;
  }
  const unsigned index = free_.back();
  const iovec memory{part.data(), part.size()};
  const int status = ::io_uring_register_buffers_update_tag(&ring_, index, &memory, nullptr, 1);
  if (status != 1) {
    say_once(status < 0 ? -status : ENOMEM);
    return false;
  }
  free_.pop_back();
  buffers_[part.data()] = {part.data(), part.size(), index};
  registered_ += ByteCount(part.size());
  return true;
}

void UringMemory::add(std::span<std::byte> memory) {
  waiting_.push_back({memory});
  step();
}

// Pinning brings pages in one by one; this way it finds them there.
void UringMemory::populate(Waiting& first, std::size_t piece) const {
  const std::size_t bytes = std::min(piece - first.populated, kPopulated);
#ifdef MADV_POPULATE_WRITE
  ::madvise(first.memory.data() + first.populated, bytes, MADV_POPULATE_WRITE);
#endif
  first.populated += bytes;
}

void UringMemory::step() {
  const TimePoint end = monotonic_now() + kStep;
  while (!waiting_.empty() && monotonic_now() < end) {
    Waiting& first = waiting_.front();
    const std::size_t piece = std::min(first.memory.size(), kPiece);
    if (first.populated < piece) {
      populate(first, piece);
      continue;
    }
    const bool added = add_part(first.memory.first(piece));
    first = {first.memory.subspan(piece), 0};
    if (!added || first.memory.empty()) waiting_.pop_front();
  }
}

void UringMemory::remove(std::span<std::byte> memory) {
  last_ = nullptr;
  std::erase_if(waiting_, [memory](const Waiting& waiting) {
    return waiting.memory.data() >= memory.data() && waiting.memory.data() < memory.data() + memory.size();
  });
  const auto end = buffers_.lower_bound(memory.data() + memory.size());
  for (auto i = buffers_.lower_bound(memory.data()); i != end;) {
    const iovec none{nullptr, 0};
    ::io_uring_register_buffers_update_tag(&ring_, i->second.index, &none, nullptr, 1);
    free_.push_back(i->second.index);
    registered_ -= ByteCount(i->second.bytes);
    i = buffers_.erase(i);
  }
}

int UringMemory::index_of(const std::byte* at, std::size_t bytes) const {
  const auto holds = [&](const Buffer& b) { return at >= b.at && at + bytes <= b.at + b.bytes; };
  if (last_ != nullptr && holds(*last_)) return static_cast<int>(last_->index);
  auto next = buffers_.upper_bound(at);
  if (next == buffers_.begin()) return -1;
  const Buffer& buffer = std::prev(next)->second;
  if (!holds(buffer)) return -1;
  last_ = &buffer;
  return static_cast<int>(buffer.index);
}

}  // namespace orbitkv::ssd
