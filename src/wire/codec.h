// Building blocks of the frame encoders and decoders; included by wire/*.cc and the
// golden tests only. A FrameBuilder writes one frame of a size that is known before
// the first byte; a BodyReader turns every rule that does not hold into one refusal.
// Pure; any thread. Neither ever reads or writes past the given range.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "orbitkv/types.h"
#include "wire/frame.h"

namespace orbitkv::wire {

class FrameBuilder {
 public:
  // Appends to `out`. `body_bytes` is exact: finish() checks that all of it was written.
  FrameBuilder(FrameType type, std::size_t body_bytes, std::vector<std::byte>& out);
  // Fills `frame`, which is header and body exactly.
  FrameBuilder(FrameType type, std::span<std::byte> frame);

  template <std::unsigned_integral T>
  void put(T value) {
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  void zeros(std::size_t n);
  void bytes(std::span<const std::byte> b) {
    ORBITKV_CHECK(b.size() <= frame_.size() - at_, "frame body longer than announced");
    if (!b.empty()) std::memcpy(frame_.data() + at_, b.data(), b.size());
    at_ += b.size();
  }
  void text(std::string_view s) { bytes(std::as_bytes(std::span(s.data(), s.size()))); }
  template <class T>
  void array(std::span<const T> values) {
    bytes(std::as_bytes(values));
  }
  // Writes the CRC. `abi` differs only in the Hello of another version (tests).
  void finish(std::uint16_t abi = kAbiVersion);

 private:
  std::span<std::byte> frame_;
  std::size_t at_ = kFrameHeaderBytes;
};

// Reads the body of a frame of one type. Every getter yields zeros once something
// was refused; the caller asks ok() or finish() before it uses anything.
class BodyReader {
 public:
  enum class Abi : std::uint8_t { kOurs, kAny };  // kAny: frames frozen over all versions
  // `limit`: the most bytes that such a frame may have, header included.
  BodyReader(std::span<const std::byte> frame, FrameType type, std::size_t limit, Abi abi = Abi::kOurs);
  BodyReader(const BodyReader&) = delete;

  template <std::unsigned_integral T>
  T get() {
    T value{};
    const auto b = take(sizeof(T));
    if (b.size() == sizeof(T)) std::memcpy(&value, b.data(), sizeof(T));
    return value;
  }
  // For InstanceId, LeaseId: a struct around an array of bytes.
  template <class T>
  T name() {
    static_assert(alignof(T) == 1);
    T value{};
    const auto b = take(sizeof(T));
    if (b.size() == sizeof(T)) std::memcpy(&value, b.data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> take(std::size_t n);
  std::string_view text(std::size_t n);
  std::span<const BlockHash> hashes(std::size_t n);
  // A copy of n little-endian words; nothing is allocated unless they are there.
  std::vector<std::uint64_t> words(std::size_t n);
  void zeros(std::size_t n);

  // Refuses with "<frame>: <what>" unless `holds`; the first refusal stays.
  void require(bool holds, const char* what) {
    if (__builtin_expect(!holds, 0)) refuse(what);
  }
  bool ok() const { return error_ == nullptr; }
  // After the last field: nothing may be left over.
  Status finish();

 private:
  void refuse(const char* what);
  std::span<const std::byte> body_;
  FrameType type_;
  const char* error_ = nullptr;
  std::string opening_error_;
};

std::string_view frame_name(FrameType type);

// Words of a bitmap over n bits, and whether no bit beyond n is set.
constexpr std::size_t bitmap_words(std::size_t n) {
  return (n + 63) / 64;
}
bool bitmap_fits(std::span<const std::uint64_t> words, std::size_t n);
bool printable(std::string_view text);

}  // namespace orbitkv::wire
