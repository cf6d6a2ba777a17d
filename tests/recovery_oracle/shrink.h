// Makes a failing case small: drops and shortens its parts one by one for as long as the
// smaller case fails too.
#pragma once

#include <functional>

#include "tests/recovery_oracle/case.h"

namespace orbitkv::recovery_oracle {

Case shrink(Case c, const std::function<bool(const Case&)>& fails);

}  // namespace orbitkv::recovery_oracle
