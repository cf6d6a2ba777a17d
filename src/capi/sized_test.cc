// Structs that carry their size, between callers and libraries of different ages.
#include "capi/sized.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace orbitkv::capi {

// A struct as this library might know it one day: version 1 ended behind `a`.
struct Grown {
  std::size_t size;
  std::uint64_t a;
  std::uint64_t b;
};
template <>
struct Sized<Grown> {
  static constexpr const char* kName = "grown";
  static constexpr const char* kInit = "GROWN_INIT";
  static constexpr std::size_t kFirst = 16;
  static Grown defaults() { return {sizeof(Grown), 1, 7}; }
};

namespace {

using client::Action;

// The interface as programs were compiled against it: a change here breaks them.
TEST(Sized, VersionOneLaysItsStructsOutLikeThis) {
  EXPECT_EQ(sizeof(orbitkv_error), 1024u);
  EXPECT_EQ(sizeof(orbitkv_positions), 24u);
  EXPECT_EQ(sizeof(orbitkv_hash), 32u);
  EXPECT_EQ(sizeof(orbitkv_lease), 16u);
  EXPECT_EQ(sizeof(orbitkv_operation), 8u);
  EXPECT_EQ(offsetof(orbitkv_options, early_leases), 34u);
  EXPECT_EQ(offsetof(orbitkv_options, trace_file), 56u);
  EXPECT_EQ(offsetof(orbitkv_health_info, message), 32u);
  EXPECT_EQ(offsetof(orbitkv_layer, row_stride), 56u);
  EXPECT_EQ(offsetof(orbitkv_group, window_tokens), 20u);
  EXPECT_EQ(offsetof(orbitkv_memory, layer_count), 80u);
  EXPECT_EQ(offsetof(orbitkv_query, group), 48u);
  EXPECT_EQ(offsetof(orbitkv_query, flags), 56u);
  EXPECT_EQ(offsetof(orbitkv_hit, lease), 16u);
  EXPECT_EQ(offsetof(orbitkv_hit, waits), 40u);
  EXPECT_EQ(offsetof(orbitkv_warm_hint, confidence), 20u);
  EXPECT_EQ(offsetof(orbitkv_recovery_group, hash_count), 24u);
  EXPECT_EQ(offsetof(orbitkv_recovery, group_count), 56u);
  EXPECT_EQ(offsetof(orbitkv_recovered, revision), 40u);
  EXPECT_EQ(offsetof(orbitkv_save_group, count), 32u);
  EXPECT_EQ(offsetof(orbitkv_save, ready_stream), 24u);
  EXPECT_EQ(offsetof(orbitkv_load, block_count), 40u);
  EXPECT_EQ(offsetof(orbitkv_layer_event, event), 16u);
  EXPECT_EQ(offsetof(orbitkv_restore, layer_event_count), 40u);
  EXPECT_EQ(offsetof(orbitkv_operation_status, message), 16u);
  EXPECT_EQ(offsetof(orbitkv_operation_status, resident), 16u + 512u);
  EXPECT_EQ(offsetof(orbitkv_operation_report, method), 72u);
  // The first version's sizes, which the library accepts for ever.
  EXPECT_EQ(Sized<orbitkv_options>::kFirst, 64u);
  EXPECT_EQ(Sized<orbitkv_memory>::kFirst, 88u);
  EXPECT_EQ(Sized<orbitkv_operation_status>::kFirst, 16u + 512u);
}

TEST(Sized, AnOlderCallerGetsTheDefaultOfWhatItDoesNotKnow) {
  const std::uint64_t old[2] = {16, 5};
  Grown out{};
  ASSERT_TRUE(read_sized(old, out).ok());
  EXPECT_EQ(out.a, 5u);
  EXPECT_EQ(out.b, 7u);
}

TEST(Sized, ANewerCallerIsUnderstoodUnlessItSaysMore) {
  std::uint64_t newer[4] = {32, 5, 6, 0};
  Grown out{};
  ASSERT_TRUE(read_sized(newer, out).ok());
  EXPECT_EQ(out.b, 6u);
  newer[3] = 1;
  const Outcome outcome = read_sized(newer, out);
  EXPECT_EQ(outcome.action, Action::kReject);
  EXPECT_NE(outcome.message.find("does not know"), std::string::npos) << outcome.message;
}

TEST(Sized, WhatCannotBeASizeIsRejected) {
  Grown out{};
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{15}, std::uint64_t{4097}, ~std::uint64_t{0}}) {
    const std::uint64_t bad[2] = {size, 5};
    const Outcome outcome = read_sized(bad, out);
    EXPECT_EQ(outcome.action, Action::kReject) << size;
    EXPECT_NE(outcome.message.find("GROWN_INIT"), std::string::npos) << outcome.message;
  }
  EXPECT_EQ(read_sized(nullptr, out).message, "grown is NULL");
}

TEST(Sized, NothingIsWrittenBeyondTheCallersSize) {
  std::uint64_t old[3] = {16, 0, 42};
  auto* out = reinterpret_cast<Grown*>(old);
  ASSERT_TRUE(check_out(out).ok());
  write_sized(Grown{0, 5, 6}, out);
  EXPECT_EQ(old[0], 16u);  // the caller's size stays
  EXPECT_EQ(old[1], 5u);
  EXPECT_EQ(old[2], 42u);
  std::uint64_t newer[4] = {32, 0, 0, 42};
  out = reinterpret_cast<Grown*>(newer);
  ASSERT_TRUE(check_out(out).ok());
  write_sized(Grown{0, 5, 6}, out);
  EXPECT_EQ(newer[2], 6u);
  EXPECT_EQ(newer[3], 42u);
}

std::vector<std::uint64_t> seen_of(const std::uint64_t* array, std::size_t count, Outcome& outcome) {
  std::vector<std::uint64_t> seen;
  const std::span elements(reinterpret_cast<const Grown*>(array), count);
  outcome = each<Grown>({"array", 3}, elements, [&](const Grown& element) {
    seen.push_back(element.a);
    return Outcome{};
  });
  return seen;
}

TEST(Sized, ArraysAreWalkedInTheCallersSteps) {
  Outcome outcome;
  const std::uint64_t old[6] = {16, 1, 16, 2, 16, 3};
  EXPECT_EQ(seen_of(old, 3, outcome), (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_TRUE(outcome.ok());
  const std::uint64_t newer[8] = {32, 1, 0, 0, 32, 2, 0, 0};
  EXPECT_EQ(seen_of(newer, 2, outcome), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_TRUE(seen_of(nullptr, 0, outcome).empty());
  EXPECT_TRUE(outcome.ok());
}

TEST(Sized, ArraysThatCannotBeAreRejected) {
  Outcome outcome;
  const std::uint64_t mixed[5] = {16, 1, 24, 2, 0};
  (void)seen_of(mixed, 2, outcome);
  EXPECT_NE(outcome.message.find("different sizes"), std::string::npos) << outcome.message;
  (void)seen_of(nullptr, 1, outcome);
  EXPECT_EQ(outcome.message, "array is NULL but has a count");
  const std::uint64_t old[2] = {16, 1};
  (void)seen_of(old, 4, outcome);
  EXPECT_NE(outcome.message.find("at most 3"), std::string::npos) << outcome.message;
}

}  // namespace
}  // namespace orbitkv::capi
