// SHA-256 (FIPS 180-4), for namespace digests and the example engine's block hashes.
// Own code because the client library links nothing but libc and libstdc++; not on
// any hot path. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace orbitkv {

std::array<std::byte, 32> sha256(std::span<const std::byte> bytes);

}  // namespace orbitkv
