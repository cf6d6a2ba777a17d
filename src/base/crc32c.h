// CRC32C (Castagnoli), hardware instruction where the CPU has it. Own code because
// the client library links nothing but libc and libstdc++. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace orbitkv {

// Continues from `seed` (0 to start): crc32c("123456789") = 0xE3069283.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

// The same by table, for CPUs without the instruction (and to test against).
std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t seed = 0);

}  // namespace orbitkv
