// Fields of the Manager's JSON answers, for print. Main thread; a missing field throws.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "daemon/cli/commands.h"

namespace orbitkv::daemon::cli {

inline std::string size_of(const nlohmann::json& object, const char* key) {
  return format_size(ByteCount(object.at(key).get<std::uint64_t>()));
}
inline unsigned long long count_of(const nlohmann::json& object, const char* key) {
  return object.at(key).get<unsigned long long>();
}

}  // namespace orbitkv::daemon::cli
