#include "mem/slab.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/limits.h"
#include "mem/mapped_slab.h"

namespace orbitkv::mem {
namespace {

constexpr ByteCount kBytes = 4 * kMiB;

UniqueFd slab() {
  return make_slab_memory(SlabId(3), kBytes, PageSource::kShared).value();
}

UniqueFd memfd(ByteCount bytes, int seals) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes.value)), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

TEST(Slab, NobodyCanResizeOrResealIt) {
  const UniqueFd fd = slab();
  for (const ByteCount size : {ByteCount(0), kBytes - ByteCount(4096), 2 * kBytes}) {
    EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(size.value)), -1);
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_EQ(::fallocate(fd.get(), 0, static_cast<off_t>(kBytes.value), 4096), -1);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(errno, EPERM);
  // Its contents stay open to everyone who maps it.
  EXPECT_EQ(::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_TRUE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC);
}

TEST(Slab, ClientsRefuseWhatCouldChangeUnderThem) {
  constexpr int kGood = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
  EXPECT_TRUE(check_slab_memory(slab(), SlabId(3), kBytes));
  EXPECT_TRUE(check_slab_memory(memfd(kBytes, kGood), SlabId(3), kBytes));
  for (const int seals : {F_SEAL_GROW | F_SEAL_SHRINK, F_SEAL_GROW | F_SEAL_SEAL, F_SEAL_SHRINK | F_SEAL_SEAL,
                          kGood | F_SEAL_WRITE, kGood | F_SEAL_FUTURE_WRITE}) {
    const Status status = check_slab_memory(memfd(kBytes, seals), SlabId(3), kBytes);
    ASSERT_FALSE(status) << seals;
    EXPECT_NE(status.error().message().find("slab 3: seals"), std::string::npos);
  }
  EXPECT_FALSE(check_slab_memory(slab(), SlabId(3), kBytes + ByteCount(1)));
  EXPECT_FALSE(check_slab_memory(UniqueFd(), SlabId(3), kBytes));
  const UniqueFd file(::open(testing::TempDir().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.valid() && ::ftruncate(file.get(), static_cast<off_t>(kBytes.value)) == 0) {
    EXPECT_FALSE(MappedSlab::map(file, SlabId(3), kBytes).ok());
  }
}

// Rows: from; columns: to; in the order of the enum. p: when placed, s: where sparse, a: always.
TEST(Slab, EveryCellOfItsStates) {
  constexpr const char* kEdges[] = {".p.s.a", "..pp..", "...p..", "....a.", ".....a", "......"};
  constexpr int kStates = static_cast<int>(SlabState::kCount);
  for (int from = 0; from < kStates; ++from) {
    for (int to = 0; to < kStates; ++to) {
      for (const Placement placement : {Placement::kBeforeOffer, Placement::kSparse}) {
        SlabInfo info;
        info.state = static_cast<SlabState>(from);
        const auto next = static_cast<SlabState>(to);
        const char edge = kEdges[from][to];
        if (edge == 'a' || edge == (placement == Placement::kSparse ? 's' : 'p')) {
          advance(info, next, placement);
          EXPECT_EQ(info.state, next);
        } else {
          EXPECT_DEATH(advance(info, next, placement), "offered once");
        }
      }
    }
  }
}

TEST(MappedSlab, TwoMappingsAreOneMemoryAndAligned) {
  const UniqueFd fd = slab();
  auto first = MappedSlab::map(fd, SlabId(3), kBytes);
  auto second = MappedSlab::map(fd, SlabId(3), kBytes);
  ASSERT_TRUE(first.ok() && second.ok());
  for (const MappedSlab* each : {&*first, &*second})
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(each->base()) % limits::kHugePageBytes.value, 0u);
  ASSERT_NE(first->base(), second->base());
  const char text[] = "one memory";
  std::byte* const last = first->base() + kBytes.value - sizeof text;
  std::memcpy(last, text, sizeof text);
  EXPECT_EQ(std::memcmp(second->base() + kBytes.value - sizeof text, text, sizeof text), 0);
}

TEST(MappedSlab, MovesAndUnmaps) {
  const UniqueFd fd = slab();
  MappedSlab one = MappedSlab::map(fd, SlabId(3), kBytes).value();
  std::byte* const base = one.base();
  {
    MappedSlab two = std::move(one);
    EXPECT_EQ(two.base(), base);
    EXPECT_EQ(one.base(), nullptr);
    EXPECT_EQ(::msync(base, 4096, MS_ASYNC), 0);
  }
  EXPECT_EQ(::msync(base, 4096, MS_ASYNC), -1);
  EXPECT_EQ(errno, ENOMEM);
}

TEST(MappedSlab, ForkedChildrenDoNotHaveIt) {
  const UniqueFd fd = slab();
  const MappedSlab mapped = MappedSlab::map(fd, SlabId(3), kBytes).value();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::msync(mapped.base(), 4096, MS_ASYNC) == -1 && errno == ENOMEM ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace orbitkv::mem
