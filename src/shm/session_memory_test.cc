#include "shm/session_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "wire/frame.h"

namespace orbitkv::shm {
namespace {

constexpr SessionId kSession{3};
constexpr Epoch kEpoch{41};

SessionMemory make() {
  return std::move(SessionMemory::create(kSession, kEpoch)).value();
}
UniqueFd copy_of(int fd) {
  return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

// What another program might hand over in place of a session.
struct Forgery {
  std::uint64_t size = SessionLayout::kBytes;
  SessionIdentity identity{kSessionMagic,  wire::kAbiVersion, kRecordLayout,
                           kSession.value, kEpoch.value,      SessionLayout::kBytes};
  int seals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;

  UniqueFd make() const {
    UniqueFd fd(::memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(size)), 0);
    const std::size_t n = std::min(size, std::uint64_t{sizeof identity});
    EXPECT_EQ(::pwrite(fd.get(), &identity, n, 0), static_cast<ssize_t>(n));
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
  }
  Error refusal() const {
    auto attached = SessionMemory::attach(make(), kSession, kEpoch);
    EXPECT_FALSE(attached.ok());
    return attached.ok() ? bug("attached") : attached.error();
  }
};

TEST(SessionMemory, BothSidesSeeOneMemory) {
  SessionMemory manager = make();
  auto client = SessionMemory::attach(copy_of(manager.fd()), kSession, kEpoch);
  ASSERT_TRUE(client.ok()) << client.error().to_string();
  EXPECT_NE(manager.slot(0), client->slot(0));
  std::memset(client->slot(limits::kDescriptorSlots - 1), 0x5A, limits::kDescriptorSlotBytes);
  EXPECT_EQ(manager.slot(limits::kDescriptorSlots - 1)[limits::kDescriptorSlotBytes - 1], std::byte{0x5A});
  client->record(RecordIndex(limits::kRecords - 1)).word.store(77);
  EXPECT_EQ(manager.record(RecordIndex(limits::kRecords - 1)).word.load(), 77u);
  client->plan_bank()[limits::kPlanBankBytes - 1] = std::byte{9};
  EXPECT_EQ(manager.plan_bank()[limits::kPlanBankBytes - 1], std::byte{9});
}

TEST(SessionMemory, AreasDoNotOverlap) {
  SessionMemory memory = make();
  struct Area {
    std::byte* at;
    std::uint64_t bytes;
  };
  auto* base = reinterpret_cast<std::byte*>(&memory.header());
  const Area areas[] = {
      {base, sizeof(SessionHeader)},
      {memory.ring(Side::kClient), limits::kRingEntries * wire::kCommandBytes},
      {memory.ring(Side::kManager), limits::kRingEntries * wire::kCommandBytes},
      {reinterpret_cast<std::byte*>(&memory.dirty(0)), limits::kRecords / 8},
      {reinterpret_cast<std::byte*>(&memory.record(RecordIndex(0))), limits::kRecords * sizeof(RecordLayout)},
      {memory.slot(0), std::uint64_t{limits::kDescriptorSlots} * limits::kDescriptorSlotBytes},
      {memory.plan_bank(), limits::kPlanBankBytes},
  };
  std::byte* end = base;
  for (const Area& area : areas) {
    EXPECT_GE(area.at, end);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(area.at) % 64, 0u);
    end = area.at + area.bytes;
  }
  EXPECT_EQ(end, base + SessionLayout::kBytes);
}

TEST(SessionMemory, TheSizeIsSealed) {
  SessionMemory memory = make();
  EXPECT_NE(::ftruncate(memory.fd(), 4096), 0);
  EXPECT_NE(::ftruncate(memory.fd(), static_cast<off_t>(2 * SessionLayout::kBytes)), 0);
  EXPECT_NE(::fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_EQ(::fcntl(memory.fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(SessionMemory, AForgeryThatIsRightIsAccepted) {
  EXPECT_TRUE(SessionMemory::attach(Forgery().make(), kSession, kEpoch).ok());
}

TEST(SessionMemory, AnotherAbiIsRefusedWithWhatToUpgrade) {
  Forgery newer;
  newer.identity.abi = wire::kAbiVersion + 1;
  EXPECT_EQ(newer.refusal().code(), Code::kReject);
  EXPECT_NE(newer.refusal().message().find("upgrade the orbitkv package"), std::string::npos);
  Forgery older;
  older.identity.abi = wire::kAbiVersion - 1;
  EXPECT_NE(older.refusal().message().find("upgrade the Manager"), std::string::npos);
  // Another version may have another size: the version is what the text names.
  newer.size = newer.identity.bytes = 2 * SessionLayout::kBytes;
  EXPECT_NE(newer.refusal().message().find("session ABI"), std::string::npos);
}

// What the next Manager asks about copies under way does not change with the rest of the ABI.
TEST(SessionMemory, TheNextManagerLooksAtTheLayoutOfRecordsInstead) {
  const auto adopted = [](const Forgery& forgery) {
    return SessionMemory::adopt(forgery.make(), kSession, kEpoch).ok();
  };
  Forgery other;
  EXPECT_TRUE(adopted(other));
  other.identity.abi = wire::kAbiVersion + 1;
  EXPECT_TRUE(adopted(other));
  other.identity.records = kRecordLayout + 1;
  EXPECT_FALSE(adopted(other));
  other = Forgery();
  other.identity.epoch = kEpoch.value + 1;
  EXPECT_FALSE(adopted(other));
  other = Forgery();
  other.size = other.identity.bytes = 2 * SessionLayout::kBytes;
  EXPECT_FALSE(adopted(other));
}

TEST(SessionMemory, AnotherSessionOrEpochAsksForANewAttach) {
  Forgery forgery;
  forgery.identity.epoch = kEpoch.value + 1;
  EXPECT_EQ(forgery.refusal().code(), Code::kReconnect);
  forgery = Forgery();
  forgery.identity.session = kSession.value + 1;
  EXPECT_EQ(forgery.refusal().code(), Code::kReconnect);
}

TEST(SessionMemory, AnotherSizeMagicOrSealIsRefused) {
  Forgery forgery;
  forgery.size -= 4096;
  EXPECT_NE(forgery.refusal().message().find("bytes"), std::string::npos);
  forgery = Forgery();
  forgery.size = 8;
  EXPECT_EQ(forgery.refusal().code(), Code::kReject);
  forgery = Forgery();
  forgery.identity.bytes += 4096;
  EXPECT_EQ(forgery.refusal().code(), Code::kReject);
  forgery = Forgery();
  forgery.identity.magic ^= 1;
  EXPECT_NE(forgery.refusal().message().find("no Manager"), std::string::npos);
  forgery = Forgery();
  forgery.seals = F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_NE(forgery.refusal().message().find("sealed"), std::string::npos);
  forgery = Forgery();
  forgery.seals |= F_SEAL_FUTURE_WRITE;
  EXPECT_NE(forgery.refusal().message().find("sealed"), std::string::npos);
}

TEST(SessionMemory, ADescriptorThatIsNoMemfdIsRefused) {
  const auto attached =
      SessionMemory::attach(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)), kSession, kEpoch);
  ASSERT_FALSE(attached.ok());
  EXPECT_EQ(attached.error().code(), Code::kReject);
  EXPECT_FALSE(SessionMemory::attach(UniqueFd(), kSession, kEpoch).ok());
}

TEST(SessionMemory, AMoveTakesTheMappingAlong) {
  SessionMemory a = make();
  a.record(RecordIndex(0)).word.store(5);
  SessionMemory b = std::move(a);
  EXPECT_EQ(b.record(RecordIndex(0)).word.load(), 5u);
  SessionMemory c = make();
  c = std::move(b);
  EXPECT_EQ(c.record(RecordIndex(0)).word.load(), 5u);
}

TEST(SessionMemory, AForkedChildHasNoMapping) {
  SessionMemory memory = make();
  std::byte* base = memory.slot(0);
  const int pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    // mincore() fails with ENOMEM where nothing is mapped.
    unsigned char resident = 0;
    const bool mapped = ::mincore(base, 4096, &resident) == 0;
    ::_exit(mapped ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST(SessionMemoryDeathTest, IndicesOutOfTheirAreaStopTheProcess) {
  SessionMemory memory = make();
  EXPECT_DEATH(memory.record(RecordIndex(limits::kRecords)), "record index");
  EXPECT_DEATH(memory.slot(limits::kDescriptorSlots), "slot");
  EXPECT_DEATH(memory.dirty(limits::kRecords / 64), "dirty");
}

TEST(SessionMemory, AnAliasIsTheSameMapping) {
  SessionMemory memory = make();
  {
    const SessionMemory alias = memory.alias();
    alias.record(RecordIndex(5)).word.store(99);
    EXPECT_EQ(alias.slot(1), memory.slot(1));
  }
  EXPECT_EQ(memory.record(RecordIndex(5)).word.load(), 99u);
}

}  // namespace
}  // namespace orbitkv::shm
