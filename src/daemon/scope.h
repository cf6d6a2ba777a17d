// Cache scopes: the string "scope" of a namespace text that is a JSON object (docs/protocol.md,
// "Namespace"). Pure functions; any thread.
#pragma once

#include <string>

#include "base/result.h"

namespace orbitkv::daemon {

// Empty: it is of no scope.
std::string scope_of(const std::string& name_space);
// kReject: it names one that no drop could name.
Status check_scope(const std::string& name_space);

}  // namespace orbitkv::daemon
