#include "device/cuda/presence.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>

namespace orbitkv::device::cuda {
namespace {

#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;
#endif
constexpr std::size_t kPage = 4096;

// The whole pages that the bytes lie in.
std::span<std::byte> whole_pages(std::span<std::byte> bytes) {
  const std::size_t before = reinterpret_cast<std::uintptr_t>(bytes.data()) % kPage;
  return {bytes.data() - before, (bytes.size() + before + kPage - 1) / kPage * kPage};
}

}  // namespace

bool populate(std::span<std::byte> pages) {
  const std::span<std::byte> whole = whole_pages(pages);
  if (::madvise(whole.data(), whole.size(), kPopulateWrite) == 0) return true;
  return errno == EINVAL && populate_by_reading(pages);
}

bool populate_by_reading(std::span<std::byte> pages) {
  constexpr std::size_t kPagesPerCall = 256;
  const std::span<std::byte> whole = whole_pages(pages);
  std::array<std::byte, kPagesPerCall> sink;
  for (std::size_t at = 0; at < whole.size(); at += kPagesPerCall * kPage) {
    const std::size_t count = std::min(kPagesPerCall, (whole.size() - at) / kPage);
    std::array<iovec, kPagesPerCall> from;
    for (std::size_t i = 0; i < count; ++i) from[i] = {whole.data() + at + i * kPage, 1};
    const iovec to{sink.data(), count};
    if (::process_vm_readv(::getpid(), &to, 1, from.data(), count, 0) != static_cast<ssize_t>(count))
      return false;
  }
  return true;
}

}  // namespace orbitkv::device::cuda
