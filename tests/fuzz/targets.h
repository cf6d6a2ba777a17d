// The decoders under fuzz: those of wire/decoders_suite.h, the bare frame, the header of a
// slot image, and the pages of ssd/format_suite.h.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace orbitkv::fuzz {

using Bytes = std::vector<std::byte>;
using View = std::span<const std::byte>;

struct Target {
  std::string name;
  Bytes seed;
  // Makes length and checksum right, else no mutation would get past those.
  std::function<void(Bytes&)> repair;
  // Decodes; stops the process if a value is over a limit or not the only form of
  // itself. True if the bytes were accepted.
  std::function<bool(View)> accepts;
};

std::vector<Target> targets();

// Called with every accepted input; the planted twin stops the process at some.
void accepted(std::string_view name, View bytes);

}  // namespace orbitkv::fuzz
