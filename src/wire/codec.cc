#include "wire/codec.h"

#include <algorithm>

#include "base/crc32c.h"

namespace orbitkv::wire {
namespace {

constexpr std::size_t kAbiAt = 4;
constexpr std::size_t kCrcAt = 12;

template <class T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

std::span<std::byte> grown(std::vector<std::byte>& out, std::size_t bytes) {
  const std::size_t start = out.size();
  out.resize(start + bytes);
  return std::span(out).subspan(start);
}

}  // namespace

FrameBuilder::FrameBuilder(FrameType type, std::size_t body_bytes, std::vector<std::byte>& out)
    : FrameBuilder(type, grown(out, kFrameHeaderBytes + body_bytes)) {}

FrameBuilder::FrameBuilder(FrameType type, std::span<std::byte> frame) : frame_(frame) {
  ORBITKV_CHECK(frame.size() >= kFrameHeaderBytes, "no room for a frame header");
  store(frame_.data(), kFrameMagic);
  store(frame_.data() + 6, static_cast<std::uint16_t>(type));
  store(frame_.data() + 8, static_cast<std::uint32_t>(frame.size() - kFrameHeaderBytes));
}

void FrameBuilder::zeros(std::size_t n) {
  ORBITKV_CHECK(n <= frame_.size() - at_, "frame body longer than announced");
  std::memset(frame_.data() + at_, 0, n);
  at_ += n;
}

void FrameBuilder::finish(std::uint16_t abi) {
  ORBITKV_CHECK(at_ == frame_.size(), "frame body shorter than announced");
  store(frame_.data() + kAbiAt, abi);
  store(frame_.data() + kCrcAt, std::uint32_t{0});
  const std::uint32_t crc = crc32c(frame_);
  store(frame_.data() + kCrcAt, crc);
}

BodyReader::BodyReader(std::span<const std::byte> frame, FrameType type, std::size_t limit, Abi abi)
    : type_(type) {
  const auto opened = abi == Abi::kAny ? open_frame_of_any_version(frame) : open_frame(frame);
  if (frame.size() > limit) {
    refuse("is longer than its limit");
  } else if (!opened.ok()) {
    opening_error_ = opened.error().message();
    refuse(opening_error_.c_str());
  } else if (opened->type != type) {
    refuse("another frame type was found");
  } else {
    body_ = opened->body;
  }
}

std::span<const std::byte> BodyReader::take(std::size_t n) {
  if (n > body_.size()) refuse("ends too early");
  if (!ok()) return {};
  const auto out = body_.first(n);
  body_ = body_.subspan(n);
  return out;
}

std::string_view BodyReader::text(std::size_t n) {
  const auto b = take(n);
  return {reinterpret_cast<const char*>(b.data()), b.size()};
}

std::span<const BlockHash> BodyReader::hashes(std::size_t n) {
  static_assert(alignof(BlockHash) == 1 && sizeof(BlockHash) == 32);
  const auto b = take(n * sizeof(BlockHash));
  return {reinterpret_cast<const BlockHash*>(b.data()), b.size() / sizeof(BlockHash)};
}

std::vector<std::uint64_t> BodyReader::words(std::size_t n) {
  const auto b = take(n * sizeof(std::uint64_t));
  std::vector<std::uint64_t> out(b.size() / sizeof(std::uint64_t));
  if (!out.empty()) std::memcpy(out.data(), b.data(), b.size());
  return out;
}

void BodyReader::zeros(std::size_t n) {
  const auto b = take(n);
  require(std::all_of(b.begin(), b.end(), [](std::byte v) { return v == std::byte{0}; }),
          "reserved bytes are set");
}

Status BodyReader::finish() {
  require(body_.empty(), "has bytes left over");
  if (ok()) return ok_status();
  return reject(std::string(frame_name(type_)) + ": " + error_);
}

void BodyReader::refuse(const char* what) {
  if (error_ == nullptr) error_ = what;
  body_ = {};
}

std::string_view frame_name(FrameType type) {
  switch (type) {
    case FrameType::kQueryRequest: return "query request";
    case FrameType::kQueryReply: return "query reply";
    case FrameType::kPublishRequest: return "publish request";
    case FrameType::kPublishReply: return "publish reply";
    case FrameType::kRestoreRequest: return "restore request";
    case FrameType::kRestoreReply: return "restore reply";
    case FrameType::kReleaseRequest: return "release request";
    case FrameType::kCancelQueryRequest: return "cancel query request";
    case FrameType::kPollRequest: return "poll request";
    case FrameType::kTicketReply: return "ticket reply";
    case FrameType::kRecoveryRequest: return "recovery request";
    case FrameType::kWarmRequest: return "warm request";
    case FrameType::kActivityRequest: return "activity request";
    case FrameType::kActivityReply: return "activity reply";
    case FrameType::kInterestSubmit: return "interest submit";
    case FrameType::kInterestCall: return "interest call";
    case FrameType::kInterestReply: return "interest reply";
    case FrameType::kErrorReply: return "error reply";
    case FrameType::kPlan: return "plan";
    case FrameType::kPublishResult: return "publish result";
    case FrameType::kRestoreResult: return "restore result";
    case FrameType::kHello: return "hello";
    case FrameType::kHelloReply: return "hello reply";
    case FrameType::kRegister: return "register";
    case FrameType::kRegisterReply: return "register reply";
    case FrameType::kUnregister: return "unregister";
    case FrameType::kUnregisterReply: return "unregister reply";
    case FrameType::kSlabOffer: return "slab offer";
    case FrameType::kStatusRequest: return "status request";
    case FrameType::kStatusReply: return "status reply";
    case FrameType::kControlRequest: return "control request";
    case FrameType::kSlabRetire: return "slab retire";
    case FrameType::kSlabReleased: return "slab released";
    case FrameType::kBye: return "bye";
    case FrameType::kSocketError: return "socket error";
  }
  return {};
}

bool bitmap_fits(std::span<const std::uint64_t> words, std::size_t n) {
  if (words.size() != bitmap_words(n)) return false;
  return n % 64 == 0 || (words.back() >> (n % 64)) == 0;
}

bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c <= 0x7e; });
}

}  // namespace orbitkv::wire
