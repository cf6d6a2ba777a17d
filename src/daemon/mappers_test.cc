#include "daemon/mappers.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/processes.h"

namespace orbitkv::daemon {
namespace {

constexpr SessionId kOne{1}, kTwo{2};
constexpr SlabId kSlab{7}, kOther{8};

TEST(Mappers, AReceiptIsTakenOnceFromThoseWhoWereAsked) {
  Mappers mappers;
  mappers.open(kOne, ProcessId(5), 500);
  EXPECT_FALSE(mappers.released(kOne, kSlab)) << "never offered";
  mappers.offered(kOne, kSlab);
  EXPECT_TRUE(mappers.holds(kOne, kSlab));
  EXPECT_FALSE(mappers.released(kOne, kSlab)) << "not asked";
  mappers.tell(kOne, kSlab);
  EXPECT_TRUE(mappers.anyone(kSlab));
  EXPECT_TRUE(mappers.released(kOne, kSlab));
  EXPECT_FALSE(mappers.released(kOne, kSlab)) << "twice";
  EXPECT_FALSE(mappers.anyone(kSlab));
  EXPECT_FALSE(mappers.released(kTwo, kSlab)) << "no such session";
}

TEST(Mappers, AProcessThatLeftWithoutAWordMapsOnUntilItEnds) {
  Mappers mappers;
  mappers.open(kOne, ProcessId(5), 500);
  mappers.open(kTwo, ProcessId(5), 500);
  mappers.offered(kOne, kSlab);
  mappers.offered(kTwo, kOther);
  mappers.close(kOne, Mappers::Parting::kUnknown);
  mappers.close(kTwo, Mappers::Parting::kUnknown);
  EXPECT_EQ(mappers.processes(), 1u);
  EXPECT_EQ(mappers.who(kSlab), std::vector{500});
  EXPECT_EQ(mappers.who(kOther), std::vector{500});
  // Its next session is another client: nothing is known of the old mapping.
  mappers.open(kOne, ProcessId(5), 500);
  mappers.close(kOne, Mappers::Parting::kUnmapped);
  EXPECT_TRUE(mappers.anyone(kSlab));
  mappers.end(ProcessId(5));
  EXPECT_FALSE(mappers.anyone(kSlab));
  EXPECT_EQ(mappers.processes(), 0u);
}

// Of an earlier life: its first session is asked for all that it may have mapped.
TEST(Mappers, AnInheritedProcessAnswersThroughItsNextSession) {
  Mappers mappers;
  mappers.inherit(ProcessId(5), 500, {kSlab, kOther});
  mappers.inherit(ProcessId(6), 600, {kSlab});
  mappers.inherit(ProcessId(), 0, {kSlab});
  EXPECT_EQ(mappers.who(kSlab), (std::vector{500, 600}));
  EXPECT_TRUE(mappers.left(ProcessId(5)));
  EXPECT_FALSE(mappers.left(ProcessId()));
  mappers.open(kOne, ProcessId(5), 500);
  EXPECT_FALSE(mappers.left(ProcessId(5)));
  EXPECT_TRUE(mappers.holds(kOne, kOther));
  mappers.offered(kOne, kSlab);
  EXPECT_FALSE(mappers.released(kOne, kOther)) << "not asked";
  mappers.tell(kOne, kOther);
  EXPECT_TRUE(mappers.released(kOne, kOther));
  EXPECT_FALSE(mappers.anyone(kOther));
  mappers.end(ProcessId(6));
  EXPECT_EQ(mappers.who(kSlab), std::vector{500});
  mappers.close(kOne, Mappers::Parting::kUnknown);
  EXPECT_TRUE(mappers.left(ProcessId(5)));
  // That one did not last, and was not asked about all: the next is.
  mappers.open(kTwo, ProcessId(5), 500);
  EXPECT_TRUE(mappers.holds(kTwo, kSlab));
  mappers.tell(kTwo, kSlab);
  EXPECT_TRUE(mappers.released(kTwo, kSlab));
  EXPECT_FALSE(mappers.anyone(kSlab));
}

// The end of the process may be seen before that of its connection.
TEST(Mappers, ASessionThatOutlivesItsProcessLeavesNothing) {
  Mappers mappers;
  mappers.open(kOne, ProcessId(5), 500);
  mappers.offered(kOne, kSlab);
  mappers.end(ProcessId(5));
  mappers.close(kOne, Mappers::Parting::kUnknown);
  EXPECT_FALSE(mappers.anyone(kSlab));
  EXPECT_EQ(mappers.processes(), 0u);
}

TEST(Mappers, GoodbyeAndARetractedOfferLeaveNothing) {
  Mappers mappers;
  mappers.open(kOne, ProcessId(5), 500);
  mappers.offered(kOne, kSlab);
  mappers.offered(kOne, kOther);
  mappers.retracted(kOne, kOther);
  EXPECT_FALSE(mappers.anyone(kOther));
  mappers.close(kOne, Mappers::Parting::kUnmapped);
  EXPECT_FALSE(mappers.anyone(kSlab));
  // Nobody would tell of its end.
  mappers.open(kTwo, ProcessId(), 1);
  mappers.offered(kTwo, kSlab);
  mappers.close(kTwo, Mappers::Parting::kUnknown);
  EXPECT_FALSE(mappers.anyone(kSlab));
}

TEST(Processes, HaveOneNameUntilTheyEnd) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  ASSERT_TRUE(pidfd.valid());
  Processes processes;
  const ProcessId first = *processes.enter(child, pidfd);
  EXPECT_NE(first.value, 0u);
  EXPECT_EQ(*processes.enter(child, pidfd), first);
  EXPECT_TRUE(processes.take_ended().empty());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  // The number is given again before anybody noticed the end.
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  EXPECT_NE(*processes.enter(child, self), first);
  EXPECT_EQ(processes.take_ended(), std::vector{first});
  EXPECT_TRUE(processes.take_ended().empty());
  EXPECT_EQ(processes.count(), 1u);
}

// Of a PID namespace that we cannot see; the kernel tells such pidfds apart since 6.9.
TEST(Processes, AProcessWithoutANumberIsKnownByItsPidfd) {
  const UniqueFd one(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  const UniqueFd two(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  const UniqueFd other(static_cast<int>(::syscall(SYS_pidfd_open, ::getppid(), 0)));
  struct statfs system{};
  ASSERT_EQ(::fstatfs(one.get(), &system), 0);
  const bool told = system.f_type == 0x50494446;
  Processes processes;
  const ProcessId first = *processes.enter(0, one);
  EXPECT_EQ(*processes.enter(0, two) == first, told);
  EXPECT_NE(*processes.enter(0, other), first);
  if (told) EXPECT_EQ(processes.enter(two).id, first);
}

}  // namespace
}  // namespace orbitkv::daemon
