// `orbitkv bench ssd`: random reads and writes of the store's I/O on a fully written
// file, beside fio on the same file from the same kind of pages, by turns. The file has
// no name, so that nothing is left whatever ends the bench. Then whole loads through a
// Manager (bench/ssd_manager.h).
#pragma once

#include <string>

#include "bench/harness.h"

namespace orbitkv::bench {

std::string ssd_case_names();  // for --help

// Returns the exit status: 0, or 1 when a request failed or the file cannot be made.
int run_ssd_bench(const Options& options);

}  // namespace orbitkv::bench
