#include "capi/sized.h"

#include "base/text.h"

namespace orbitkv::capi {
namespace {
// No struct of this interface comes near it in any version: more is an uninitialised size.
constexpr std::size_t kMostBytes = 4096;
}  // namespace

Outcome reject(std::string message) {
  return {client::Action::kReject, std::move(message)};
}

Outcome check_size(SizedName name, Sizes sizes, const void* given) {
  if (given == nullptr) return reject(format_text("%s is NULL", name.name));
  if (sizes.given < sizes.first || sizes.given > kMostBytes)
    return reject(format_text("the size of %s is %zu, which no version of it has; start from %s", name.name,
                              sizes.given, name.init));
  const auto* bytes = static_cast<const std::byte*>(given);
  for (std::size_t i = sizes.known; i < sizes.given; ++i)
    if (bytes[i] != std::byte{0})
      return reject(
          format_text("%s has members that this library (version %s) does not know; "
                      "leave them 0 or load a newer liborbitkv",
                      name.name, orbitkv_version()));
  return {};
}

Outcome check_array(ArrayText text, const void* first, std::size_t count) {
  if (count > 0 && first == nullptr) return reject(format_text("%s is NULL but has a count", text.name));
  if (count > text.most)
    return reject(format_text("%s has %zu elements, at most %zu are possible", text.name, count, text.most));
  return {};
}

Outcome mixed_sizes(const char* name) {
  return reject(format_text("the elements of %s have different sizes; start each from its _INIT", name));
}

}  // namespace orbitkv::capi
