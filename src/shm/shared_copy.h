// Copies between shared memory, which the other side may rewrite at any moment, and
// private memory. Each byte is touched once, so what is validated afterwards is what
// is used. Any thread; orders nothing by itself: acquire and release are the callers'.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace orbitkv::shm {

// Whole lines of 8-byte words, by relaxed atomics. Both sides are 8-byte aligned.
template <class T>
T load_shared(const void* shared) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0);
  std::uint64_t words[sizeof(T) / 8];
  const auto* from = static_cast<const std::uint64_t*>(shared);
  for (std::size_t i = 0; i < sizeof(T) / 8; ++i) words[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
  T value;
  std::memcpy(&value, words, sizeof(T));
  return value;
}

template <class T>
void store_shared(void* shared, const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0);
  std::uint64_t words[sizeof(T) / 8];
  std::memcpy(words, &value, sizeof(T));
  auto* to = static_cast<std::uint64_t*>(shared);
  for (std::size_t i = 0; i < sizeof(T) / 8; ++i) __atomic_store_n(to + i, words[i], __ATOMIC_RELAXED);
}

// Frames: too long for words one by one. The barriers keep the compiler from reading
// the shared side again where it should use the copy.
inline void copy_shared(void* to, const void* from, std::size_t bytes) {
  asm volatile("" ::: "memory");
  if (bytes != 0) std::memcpy(to, from, bytes);
  asm volatile("" ::: "memory");
}

}  // namespace orbitkv::shm
