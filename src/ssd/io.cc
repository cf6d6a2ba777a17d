#include "ssd/io.h"

#include "base/log.h"
#include "ssd/pool_io.h"
#include "ssd/uring_io.h"

namespace orbitkv::ssd {

Result<std::unique_ptr<Io>> make_io(IoKind kind, const IoOptions& options) {
  if (kind == IoKind::kThreads) return make_pool_io(options);
  auto ring = make_uring_io(options);
  if (ring.ok() || kind == IoKind::kUring) return ring;
  ORBITKV_INFO("SSD I/O uses threads: %s", ring.error().message().c_str());
  return make_pool_io(options);
}

}  // namespace orbitkv::ssd
