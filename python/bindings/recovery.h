// RecoveryContract for Python: model/recovery.h with tuples and dicts, which orbitkv/recovery.py has
// checked. What it refuses is a ValueError with its text. Every call needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "orbitkv/types.h"

namespace orbitkv::python {

// "prefix", "window", "checkpoint"; ValueError names any other.
RecoveryRule to_rule(const std::string& name);

void bind_recovery(nanobind::module_& m);

}  // namespace orbitkv::python
