#include "mem/budget.h"

#include <utility>

#include "base/check.h"

namespace orbitkv::mem {

Reservation::Reservation(Reservation&& other) noexcept
    : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, ByteCount(0))) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  ORBITKV_CHECK(!open(), ("reservation overwritten unreleased, budget: " + budget_->name()).c_str());
  budget_ = std::exchange(other.budget_, nullptr);
  bytes_ = std::exchange(other.bytes_, ByteCount(0));
  return *this;
}

Reservation::~Reservation() {
  ORBITKV_CHECK(!open(), ("reservation died unreleased, budget: " + budget_->name()).c_str());
}

Budget::Budget(std::string name, ByteCount limit) : name_(std::move(name)), limit_(limit) {}

Budget::~Budget() {
  ORBITKV_CHECK(open_ == 0, ("budget died before its reservations: " + name_).c_str());
}

std::optional<Reservation> Budget::reserve(ByteCount bytes) {
  if (bytes > limit_ - used_) return std::nullopt;
  used_ += bytes;
  ++open_;
  Reservation token;
  token.budget_ = this;
  token.bytes_ = bytes;
  return token;
}

Budget::Receipt Budget::release(Reservation token) {
  ORBITKV_CHECK(token.budget_ == this, ("reservation of another budget released to: " + name_).c_str());
  const ByteCount bytes = token.bytes_;
  token.budget_ = nullptr;
  used_ -= bytes;
  --open_;
  return {bytes, limit_ - used_};
}

Budget::Receipt Budget::shrink(Reservation& token, ByteCount to) {
  ORBITKV_CHECK(token.budget_ == this, ("reservation of another budget shrunk in: " + name_).c_str());
  ORBITKV_CHECK(to <= token.bytes_, ("reservation grows by shrink in: " + name_).c_str());
  const ByteCount returned = token.bytes_ - to;
  token.bytes_ = to;
  used_ -= returned;
  return {returned, limit_ - used_};
}

}  // namespace orbitkv::mem
