// Calls of the C interface that are answered without a Manager: nothing given, too little
// given, closed, forked. Whatever comes in, an answer comes out.
#include "orbitkv/orbitkv.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace {

constexpr orbitkv_registration kNoRegistration = {12345};
constexpr orbitkv_operation kNoOperation = {12345};

orbitkv_client* open_alone() {
  orbitkv_options options = ORBITKV_OPTIONS_INIT;
  options.bootstrap_socket = "/nonexistent/manager.sock";
  options.timeout_ms = 200;
  orbitkv_client* client = nullptr;
  EXPECT_EQ(orbitkv_open(&options, &client, nullptr), ORBITKV_OK);
  return client;
}

// Every call that can fail, with right arguments.
struct Call {
  const char* name;
  std::function<orbitkv_action(orbitkv_client*, orbitkv_error*)> run;
};
struct Arguments {
  orbitkv_query query = ORBITKV_QUERY_INIT;
  orbitkv_memory memory = ORBITKV_MEMORY_INIT;
  orbitkv_layer layer = ORBITKV_LAYER_INIT;
  orbitkv_save save = ORBITKV_SAVE_INIT;
  orbitkv_restore restore = ORBITKV_RESTORE_INIT;
  orbitkv_operation_status status = ORBITKV_OPERATION_STATUS_INIT;
  orbitkv_operation_report report = ORBITKV_OPERATION_REPORT_INIT;
  orbitkv_health_info health = ORBITKV_HEALTH_INIT;
  orbitkv_publish_activity_info activity = ORBITKV_PUBLISH_ACTIVITY_INIT;
  orbitkv_instance instance = {{1}};
  orbitkv_lease lease = {{1}};
  orbitkv_hit hit = ORBITKV_HIT_INIT;
  orbitkv_hash hash = {};
  orbitkv_recovery_group group = ORBITKV_RECOVERY_GROUP_INIT;
  orbitkv_warm_hint hint = ORBITKV_WARM_HINT_INIT;
  bool begun = false;
  orbitkv_recovery recovery = ORBITKV_RECOVERY_INIT;
  orbitkv_recovered recovered = ORBITKV_RECOVERED_INIT;
  orbitkv_operation operation = {0};
  orbitkv_registration registration = {0};
  std::uint32_t hits = 0;
  char* json = nullptr;
  char page[16] = {};

  Arguments() {
    query.request_id = "r";
    query.hashes = &hash;
    query.hash_count = 1;
    group.hashes = &hash;
    group.hash_count = 1;
    recovery.request_id = "r";
    recovery.boundary = 16;
    recovery.groups = &group;
    recovery.group_count = 1;
    recovered.leases = &lease;
    recovered.lease_capacity = 1;
    recovered.revision = 1;
    layer.name = "l";
    layer.base = page;
    layer.bytes = layer.block_stride = layer.row_bytes = sizeof(page);
    memory.name_space = "space";
    memory.num_blocks = memory.block_tokens = 1;
    memory.layers = &layer;
    memory.layer_count = 1;
  }
};

