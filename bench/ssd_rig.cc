#include "bench/ssd_rig.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <utility>

#include "base/limits.h"
#include "base/text.h"
#include "mem/host_memory.h"
#include "mem/touch.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint64_t kHuge = limits::kHugePageBytes.value;
constexpr ByteCount kDefaultFile = 8 * kGiB;
constexpr std::uint64_t kWriteBlock = 4 * kMiB.value;
constexpr ByteCount kLeastFile(8 * kWriteBlock);

std::uint64_t rounded(std::uint64_t bytes) {
  return (bytes + kHuge - 1) / kHuge * kHuge;
}

std::byte* map_aligned(int fd, std::uint64_t bytes) {
  void* space = ::mmap(nullptr, bytes + kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return nullptr;
  const std::uint64_t at = rounded(reinterpret_cast<std::uintptr_t>(space));
  void* mapped =
      ::mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

std::string unfit(const std::string& directory, ByteCount bytes, ByteCount free) {
  const auto mib = [](ByteCount of) { return static_cast<unsigned long long>(of.value >> 20); };
  if (bytes < kLeastFile && free >= kLeastFile)
    return format_text("--file-size is at least %llu MiB: in a smaller file blocks would lie on each other",
                       mib(kLeastFile));
  return format_text("%s has %llu MiB free, the bench needs %llu; use --path or --file-size",
                     directory.c_str(), mib(free), mib(std::max(bytes, kLeastFile)));
}

// Bytes that are in huge pages then.
std::uint64_t collapse_all(std::byte* base, std::uint64_t bytes) {
  const std::atomic<bool> stop{false};
  std::uint64_t huge = 0;
  for (std::uint64_t at = 0; at < bytes; at += kHuge) {
    base[at] = std::byte{1};  // what was never touched cannot be collapsed
    if (mem::collapse(base + at, stop) == 0) huge += kHuge;
  }
  return huge;
}

}  // namespace

Result<SsdMemory> SsdMemory::make(ByteCount bytes) {
  SsdMemory out;
  // fio aligns inside and rounds up.
  const std::uint64_t size = rounded(bytes.value) + kHuge;
  const bool reserved = mem::read_host_memory().reserved_huge.value >= size;
  const unsigned flags = MFD_CLOEXEC | (reserved ? MFD_HUGETLB | MFD_HUGE_2MB : 0u);
  out.fd_ = UniqueFd(::memfd_create("orbitkv-bench-ssd", flags));
  if (!out.fd_.valid() || ::ftruncate(out.fd_.get(), static_cast<off_t>(size)) != 0)
    return errno_error("cannot make the memory of the bench");
  out.base_ = map_aligned(out.fd_.get(), size);
  if (out.base_ == nullptr) return errno_error("cannot map the memory of the bench");
  out.size_ = ByteCount(size);
  const std::uint64_t huge = reserved ? size : collapse_all(out.base_, size);
  out.huge_ = huge == size;
  out.pages_ = reserved ? "reserved 2 MiB"
               : out.huge_
                   ? "collapsed 2 MiB"
                   : format_text("%llu%% in 2 MiB", static_cast<unsigned long long>(huge * 100 / size));
  std::mt19937_64 random(size);
  for (std::uint64_t i = 0; i < size; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(out.base_ + i, &word, sizeof word);
  }
  return out;
}

SsdMemory::SsdMemory(SsdMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      base_(std::exchange(other.base_, nullptr)),
      size_(other.size_),
      pages_(std::move(other.pages_)),
      huge_(other.huge_) {}

SsdMemory::~SsdMemory() {
  if (base_ != nullptr) ::munmap(base_, size_.value);
}

std::string SsdMemory::fio_memory() const {
  if (!huge_) return "malloc";
  return format_text("mmaphuge:/proc/%d/fd/%d", ::getpid(), fd_.get());
}

Result<SsdFile> SsdFile::make(const std::string& directory, ByteCount bytes) {
  struct statvfs space{};
  if (::statvfs(directory.c_str(), &space) != 0) return errno_error("cannot look at " + directory);
  const ByteCount free(std::uint64_t{space.f_bavail} * space.f_frsize);
  const bool given = bytes != ByteCount{};
  if (!given) bytes = std::min(kDefaultFile, ByteCount(free.value / 3));
  if (bytes > free || (given && bytes < kLeastFile) || free < kLeastFile)
    return reject(unfit(directory, bytes, free));
  bytes.value = std::max(bytes, kLeastFile).value / kWriteBlock * kWriteBlock;
  SsdFile out;
  out.bytes_ = bytes;
  out.fd_ = UniqueFd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!out.fd_.valid()) return errno_error("cannot make a file in " + directory);
  ORBITKV_RETURN_IF_ERROR(out.write_all());
  return out;
}

std::string SsdFile::path() const {
  return format_text("/proc/%d/fd/%d", ::getpid(), fd_.get());
}

// In order and in large pieces, so that the file is laid out as a store's is.
Status SsdFile::write_all() {
  auto memory = SsdMemory::make(ByteCount(kWriteBlock));
  if (!memory.ok()) return memory.error();
  if (::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes_.value)) != 0 && errno != EOPNOTSUPP)
    return errno_error("cannot reserve the file of the bench");
  const UniqueFd direct(::open(path().c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
  const int fd = direct.valid() ? direct.get() : fd_.get();
  for (std::uint64_t at = 0; at < bytes_.value; at += kWriteBlock) {
    const auto wrote = ::pwrite(fd, memory->bytes().data(), kWriteBlock, static_cast<off_t>(at));
    if (wrote != static_cast<ssize_t>(kWriteBlock)) return errno_error("cannot write the file of the bench");
  }
  if (::fsync(fd) != 0) return errno_error("cannot write the file of the bench");
  return ok_status();
}

}  // namespace orbitkv::bench
