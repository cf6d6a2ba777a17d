// What a client has not read yet: bounded, in order, and gone when the client is.
#include "daemon/connection.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace orbitkv::daemon {
namespace {

TEST(Connection, FramesQueueUpToTheBoundAndGoOutInOrder) {
  auto sockets = std::move(*shm::Socket::pair());
  shm::Socket peer = std::move(sockets.second);
  Connection connection(std::move(sockets.first), {::getpid(), ::geteuid(), UniqueFd()});
  std::uint32_t queued = 0;
  while (connection.queue({static_cast<std::byte>(queued), std::byte{1}})) ASSERT_LT(++queued, 10'000u);
  EXPECT_GT(queued, 16u);
  EXPECT_TRUE(connection.unsent());
  std::uint32_t received = 0;
  while (received < queued) {
    ASSERT_TRUE(connection.flush().ok());
    for (auto message = peer.receive(); message.ok() && message->has_value(); message = peer.receive())
      ASSERT_EQ((**message).frame.front(), static_cast<std::byte>(received++));
  }
  EXPECT_FALSE(connection.unsent());
  peer.close();
  ASSERT_TRUE(connection.queue({std::byte{1}}));
  EXPECT_EQ(connection.flush().error().code(), Code::kReconnect);
}

}  // namespace
}  // namespace orbitkv::daemon
