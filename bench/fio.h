// fio on a file that is already written, as the ceiling of the SSD benches: io_uring,
// O_DIRECT, registered buffers and files, one job. A child process a run; its figures are
// those that it reports of its job. Bench's main thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"

namespace orbitkv::bench {

struct FioJob {
  bool write = false;
  std::string file;  // a path that the child can open
  ByteCount file_bytes;
  ByteCount block;
  std::uint32_t depth = 1;
  std::string memory;  // of fio's option iomem: "malloc", "mmaphuge:<file>"
  std::uint32_t seconds = 1;
};

struct FioFigures {
  double gb_per_s = 0;
  double cpu_s_per_gib = 0;  // user and system, of the job
};

bool have_fio();
Result<FioFigures> run_fio(const FioJob& job);

}  // namespace orbitkv::bench
