// Little-endian reading and writing of bounded byte ranges. A Reader never reads
// past its end: after the first short read it is failed() and yields zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace orbitkv {

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint8_t u8() { return get<std::uint8_t>(); }
  std::uint16_t u16() { return get<std::uint16_t>(); }
  std::uint32_t u32() { return get<std::uint32_t>(); }
  std::uint64_t u64() { return get<std::uint64_t>(); }
  // A view of the next n bytes; empty and failed() if there are fewer.
  std::span<const std::byte> take(std::size_t n) {
    if (failed_ || n > bytes_.size()) {
      failed_ = true;
      return {};
    }
    auto out = bytes_.first(n);
    bytes_ = bytes_.subspan(n);
    return out;
  }
  std::string_view text(std::size_t n) {
    auto t = take(n);
    return {reinterpret_cast<const char*>(t.data()), t.size()};
  }
  std::size_t left() const { return bytes_.size(); }
  bool failed() const { return failed_; }
  // Everything was read and nothing is left over.
  bool finished() const { return !failed_ && bytes_.empty(); }

 private:
  template <class T>
  T get() {
    T value{};
    auto t = take(sizeof(T));
    if (t.size() == sizeof(T)) std::memcpy(&value, t.data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> bytes_;
  bool failed_ = false;
};

class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}
  void u8(std::uint8_t v) { put(v); }
  void u16(std::uint16_t v) { put(v); }
  void u32(std::uint32_t v) { put(v); }
  void u64(std::uint64_t v) { put(v); }
  void bytes(std::span<const std::byte> b) { out_.insert(out_.end(), b.begin(), b.end()); }
  void text(std::string_view s) { bytes(std::as_bytes(std::span(s.data(), s.size()))); }

 private:
  template <class T>
  void put(T v) {
    bytes(std::as_bytes(std::span(&v, 1)));
  }
  std::vector<std::byte>& out_;
};

}  // namespace orbitkv
