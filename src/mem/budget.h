// Byte reservations against a named limit, as move-only tokens. The only exit of a
// token is release(), which returns a receipt; one that dies open stops the daemon
// with the budget's name. Single-threaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/ids.h"

namespace orbitkv::mem {

class Budget;

class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;  // *this must be empty
  ~Reservation();
  ByteCount bytes() const { return bytes_; }
  bool open() const { return budget_ != nullptr; }

 private:
  friend class Budget;
  Budget* budget_ = nullptr;
  ByteCount bytes_;
};

class Budget {
 public:
  struct Receipt {
    ByteCount returned;
    ByteCount left;
  };
  Budget(std::string name, ByteCount limit);
  ~Budget();  // no reservation may be open
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;
  std::optional<Reservation> reserve(ByteCount bytes);  // nullopt: full
  Receipt release(Reservation token);
  Receipt shrink(Reservation& token, ByteCount to);  // gives back the difference
  ByteCount used() const { return used_; }
  ByteCount limit() const { return limit_; }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  ByteCount limit_, used_;
  std::uint64_t open_ = 0;  // reservations; one of 0 bytes must be released, too
};

}  // namespace orbitkv::mem
