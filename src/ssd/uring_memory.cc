#include "ssd/uring_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/limits.h"
#include "base/log.h"

namespace orbitkv::ssd {
namespace {

constexpr unsigned kBuffers = 2 * limits::kSlabs;  // the kernel takes 16384
constexpr std::size_t kMostBytes = kGiB.value;     // of one buffer, says the kernel

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
  while (!memory.empty()) {
    const std::size_t bytes = std::min(memory.size(), kMostBytes);
    if (!add_part(memory.first(bytes))) return;
    memory = memory.subspan(bytes);
  }
}

void UringMemory::remove(std::span<std::byte> memory) {
  last_ = nullptr;
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
