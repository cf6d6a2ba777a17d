// The C interface against a real Manager: every function once with something to do, its
// completion descriptor, the shared library by dlopen, and the example in C.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "orbitkv/orbitkv.h"
#include "tests/native/processes.h"

namespace orbitkv::test {
namespace {

constexpr std::uint32_t kBlocks = 8, kPage = 512, kLayers = 2, kWaitMs = 20'000;

orbitkv_hash hash_of(std::uint8_t number) {
  orbitkv_hash hash = {};
  std::memset(hash.bytes, number, sizeof(hash.bytes));
  return hash;
}

// One engine of two layers over the C interface; block b is filled with b + 1.
class CEngine {
 public:
  CEngine(const std::string& socket, std::uint8_t instance, const char* trace = nullptr) {
    orbitkv_options options = ORBITKV_OPTIONS_INIT;
    options.bootstrap_socket = socket.c_str();
    options.trace_file = trace;
    EXPECT_EQ(orbitkv_open(&options, &client, &error), ORBITKV_OK) << error.message;
    EXPECT_EQ(orbitkv_wait_connected(client, kWaitMs, &error), ORBITKV_OK) << error.message;
    query.instance.bytes[0] = instance;
    query.request_id = "request";
    for (std::uint8_t i = 0; i < kBlocks; ++i) hashes.push_back(hash_of(i)), blocks.push_back(i);
    query.hashes = hashes.data();
    query.hash_count = hashes.size();
    pages.resize(std::size_t{kLayers} * kBlocks * kPage);
    for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<char>(i / kPage % kBlocks + 1);
  }
  ~CEngine() { orbitkv_destroy(client); }

  void lend() {
    orbitkv_layer layers[kLayers] = {ORBITKV_LAYER_INIT, ORBITKV_LAYER_INIT};
    for (std::uint32_t i = 0; i < kLayers; ++i) {
      layers[i].name = i ? "l1" : "l0";
      layers[i].base = pages.data() + std::size_t{i} * kBlocks * kPage;
      layers[i].bytes = std::uint64_t{kBlocks} * kPage;
      layers[i].block_stride = layers[i].row_bytes = kPage;
    }
    orbitkv_memory memory = ORBITKV_MEMORY_INIT;
    memory.instance = query.instance;
    memory.name_space = "capi";
    memory.num_blocks = kBlocks;
    memory.block_tokens = 16;
    memory.layers = layers;
    memory.layer_count = kLayers;
    ASSERT_EQ(orbitkv_register(client, &memory, &registration, &error), ORBITKV_OK) << error.message;
  }
  orbitkv_operation start_save(std::size_t count) {
    orbitkv_save_group group = ORBITKV_SAVE_GROUP_INIT;
    group.blocks = blocks.data();
    group.hashes = hashes.data();
    group.count = count;
    orbitkv_save save = ORBITKV_SAVE_INIT;
    save.groups = &group;
    save.group_count = 1;
    orbitkv_operation operation = {0};
    EXPECT_EQ(orbitkv_start_save(client, registration, &save, &operation, &error), ORBITKV_OK)
        << error.message;
    return operation;
  }
  orbitkv_operation start_restore(const orbitkv_lease& lease, std::vector<std::uint32_t> targets) {
    orbitkv_load load = ORBITKV_LOAD_INIT;
    load.lease = lease;
    load.blocks = targets.data();
    load.block_count = targets.size();
    orbitkv_restore restore = ORBITKV_RESTORE_INIT;
    restore.loads = &load;
    restore.load_count = 1;
    orbitkv_operation operation = {0};
    EXPECT_EQ(orbitkv_start_restore(client, registration, &restore, &operation, &error), ORBITKV_OK)
        << error.message;
    return operation;
  }
  orbitkv_operation_status wait(orbitkv_operation operation) {
    orbitkv_operation_status status = ORBITKV_OPERATION_STATUS_INIT;
    EXPECT_EQ(orbitkv_wait(client, operation, kWaitMs, &status, &error), ORBITKV_OK);
    EXPECT_TRUE(status.done);
    return status;
  }
  orbitkv_lease lease(std::uint32_t wanted) {
    orbitkv_hit hit = ORBITKV_HIT_INIT;
    EXPECT_EQ(orbitkv_query_prefetch(client, &query, &hit, &error), ORBITKV_OK) << error.message;
    EXPECT_EQ(hit.blocks, wanted);
    EXPECT_FALSE(hit.loading);
    return hit.lease;
  }
  bool readable() const {
    pollfd fd = {orbitkv_completion_fd(client), POLLIN, 0};
    return ::poll(&fd, 1, 0) == 1;
  }

