#include "ssd/real_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/text.h"
#include "base/time.h"

namespace orbitkv::ssd {
namespace {

constexpr mode_t kMode = 0600;
constexpr Duration kLockWait = milliseconds(2000);

Error refusal(const std::string& path, int error) {
  const char* remedy = "";
  if (error == EACCES || error == EPERM) remedy = "; give this user read and write access";
  if (error == EROFS) remedy = "; mount its file system writable";
  if (error == ENOENT) remedy = "; make its directory";
  if (error == EISDIR) remedy = "; name a file in it, for example orbitkv.ssd";
  if (error == EBUSY) remedy = "; the device is mounted or in use: unmount it or name another";
  if (error == ENOSPC || error == EDQUOT) remedy = "; free space there or ask for fewer bytes";
  return reject(format_text("SSD path %s: %s%s", path.c_str(), std::strerror(error), remedy));
}

// O_DIRECT where it is to be had.
int open_how(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_RDWR | O_CLOEXEC | O_DIRECT, kMode);
  if (fd >= 0 || errno != EINVAL) return fd;
  return ::open(path.c_str(), flags | O_RDWR | O_CLOEXEC, kMode);
}

Result<OpenFile> open_or_make(const std::string& path) {
  OpenFile out;
  struct stat status{};
  // O_EXCL refuses a block device that is mounted.
  const bool device = ::stat(path.c_str(), &status) == 0 && S_ISBLK(status.st_mode);
  out.fd = UniqueFd(open_how(path, device ? O_EXCL : 0));
  if (!out.fd.valid() && errno == ENOENT && ::lstat(path.c_str(), &status) == 0) {
    return reject(
        format_text("SSD path %s: it is a link to what is not there; is the device missing? Attach it, "
                    "or name another path",
                    path.c_str()));
  }
  if (!out.fd.valid() && errno == ENOENT) {
    out.fd = UniqueFd(open_how(path, O_CREAT | O_EXCL));
    out.made = out.fd.valid();
  }
  if (!out.fd.valid()) return refusal(path, errno);
  return out;
}

// STATX_DIOALIGN; 512 where the file is not opened with O_DIRECT.
IoAlignment alignment_of(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_DIRECT) == 0) return {512, 512};
  struct statx status{};
  const bool known = ::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
                     (status.stx_mask & STATX_DIOALIGN) != 0 && status.stx_dio_offset_align != 0;
  if (!known) return {4096, 4096};
  return {std::max(status.stx_dio_mem_align, 512u), std::max(status.stx_dio_offset_align, 512u)};
}

Result<std::uint64_t> length_of(int fd) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) return errno_error("cannot size it");
  if (S_ISREG(status.st_mode)) return static_cast<std::uint64_t>(status.st_size);
  std::uint64_t bytes = 0;
  if (!S_ISBLK(status.st_mode)) return reject("it is neither a file nor a block device; name one of these");
  if (::ioctl(fd, BLKGETSIZE64, &bytes) != 0) return errno_error("cannot size the block device");
  return bytes;
}

// The kernel keeps a killed process's lock until the device has ended what that asked for;
// so it is waited for, and nothing of a former process is written later.
Status lock(int fd) {
  const TimePoint end = monotonic_now() + kLockWait;
  int status;
  while ((status = ::flock(fd, LOCK_EX | LOCK_NB)) != 0 && errno == EWOULDBLOCK && monotonic_now() < end)
    ::usleep(10'000);
  if (status == 0) return ok_status();
  if (errno == EWOULDBLOCK)
    return busy("in use by another process; stop it, or give each Manager a path of its own");
  return errno_error("cannot lock it");
}

Result<OpenFile> prepare(OpenFile file, ByteCount bytes) {
  const int fd = file.fd.get();
  if (const auto length = length_of(fd); !length.ok()) return length.error();
  ORBITKV_RETURN_IF_ERROR(lock(fd));
  if (bytes > ByteCount{}) ORBITKV_RETURN_IF_ERROR(grow_real(fd, bytes));
  const auto length = length_of(fd);
  if (!length.ok()) return length.error();
  file.bytes = *length;
  file.alignment = alignment_of(fd);
  return file;
}

int reserve(int fd, ByteCount bytes) {
  while (::fallocate(fd, 0, 0, static_cast<off_t>(bytes.value)) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

Result<OpenFile> open_real(const std::string& path, ByteCount bytes) {
  Result<OpenFile> file = open_or_make(path);
  if (!file.ok()) return file;
  const bool made = file->made;
  Result<OpenFile> ready = prepare(std::move(*file), bytes);
  if (ready.ok()) return ready;
  if (made) ::unlink(path.c_str());
  return Error(ready.error().code(),
               format_text("SSD path %s: %s", path.c_str(), ready.error().message().c_str()));
}

Status grow_real(int fd, ByteCount bytes) {
  const auto length = length_of(fd);
  if (!length.ok()) return length.error();
  struct stat status{};
  if (::fstat(fd, &status) != 0) return errno_error("cannot size it");
  if (S_ISBLK(status.st_mode)) {
    if (*length >= bytes.value) return ok_status();
    return reject(format_text("the block device has %llu bytes, %llu are asked for; ask for fewer",
                              static_cast<unsigned long long>(*length),
                              static_cast<unsigned long long>(bytes.value)));
  }
  // The kernel would take all that is free before it says that it is too little.
  struct statvfs system{};
  const std::uint64_t has = static_cast<std::uint64_t>(status.st_blocks) * 512;
  const std::uint64_t free =
      ::fstatvfs(fd, &system) == 0 ? system.f_bavail * system.f_frsize : ~std::uint64_t{0};
  if (bytes.value > has && bytes.value - has > free)
    return reject(
        format_text("%llu MiB are asked for, its file system has %llu MiB free: free space there or "
                    "ask for fewer",
                    static_cast<unsigned long long>(bytes.value >> 20),
                    static_cast<unsigned long long>((free + has) >> 20)));
  const int error = reserve(fd, bytes);
  if (error == 0) return ok_status();
  if (error != EOPNOTSUPP) {
    if (::ftruncate(fd, static_cast<off_t>(*length)) != 0) ORBITKV_WARN("an unused reservation stays");
    return reject(format_text("cannot reserve %llu MiB: %s; free space there or ask for fewer",
                              static_cast<unsigned long long>(bytes.value >> 20), std::strerror(error)));
  }
  if (*length < bytes.value && ::ftruncate(fd, static_cast<off_t>(bytes.value)) != 0)
    return errno_error("cannot lengthen it");
  return ok_status();
}

bool linked_real(int fd) {
  struct stat status{};
  return fd < 0 || ::fstat(fd, &status) != 0 || status.st_nlink > 0;
}

// A block device is one by its number, whatever names it has.
Io::FileIdentity identity_real(int fd) {
  struct stat status{};
  if (fd < 0 || ::fstat(fd, &status) != 0) return {};
  if (S_ISBLK(status.st_mode)) return {status.st_rdev, 0};
  return {status.st_dev, status.st_ino};
}

void unlock_real(int fd) {
  ::flock(fd, LOCK_UN);
}

ByteCount free_space_real(const std::string& path) {
  struct statvfs status{};
  const std::size_t slash = path.rfind('/');
  const std::string directory = slash == path.npos ? "." : path.substr(0, slash + 1);
  if (::statvfs(path.c_str(), &status) != 0 && ::statvfs(directory.c_str(), &status) != 0) return {};
  return ByteCount(std::uint64_t{status.f_bavail} * status.f_frsize);
}

}  // namespace orbitkv::ssd