std::vector<Call> calls_of(Arguments& a) {
  using C = orbitkv_client*;
  using E = orbitkv_error*;
  return {
      {"wait_connected", [](C c, E e) { return orbitkv_wait_connected(c, 10, e); }},
      {"ping", [](C c, E e) { return orbitkv_ping(c, e); }},
      {"status_json", [&](C c, E e) { return orbitkv_status_json(c, &a.json, e); }},
      {"unregister", [](C c, E e) { return orbitkv_unregister(c, kNoRegistration, e); }},
      {"query_candidates",
       [&](C c, E e) { return orbitkv_query_candidates(c, &a.query, &a.hits, nullptr, e); }},
      {"query_prefetch", [&](C c, E e) { return orbitkv_query_prefetch(c, &a.query, &a.hit, e); }},
      {"poll_query",
       [&](C c, E e) {
         a.hit.revision = 1;
         return orbitkv_poll_query(c, &a.query, &a.hit, e);
       }},
      {"release", [&](C c, E e) { return orbitkv_release(c, &a.lease, e); }},
      {"cancel_query", [&](C c, E e) { return orbitkv_cancel_query(c, &a.query, e); }},
      {"read_recovery", [&](C c, E e) { return orbitkv_read_recovery(c, &a.recovery, &a.recovered, e); }},
      {"poll_recovery", [&](C c, E e) { return orbitkv_poll_recovery(c, &a.recovery, &a.recovered, e); }},
      {"prepare_recovery", [&](C c, E e) { return orbitkv_prepare_recovery(c, &a.recovery, &a.begun, e); }},
      {"prepare_prefix", [&](C c, E e) { return orbitkv_prepare_prefix(c, &a.query, &a.begun, e); }},
      {"warm_prefix", [&](C c, E e) { return orbitkv_warm_prefix(c, &a.query, &a.hint, e); }},
      {"cancel_warm", [&](C c, E e) { return orbitkv_cancel_warm(c, &a.query, e); }},
      {"cancel_recovery", [&](C c, E e) { return orbitkv_cancel_recovery(c, &a.recovery, 0, e); }},
      {"start_save",
       [&](C c, E e) { return orbitkv_start_save(c, kNoRegistration, &a.save, &a.operation, e); }},
      {"start_restore",
       [&](C c, E e) { return orbitkv_start_restore(c, kNoRegistration, &a.restore, &a.operation, e); }},
      {"wait_enqueued", [](C c, E e) { return orbitkv_wait_enqueued(c, kNoOperation, 10, e); }},
      {"report", [&](C c, E e) { return orbitkv_report(c, kNoOperation, &a.report, e); }},
      {"register", [&](C c, E e) { return orbitkv_register(c, &a.memory, &a.registration, e); }},
      {"poll", [&](C c, E e) { return orbitkv_poll(c, kNoOperation, &a.status, e); }},
      {"wait", [&](C c, E e) { return orbitkv_wait(c, kNoOperation, 10, &a.status, e); }},
      {"publish_activity",
       [&](C c, E e) { return orbitkv_publish_activity(c, &a.instance, &a.activity, e); }},
      {"health", [&](C c, E e) { return orbitkv_health(c, &a.health, e); }},
  };
}
bool may_succeed_alone(const std::string& name) {
  return name == "register" || name == "poll" || name == "wait" || name == "health";
}

TEST(Orbitkv, NoClientIsAnAnswerOfEveryCall) {
  Arguments arguments;
  for (const Call& call : calls_of(arguments)) {
    orbitkv_error error;
    EXPECT_EQ(call.run(nullptr, &error), ORBITKV_REJECT) << call.name;
    EXPECT_EQ(error.action, ORBITKV_REJECT);
    EXPECT_STREQ(error.message, "client is NULL") << call.name;
    EXPECT_EQ(call.run(nullptr, nullptr), ORBITKV_REJECT) << call.name;
  }
  orbitkv_operation taken = {0};
  EXPECT_EQ(orbitkv_take_completed(nullptr, &taken, 1), 0u);
  EXPECT_EQ(orbitkv_completion_fd(nullptr), -1);
  EXPECT_FALSE(orbitkv_peer_alive(nullptr));
  orbitkv_drop(nullptr, kNoOperation);
  orbitkv_close(nullptr);
  orbitkv_destroy(nullptr);
  orbitkv_free(nullptr);
}

