// PrefixGroup for Python: orbitkv/interests.h over the clients that it is given, and keeps.
#pragma once

#include <nanobind/nanobind.h>

#include "orbitkv/types.h"

namespace orbitkv::python {

void bind_prefix_group(nanobind::module_& m);

// (incarnation, generation, layout, consumers)
nanobind::tuple from_authority(const InterestAuthority& of);
InterestAuthority to_authority(const nanobind::tuple& of);

}  // namespace orbitkv::python
