// In place of uring_io.cc where liburing was not found at build time.
#include "ssd/uring_io.h"

namespace orbitkv::ssd {

Result<std::unique_ptr<Io>> make_uring_io(const IoOptions&) {
  return reject("this program was built without io_uring; install liburing-dev and build again");
}

}  // namespace orbitkv::ssd
