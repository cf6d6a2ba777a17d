// The cases of `orbitkv bench ssd` that go through a whole Manager: blocks that are on SSD
// only are asked for and waited for, from the first query to the lease. Bench's main thread.
#pragma once

#include <string>

#include "bench/harness.h"
#include "bench/ssd_rig.h"

namespace orbitkv::bench {

struct ManagerReads {
  std::string directory;  // of its store
  const SsdFile& file;    // for fio
  bool fio = false;
};
std::string manager_read_names();
bool wants_manager_reads(const Options& options);
// Returns the exit status.
int run_manager_reads(const Options& options, const ManagerReads& where);

}  // namespace orbitkv::bench
