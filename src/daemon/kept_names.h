// The names that Keep gives to descriptors in a FdStore.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/text.h"

namespace orbitkv::daemon::kept {

inline constexpr std::string_view kSlab = "slab-", kTable = "table-", kSession = "session-",
                                  kProcess = "process-", kClaim = "claim";

inline std::string name_of(std::string_view kind, std::uint64_t number) {
  return std::string(kind) + format_text("%llx", static_cast<unsigned long long>(number));
}

}  // namespace orbitkv::daemon::kept
