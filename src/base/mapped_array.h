// Fixed-size table in anonymous memory: zero at start, pages come with the first
// touch, huge where the kernel allows it, so that a table sized for the most
// costs what is used of it. Single-threaded. Never grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace orbitkv {

class MappedBytes {
 public:
  explicit MappedBytes(std::size_t bytes);  // stops the process if there is no address space
  ~MappedBytes();
  MappedBytes(const MappedBytes&) = delete;
  MappedBytes& operator=(const MappedBytes&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

template <class T>
class MappedArray {
  static_assert(std::is_trivially_copyable_v<T>, "all zeros must be a value");

 public:
  explicit MappedArray(std::size_t count)
      : memory_(count * sizeof(T)), items_(reinterpret_cast<T*>(memory_.data())) {}
  T& operator[](std::size_t i) { return items_[i]; }
  const T& operator[](std::size_t i) const { return items_[i]; }

 private:
  MappedBytes memory_;
  T* items_;
};

}  // namespace orbitkv
