#include "shm/session_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "shm/shared_copy.h"
#include "wire/frame.h"

namespace orbitkv::shm {
namespace {

constexpr int kSeals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
// With these the Manager's own mapping would fail or be read-only.
constexpr int kForbiddenSeals = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;

// `now`: MAP_POPULATE, or 0 where few of its pages are looked at.
Result<std::byte*> map(int fd, int now = MAP_POPULATE) {
  void* base = ::mmap(nullptr, SessionLayout::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | now, fd, 0);
  if (base == MAP_FAILED) return errno_error("cannot map the session memory");
  // A forked child must not act on a session that is its parent's.
  if (::madvise(base, SessionLayout::kBytes, MADV_DONTFORK) != 0) {
    const Error error = errno_error("cannot keep the session memory out of forked children");
    ::munmap(base, SessionLayout::kBytes);
    return error;
  }
  return static_cast<std::byte*>(base);
}

Status check_seals(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return reject("the session descriptor is not a memfd; the Manager and this client disagree");
  if ((seals & kSeals) != kSeals || (seals & kForbiddenSeals) != 0) {
    return reject("the session memory carries the seals " + std::to_string(seals) +
                  "; its size must be sealed and its contents must not be");
  }
  return ok_status();
}

Status check_abi(std::uint16_t theirs) {
  if (theirs == wire::kAbiVersion) return ok_status();
  const std::string versions = "the Manager speaks session ABI " + std::to_string(theirs) +
                               ", this client speaks " + std::to_string(wire::kAbiVersion);
  if (theirs > wire::kAbiVersion) {
    return reject(versions + "; upgrade the orbitkv package of this engine to the Manager's version");
  }
  return reject(versions + "; upgrade the Manager (orbitkv serve) to the version of this engine's package");
}

enum class Reader : bool { kClient, kNextManager };

Status check_version(const SessionIdentity& identity, Reader reader) {
  if (reader == Reader::kClient) return check_abi(identity.abi);
  if (identity.records == kRecordLayout) return ok_status();
  return reject("its records have layout " + std::to_string(identity.records) +
                ", this Manager reads layout " + std::to_string(kRecordLayout));
}

struct Whose {
  SessionId session;
  Epoch epoch;
};

Status check_identity(int fd, const Whose& whose, Reader reader) {
  const auto [session, epoch] = whose;
  SessionIdentity identity;
  const auto got = ::pread(fd, &identity, sizeof identity, 0);
  if (got != static_cast<ssize_t>(sizeof identity)) {
    return reject("the session memory has no header; the Manager and this client disagree");
  }
  if (identity.magic != kSessionMagic) {
    return reject(
        "the session descriptor holds no OrbitKV session; what answers on the socket is no Manager");
  }
  ORBITKV_RETURN_IF_ERROR(check_version(identity, reader));
  struct stat status{};
  if (::fstat(fd, &status) != 0) return errno_error("cannot size the session memory");
  if (identity.bytes != SessionLayout::kBytes ||
      status.st_size != static_cast<off_t>(SessionLayout::kBytes)) {
    return reject("the session memory has " + std::to_string(status.st_size) +
                  " bytes, this client expects " + std::to_string(SessionLayout::kBytes) +
                  "; build the Manager and the client from one version");
  }
  if (identity.session != session.value || identity.epoch != epoch.value) {
    return Error(Code::kReconnect,
                 "the session memory belongs to session " + std::to_string(identity.session) + " epoch " +
                     std::to_string(identity.epoch) + ", not to this attachment; attach again");
  }
  return ok_status();
}

}  // namespace

Result<SessionMemory> SessionMemory::create(SessionId session, Epoch epoch) {
  SessionMemory memory;
  memory.fd_ = UniqueFd(::memfd_create("orbitkv-session", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.fd_.valid()) return errno_error("cannot make a session memfd");
  const int fd = memory.fd_.get();
  // Allocated now: later a missing page would be a SIGBUS instead of an error.
  if (::fallocate(fd, 0, 0, static_cast<off_t>(SessionLayout::kBytes)) != 0) {
    return busy("no memory for another session (" + std::to_string(SessionLayout::kBytes) +
                " bytes): " + errno_error("fallocate").message());
  }
  const SessionIdentity identity{kSessionMagic, wire::kAbiVersion, kRecordLayout,
                                 session.value, epoch.value,       SessionLayout::kBytes};
  if (::pwrite(fd, &identity, sizeof identity, 0) != static_cast<ssize_t>(sizeof identity)) {
    return errno_error("cannot write the session header");
  }
  if (::fcntl(fd, F_ADD_SEALS, kSeals) != 0) return errno_error("cannot seal the session memfd");
  ORBITKV_ASSIGN_OR_RETURN(memory.base_, map(fd));
  return memory;
}

Result<SessionMemory> SessionMemory::attach(UniqueFd fd, SessionId session, Epoch epoch) {
  ORBITKV_RETURN_IF_ERROR(check_seals(fd.get()));
  ORBITKV_RETURN_IF_ERROR(check_identity(fd.get(), {session, epoch}, Reader::kClient));
  SessionMemory memory;
  ORBITKV_ASSIGN_OR_RETURN(memory.base_, map(fd.get()));
  return memory;
}

Result<SessionMemory> SessionMemory::adopt(UniqueFd fd, SessionId session, Epoch epoch) {
  ORBITKV_RETURN_IF_ERROR(check_seals(fd.get()));
  ORBITKV_RETURN_IF_ERROR(check_identity(fd.get(), {session, epoch}, Reader::kNextManager));
  SessionMemory memory;
  ORBITKV_ASSIGN_OR_RETURN(memory.base_, map(fd.get(), 0));
  return memory;
}

SessionMemory::SessionMemory(SessionMemory&& other) noexcept
    : fd_(std::move(other.fd_)), base_(std::exchange(other.base_, nullptr)), alias_(other.alias_) {}

SessionMemory& SessionMemory::operator=(SessionMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(base_, other.base_);
  std::swap(alias_, other.alias_);
  return *this;
}

SessionMemory::~SessionMemory() {
  if (base_ != nullptr && !alias_) ::munmap(base_, SessionLayout::kBytes);
}

SessionMemory SessionMemory::alias() const {
  SessionMemory other;
  other.base_ = base_;
  other.alias_ = true;
  return other;
}

SessionHeader& SessionMemory::header() const {
  return *reinterpret_cast<SessionHeader*>(base_ + SessionLayout::kHeader);
}

RecordLayout& SessionMemory::record(RecordIndex index) const {
  ORBITKV_CHECK(index.value < limits::kRecords, "record index out of the session's records");
  return reinterpret_cast<RecordLayout*>(base_ + SessionLayout::kRecords)[index.value];
}

std::byte* SessionMemory::slot(std::uint32_t index) const {
  ORBITKV_CHECK(index < limits::kDescriptorSlots, "slot out of the session's slots");
  return base_ + SessionLayout::kSlots + std::uint64_t{index} * limits::kDescriptorSlotBytes;
}

std::byte* SessionMemory::plan_bank() const {
  return base_ + SessionLayout::kPlanBank;
}

std::atomic<std::uint64_t>& SessionMemory::dirty(std::uint32_t word) const {
  ORBITKV_CHECK(word < limits::kRecords / 64, "word out of the dirty bitset");
  return reinterpret_cast<std::atomic<std::uint64_t>*>(base_ + SessionLayout::kDirty)[word];
}

std::byte* SessionMemory::ring(Side producer) const {
  return base_ + (producer == Side::kClient ? SessionLayout::kCommandRing : SessionLayout::kReplyRing);
}

}  // namespace orbitkv::shm
