// Where the vector kernels prefetch: inside the row while kPrefetchBytes of it are
// left, then in the row or fragment that comes next. Pure.
#pragma once

#include <algorithm>

#include "device/host/mix_copy.h"

namespace orbitkv::device {

// A row in two stretches; while `bytes` are copied, [ahead, ahead + bytes) is fetched.
struct Stretch {
  std::uint64_t bytes = 0;
  const std::byte* ahead = nullptr;
};
struct RowStretches {
  Stretch first;
  Stretch last;
};

// `whole` is the row rounded down to the kernel's step.
inline RowStretches stretches(const RowCopy& copy, std::uint64_t row, std::uint64_t whole) {
  const std::byte* from = copy.from + row * copy.from_stride;
  const std::uint64_t skip = kPrefetchBytes / std::max<std::uint64_t>(copy.row_bytes, 64) + 1;
  // A prefetch of a wrong address costs a little and faults never.
  const std::byte* next = row + skip < copy.rows ? from + skip * copy.from_stride : copy.next;
  if (next == nullptr) next = from;
  const std::uint64_t last = std::min(whole, kPrefetchBytes);
  return {{whole - last, from + kPrefetchBytes}, {last, next}};
}

}  // namespace orbitkv::device
