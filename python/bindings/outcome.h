// Between client.h and Python: failing outcomes as exceptions, ids as bytes, calls without the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include "orbitkv/client.h"

namespace orbitkv::python {

namespace nb = nanobind;

// Becomes one of orbitkv/errors.py.
struct OutcomeError {
  client::Outcome outcome;
};

inline void check(client::Outcome outcome) {
  if (!outcome.ok()) throw OutcomeError{std::move(outcome)};
}

template <class Id>
Id to_id(nb::bytes text) {
  Id id;
  if (text.size() != id.bytes.size()) throw nb::value_error("an id has 16 bytes");
  std::memcpy(id.bytes.data(), text.c_str(), id.bytes.size());
  return id;
}

inline nb::bytes from_lease(const LeaseId& lease) {
  return nb::bytes(reinterpret_cast<const char*>(lease.bytes.data()), lease.bytes.size());
}

inline const char* name_of(client::Missing why) {
  switch (why) {
    case client::Missing::kNone: break;
    case client::Missing::kGone: return "gone";
    case client::Missing::kTimeout: return "timeout";
    case client::Missing::kNoMemory: return "no_memory";
    case client::Missing::kTooLarge: return "too_large";
    case client::Missing::kUnknown: return "unknown";
  }
  return "";
}

// Runs `call` without the GIL and raises what it reports once the GIL is back.
template <class F>
void without_gil(F&& call) {
  client::Outcome outcome;
  {
    nb::gil_scoped_release release;
    outcome = call();
  }
  check(std::move(outcome));
}

// A Ctrl-C within a call that waits is heard this much later at most.
inline constexpr std::uint32_t kSliceMs = 50;

// Waits in slices without the GIL, and lets Python handle its signals between them: `wait` gets
// milliseconds and says whether all is over. One that returns before its time has nothing to wait for.
// False: a handler raised, as Ctrl-C does; the exception is set, and what was waited for goes on.
template <class F>
bool in_slices(std::uint32_t timeout_ms, F&& wait) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (std::uint32_t slice = std::min(timeout_ms, kSliceMs);;) {
    bool over = false;
    {
      nb::gil_scoped_release release;
      const auto slice_end = Clock::now() + std::chrono::milliseconds(slice);
      over = wait(slice) || Clock::now() < slice_end;
    }
    const auto now = Clock::now();
    if (over || now >= end) return true;
    if (PyErr_CheckSignals() != 0) return false;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - now).count();
    slice = static_cast<std::uint32_t>(std::min<std::int64_t>(left, kSliceMs));
  }
}

// Python's own exception, once a handler has raised.
inline void check_heard(bool heard) {
  if (!heard) throw nb::python_error();
}

}  // namespace orbitkv::python
