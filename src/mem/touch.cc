#include "mem/touch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/limits.h"

namespace orbitkv::mem {
namespace {

constexpr int kMadvCollapse = 25;  // MADV_COLLAPSE, Linux 6.1
constexpr int kCollapseTries = 4;
constexpr unsigned kRetryMicroseconds = 1000;

}  // namespace

int touch(std::byte* at, ByteCount bytes) {
  for (;;) {
    // A store would raise SIGBUS where a limit is reached; this returns.
    if (::madvise(at, bytes.value, MADV_POPULATE_WRITE) == 0) return 0;
    // Linux before 5.14 does not know it: fill_holes() allocates at the end.
    if (errno == EINVAL) return 0;
    if (errno != EINTR && errno != EAGAIN) return errno == EFAULT ? ENOMEM : errno;
  }
}

int collapse(std::byte* at, const std::atomic<bool>& stop) {
  int error = 0;
  for (int i = 0; i < kCollapseTries && !stop; ++i) {
    if (i > 0) ::usleep(kRetryMicroseconds << i);
    if (::madvise(at, limits::kHugePageBytes.value, kMadvCollapse) == 0) return 0;
    error = errno;
    if (error != EAGAIN && error != EBUSY && error != ENOMEM) break;
  }
  return error == 0 ? EAGAIN : error;
}

std::string explain_collapse_refusal() {
  std::ifstream setting("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string modes;
  if (!std::getline(setting, modes)) return "this kernel is built without transparent huge pages";
  if (::prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1)
    return "transparent huge pages are disabled for this process (PR_SET_THP_DISABLE)";
  return "the kernel refuses to collapse shared memory: that needs Linux 6.1, and "
         "/sys/kernel/mm/transparent_hugepage/shmem_enabled is \"" +
         modes + "\", where \"advise\" helps and \"deny\" forbids";
}

int fill_holes(const UniqueFd& memory, ByteCount bytes) {
  while (::fallocate(memory.get(), 0, 0, static_cast<off_t>(bytes.value)) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace orbitkv::mem
