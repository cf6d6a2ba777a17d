// libFuzzer's entry points. The target is picked by --target=NAME, which libFuzzer
// itself ignores.
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "targets.h"

namespace orbitkv::fuzz {
namespace {

std::optional<Target> g_target;

}  // namespace
}  // namespace orbitkv::fuzz

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  using namespace orbitkv::fuzz;
  constexpr std::string_view kFlag = "--target=";
  for (int i = 1; i < *count; ++i) {
    const std::string_view argument = (*arguments)[i];
    if (!argument.starts_with(kFlag)) continue;
    for (Target& target : targets())
      if (target.name == argument.substr(kFlag.size())) g_target = std::move(target);
  }
  if (g_target) return 0;
  std::fprintf(stderr, "name a decoder with --target=NAME:");
  for (const Target& target : targets()) std::fprintf(stderr, " %s", target.name.c_str());
  std::fprintf(stderr, "\n");
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orbitkv::fuzz;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  // Of exactly this size, so that a read past it is seen. Unrepaired bytes would only
  // fill the fuzzer's table of comparisons with checksums; unit tests refuse those.
  Bytes input(bytes, bytes + size);
  g_target->repair(input);
  input.shrink_to_fit();
  if (g_target->accepts(input)) accepted(g_target->name, input);
  return 0;
}
