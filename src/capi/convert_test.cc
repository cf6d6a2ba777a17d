// Every member of the C structs arrives in client.h's, and what is missing is named.
#include "capi/convert.h"

#include <gtest/gtest.h>

#include <array>

namespace orbitkv::capi {
namespace {

TEST(Convert, OptionsKeepTheirDefaults) {
  client::Options none, given;
  const orbitkv_options init = ORBITKV_OPTIONS_INIT;
  ASSERT_TRUE(to_options(nullptr, none).ok());
  ASSERT_TRUE(to_options(&init, given).ok());
  for (const client::Options& options : {none, given}) {
    const client::Options defaults;
    EXPECT_EQ(options.name, defaults.name);
    EXPECT_EQ(options.timeout_ms, defaults.timeout_ms);
    EXPECT_EQ(options.spin_iterations, defaults.spin_iterations);
    EXPECT_TRUE(options.verify && options.inline_copies);
    EXPECT_EQ(options.copy_method, defaults.copy_method);
    EXPECT_EQ(options.copy_pace, defaults.copy_pace);
    EXPECT_EQ(options.trace_file, defaults.trace_file);
  }
}

TEST(Convert, OptionsArriveOneByOne) {
  orbitkv_options in = {sizeof(in), "/s", "n", 1, 2, false, false, true, "kernel", "gentle", "/t"};
  client::Options out;
  ASSERT_TRUE(to_options(&in, out).ok());
  EXPECT_EQ(out.bootstrap_socket + out.name + out.copy_method + out.copy_pace + out.trace_file,
            "/snkernelgentle/t");
  EXPECT_EQ(out.timeout_ms, 1u);
  EXPECT_EQ(out.spin_iterations, 2u);
  EXPECT_FALSE(out.verify || out.inline_copies);
  EXPECT_TRUE(out.early_leases);
}

TEST(Convert, MemoryArrivesMemberByMember) {
  char page = 0;
  const orbitkv_layer layer = {sizeof(layer), "l", 3, 1, 2, &page, 10, 20, 30, 40};
  const orbitkv_group group = {sizeof(group), 3, 4, 5, false, ORBITKV_RULE_WINDOW, 100};
  orbitkv_memory in = {sizeof(in), {{9}}, "space", 6, 7, 8, 9, "cuda:1", &group, 1, &layer, 1};
  client::Registration out;
  ASSERT_TRUE(to_registration(&in, out).ok());
  EXPECT_EQ(out.instance.bytes[0], std::byte{9});
  EXPECT_EQ(out.name_space + out.device, "spacecuda:1");
  EXPECT_EQ((std::array{out.rank, out.world_size}), (std::array<std::uint16_t, 2>{6, 7}));
  EXPECT_EQ((std::array{out.num_blocks, out.block_tokens}), (std::array{8u, 9u}));
  ASSERT_EQ(out.groups.size(), 1u);
  const client::Group& g = out.groups[0];
  EXPECT_EQ((std::array{g.id, g.shard, g.shards}), (std::array<std::uint16_t, 3>{3, 4, 5}));
  EXPECT_FALSE(g.writer);
  EXPECT_EQ(g.rule, RecoveryRule::kWindow);
  EXPECT_EQ(g.window_tokens, 100u);
  ASSERT_EQ(out.layers.size(), 1u);
  const client::Layer& l = out.layers[0];
  EXPECT_EQ(l.name, "l");
  EXPECT_EQ(l.base, reinterpret_cast<std::byte*>(&page));
  EXPECT_EQ((std::array{l.group, l.component}), (std::array<std::uint16_t, 2>{3, 1}));
  EXPECT_EQ((std::array{l.bytes, l.block_stride, std::uint64_t{l.rows}, l.row_bytes, l.row_stride}),
            (std::array<std::uint64_t, 5>{10, 20, 2, 30, 40}));
}

TEST(Convert, MemoryWithoutGroupsAndDeviceIsTheSimplestOne) {
  orbitkv_memory in = ORBITKV_MEMORY_INIT;
  in.name_space = "space";
  client::Registration out;
  ASSERT_TRUE(to_registration(&in, out).ok());
  EXPECT_EQ(out.device, "cpu:0");
  ASSERT_EQ(out.groups.size(), 1u);
  EXPECT_TRUE(out.groups[0].id == 0 && out.groups[0].shards == 1 && out.groups[0].writer);
}

TEST(Convert, WhatIsMissingIsNamed) {
  client::Registration registration;
  orbitkv_memory memory = ORBITKV_MEMORY_INIT;
  EXPECT_EQ(to_registration(&memory, registration).message, "name_space is NULL");
  memory.name_space = "space";
  const orbitkv_layer nameless = ORBITKV_LAYER_INIT;
  memory.layers = &nameless;
  memory.layer_count = 1;
  EXPECT_EQ(to_registration(&memory, registration).message, "layer 0 has no name");
  memory.layer_count = 100'000;
  EXPECT_NE(to_registration(&memory, registration).message.find("at most"), std::string::npos);
  Query query;
  const orbitkv_query no_request = ORBITKV_QUERY_INIT;
  EXPECT_EQ(to_query(&no_request, query).message, "request_id is NULL");
  Restore restore;
  const orbitkv_layer_event no_layer = ORBITKV_LAYER_EVENT_INIT;
  const orbitkv_restore events = {sizeof(events), nullptr, 0, 0, &no_layer, 1};
  EXPECT_EQ(to_restore(&events, restore).message, "a layer event has no layer");
}

TEST(Convert, SaveAndRestoreViewTheCallersArrays) {
  const std::uint32_t blocks[2] = {4, ORBITKV_HOLE};
  const orbitkv_hash hashes[2] = {};
  const orbitkv_save_group group = {sizeof(group), 1, blocks, hashes, 2};
  const orbitkv_save save = {sizeof(save), &group, 1, 77};
  Save s;
  ASSERT_TRUE(to_save(&save, s).ok());
  ASSERT_EQ(s.groups.size(), 1u);
  EXPECT_EQ(s.groups[0].group, 1u);
  EXPECT_EQ(s.groups[0].blocks.data(), blocks);
  EXPECT_EQ(static_cast<const void*>(s.groups[0].hashes.data()), hashes);
  EXPECT_TRUE(s.groups[0].blocks.size() == 2 && s.groups[0].hashes.size() == 2);
  EXPECT_EQ(s.options.ready_stream, 77u);

  const orbitkv_load load = {sizeof(load), {{5}}, 1, blocks, 2};
  const orbitkv_layer_event event = {sizeof(event), "l", 99};
  const orbitkv_restore restore = {sizeof(restore), &load, 1, ORBITKV_NO_STREAM, &event, 1};
  Restore r;
  ASSERT_TRUE(to_restore(&restore, r).ok());
  ASSERT_EQ(r.loads.size(), 1u);
  EXPECT_EQ(r.loads[0].lease.bytes[0], std::byte{5});
  EXPECT_EQ(r.loads[0].blocks[1], kHole);
  EXPECT_EQ(r.options.ready_stream, client::kNoStream);
  ASSERT_EQ(r.options.layer_events.size(), 1u);
  EXPECT_EQ(r.options.layer_events[0].layer, "l");
  EXPECT_EQ(r.options.layer_events[0].event, 99u);
}

TEST(Convert, LongTextsAreCutVisibly) {
  std::array<char, 8> field;
  copy_text("1234567", field);
  EXPECT_STREQ(field.data(), "1234567");
  copy_text("12345678", field);
  EXPECT_STREQ(field.data(), "1234...");
}

}  // namespace
}  // namespace orbitkv::capi
