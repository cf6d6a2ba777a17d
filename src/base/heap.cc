#include "base/heap.h"

#include <malloc.h>

#include <climits>

namespace orbitkv {
namespace {

// What is longer is mapped by itself, and goes back when it is freed. The most that the C library takes.
constexpr int kMappedAt = 32 * 1024 * 1024;

}  // namespace

void keep_heap() {
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
  ::mallopt(M_MMAP_THRESHOLD, kMappedAt);
}

}  // namespace orbitkv
