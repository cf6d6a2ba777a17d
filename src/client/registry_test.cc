#include "client/registry.h"

#include <gtest/gtest.h>

#include <functional>

#include "client/fake_device_suite.h"
#include "device/host/host_copier.h"

namespace orbitkv::client {
namespace {

struct Memory {
  std::vector<std::byte> bytes = std::vector<std::byte>(64 * 1024);
  Registration registration;
  std::unique_ptr<device::Device> host = device::make_host_device();
  device::Device& device() { return *host; }
  Memory() {
    registration.instance.bytes.fill(std::byte{1});
    registration.name_space = "test";
    registration.num_blocks = 4;
    registration.block_tokens = 16;
    registration.groups = {Group{}};
    for (const char* name : {"layer b", "layer a"})
      for (const int component : {1, 0})
        registration.layers.push_back(layer(name, static_cast<std::uint16_t>(component)));
  }
  Layer layer(const char* name, std::uint16_t component) {
    Layer out;
    out.name = name;
    out.component = component;
    out.base = bytes.data() + registration.layers.size() * 4096;
    out.bytes = 4096;
    out.block_stride = 1024;
    out.rows = 2;
    out.row_bytes = 64;
    out.row_stride = 128;
    return out;
  }
};

TEST(Registry, LayersKeepTheEnginesOrderAndComponentsStandTogether) {
  Memory memory;
  auto entry = make_entry(memory.registration, 7, memory.device());
  ASSERT_TRUE(entry.ok()) << entry.error().message();
  const RegisteredGroup* group = (*entry)->group(GroupId(0));
  ASSERT_NE(group, nullptr);
  ASSERT_EQ(group->geometry.fragments.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(group->geometry.fragments[i].layer, i / 2);
    EXPECT_EQ(group->geometry.fragments[i].component, i % 2);
    EXPECT_EQ(group->geometry.shape.fragments[i].bytes.value, 128u);
  }
  // "layer b" was named first: it is layer 0; its component 0 was the second entry.
  EXPECT_EQ(group->geometry.fragments[0].base, memory.bytes.data() + 4096);
  EXPECT_EQ(group->layout.slot_bytes, 128 + 4 * 128u);
  EXPECT_EQ((*entry)->rank.groups.size(), 1u);
  EXPECT_EQ((*entry)->group(GroupId(1)), nullptr);
}

struct BadCase {
  const char* name;
  std::function<void(Registration&)> change;
  const char* text;  // in the refusal
};

class BadRegistration : public testing::TestWithParam<BadCase> {};

TEST_P(BadRegistration, IsRefusedByName) {
  Memory memory;
  GetParam().change(memory.registration);
  const auto entry = make_entry(memory.registration, 1, memory.device());
  ASSERT_FALSE(entry.ok());
  EXPECT_EQ(entry.error().code(), Code::kReject);
  EXPECT_NE(entry.error().message().find(GetParam().text), std::string::npos) << entry.error().message();
}

INSTANTIATE_TEST_SUITE_P(
    Registry, BadRegistration,
    testing::Values(
        BadCase{"Short", [](auto& r) { r.layers[0].bytes = 3 * 1024 + 191; }, "layer b"},
        BadCase{"Blocks", [](auto& r) { r.num_blocks = 5; }, "5 blocks reach beyond"},
        BadCase{"StrideOverflow", [](auto& r) { r.layers[1].block_stride = ~std::uint64_t{0} / 2; },
                "reach beyond"},
        BadCase{"RowOverflow", [](auto& r) { r.layers[1].row_stride = ~std::uint64_t{0} - 10; },
                "reach beyond"},
        BadCase{"SumOverflow", [](auto& r) { r.layers[1].row_bytes = ~std::uint64_t{0} - 8; },
                "reach beyond"},
        BadCase{"NoBase", [](auto& r) { r.layers[2].base = nullptr; }, "layer a"},
        BadCase{"NoRows", [](auto& r) { r.layers[2].rows = 0; }, "layer a"},
        BadCase{"NoBytes", [](auto& r) { r.layers[2].row_bytes = 0; }, "layer a"},
        BadCase{"NoBlocks", [](auto& r) { r.num_blocks = 0; }, "num_blocks"},
        BadCase{"UnknownGroup", [](auto& r) { r.layers[3].group = 9; }, "group 9"},
        BadCase{"EmptyGroup", [](auto& r) { r.groups.push_back({3, 0, 1, true}); }, ""},
        BadCase{"RuleOfGroup0", [](auto& r) { r.groups[0].rule = RecoveryRule::kCheckpoint; },
                "groups[0].rule"},
        BadCase{"WindowOfAPrefix", [](auto& r) { r.groups[0].window_tokens = 64; },
                "groups[0].window_tokens"},
        BadCase{"RowsOverlap", [](auto& r) { r.layers[0].row_stride = 32; }, ""},
        BadCase{"BlocksOverlap", [](auto& r) { r.layers[0].block_stride = 64; }, ""},
        BadCase{"SameComponentTwice", [](auto& r) { r.layers[0].component = 0; }, ""},
        BadCase{"OddBytes", [](auto& r) { r.layers[0].rows = 1, r.layers[0].row_bytes = 12; }, "layer b"},
        BadCase{"Shard", [](auto& r) { r.groups[0].shard = 2; }, ""},
        BadCase{"NoNamespace", [](auto& r) { r.name_space.clear(); }, ""}),
    [](const auto& named) { return named.param.name; });

TEST(Registry, TheLastByteOfTheAllocationMayBeUsed) {
  Memory memory;
  memory.registration.layers[0].bytes = 3 * 1024 + 192;
  EXPECT_TRUE(make_entry(memory.registration, 1, memory.device()).ok());
}

TEST(Registry, AGroupKeepsItsRule) {
  Memory memory;
  memory.registration.groups.push_back({3, 0, 1, true, RecoveryRule::kWindow, 100});
  for (Layer& layer : memory.registration.layers)
    if (layer.name == "layer a") layer.group = 3;
  const auto entry = make_entry(memory.registration, 1, memory.device());
  ASSERT_TRUE(entry.ok()) << entry.error().message();
  EXPECT_EQ((*entry)->rank.groups[0].rule, RecoveryRule::kPrefix);
  EXPECT_EQ((*entry)->rank.groups[1].rule, RecoveryRule::kWindow);
  EXPECT_EQ((*entry)->rank.groups[1].window_tokens, 100u);
}

// One layer name in two groups has one turn.
TEST(Registry, TurnsAreTheOrderOfLayerNamesOverAllGroups) {
  Memory memory;
  auto& layers = memory.registration.layers;
  memory.registration.groups.push_back({3, 0, 1, true});
  layers.insert(layers.begin(), memory.layer("first", 0));
  layers.front().group = 3;
  layers.push_back(memory.layer("layer b", 0));
  layers.back().group = 3;
  memory.bytes.resize(64 * 1024);
  auto entry = make_entry(memory.registration, 1, memory.device());
  ASSERT_TRUE(entry.ok()) << entry.error().message();
  const auto turns = [&](std::uint16_t group) {
    std::vector<std::uint16_t> out;
    for (const auto& f : (*entry)->group(GroupId(group))->geometry.fragments) out.push_back(f.turn);
    return out;
  };
  EXPECT_EQ(turns(0), (std::vector<std::uint16_t>{1, 1, 2, 2}));
  EXPECT_EQ(turns(3), (std::vector<std::uint16_t>{0, 1}));
}

TEST(Registry, TheManagerIsToldTheDevicesIdentityAndTheDeviceSeesTheMemory) {
  Memory memory;
  FakeDevice gpu;
  memory.registration.device = "cuda:0";
  auto entry = make_entry(memory.registration, 1, gpu);
  ASSERT_TRUE(entry.ok()) << entry.error().message();
  EXPECT_EQ((*entry)->rank.device, "GPU-fake");
  EXPECT_TRUE((*entry)->gpu);
  gpu.foreign = memory.registration.layers[2].base;
  entry = make_entry(memory.registration, 1, gpu);
  ASSERT_FALSE(entry.ok());
  EXPECT_EQ(entry.error().code(), Code::kReject);
  EXPECT_NE(entry.error().message().find("layer a"), std::string::npos);
}

TEST(Registry, EventsStandInTheOrderOfTurns) {
  Memory memory;
  FakeDevice gpu;
  const auto entry = std::move(*make_entry(memory.registration, 1, gpu));
  const LayerEvent right[] = {{"layer a", 70}, {"layer b", 90}};
  auto made = events_by_turn(*entry, right);
  ASSERT_TRUE(made.ok()) << made.error().message();
  ASSERT_EQ(made->size(), 2u);
  EXPECT_EQ((*made)[0].turn, 0);
  EXPECT_EQ((*made)[0].event.value, 90u);
  EXPECT_EQ((*made)[1].turn, 1);
  EXPECT_EQ((*made)[1].event.value, 70u);
  EXPECT_TRUE(events_by_turn(*entry, {})->empty());
}

TEST(Registry, EventsThatCannotBeMeantAreRefused) {
  Memory memory;
  FakeDevice gpu;
  const auto entry = std::move(*make_entry(memory.registration, 1, gpu));
  const auto refused = [&](const Entry& where, std::vector<LayerEvent> events) {
    const auto made = events_by_turn(where, events);
    return made.ok() || made.error().code() != Code::kReject ? "" : made.error().message();
  };
  EXPECT_NE(refused(*entry, {{"layer c", 1}}).find("layer c"), std::string::npos);
  EXPECT_NE(refused(*entry, {{"layer a", 0}}).find("null"), std::string::npos);
  EXPECT_NE(refused(*entry, {{"layer a", 1}, {"layer a", 2}}).find("one layer"), std::string::npos);
  EXPECT_NE(refused(*entry, {{"layer a", 1}, {"layer b", 1}}).find("one event"), std::string::npos);
  const auto on_cpu = std::move(*make_entry(memory.registration, 1, memory.device()));
  EXPECT_NE(refused(*on_cpu, {{"layer a", 1}}).find("CPU"), std::string::npos);
}

}  // namespace
}  // namespace orbitkv::client
