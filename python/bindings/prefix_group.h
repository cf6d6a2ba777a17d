// PrefixGroup for Python: orbitkv/interests.h over the clients that it is given, and keeps.
#pragma once

#include <nanobind/nanobind.h>

namespace orbitkv::python {

void bind_prefix_group(nanobind::module_& m);

}  // namespace orbitkv::python