  orbitkv_client* client = nullptr;
  orbitkv_error error = {};
  orbitkv_query query = ORBITKV_QUERY_INIT;
  orbitkv_registration registration = {0};
  std::vector<orbitkv_hash> hashes;
  std::vector<std::uint32_t> blocks;
  std::vector<char> pages;
};

// Four published blocks.
class Capi : public testing::Test {
 protected:
  void SetUp() override {
    engine.lend();
    const auto saved = engine.wait(engine.start_save(4));
    ASSERT_TRUE(saved.success) << saved.message;
    EXPECT_EQ(saved.blocks, 4u);
    ASSERT_EQ(manager.settle("blocks", 4), 4u);
  }
  Manager manager;
  CEngine engine{manager.socket(), 1};
};

TEST_F(Capi, WhatIsPreparedIsFoundByTheQuery) {
  bool begun = false;
  engine.query.hash_count = 4;  // all of them there: nobody to wait for
  ASSERT_EQ(orbitkv_prepare_prefix(engine.client, &engine.query, &begun, &engine.error), ORBITKV_OK)
      << engine.error.message;
  EXPECT_TRUE(begun);
  engine.query.flags = ORBITKV_QUERY_WAIT_FOR_FULL_PREFIX;
  const orbitkv_lease lease = engine.lease(4);
  EXPECT_EQ(manager.status()["budgets.claimed"], 1u);
  EXPECT_EQ(orbitkv_release(engine.client, &lease, &engine.error), ORBITKV_OK);
  engine.query.flags = 0;
  orbitkv_warm_hint hint = ORBITKV_WARM_HINT_INIT;
  EXPECT_EQ(orbitkv_warm_prefix(engine.client, &engine.query, &hint, &engine.error), ORBITKV_OK);
  EXPECT_EQ(orbitkv_cancel_warm(engine.client, &engine.query, &engine.error), ORBITKV_OK);
  const std::vector<orbitkv_hash> many((1u << 20) + 1);
  engine.query.hashes = many.data();
  engine.query.hash_count = many.size();
  EXPECT_EQ(orbitkv_warm_prefix(engine.client, &engine.query, &hint, &engine.error), ORBITKV_REJECT);
  EXPECT_NE(std::string(engine.error.message).find("1048576"), std::string::npos) << engine.error.message;
}

TEST_F(Capi, PagesComeBackInAnotherClient) {
  CEngine other(manager.socket(), 2);
  other.lend();
  std::fill(other.pages.begin(), other.pages.end(), 0);
  const auto status = other.wait(other.start_restore(other.lease(4), {7, 6, ORBITKV_HOLE, 4}));
  ASSERT_TRUE(status.success) << status.message;
  EXPECT_EQ(status.blocks, 3u);
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const char* base = other.pages.data() + std::size_t{layer} * kBlocks * kPage;
    const char expected[kBlocks] = {0, 0, 0, 0, 4, 0, 2, 1};
    for (std::uint32_t at = 0; at < kBlocks * kPage; ++at) ASSERT_EQ(base[at], expected[at / kPage]) << at;
  }
}

TEST_F(Capi, QueriesTellRunPositionsAndCount) {
  engine.hashes[2] = hash_of(99);  // a gap
  std::uint32_t hits = 0, found[2] = {77, 77};
  orbitkv_positions positions = {found, 2, 0};
  ASSERT_EQ(orbitkv_query_candidates(engine.client, &engine.query, &hits, &positions, &engine.error),
            ORBITKV_OK)
      << engine.error.message;
  EXPECT_EQ(hits, 2u);
  EXPECT_EQ(positions.count, 3u);
  EXPECT_TRUE(found[0] == 0 && found[1] == 1);
  positions = {nullptr, 0, 0};
  ASSERT_EQ(orbitkv_query_candidates(engine.client, &engine.query, nullptr, &positions, nullptr), ORBITKV_OK);
  EXPECT_EQ(positions.count, 3u);
  EXPECT_EQ(orbitkv_query_candidates(engine.client, &engine.query, nullptr, nullptr, nullptr), ORBITKV_OK);
}

TEST_F(Capi, LeasesAreReleasedAndCancelled) {
  const orbitkv_lease lease = engine.lease(4);
  EXPECT_EQ(orbitkv_release(engine.client, &lease, &engine.error), ORBITKV_OK) << engine.error.message;
  EXPECT_EQ(manager.settle("pool.leased", 0), 0u);
  EXPECT_EQ(orbitkv_release(engine.client, &lease, &engine.error), ORBITKV_OK);  // nothing left to do
  engine.lease(4);
  EXPECT_GT(manager.status()["pool.leased"], 0u);
  EXPECT_EQ(orbitkv_cancel_query(engine.client, &engine.query, &engine.error), ORBITKV_OK)
      << engine.error.message;
  EXPECT_EQ(manager.settle("pool.leased", 0), 0u);
  engine.query.hash_count = 0;
  engine.lease(0);
}

TEST_F(Capi, TheSessionIsDescribed) {
  EXPECT_EQ(orbitkv_ping(engine.client, &engine.error), ORBITKV_OK);
  EXPECT_TRUE(orbitkv_peer_alive(engine.client));
  orbitkv_health_info health = ORBITKV_HEALTH_INIT;
  ASSERT_EQ(orbitkv_health(engine.client, &health, nullptr), ORBITKV_OK);
  EXPECT_TRUE(health.connected && health.incarnation != 0 && health.open_operations == 0);
  orbitkv_publish_activity_info activity = ORBITKV_PUBLISH_ACTIVITY_INIT;
  ASSERT_EQ(orbitkv_publish_activity(engine.client, &engine.query.instance, &activity, &engine.error),
            ORBITKV_OK)
      << engine.error.message;
  EXPECT_EQ(activity.open + activity.waiting + activity.lent_bytes + activity.dropped, 0u);
  const orbitkv_instance unknown = {{9}};
  EXPECT_EQ(orbitkv_publish_activity(engine.client, &unknown, &activity, &engine.error), ORBITKV_REJECT);
  char* json = nullptr;
  ASSERT_EQ(orbitkv_status_json(engine.client, &json, &engine.error), ORBITKV_OK) << engine.error.message;
  EXPECT_EQ(StatusView(json)["blocks"], 4u);
  orbitkv_free(json);
}

TEST_F(Capi, EndedOperationsKeepTheDescriptorReadableUntilTheyAreTaken) {
  orbitkv_operation taken[8];
  while (orbitkv_take_completed(engine.client, taken, 8) > 0) {
  }
  EXPECT_FALSE(engine.readable());
  std::vector<std::uint64_t> started;
  for (int i = 0; i < 3; ++i) {
    started.push_back(engine.start_save(1).value);
    engine.wait({started.back()});
  }
  EXPECT_TRUE(engine.readable());
  ASSERT_EQ(orbitkv_take_completed(engine.client, taken, 1), 1u);
  EXPECT_EQ(taken[0].value, started[0]);
  EXPECT_TRUE(engine.readable());
  orbitkv_drop(engine.client, {started[1]});
  ASSERT_EQ(orbitkv_take_completed(engine.client, taken, 8), 1u);
  EXPECT_EQ(taken[0].value, started[2]);
  EXPECT_FALSE(engine.readable());
}

TEST_F(Capi, OperationsArePolledAndForgotten) {
  const orbitkv_operation restore = engine.start_restore(engine.lease(4), {4, 5, 6, 7});
  EXPECT_EQ(orbitkv_wait_enqueued(engine.client, restore, kWaitMs, &engine.error), ORBITKV_OK)
      << engine.error.message;
  EXPECT_TRUE(engine.wait(restore).success);
  orbitkv_operation_status status = ORBITKV_OPERATION_STATUS_INIT;
  ASSERT_EQ(orbitkv_poll(engine.client, restore, &status, nullptr), ORBITKV_OK);
  EXPECT_TRUE(status.done && status.success);
  EXPECT_EQ(status.blocks, 4u);
  orbitkv_operation_report report = ORBITKV_OPERATION_REPORT_INIT;
  EXPECT_EQ(orbitkv_report(engine.client, restore, &report, &engine.error), ORBITKV_REJECT);  // not traced
  orbitkv_drop(engine.client, restore);
  ASSERT_EQ(orbitkv_poll(engine.client, restore, &status, nullptr), ORBITKV_OK);
  EXPECT_TRUE(status.done && !status.success);
  EXPECT_STRNE(status.message, "");
}

TEST_F(Capi, TracedOperationsAreReported) {
  Directory directory;
  CEngine traced(manager.socket(), 3, (directory.path() + "/trace").c_str());
  traced.lend();
  const orbitkv_operation restore = traced.start_restore(traced.lease(4), {0, 1, 2, 3});
  ASSERT_TRUE(traced.wait(restore).success);
  orbitkv_operation_report report = ORBITKV_OPERATION_REPORT_INIT;
  ASSERT_EQ(orbitkv_report(traced.client, restore, &report, &traced.error), ORBITKV_OK)
      << traced.error.message;
  EXPECT_EQ(report.bytes, std::uint64_t{4} * kLayers * kPage);
  EXPECT_EQ(report.fragments, std::uint64_t{4} * kLayers);
  EXPECT_GT(report.drained_ns, 0u);
  EXPECT_STRNE(report.method, "");
}

TEST_F(Capi, RegistrationsEndAndWrongOnesAreNamed) {
  EXPECT_EQ(orbitkv_unregister(engine.client, engine.registration, &engine.error), ORBITKV_OK)
      << engine.error.message;
  EXPECT_EQ(orbitkv_unregister(engine.client, engine.registration, &engine.error), ORBITKV_REJECT);
  orbitkv_layer layer = ORBITKV_LAYER_INIT;
  layer.name = "too short";
  layer.base = engine.pages.data();
  layer.bytes = kPage;
  layer.block_stride = layer.row_bytes = kPage;
  orbitkv_memory memory = ORBITKV_MEMORY_INIT;
  memory.name_space = "capi";
  memory.num_blocks = 2;
  memory.block_tokens = 16;
  memory.layers = &layer;
  memory.layer_count = 1;
  orbitkv_registration none = {0};
  EXPECT_EQ(orbitkv_register(engine.client, &memory, &none, &engine.error), ORBITKV_REJECT);
  EXPECT_NE(std::string(engine.error.message).find("too short"), std::string::npos) << engine.error.message;
  EXPECT_EQ(none.value, 0u);
}

TEST_F(Capi, AForkedChildIsRefusedAndTheParentGoesOn) {
  const orbitkv_operation save = engine.start_save(1);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(30);
    orbitkv_operation taken[4];
    orbitkv_hit hit = ORBITKV_HIT_INIT;
    int wrong = orbitkv_ping(engine.client, nullptr) != ORBITKV_REJECT;
    wrong += orbitkv_query_prefetch(engine.client, &engine.query, &hit, nullptr) != ORBITKV_REJECT;
    wrong += orbitkv_take_completed(engine.client, taken, 4) != 0;
    wrong += orbitkv_peer_alive(engine.client);
    orbitkv_drop(engine.client, save);
    orbitkv_destroy(engine.client);
    _exit(wrong);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(engine.wait(save).success);
  EXPECT_TRUE(engine.readable());
  EXPECT_EQ(orbitkv_ping(engine.client, &engine.error), ORBITKV_OK) << engine.error.message;
}

TEST_F(Capi, ADeadManagerIsAnAnswer) {
  manager.process().signal(SIGKILL);
  ASSERT_TRUE(manager.process().ended_within());
  EXPECT_NE(orbitkv_ping(engine.client, &engine.error), ORBITKV_OK);
  EXPECT_STRNE(engine.error.message, "");
  EXPECT_FALSE(orbitkv_peer_alive(engine.client));
}

TEST_F(Capi, AClosedClientGaveEverythingBack) {
  const auto sessions = manager.status().sessions();
  orbitkv_close(engine.client);
  EXPECT_EQ(manager.settle_sessions(sessions - 1), sessions - 1);
  EXPECT_EQ(orbitkv_ping(engine.client, &engine.error), ORBITKV_RECONNECT);
}

#ifndef __SANITIZE_ADDRESS__  // whose runtime must come before the library
TEST(CapiLibrary, LoadsAtRunTimeAndStaysLoaded) {
  Manager manager;
  void* library = dlopen(ORBITKV_CAPI_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto open = reinterpret_cast<decltype(&orbitkv_open)>(dlsym(library, "orbitkv_open"));
  const auto wait =
      reinterpret_cast<decltype(&orbitkv_wait_connected)>(dlsym(library, "orbitkv_wait_connected"));
  const auto destroy = reinterpret_cast<decltype(&orbitkv_destroy)>(dlsym(library, "orbitkv_destroy"));
  ASSERT_TRUE(open && wait && destroy);
  EXPECT_NE(open, &orbitkv_open);  // another copy than the one linked here
  orbitkv_options options = ORBITKV_OPTIONS_INIT;
  options.bootstrap_socket = manager.socket().c_str();
  orbitkv_client* client = nullptr;
  orbitkv_error error;
  ASSERT_EQ(open(&options, &client, &error), ORBITKV_OK) << error.message;
  EXPECT_EQ(dlclose(library), 0);  // its threads run on
  EXPECT_EQ(wait(client, kWaitMs, &error), ORBITKV_OK) << error.message;
  destroy(client);
}
#endif

TEST(CapiExample, SavesAndRestoresInANewProcess) {
  Manager manager;
  Process save({ORBITKV_CAPI_EXAMPLE, "save", manager.socket()}, {});
  EXPECT_EQ(save.line().value_or("nothing"), "saved 32");
  EXPECT_EQ(save.ended_within(), 0);
  Process restore({ORBITKV_CAPI_EXAMPLE, "restore", manager.socket()}, {});
  EXPECT_EQ(restore.line().value_or("nothing"), "restored 32, wrong bytes 0");
  EXPECT_EQ(restore.ended_within(), 0);
}

TEST(CapiExample, FindsNothingInAnEmptyManager) {
  Manager manager;
  Process restore({ORBITKV_CAPI_EXAMPLE, "restore", manager.socket()}, {});
  EXPECT_EQ(restore.line().value_or("nothing"), "restored 0, wrong bytes 0");
  EXPECT_EQ(restore.ended_within(), 0);
}

}  // namespace
}  // namespace orbitkv::test
