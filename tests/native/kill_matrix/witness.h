// How an engine that lives on looks at what is there, also where blocks come from SSD. Any thread,
// one an engine.
#pragma once

#include <cstdint>

#include "tests/native/engine.h"

namespace orbitkv::test::kills {

// Asks until what comes from SSD is there, restores it into block, block + 1, ..., and compares.
// Only a restore that is a success has wrong bytes: of another nothing is used.
Engine::Restored restore_loaded(Engine& engine, std::uint32_t block, std::uint64_t hash, std::uint32_t count);

}  // namespace orbitkv::test::kills
