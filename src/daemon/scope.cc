#include "daemon/scope.h"

#include <nlohmann/json.hpp>

namespace orbitkv::daemon {
namespace {

using nlohmann::json;
constexpr std::size_t kScopeBytes = 64;
constexpr const char* kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

// Null: there is none.
json member_of(const std::string& name_space) {
  if (name_space.empty() || name_space.front() != '{') return {};
  const json object = json::parse(name_space, nullptr, false);
  return object.is_object() ? object.value("scope", json()) : json();
}

}  // namespace

std::string scope_of(const std::string& name_space) {
  const json scope = member_of(name_space);
  return scope.is_string() ? scope.get<std::string>() : std::string();
}

Status check_scope(const std::string& name_space) {
  const json scope = member_of(name_space);
  if (scope.is_null()) return ok_status();
  const std::string text = scope.is_string() ? scope.get<std::string>() : std::string();
  const bool right =
      !text.empty() && text.size() <= kScopeBytes && text.find_first_not_of(kLetters) == std::string::npos;
  if (right) return ok_status();
  return reject(
      "the \"scope\" of the namespace is 1 to 64 of A-Z a-z 0-9 . _ - in a string; give it another name, or "
      "leave it out");
}

}  // namespace orbitkv::daemon
