#include "bench/channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <thread>

#include "rt/spin.h"
#include "wire/command.h"

namespace orbitkv::bench {
namespace {

constexpr SessionId kSession{0};
constexpr Epoch kEpoch{4};

// A session whose Manager's end belongs to the test.
struct Ends {
  shm::ManagerChannel manager;
  shm::ClientChannel client;
};

Ends make_ends() {
  auto copy_of = [](int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); };
  auto memory = std::move(shm::SessionMemory::create(kSession, kEpoch)).value();
  auto bell = std::move(shm::make_bell()).value();
  auto mapped = std::move(shm::SessionMemory::attach(copy_of(memory.fd()), kSession, kEpoch)).value();
  UniqueFd client_bell = copy_of(bell.get());
  return {shm::ManagerChannel(std::move(memory), std::move(bell)),
          shm::ClientChannel(std::move(mapped), std::move(client_bell))};
}

TEST(ChannelBench, AReplyOfAnotherPingFailsTheRun) {
  Ends ends = make_ends();
  std::jthread far([&] {
    std::optional<wire::CommandBytes> bytes;
    while (!(bytes = ends.manager.pop_command())) rt::spin_pause();
    const auto command = wire::decode_command(*bytes);
    const wire::Reply reply{command->opcode, command->request + 1, kEpoch, 0, 0, Code::kOk};
    EXPECT_TRUE(ends.manager.push_reply(wire::encode(reply)));
    ends.manager.ring_client();
  });
  const auto run = measure_pings({ends.client, kEpoch}, PingMode::kSpinning);
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.error().code(), Code::kBug);
}

TEST(ChannelBench, ASilentManagerEndsTheRun) {
  Ends ends = make_ends();
  const auto run = measure_pings({ends.client, kEpoch}, PingMode::kAsleep);
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.error().code(), Code::kReconnect);
}

}  // namespace
}  // namespace orbitkv::bench