TEST(Orbitkv, AGroupSaysWhatItCannotBe) {
  orbitkv_error e;
  orbitkv_group_of_managers* group = nullptr;
  orbitkv_participant seat = ORBITKV_PARTICIPANT_INIT;
  EXPECT_EQ(orbitkv_group_open(&seat, 1, nullptr, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_group_open(nullptr, 1, nullptr, &group, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_group_open(&seat, 1, nullptr, &group, &e), ORBITKV_REJECT);
  EXPECT_STREQ(e.message, "participant 0 has no client");
  seat.client = open_alone();
  EXPECT_EQ(orbitkv_group_open(&seat, 1, nullptr, &group, &e), ORBITKV_REJECT);
  EXPECT_STREQ(e.message, "a participant has 1 to 64 ranks");
  const uint16_t ranks[] = {0, 1};
  seat.ranks = ranks;
  seat.rank_count = 2;
  orbitkv_group_options options = ORBITKV_GROUP_OPTIONS_INIT;
  options.timeout_ms = 200;
  ASSERT_EQ(orbitkv_group_open(&seat, 1, &options, &group, &e), ORBITKV_OK) << e.message;
  uint64_t claim = 0;
  orbitkv_common_list list = ORBITKV_COMMON_LIST_INIT;
  orbitkv_common_prefix found = ORBITKV_COMMON_PREFIX_INIT;
  orbitkv_common_restore end = ORBITKV_COMMON_RESTORE_INIT;
  EXPECT_EQ(orbitkv_group_begin(group, &list, &claim, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_group_begin(group, nullptr, &claim, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_group_begin(nullptr, &list, &claim, &e), ORBITKV_REJECT);
  EXPECT_STREQ(e.message, "group is NULL");
  const orbitkv_hash hash = {{1}};
  list.hashes = &hash;
  list.hash_count = 1;
  EXPECT_EQ(orbitkv_group_begin(group, &list, nullptr, &e), ORBITKV_REJECT);
  ASSERT_EQ(orbitkv_group_begin(group, &list, &claim, &e), ORBITKV_OK) << e.message;
  EXPECT_EQ(orbitkv_group_poll(group, claim, 10'000, nullptr, &e), ORBITKV_REJECT);
  ASSERT_EQ(orbitkv_group_poll(group, claim, 10'000, &found, &e), ORBITKV_OK) << e.message;
  EXPECT_EQ(found.loading, 0);
  EXPECT_EQ(found.blocks, 0u) << "there is no Manager";
  EXPECT_NE(std::string(found.message).find("participant 0"), std::string::npos) << found.message;
  orbitkv_participant_stats stats = ORBITKV_PARTICIPANT_STATS_INIT;
  EXPECT_EQ(orbitkv_group_stats(group, 0, &stats, &e), ORBITKV_OK) << e.message;
  EXPECT_GT(stats.answered, 0u) << "the client answers that there is none";
  EXPECT_EQ(orbitkv_group_stats(group, 0, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_group_stats(nullptr, 0, &stats, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_group_restored(group, claim, 2, true, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_group_wait(group, claim, 10'000, nullptr, &e), ORBITKV_REJECT);
  ASSERT_EQ(orbitkv_group_wait(group, claim, 10'000, &end, &e), ORBITKV_OK) << e.message;
  EXPECT_TRUE(end.done && end.quiet && !end.success);
  EXPECT_EQ(orbitkv_group_close(group, claim, &e), ORBITKV_OK);
  EXPECT_EQ(orbitkv_group_close(group, claim, &e), ORBITKV_REJECT);
  void* reply = nullptr;
  size_t bytes = 0;
  EXPECT_EQ(orbitkv_carry_interest(seat.client, "no frame", 8, &reply, &bytes, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_carry_interest(seat.client, nullptr, 0, &reply, &bytes, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_carry_interest(nullptr, "no frame", 8, &reply, &bytes, &e), ORBITKV_REJECT);
  orbitkv_group_destroy(group);
  orbitkv_group_destroy(nullptr);
  orbitkv_destroy(seat.client);
}

TEST(Orbitkv, NoArgumentIsAnAnswerOfEveryCall) {
  orbitkv_client* c = open_alone();
  ASSERT_NE(c, nullptr);
  Arguments a;
  orbitkv_error e;
  EXPECT_EQ(orbitkv_open(nullptr, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_status_json(c, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_health(c, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_publish_activity(c, &a.instance, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_publish_activity(c, nullptr, &a.activity, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_register(c, nullptr, &a.registration, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_register(c, &a.memory, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_query_candidates(c, nullptr, nullptr, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_query_prefetch(c, &a.query, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_query_prefetch(c, nullptr, &a.hit, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_poll_query(c, &a.query, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_poll_query(c, nullptr, &a.hit, &e), ORBITKV_REJECT);
  a.hit.revision = 0;
  EXPECT_EQ(orbitkv_poll_query(c, &a.query, &a.hit, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_read_recovery(c, nullptr, &a.recovered, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_read_recovery(c, &a.recovery, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_cancel_recovery(c, nullptr, 0, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_prepare_recovery(c, &a.recovery, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_prepare_prefix(c, &a.query, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_warm_prefix(c, &a.query, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_warm_prefix(c, nullptr, &a.hint, &e), ORBITKV_REJECT);
  a.hint.confidence = 101;
  EXPECT_EQ(orbitkv_warm_prefix(c, &a.query, &a.hint, &e), ORBITKV_REJECT);
  EXPECT_STREQ(e.message, "confidence is 0 to 100");
  a.query.flags = 2;
  EXPECT_EQ(orbitkv_query_prefetch(c, &a.query, &a.hit, &e), ORBITKV_REJECT);
  a.query.flags = 0;
  a.recovered.lease_capacity = 0;
  EXPECT_EQ(orbitkv_read_recovery(c, &a.recovery, &a.recovered, &e), ORBITKV_REJECT);
  EXPECT_STREQ(e.message, "leases has less room than there are groups");
  EXPECT_EQ(orbitkv_release(c, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_cancel_query(c, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_start_save(c, kNoRegistration, nullptr, &a.operation, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_start_save(c, kNoRegistration, &a.save, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_start_restore(c, kNoRegistration, nullptr, &a.operation, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_start_restore(c, kNoRegistration, &a.restore, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_poll(c, kNoOperation, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_wait(c, kNoOperation, 10, nullptr, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_report(c, kNoOperation, nullptr, &e), ORBITKV_REJECT);
  EXPECT_STRNE(e.message, "");
  orbitkv_positions positions = {nullptr, 1, 0};
  EXPECT_EQ(orbitkv_query_candidates(c, &a.query, nullptr, &positions, &e), ORBITKV_REJECT);
  EXPECT_EQ(orbitkv_take_completed(c, nullptr, 1), 0u);
  orbitkv_destroy(c);
}

TEST(Orbitkv, AStructWithoutItsSizeIsAnAnswerOfEveryCall) {
  orbitkv_client* c = open_alone();
  ASSERT_NE(c, nullptr);
  Arguments a;
  orbitkv_options options = ORBITKV_OPTIONS_INIT;
  options.size = a.query.size = a.memory.size = a.save.size = a.restore.size = 0;
  a.status.size = a.report.size = a.health.size = a.recovery.size = a.activity.size = 0;
  for (const Call& call : calls_of(a)) {
    const std::string name = call.name;
    if (name == "wait_connected" || name == "ping" || name == "status_json" || name == "unregister" ||
        name == "release" || name == "wait_enqueued")
      continue;  // take no struct
    orbitkv_error error;
    EXPECT_EQ(call.run(c, &error), ORBITKV_REJECT) << name;
    EXPECT_NE(std::string(error.message).find("_INIT"), std::string::npos) << name << ": " << error.message;
  }
  orbitkv_client* none = nullptr;
  EXPECT_EQ(orbitkv_open(&options, &none, nullptr), ORBITKV_REJECT);
  EXPECT_EQ(none, nullptr);
  orbitkv_destroy(c);
}

TEST(Orbitkv, WithoutAManagerCallsSayWhatToDo) {
  orbitkv_client* c = open_alone();
  ASSERT_NE(c, nullptr);
  Arguments a;
  for (const Call& call : calls_of(a)) {
    orbitkv_error error;
    const orbitkv_action action = call.run(c, &error);
    EXPECT_EQ(action == ORBITKV_OK, may_succeed_alone(call.name)) << call.name << ": " << error.message;
    EXPECT_EQ(error.message[0] == 0, action == ORBITKV_OK) << call.name;
    EXPECT_NE(action, ORBITKV_BUG) << call.name << ": " << error.message;
  }
  EXPECT_FALSE(a.health.connected);
  EXPECT_STRNE(a.health.message, "");
  EXPECT_TRUE(a.status.done && !a.status.success);
  EXPECT_NE(a.registration.value, 0u);
  EXPECT_GE(orbitkv_completion_fd(c), 0);
  orbitkv_destroy(c);
}

TEST(Orbitkv, AClosedClientAnswersEveryCall) {
  orbitkv_client* c = open_alone();
  ASSERT_NE(c, nullptr);
  orbitkv_close(c);
  orbitkv_close(c);
  Arguments a;
  for (const Call& call : calls_of(a)) {
    orbitkv_error error;
    const orbitkv_action action = call.run(c, &error);
    const bool succeeds = may_succeed_alone(call.name) && std::string(call.name) != "register";
    EXPECT_EQ(action == ORBITKV_OK, succeeds) << call.name << ": " << error.message;
    EXPECT_NE(action, ORBITKV_BUG) << call.name << ": " << error.message;
  }
  orbitkv_operation taken = {0};
  EXPECT_EQ(orbitkv_take_completed(c, &taken, 1), 0u);
  orbitkv_drop(c, kNoOperation);
  orbitkv_destroy(c);
}

TEST(Orbitkv, AForkedChildIsAnsweredAndEndsInPeace) {
  orbitkv_client* c = open_alone();
  ASSERT_NE(c, nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(30);
    Arguments a;
    int wrong = 0;
    for (const Call& call : calls_of(a)) {
      orbitkv_error error;
      const orbitkv_action action = call.run(c, &error);
      wrong +=
          action != (may_succeed_alone(call.name) && std::string(call.name) != "register" ? ORBITKV_OK
                                                                                          : ORBITKV_REJECT);
    }
    wrong += std::string(a.status.message).find("forked") == std::string::npos;
    orbitkv_operation taken = {0};
    wrong += orbitkv_take_completed(c, &taken, 1) != 0;
    orbitkv_drop(c, kNoOperation);
    orbitkv_close(c);
    orbitkv_destroy(c);
#ifndef __SANITIZE_THREAD__  // which allows no threads here
    orbitkv_client* own = open_alone();
    wrong += own == nullptr;
    orbitkv_destroy(own);
#endif
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  orbitkv_destroy(c);
}

TEST(Orbitkv, WrongOptionsAreNamed) {
  orbitkv_client* none = nullptr;
  orbitkv_error error;
  orbitkv_options options = ORBITKV_OPTIONS_INIT;
  options.timeout_ms = 0;
  EXPECT_EQ(orbitkv_open(&options, &none, &error), ORBITKV_REJECT);
  EXPECT_NE(std::string(error.message).find("timeout_ms"), std::string::npos) << error.message;
  options.timeout_ms = 100;
  options.copy_method = "teleport";
  EXPECT_EQ(orbitkv_open(&options, &none, &error), ORBITKV_REJECT);
  EXPECT_NE(std::string(error.message).find("copy_method"), std::string::npos) << error.message;
  EXPECT_EQ(none, nullptr);
}

TEST(Orbitkv, NamesAndVersions) {
  EXPECT_STREQ(orbitkv_action_name(ORBITKV_OK), "ok");
  EXPECT_STREQ(orbitkv_action_name(ORBITKV_BUG), "bug");
  EXPECT_STREQ(orbitkv_action_name(static_cast<orbitkv_action>(6)), "unknown");
  int major = -1, minor = -1, patch = -1;
  EXPECT_EQ(std::sscanf(orbitkv_version(), "%d.%d.%d", &major, &minor, &patch), 3) << orbitkv_version();
  EXPECT_EQ(orbitkv_c_api_version(), std::uint32_t{ORBITKV_C_API_VERSION});
}

}  // namespace
