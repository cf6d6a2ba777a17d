// What a client has not read yet: bounded, in order, and gone when the client is.
#include "daemon/connection.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "mem/slab.h"
#include "wire/lifecycle.h"

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

UniqueFd memory(SlabId name, ByteCount bytes) {
  return mem::make_slab_memory(name, bytes, mem::PageSource::kShared).value();
}
std::vector<std::byte> offer(const std::vector<wire::SlabOffer::Slab>& slabs) {
  std::vector<std::byte> frame;
  wire::encode(wire::SlabOffer{1, slabs}, frame);
  return frame;
}

// The number of a descriptor that was closed is soon another one's.
TEST(Connection, ADescriptorThatWaitsIsNotTakenForAnother) {
  auto sockets = std::move(*shm::Socket::pair());
  shm::Socket peer = std::move(sockets.second);
  Connection connection(std::move(sockets.first), {::getpid(), ::geteuid(), UniqueFd()});
  UniqueFd old = memory(SlabId(1), 64 * kKiB);
  const int number = old.get();
  ASSERT_TRUE(connection.queue(offer({{SlabId(1), 64 * kKiB, false}}), {number}));
  old.reset();
  const UniqueFd fresh = memory(SlabId(2), 128 * kKiB);
  ASSERT_EQ(fresh.get(), number);
  ASSERT_TRUE(connection.flush().ok());
  auto message = peer.receive();
  ASSERT_TRUE(message.ok() && message->has_value());
  EXPECT_TRUE(mem::check_slab_memory((**message).fds.at(0), SlabId(1), 64 * kKiB));
}

TEST(Connection, ASlabIsTakenOutOfTheOffersThatWait) {
  auto sockets = std::move(*shm::Socket::pair());
  shm::Socket peer = std::move(sockets.second);
  Connection connection(std::move(sockets.first), {::getpid(), ::geteuid(), UniqueFd()});
  const UniqueFd one = memory(SlabId(1), 64 * kKiB), two = memory(SlabId(2), 128 * kKiB);
  const wire::SlabOffer::Slab a{SlabId(1), 64 * kKiB, false}, b{SlabId(2), 128 * kKiB, false};
  ASSERT_TRUE(connection.queue(offer({a, b}), {one.get(), two.get()}));
  ASSERT_TRUE(connection.queue({std::byte{1}}));
  EXPECT_FALSE(connection.retract(SlabId(3)));
  EXPECT_TRUE(connection.retract(SlabId(1)));
  EXPECT_FALSE(connection.retract(SlabId(1)));
  ASSERT_TRUE(connection.flush().ok());
  auto message = peer.receive();
  ASSERT_TRUE(message.ok() && message->has_value());
  const auto left = wire::decode_slab_offer((**message).frame);
  ASSERT_TRUE(left.ok() && left->slabs.size() == 1 && (**message).fds.size() == 1);
  EXPECT_EQ(left->slabs[0].id, SlabId(2));
  EXPECT_TRUE(mem::check_slab_memory((**message).fds[0], SlabId(2), 128 * kKiB));
  EXPECT_FALSE(connection.retract(SlabId(2))) << "it has been sent";
  // The last slab of an offer takes the frame along.
  ASSERT_TRUE(connection.queue(offer({a}), {one.get()}));
  EXPECT_TRUE(connection.retract(SlabId(1)));
  EXPECT_FALSE(connection.unsent());
}

}  // namespace
}  // namespace orbitkv::daemon
