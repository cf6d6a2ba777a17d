// Pages published by one process come back byte-exact in another, in every geometry,
// however many parts an operation takes.
#include <gtest/gtest.h>

#include <numeric>

#include "base/limits.h"
#include "tests/native/engine.h"
#include "tests/native/processes.h"
#include "wire/messages.h"

namespace orbitkv::test {
namespace {

TEST(RoundTrip, EveryGeometryByteExactInAnotherProcess) {
  Manager manager({"--pool-size", "128MiB"});
  std::uint32_t published = 0;
  for (int shape = 0; shape < kShapes; ++shape) {
    SCOPED_TRACE("shape " + std::to_string(shape));
    const std::string space = "space=shape" + std::to_string(shape);
    auto publisher =
        start_helper({"engine", "socket=" + manager.socket(), "shape=" + std::to_string(shape), space});
    ASSERT_EQ(publisher.line(), "ready ");
    publisher.say("save 3 100 40");
    ASSERT_EQ(publisher.line(), "saved 1 " + std::to_string(40 * shape_of(shape).groups) + " 0 0 ");
    publisher.signal(SIGKILL);
    ASSERT_TRUE(publisher.ended_within());
    published += 40 * shape_of(shape).groups;
    ASSERT_EQ(manager.settle("published", published), published);

    Engine restorer({.socket = manager.socket(),
                     .shape = shape_of(shape),
                     .instance = 2,
                     .name_space = "shape" + std::to_string(shape)});
    ASSERT_EQ(restorer.connect().message, "");
    for (std::uint16_t group = 0; group < shape_of(shape).groups; ++group) {
      client::Ready ready;
      const auto hashes = hashes_of(100, 40);
      ASSERT_TRUE(restorer.client().query_prefetch(restorer.instance(), hashes, "r", group, ready).ok());
      ASSERT_EQ(ready.hit_blocks, 40u);
      const auto blocks = blocks_of(20, 40);
      const client::Load load{ready.lease, group, blocks};
      client::OperationHandle handle;
      ASSERT_TRUE(restorer.client().start_restore(restorer.registration(), {&load, 1}, {}, handle).ok());
      const auto status = restorer.client().wait(handle, kDoneWithinMs);
      ASSERT_TRUE(status.done && status.success) << status.message;
      EXPECT_EQ(status.blocks, 40u);
    }
    for (std::uint32_t i = 0; i < 40; ++i) ASSERT_EQ(restorer.wrong_bytes(20 + i, hash_of(100 + i)), 0u) << i;
    EXPECT_GT(restorer.wrong_bytes(20, hash_of(101)), 0u);  // the comparison can fail
    EXPECT_EQ(restorer.wrong_gap_bytes(), 0u);
  }
}

TEST(RoundTrip, ThirtySixLayersOf512Blocks) {
  Manager manager;
  const Shape shape{.layers = 36, .row_bytes = 512, .blocks = 1024};
  Engine engine({.socket = manager.socket(), .shape = shape});
  ASSERT_EQ(engine.connect().message, "");
  const auto saved = engine.save(0, 1, 512);
  ASSERT_TRUE(saved.success) << saved.message;
  EXPECT_EQ(saved.blocks, 512u);
  manager.settle("blocks", 512);
  const auto restored = engine.restore(512, 1, 512);
  EXPECT_TRUE(restored.status.success) << restored.status.message;
  EXPECT_EQ(restored.hits, 512u);
  EXPECT_EQ(restored.wrong, 0u);
}

TEST(RoundTrip, OperationsLongerThanAFrameAreSplit) {
  Manager manager;
  constexpr std::uint32_t kBlocks = 4000;
  ASSERT_GT(kBlocks, 2 * wire::publish_blocks_per_frame());
  const Shape shape{.layers = 2, .row_bytes = 64, .blocks = 3 * 8192};
  Engine engine({.socket = manager.socket(), .shape = shape});
  ASSERT_EQ(engine.connect().message, "");
  const auto saved = engine.save(0, 1, kBlocks);
  ASSERT_TRUE(saved.success) << saved.message;
  EXPECT_EQ(saved.blocks, kBlocks);
  ASSERT_EQ(manager.settle("blocks", kBlocks), kBlocks);

  // 8,192 hashes, the first 4,000 of them and one far behind are there.
  ASSERT_TRUE(engine.save(0, 9000, 1).success);
  manager.settle("blocks", kBlocks + 1);
  auto hashes = hashes_of(1, 8192);
  hashes[8000] = hash_of(9000);
  client::Candidates candidates;
  ASSERT_TRUE(engine.client().query_candidates(engine.instance(), hashes, "q", 0, candidates).ok());
  std::vector<std::uint32_t> expected(kBlocks);
  std::iota(expected.begin(), expected.end(), 0u);
  expected.push_back(8000);
  EXPECT_EQ(candidates.hit_blocks, kBlocks);
  EXPECT_EQ(candidates.hit_positions, expected);

  // Restored with every third block left alone, over more than one frame.
  client::Ready ready;
  ASSERT_TRUE(engine.client().query_prefetch(engine.instance(), hashes, "q", 0, ready).ok());
  ASSERT_EQ(ready.hit_blocks, kBlocks);
  engine.wipe();
  std::vector<std::uint32_t> targets(kBlocks);
  for (std::uint32_t i = 0; i < kBlocks; ++i) targets[i] = i % 3 == 1 ? kHole : 8192 + i * 2;
  const auto restored = engine.restore_from(ready.lease, targets);
  ASSERT_TRUE(restored.success) << restored.message;
  EXPECT_EQ(restored.blocks, kBlocks - (kBlocks + 1) / 3);
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    if (targets[i] == kHole)
      ASSERT_GT(engine.wrong_bytes(8192 + i * 2, hashes[i]), 0u) << i;
    else
      ASSERT_EQ(engine.wrong_bytes(targets[i], hashes[i]), 0u) << i;
  }
}

TEST(RoundTrip, ARestoreOfHolesOnlyIsDoneAtOnce) {
  Manager manager;
  Engine engine({.socket = manager.socket(), .shape = {}});
  ASSERT_EQ(engine.connect().message, "");
  ASSERT_TRUE(engine.save(0, 1, 4).success);
  manager.settle("blocks", 4);
  client::Ready ready;
  ASSERT_TRUE(engine.lease(1, 4, ready).ok());
  const std::vector<std::uint32_t> holes(4, kHole);
  const auto status = engine.restore_from(ready.lease, holes);
  EXPECT_TRUE(status.done && status.success);
  EXPECT_EQ(status.blocks, 0u);
  EXPECT_EQ(manager.settle("operations", 0), 0u);
}

// The lease names its bytes: release, a changed list and consumption end it.
TEST(RoundTrip, ALeaseServesWhatItNamedAndNothingElse) {
  Manager manager;
  Engine engine({.socket = manager.socket(), .shape = {}});
  ASSERT_EQ(engine.connect().message, "");
  ASSERT_TRUE(engine.save(0, 1, 8).success);
  manager.settle("blocks", 8);
  auto& client = engine.client();
  const auto four = hashes_of(1, 4), eight = hashes_of(1, 8);
  const auto blocks = blocks_of(20, 4);
  client::Ready first, again, longer;
  ASSERT_TRUE(client.query_prefetch(engine.instance(), four, "same", 0, first).ok());
  ASSERT_TRUE(client.query_prefetch(engine.instance(), four, "same", 0, again).ok());
  EXPECT_EQ(first.lease, again.lease);
  ASSERT_TRUE(client.query_prefetch(engine.instance(), eight, "same", 0, longer).ok());
  EXPECT_NE(first.lease, longer.lease);
  EXPECT_FALSE(engine.restore_from(first.lease, blocks).success);  // replaced
  ASSERT_TRUE(client.release(longer.lease).ok());
  EXPECT_FALSE(engine.restore_from(longer.lease, blocks).success);  // released
  ASSERT_TRUE(client.query_prefetch(engine.instance(), four, "other", 0, first).ok());
  EXPECT_TRUE(engine.restore_from(first.lease, blocks).success);
  EXPECT_FALSE(engine.restore_from(first.lease, blocks).success);  // consumed
  ASSERT_TRUE(client.query_prefetch(engine.instance(), four, "third", 0, first).ok());
  ASSERT_TRUE(client.cancel_query(engine.instance(), "third", 0).ok());
  EXPECT_FALSE(engine.restore_from(first.lease, blocks).success);  // cancelled
  EXPECT_EQ(manager.settle("leases", 0), 0u);
  EXPECT_EQ(manager.settle("pool.leased", 0), 0u);
}

// More than the Manager admits at once.
TEST(RoundTrip, OneRestoreOfManyLoads) {
  constexpr std::uint32_t kLoads = 2 * limits::kRestoresPerDevice + 20;
  Manager manager;
  Shape shape;
  shape.blocks = kLoads;
  Engine engine({.socket = manager.socket(), .shape = shape});
  ASSERT_EQ(engine.connect().message, "");
  ASSERT_TRUE(engine.save(0, 1, kLoads).success);
  ASSERT_EQ(manager.settle("blocks", kLoads), kLoads);
  engine.wipe();
  const auto blocks = blocks_of(0, kLoads);
  std::vector<client::Load> loads;
  for (std::uint32_t i = 0; i < kLoads; ++i) {
    client::Ready ready;
    ASSERT_TRUE(engine.lease(1 + i, 1, ready).ok());
    loads.push_back({ready.lease, 0, std::span(blocks).subspan(i, 1)});
  }
  client::OperationHandle handle;
  ASSERT_EQ(engine.client().start_restore(engine.registration(), loads, {}, handle).message, "");
  const auto status = engine.client().wait(handle, kDoneWithinMs);
  EXPECT_TRUE(status.success) << status.message;
  EXPECT_EQ(status.blocks, kLoads);
  for (std::uint32_t i = 0; i < kLoads; ++i) EXPECT_EQ(engine.wrong_bytes(i, hash_of(1 + i)), 0u) << i;
}

TEST(RoundTrip, UnknownCopyOptionsAreRefused) {
  client::Outcome outcome;
  client::Options options;
  options.copy_method = "fast";
  EXPECT_EQ(client::Client::open(options, outcome), nullptr);
  EXPECT_NE(outcome.message.find("auto, direct and kernel"), std::string::npos) << outcome.message;
  options.copy_method = "direct";
  options.copy_pace = "slow";
  EXPECT_EQ(client::Client::open(options, outcome), nullptr);
  EXPECT_NE(outcome.message.find("gentle"), std::string::npos) << outcome.message;
}

TEST(RoundTrip, CompletionsAreToldOnceEach) {
  Manager manager;
  Engine engine({.socket = manager.socket(), .shape = {}, .inline_copies = false});
  ASSERT_EQ(engine.connect().message, "");
  std::vector<std::uint64_t> started, told;
  for (std::uint32_t i = 0; i < 8; ++i) {
    const auto blocks = blocks_of(i * 4, 4);
    const auto hashes = hashes_of(i * 4, 4);
    client::OperationHandle handle;
    ASSERT_TRUE(engine.start_save(blocks, hashes, handle).ok());
    started.push_back(handle.value);
  }
  for (const auto value : started) ASSERT_TRUE(engine.client().wait({value}, kDoneWithinMs).success);
  for (const auto handle : engine.client().take_completed()) told.push_back(handle.value);
  std::sort(told.begin(), told.end());
  EXPECT_EQ(told, started);
  EXPECT_TRUE(engine.client().take_completed().empty());
}

}  // namespace
}  // namespace orbitkv::test
