#include "client/link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/time.h"

namespace orbitkv::client {
namespace {

// Callers that retry at once when there is no session must not keep the next one out.
TEST(Link, ASwapGetsItsTurnAmongManyUsers) {
  Link link;
  std::atomic<bool> stop{false};
  std::vector<std::thread> users;
  for (int i = 0; i < 64; ++i)
    users.emplace_back([&] {
      while (!stop) {
        auto use = link.use();
        EXPECT_FALSE(static_cast<bool>(use));
      }
    });
  std::atomic<int> swaps{0};
  std::thread swapper([&] {
    for (; swaps < 20; ++swaps) link.swap(nullptr);
  });
  const TimePoint deadline = monotonic_now() + seconds(10);
  while (swaps < 20 && monotonic_now() < deadline) std::this_thread::yield();
  const int in_time = swaps;
  stop = true;
  swapper.join();
  for (std::thread& user : users) user.join();
  EXPECT_EQ(in_time, 20);
}

}  // namespace
}  // namespace orbitkv::client
