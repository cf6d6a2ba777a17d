// `orbitkv bench adopt`: how long the next life of a Manager takes until the blocks of the last one
// are hits (docs/upgrade.md): reading and checking the kept table, pool, core, its own table. Sparse
// slabs, slots of 64 KiB, written in random order. Beside it a plain copy of the table's bytes.
// Uses no Manager.
#pragma once

#include "bench/harness.h"

namespace orbitkv::bench {

// Returns the exit status: 1 when a block was not taken over.
int run_adopt_bench(const Options& options);

}  // namespace orbitkv::bench
