#include "client/registry.h"

#include <gtest/gtest.h>

#include <functional>

namespace orbitkv::client {
namespace {

struct Memory {
  std::vector<std::byte> bytes = std::vector<std::byte>(64 * 1024);
  Registration registration;
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
  auto entry = make_entry(memory.registration, 7);
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
  EXPECT_EQ(group->layout.slot_bytes, 64 + 4 * 128u);
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
  const auto entry = make_entry(memory.registration, 1);
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
        BadCase{"RowsOverlap", [](auto& r) { r.layers[0].row_stride = 32; }, ""},
        BadCase{"BlocksOverlap", [](auto& r) { r.layers[0].block_stride = 64; }, ""},
        BadCase{"SameComponentTwice", [](auto& r) { r.layers[0].component = 0; }, ""},
        BadCase{"OddBytes", [](auto& r) { r.layers[0].rows = 1, r.layers[0].row_bytes = 12; }, ""},
        BadCase{"Shard", [](auto& r) { r.groups[0].shard = 2; }, ""},
        BadCase{"NoNamespace", [](auto& r) { r.name_space.clear(); }, ""}),
    [](const auto& named) { return named.param.name; });

TEST(Registry, TheLastByteOfTheAllocationMayBeUsed) {
  Memory memory;
  memory.registration.layers[0].bytes = 3 * 1024 + 192;
  EXPECT_TRUE(make_entry(memory.registration, 1).ok());
}

}  // namespace
}  // namespace orbitkv::client
