#include "shm/channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "base/time.h"
#include "rt/spin.h"

namespace orbitkv::shm {
namespace {

constexpr SessionId kSession{0};
constexpr Epoch kEpoch{9};

UniqueFd copy_of(int fd) {
  return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

wire::CommandBytes numbered(std::uint64_t n) {
  wire::CommandBytes bytes;
  for (std::size_t i = 0; i < 8; ++i) {
    const std::uint64_t word = n * 8 + i;
    std::memcpy(bytes.data() + 8 * i, &word, 8);
  }
  return bytes;
}

bool readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

// Both ends in this process, over two mappings of one session memory, and the raw
// memory as a hostile client has it.
class Channel : public ::testing::Test {
 protected:
  Channel() : Channel(std::move(SessionMemory::create(kSession, kEpoch)).value(), make_bell().value()) {}

  UniqueFd memory_fd_;
  SessionMemory raw;
  ClientChannel client;
  ManagerChannel manager;
  // The client's eventfd, so that a test can see and drop wakes.
  int bell_fd() const { return manager.wake_fd(); }

 private:
  static SessionMemory attach(const SessionMemory& memory) {
    return std::move(SessionMemory::attach(copy_of(memory.fd()), kSession, kEpoch)).value();
  }
  Channel(SessionMemory memory, UniqueFd bell)
      : memory_fd_(copy_of(memory.fd())),
        raw(attach(memory)),
        client(attach(memory), copy_of(bell.get())),
        manager(std::move(memory), std::move(bell)) {}
};

TEST_F(Channel, CommandsAndRepliesKeepTheirOrderAroundTheRing) {
  for (std::uint64_t n = 0; n < 5 * limits::kRingEntries; ++n) {
    ASSERT_TRUE(client.push_command(numbered(2 * n)));
    ASSERT_TRUE(client.push_command(numbered(2 * n + 1)));
    EXPECT_EQ(manager.pop_command(), numbered(2 * n));
    EXPECT_EQ(manager.pop_command(), numbered(2 * n + 1));
    EXPECT_EQ(manager.pop_command(), std::nullopt);
    ASSERT_TRUE(manager.push_reply(numbered(~n)));
    EXPECT_EQ(client.pop_reply(), numbered(~n));
    EXPECT_EQ(client.pop_reply(), std::nullopt);
  }
}

TEST_F(Channel, AFullRingIsAnAnswerAndOneEntryMakesRoom) {
  for (std::uint64_t n = 0; n < limits::kRingEntries; ++n) {
    ASSERT_TRUE(client.push_command(numbered(n)));
    ASSERT_TRUE(manager.push_reply(numbered(n)));
  }
  EXPECT_FALSE(client.push_command(numbered(99)));
  EXPECT_FALSE(manager.push_reply(numbered(99)));
  EXPECT_EQ(manager.pop_command(), numbered(0));
  EXPECT_EQ(client.pop_reply(), numbered(0));
  EXPECT_TRUE(client.push_command(numbered(99)));
  EXPECT_TRUE(manager.push_reply(numbered(99)));
  EXPECT_FALSE(client.poisoned());
  EXPECT_FALSE(manager.poisoned());
}

TEST_F(Channel, AnImpossibleTailPoisonsTheSession) {
  ASSERT_TRUE(client.push_command(numbered(1)));
  raw.header().command_tail.store(limits::kRingEntries + 1);
  EXPECT_EQ(manager.pop_command(), std::nullopt);
  EXPECT_TRUE(manager.poisoned());
  raw.header().command_tail.store(1);
  EXPECT_EQ(manager.pop_command(), std::nullopt) << "once poisoned nothing is read any more";
}

TEST_F(Channel, ATailThatMovesBackPoisonsTheSession) {
  ASSERT_TRUE(client.push_command(numbered(1)));
  ASSERT_TRUE(manager.pop_command());
  raw.header().command_tail.store(0);
  EXPECT_EQ(manager.pop_command(), std::nullopt);
  EXPECT_TRUE(manager.poisoned());
}

TEST_F(Channel, AReplyHeadAheadOfTheRepliesPoisonsTheSession) {
  for (std::uint64_t n = 0; n < limits::kRingEntries; ++n) ASSERT_TRUE(manager.push_reply(numbered(n)));
  raw.header().reply_head.store(limits::kRingEntries + 1);
  EXPECT_FALSE(manager.push_reply(numbered(0)));
  EXPECT_TRUE(manager.poisoned());
}

TEST_F(Channel, AClientThatFindsImpossibleIndicesStops) {
  raw.header().reply_tail.store(limits::kRingEntries + 1);
  EXPECT_EQ(client.pop_reply(), std::nullopt);
  EXPECT_TRUE(client.poisoned());
}

TEST_F(Channel, WhatTheManagerOwnsIsNeverReadBack) {
  ASSERT_TRUE(client.push_command(numbered(1)));
  raw.header().command_head.store(57);
  raw.header().reply_tail.store(57);
  raw.header().manager_bell.store(57);
  EXPECT_EQ(manager.pop_command(), numbered(1));
  EXPECT_EQ(raw.header().command_head.load(), 1u);
  ASSERT_TRUE(manager.push_reply(numbered(2)));
  EXPECT_EQ(client.pop_reply(), numbered(2));
  manager.ring_client();
  EXPECT_EQ(client.bell(), 1u);
}

TEST_F(Channel, APoppedCommandDoesNotChangeWithTheRing) {
  ASSERT_TRUE(client.push_command(numbered(1)));
  const auto command = manager.pop_command();
  std::memset(raw.ring(Side::kClient), 0xFF, limits::kRingEntries * wire::kCommandBytes);
  EXPECT_EQ(command, numbered(1));
}

TEST_F(Channel, SlotsAndBankAreCopied) {
  std::vector<std::byte> frame(limits::kDescriptorSlotBytes, std::byte{7});
  std::memcpy(client.slot(15), frame.data(), frame.size());
  std::vector<std::byte> got;
  manager.copy_slot(15, limits::kDescriptorSlotBytes, got);
  EXPECT_EQ(got, frame);
  manager.write_slot(15, std::span(frame).first(3));
  manager.write_bank(limits::kPlanBankBytes - 5, std::span(frame).first(5));
  client.copy_bank(limits::kPlanBankBytes - 5, 5, got);
  EXPECT_EQ(got, std::vector<std::byte>(5, std::byte{7}));
  client.write_bank(0, std::span(frame).first(2));
  manager.copy_bank(0, 3, got);
  EXPECT_EQ(got, (std::vector<std::byte>{std::byte{7}, std::byte{7}, std::byte{0}}));
  manager.copy_bank(0, 0, got);
  EXPECT_TRUE(got.empty());
}

TEST_F(Channel, RangesOutOfTheirAreaStopTheProcess) {
  std::vector<std::byte> out;
  EXPECT_DEATH(manager.copy_slot(0, limits::kDescriptorSlotBytes + 1, out), "out of the slot");
  EXPECT_DEATH(manager.copy_bank(limits::kPlanBankBytes, 1, out), "out of the plan bank");
  EXPECT_DEATH(client.copy_bank(0xFFFFFFFF, 0xFFFFFFFF, out), "out of the plan bank");
}

// ---- records ----

constexpr RecordIndex kRecord{1023};
RecordWord word(RecordState state, std::uint64_t operation = 1) {
  return {OperationId(operation), state};
}

TEST_F(Channel, ARecordGoesThroughItsLife) {
  using enum RecordState;
  ASSERT_FALSE(client.exchange(kRecord, {}, word(kReserved)));
  ASSERT_FALSE(manager.exchange(kRecord, word(kReserved), word(kPreparing)));
  const GrantFields grant{1, 2, 3, 4};
  manager.write_grant(kRecord, grant);
  ASSERT_FALSE(manager.exchange(kRecord, word(kPreparing), word(kGranted)));
  EXPECT_EQ(client.read_grant(kRecord), grant);
  ASSERT_FALSE(client.exchange(kRecord, word(kGranted), word(kActive)));
  client.write_client_result(kRecord, Code::kRecompute, 48, "fragment 3 of block 2 is wrong");
  ASSERT_FALSE(client.exchange(kRecord, word(kActive), word(kDrained)));
  const auto result = manager.read_client_result(kRecord);
  EXPECT_EQ(result.code, static_cast<std::uint16_t>(Code::kRecompute));
  EXPECT_EQ(result.result_bytes, 48u);
  EXPECT_EQ(result.text, "fragment 3 of block 2 is wrong");
  ASSERT_FALSE(manager.exchange(kRecord, word(kDrained), word(kReaped)));
  ASSERT_FALSE(client.exchange(kRecord, word(kReaped), word(kAcknowledged)));
  ASSERT_FALSE(client.exchange(kRecord, word(kAcknowledged), word(kReserved, 2)));
  EXPECT_EQ(unpack(manager.load_word(kRecord)), word(kReserved, 2));
}

TEST_F(Channel, TheLoserOfTheClaimRaceLearnsWhatIsThere) {
  using enum RecordState;
  raw.record(kRecord).word.store(pack(word(kGranted)));
  ASSERT_FALSE(client.exchange(kRecord, word(kGranted), word(kActive)));
  EXPECT_EQ(manager.exchange(kRecord, word(kGranted), word(kRevoked)), pack(word(kActive)));
  raw.record(kRecord).word.store(pack(word(kGranted)));
  ASSERT_FALSE(manager.exchange(kRecord, word(kGranted), word(kRevoked)));
  EXPECT_EQ(client.exchange(kRecord, word(kGranted), word(kActive)), pack(word(kRevoked)));
}

TEST_F(Channel, AWordThatTheShadowCannotReachIsReportedAsFound) {
  using enum RecordState;
  for (const std::uint64_t found :
       {~std::uint64_t{0}, std::uint64_t{0}, pack(word(kReaped)), pack(word(kPreparing, 9))}) {
    raw.record(kRecord).word.store(found);
    EXPECT_EQ(manager.exchange(kRecord, word(kPreparing), word(kGranted)), found);
    EXPECT_EQ(raw.record(kRecord).word.load(), found) << "and is left as it is";
  }
}

TEST_F(Channel, AnEdgeOfTheOtherSideStopsTheProcess) {
  using enum RecordState;
  EXPECT_DEATH((void)manager.exchange(kRecord, word(kGranted), word(kActive)), "does not own");
  EXPECT_DEATH((void)manager.exchange(kRecord, word(kActive), word(kReaped)), "does not own");
  EXPECT_DEATH((void)client.exchange(kRecord, word(kReserved), word(kPreparing)), "does not own");
  EXPECT_DEATH((void)client.exchange(kRecord, word(kAcknowledged, 2), word(kReserved, 2)), "does not own");
}

TEST_F(Channel, TextsAreCutWrittenAndClampedRead) {
  const std::string lengthy(500, 'x');
  manager.write_failure(kRecord, Code::kBusy, lengthy);
  EXPECT_EQ(client.read_failure(kRecord).code, Code::kBusy);
  EXPECT_EQ(client.read_failure(kRecord).text, std::string(limits::kErrorTextBytes, 'x'));
  client.write_client_result(kRecord, Code::kOk, 0, lengthy);
  EXPECT_EQ(manager.read_client_result(kRecord).text, std::string(limits::kErrorTextBytes, 'x'));
  raw.record(kRecord).client.text_bytes = 0xFFFF;
  raw.record(kRecord).client.text[0] = '\n';
  raw.record(kRecord).client.text[1] = '\x80';
  EXPECT_EQ(manager.read_client_result(kRecord).text, "??" + std::string(limits::kErrorTextBytes - 2, 'x'));
  raw.record(kRecord).manager.code = 200;
  EXPECT_EQ(client.read_failure(kRecord).code, Code::kBug);
  raw.record(kRecord).manager.code = 0;
  EXPECT_EQ(client.read_failure(kRecord).code, Code::kBug) << "a failure is never ok";
}

TEST_F(Channel, DirtyRecordsAreTakenOnce) {
  for (const std::uint32_t index : {0u, 63u, 64u, 700u, 1023u}) client.mark_dirty(RecordIndex(index));
  client.mark_dirty(RecordIndex(64));
  std::vector<RecordIndex> dirty;
  manager.take_dirty(dirty);
  EXPECT_EQ(dirty, (std::vector{RecordIndex(0), RecordIndex(63), RecordIndex(64), RecordIndex(700),
                                RecordIndex(1023)}));
  dirty.clear();
  manager.take_dirty(dirty);
  EXPECT_TRUE(dirty.empty());
}

// ---- bells and sleep ----

TEST_F(Channel, ARingIsSeenOnceAndWritesNoEventfdWhileTheManagerIsAwake) {
  EXPECT_FALSE(manager.rung());
  client.ring_manager();
  client.ring_manager();
  EXPECT_TRUE(manager.rung());
  EXPECT_FALSE(manager.rung());
  EXPECT_FALSE(readable(bell_fd()));
}

TEST_F(Channel, ABeatIsSeenAndRingsNobody) {
  const std::uint64_t before = manager.beat();
  client.beat();
  EXPECT_NE(manager.beat(), before);
  EXPECT_FALSE(manager.rung());
}

TEST_F(Channel, ASleepingManagerIsWoken) {
  ASSERT_TRUE(manager.prepare_sleep());
  client.ring_manager();
  EXPECT_TRUE(readable(bell_fd()));
  manager.cancel_sleep();
  EXPECT_TRUE(manager.rung());
  std::uint64_t count;
  ASSERT_EQ(::read(bell_fd(), &count, sizeof count), 8);
  client.ring_manager();
  EXPECT_FALSE(readable(bell_fd())) << "awake again: no system call for the client";
}

TEST_F(Channel, TheManagerDoesNotSleepOverWork) {
  client.ring_manager();
  EXPECT_FALSE(manager.prepare_sleep());
  EXPECT_TRUE(manager.rung());
  EXPECT_TRUE(manager.prepare_sleep());
}

TEST_F(Channel, WorkOfAClientThatStoppedBeforeItsRingIsServed) {
  ASSERT_TRUE(client.push_command(numbered(1)));
  EXPECT_FALSE(manager.rung());
  EXPECT_FALSE(manager.prepare_sleep());
  EXPECT_TRUE(manager.rung()) << "or the Manager would neither sleep nor serve";
  EXPECT_TRUE(manager.pop_command());
  EXPECT_TRUE(manager.prepare_sleep());
  client.mark_dirty(RecordIndex(5));
  EXPECT_FALSE(manager.prepare_sleep());
  EXPECT_TRUE(manager.rung());
}

TEST_F(Channel, APoisonedRingDoesNotKeepTheManagerAwake) {
  raw.header().command_tail.store(1000);
  (void)manager.pop_command();
  ASSERT_TRUE(manager.poisoned());
  EXPECT_TRUE(manager.prepare_sleep());
}

TEST_F(Channel, AWaitEndsWithTheBell) {
  const std::uint64_t seen = client.bell();
  std::jthread ringer([&] {
    ::usleep(3000);
    manager.ring_client();
  });
  while (client.bell() == seen) client.wait(seen, 10, 5000);
  EXPECT_EQ(client.bell(), 1u);
}

TEST_F(Channel, AWaitDoesNotSleepOverABellThatRangBefore) {
  manager.ring_client();
  const TimePoint start = monotonic_now();
  for (int i = 0; i < 1000; ++i) client.wait(0, 0, 5000);
  // A thousand rechecks would take ten seconds.
  EXPECT_LT(monotonic_now() - start, seconds(5));
}

TEST_F(Channel, ALostWakeCostsOneRecheck) {
  // A hostile or broken write of the sleeper count takes the wake away.
  std::atomic<bool> asleep{false};
  std::jthread ringer([&] {
    while (!asleep.load()) rt::spin_pause();
    ::usleep(1000);
    raw.header().client_sleepers.store(0);
    manager.ring_client();
  });
  const TimePoint start = monotonic_now();
  asleep.store(true);
  while (client.bell() == 0) client.wait(0, 0, 60'000);
  EXPECT_LT(monotonic_now() - start, seconds(10)) << "not the whole timeout";
}

TEST_F(Channel, AWaitEndsAtItsTimeout) {
  const TimePoint start = monotonic_now();
  client.wait(client.bell(), 0, 3);
  EXPECT_GE(monotonic_now() - start, milliseconds(3));
  client.wait(client.bell(), 0, 0);
  client.wait(client.bell(), 0, -1);
}

TEST_F(Channel, EveryWaitingThreadIsWoken) {
  std::vector<std::jthread> waiters;
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back([&] {
      while (client.bell() == 0) client.wait(0, 0, 5000);
    });
  }
  while (raw.header().client_sleepers.load() == 0) ::usleep(100);
  manager.ring_client();
  waiters.clear();
  EXPECT_EQ(raw.header().client_sleepers.load(), 0u);
}

TEST_F(Channel, AFullEventfdBlocksNoClient) {
  const std::uint64_t most = ~std::uint64_t{0} - 1;
  ASSERT_EQ(::write(bell_fd(), &most, sizeof most), 8);
  ASSERT_TRUE(manager.prepare_sleep());
  client.ring_manager();
  EXPECT_TRUE(readable(bell_fd()));
}

// ---- two threads, two processes ----

// Sleeps as the core thread does, without an event loop.
void sleep_as_manager(ManagerChannel& manager) {
  if (manager.prepare_sleep()) {
    pollfd entry{manager.wake_fd(), POLLIN, 0};
    if (::poll(&entry, 1, kRecheckMs) > 0) {
      std::uint64_t count;
      [[maybe_unused]] const auto n = ::read(manager.wake_fd(), &count, sizeof count);
    }
  }
  manager.cancel_sleep();
}

// Answers every command with itself until one of zeros only; false if it was poisoned.
bool echo(ManagerChannel& manager, std::uint32_t spins) {
  for (;;) {
    bool worked = false;
    for (std::uint32_t i = 0; i <= spins && !worked; ++i) worked = manager.rung();
    while (const auto command = manager.pop_command()) {
      if (*command == wire::CommandBytes{}) return true;
      if (!manager.push_reply(*command)) return false;
      manager.ring_client();
    }
    if (manager.poisoned()) return false;
    if (!worked) sleep_as_manager(manager);
  }
}

// `count` calls with up to `window` in flight; the number of wrong answers.
int call(ClientChannel& client, std::uint64_t count, std::uint64_t window) {
  int wrong = 0;
  std::uint64_t sent = 0, answered = 0;
  while (answered < count) {
    const std::uint64_t seen = client.bell();
    while (sent < count && sent - answered < window && client.push_command(numbered(sent + 1))) {
      ++sent;
      client.ring_manager();
    }
    const std::uint64_t before = answered;
    while (const auto reply = client.pop_reply()) wrong += *reply != numbered(++answered);
    if (answered == before) client.wait(seen, 16, 1000);
  }
  while (!client.push_command({})) {
  }
  client.ring_manager();
  return wrong;
}

TEST_F(Channel, TwoThreadsLoseAndMixNothing) {
  std::jthread far([&] { EXPECT_TRUE(echo(manager, 20)); });
  EXPECT_EQ(call(client, 5000, limits::kRingEntries), 0);
}

TEST_F(Channel, RingsWithoutSpinningOnEitherSideAreNotLost) {
  std::jthread far([&] { EXPECT_TRUE(echo(manager, 0)); });
  const TimePoint start = monotonic_now();
  EXPECT_EQ(call(client, 500, 1), 0);
  // If wakes were lost as a rule, each call would cost a recheck.
  EXPECT_LT(monotonic_now() - start, milliseconds(500 * kRecheckMs));
}

TEST_F(Channel, DirtyBitsOfSeveralThreadsAllArrive) {
  std::atomic<int> running{4};
  std::vector<std::jthread> executors;
  for (std::uint32_t t = 0; t < 4; ++t) {
    executors.emplace_back([&, t] {
      for (std::uint32_t i = t; i < limits::kRecords; i += 4) {
        client.mark_dirty(RecordIndex(i));
        client.ring_manager();
      }
      --running;
    });
  }
  std::vector<RecordIndex> dirty;
  for (bool last = false; !last;) {
    last = running.load() == 0;
    while (manager.rung()) manager.take_dirty(dirty);
  }
  EXPECT_EQ(dirty.size(), limits::kRecords) << "a ring came before its bit";
}

TEST_F(Channel, TwoProcesses) {
  // The child cannot use the parent's mappings; it attaches from the descriptors.
  const UniqueFd memory = copy_of(memory_fd_.get()), bell = copy_of(bell_fd());
  const int pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    auto attached = SessionMemory::attach(copy_of(memory.get()), kSession, kEpoch);
    if (!attached.ok()) ::_exit(2);
    ClientChannel far(std::move(*attached), copy_of(bell.get()));
    ::_exit(call(far, 3000, 8) == 0 ? 0 : 1);
  }
  EXPECT_TRUE(echo(manager, 100));
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

// ---- a client that rewrites everything ----

TEST_F(Channel, AClientThatScribblesOverAllItsMemoryCannotMakeTheManagerMisstep) {
  std::atomic<bool> stop{false};
  std::jthread scribbler([&] {
    std::uint64_t x = 88172645463325252ull;
    while (!stop.load(std::memory_order_relaxed)) {
      x ^= x << 13, x ^= x >> 7, x ^= x << 17;
      SessionHeader& header = raw.header();
      auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(raw.ring(Side::kClient));
      words[x % (limits::kRingEntries * 8)].store(x, std::memory_order_relaxed);
      raw.record(RecordIndex(x % limits::kRecords)).word.store(x, std::memory_order_relaxed);
      raw.dirty(x % 16).store(x, std::memory_order_relaxed);
      // Mostly possible tails, so that the ring is read for a while.
      header.command_tail.store(x % 97 == 0 ? x : header.command_head.load() + x % 3,
                                std::memory_order_relaxed);
      header.reply_head.store(x % 89 == 0 ? x : header.reply_tail.load(), std::memory_order_relaxed);
      header.client_bell.store(x, std::memory_order_relaxed);
      header.client_sleepers.store(static_cast<std::uint32_t>(x), std::memory_order_relaxed);
    }
  });
  std::vector<RecordIndex> dirty;
  std::vector<std::byte> copy;
  for (int i = 0; i < 3000; ++i) {
    (void)manager.rung();
    if (manager.pop_command()) (void)manager.push_reply(numbered(1));
    dirty.clear();
    manager.take_dirty(dirty);
    for (const RecordIndex record : dirty) {
      ASSERT_LT(record.value, limits::kRecords);
      (void)unpack(manager.load_word(record));
      EXPECT_LE(manager.read_client_result(record).text.size(), limits::kErrorTextBytes);
    }
    (void)manager.exchange(RecordIndex(0), word(RecordState::kReserved), word(RecordState::kPreparing));
    (void)manager.prepare_sleep();
    manager.cancel_sleep();
    manager.ring_client();
  }
  stop.store(true);
}

}  // namespace
}  // namespace orbitkv::shm
