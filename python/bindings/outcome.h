// Between client.h and Python: failing outcomes as exceptions, ids as bytes, calls without the GIL.
#pragma once

#include <nanobind/nanobind.h>

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

}  // namespace orbitkv::python
