// Result<T>: a value or an Error whose code tells the caller what to do next.
// Used on every library edge; no exception crosses one. A miss, a busy pool or a
// stale lease is an outcome of the call that met it, not an Error of this kind,
// unless the caller has to change course because of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace orbitkv {

// What the caller should do. The numbers are on the wire (docs/protocol.md).
enum class Code : std::uint8_t {
  kOk = 0,
  kBusy = 1,       // a stated limit is reached: try again later
  kRecompute = 2,  // the bytes are not to be had: compute them
  kReconnect = 3,  // the session or the Manager is gone: open a new session
  kReject = 4,     // the input is wrong and will stay wrong
  kBug = 5,        // an invariant of ours broke; the text says which
};

std::string_view code_name(Code code);

class Error {
 public:
  Error(Code code, std::string message) : code_(code), message_(std::move(message)) {
    ORBITKV_CHECK(code != Code::kOk, "an Error needs a failing code");
  }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // "busy: 64 sessions are open; close one or raise ..."
  std::string to_string() const;

 private:
  Code code_;
  std::string message_;
};

inline Error busy(std::string m) {
  return {Code::kBusy, std::move(m)};
}
inline Error recompute(std::string m) {
  return {Code::kRecompute, std::move(m)};
}
inline Error reconnect(std::string m) {
  return {Code::kReconnect, std::move(m)};
}
inline Error reject(std::string m) {
  return {Code::kReject, std::move(m)};
}
inline Error bug(std::string m) {
  return {Code::kBug, std::move(m)};
}
// "<what>: <strerror(errno)>"; kReject, because the same call would fail again.
Error errno_error(std::string_view what);

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT
  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & {
    check_ok();
    return std::get<0>(state_);
  }
  const T& value() const& {
    check_ok();
    return std::get<0>(state_);
  }
  T&& value() && {
    check_ok();
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const {
    ORBITKV_CHECK(!ok(), "error() of a Result that holds a value");
    return std::get<1>(state_);
  }

 private:
  void check_ok() const { ORBITKV_CHECK(ok(), std::get<1>(state_).message().c_str()); }
  std::variant<T, Error> state_;
};

struct Unit {};

// Result without a value: return ok_status() or an Error.
using Status = Result<Unit>;
inline Status ok_status() {
  return Unit{};
}

}  // namespace orbitkv

// Evaluates a Result expression and returns its Error from the enclosing function.
#define ORBITKV_RETURN_IF_ERROR(expr)                                       \
  do {                                                                      \
    if (auto orbitkv_r = (expr); !orbitkv_r.ok()) return orbitkv_r.error(); \
  } while (0)

// ORBITKV_ASSIGN_OR_RETURN(auto x, make_x());
#define ORBITKV_ASSIGN_OR_RETURN(lhs, expr) ORBITKV_ASSIGN_IMPL(ORBITKV_CAT(orbitkv_tmp, __LINE__), lhs, expr)
#define ORBITKV_CAT_(a, b) a##b
#define ORBITKV_CAT(a, b) ORBITKV_CAT_(a, b)
#define ORBITKV_ASSIGN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                        \
  if (!tmp.ok()) return tmp.error();        \
  lhs = std::move(tmp).value()
