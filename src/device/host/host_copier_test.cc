// The conformance suite for the host copier with every instruction set of this CPU.
#include "device/host/host_copier.h"

#include <cstdlib>

#include "device/copier_suite.h"

namespace orbitkv::device {
namespace {

using suite::CopierSuite;

class HostMemory final : public suite::DeviceMemory {
 public:
  ~HostMemory() override {
    for (std::byte* at : taken_) std::free(at);
  }
  std::byte* alloc(ByteCount bytes) override { return take(bytes, 64); }
  void write(std::byte* to, std::span<const std::byte> bytes) override {
    std::copy(bytes.begin(), bytes.end(), to);
  }
  void read(std::span<std::byte> out, const std::byte* from) override {
    std::copy_n(from, out.size(), out.begin());
  }
  std::byte* alloc_slab(ByteCount bytes) override { return take(bytes, 4096); }

 private:
  std::byte* take(ByteCount bytes, std::uint64_t align) {
    taken_.push_back(
        static_cast<std::byte*>(std::aligned_alloc(align, (bytes.value + align - 1) / align * align)));
    return taken_.back();
  }
  std::vector<std::byte*> taken_;
};

std::vector<suite::Implementation> host_implementations() {
  std::vector<suite::Implementation> all;
  for (const Isa isa : kAllIsas) {
    if (!isa_supported(isa)) continue;
    all.push_back({mix_kernel(isa).name, [] { return std::make_unique<HostMemory>(); },
                   [isa] { return std::shared_ptr(make_host_device(isa)); }, nullptr, true});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Host, CopierSuite,
                         testing::Combine(testing::ValuesIn(host_implementations()),
                                          testing::ValuesIn(suite::engine_layouts())),
                         suite::test_name);

TEST(HostCopier, TakesTheBestInstructionSet) {
  EXPECT_EQ(make_host_copier()->name(), std::string("host ") + mix_kernel(best_isa()).name);
}

// Nothing would ever record them.
TEST(HostCopier, RefusesLayerEvents) {
  suite::Rig rig(host_implementations()[0], suite::engine_layouts()[0]);
  std::vector<SlotCopy> slots = rig.new_slots({0});
  CopyBatch batch = rig.batch(Direction::kRestore, slots);
  batch.events = {{0, EventHandle{7}}};
  const auto ticket = rig.copier().submit(std::move(batch));
  ASSERT_FALSE(ticket.ok());
  EXPECT_EQ(ticket.error().code(), Code::kReject);
}

TEST(HostCopier, RefusesABatchWithoutGeometry) {
  CopyBatch batch;
  batch.groups.push_back({});
  EXPECT_EQ(make_host_copier()->submit(std::move(batch)).error().code(), Code::kBug);
}

TEST(HostDevice, HasNoStreamsAndKeepsItsSlabs) {
  auto device = make_host_device();
  EXPECT_EQ(device->identity(), "cpu:0");
  auto fence = device->fence(StreamHandle{7});
  ASSERT_TRUE(fence.ok());
  EXPECT_FALSE(*fence);
  std::vector<std::byte> one(64), two(64);
  device->add_slab(one);
  device->add_slab(two);
  EXPECT_EQ(device->reachable_slabs(), 2u);
  device->remove_slab(one);
  EXPECT_EQ(device->reachable_slabs(), 1u);
}

TEST(PageChecks, AreWhatASaveWritesIntoTheHeader) {
  for (const suite::EngineLayout& layout : suite::engine_layouts()) {
    suite::Rig rig(host_implementations()[0], layout);
    rig.fill_pages(3);
    SlotCopy slot = rig.new_slot(5);
    ASSERT_TRUE(rig.run(Direction::kSave, {&slot, 1}).ok());
    const auto header = model::read_slot_header(
        rig.header_of(slot), {slot.digest, slot.seed, slot.allocation, rig.layout().slot_bytes,
                              static_cast<std::uint32_t>(layout.fragments.size())});
    ASSERT_TRUE(header.ok()) << layout.name;
    EXPECT_EQ(page_checks(rig.group(), 5, slot.seed), header->checks) << layout.name;
    EXPECT_NE(page_checks(rig.group(), 4, slot.seed), header->checks) << layout.name;
  }
}

}  // namespace
}  // namespace orbitkv::device
