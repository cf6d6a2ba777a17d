#include "base/heap.h"

#include <malloc.h>

#include <climits>

namespace orbitkv {

namespace {

// Likewise for what is mapped by itself. The most that the C library takes.
constexpr int kMappedAt = 32 * 1024 * 1024;

}  // namespace

void keep_heap() {
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
  ::mallopt(M_MMAP_THRESHOLD, kMappedAt);
}

}  // namespace orbitkv
