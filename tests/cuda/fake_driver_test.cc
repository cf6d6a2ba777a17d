// The fake itself: what it promises of order, of memory and of captures, since everything
// else here is believed because of it.
#include "tests/cuda/fake_driver.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/checksum.h"
#include "device/cuda/plan.h"

namespace orbitkv::device::cuda::fake {
namespace {

constexpr std::size_t kBytes = 4096;

class FakeDriverTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(d.cuInit(0), 0);
    ASSERT_EQ(d.cuDevicePrimaryCtxRetain(&context, 0), 0);
    ASSERT_EQ(d.cuCtxPushCurrent(context), 0);
    ASSERT_EQ(d.cuStreamCreateWithPriority(&stream, kStreamNonBlocking, 0), 0);
    void* at = nullptr;
    ASSERT_EQ(d.cuMemHostAlloc(&at, kBytes, kHostAllocPortable | kHostAllocDeviceMap), 0);
    host = static_cast<std::byte*>(at);
    ASSERT_EQ(d.cuMemAlloc(&memory, kBytes), 0);
  }
  CuEvent new_event() {
    CuEvent event = nullptr;
    EXPECT_EQ(d.cuEventCreate(&event, kEventDisableTiming), 0);
    return event;
  }

  FakeDriver fake{{.gpus = {Gpu{}, sm_80()}}};
  const Driver& d = fake.driver();
  CuContext context = nullptr;
  CuStream stream = nullptr;
  std::byte* host = nullptr;
  CuPtr memory = 0;
};

TEST_F(FakeDriverTest, NothingIsPossibleBeforeInit) {
  FakeDriver other;
  int count = 0;
  EXPECT_EQ(other.driver().cuDeviceGetCount(&count), 3);
}

TEST_F(FakeDriverTest, AStreamIsAQueueAndAnEventOrdersTwo) {
  CuStream second = nullptr;
  ASSERT_EQ(d.cuStreamCreateWithPriority(&second, kStreamNonBlocking, 0), 0);
  CuEvent event = new_event();
  EXPECT_EQ(d.cuEventQuery(event), 0) << "never recorded";
  fake.hold(stream);
  ASSERT_EQ(d.cuMemcpyHtoDAsync(memory, host, kBytes, stream), 0);
  ASSERT_EQ(d.cuEventRecord(event, stream), 0);
  ASSERT_EQ(d.cuStreamWaitEvent(second, event, 0), 0);
  ASSERT_EQ(d.cuMemcpyDtoHAsync(host, memory, kBytes, second), 0);
  fake.settle();
  EXPECT_EQ(d.cuStreamQuery(second), kCuNotReady);
  EXPECT_EQ(d.cuEventQuery(event), kCuNotReady);
  fake.let_go(stream);
  EXPECT_EQ(d.cuStreamSynchronize(second), 0);
  EXPECT_EQ(fake.history(), (std::vector<std::string>{"copy", "record", "copy"}));
}

// The record that stood when the wait was enqueued counts, not a later one.
TEST_F(FakeDriverTest, AWaitIsForTheRecordOfItsTime) {
  CuStream second = nullptr;
  ASSERT_EQ(d.cuStreamCreateWithPriority(&second, kStreamNonBlocking, 0), 0);
  CuEvent event = new_event();
  ASSERT_EQ(d.cuEventRecord(event, stream), 0);
  ASSERT_EQ(d.cuStreamWaitEvent(second, event, 0), 0);
  fake.hold(stream);
  ASSERT_EQ(d.cuEventRecord(event, stream), 0);
  EXPECT_EQ(d.cuStreamSynchronize(second), 0);
  EXPECT_EQ(d.cuEventQuery(event), kCuNotReady);
  fake.let_go(stream);
}

// Nor one that was made later on a faster stream.
TEST_F(FakeDriverTest, RecordsOfOneEventOnTwoStreamsAreTwo) {
  const CuStream second = fake.new_stream(0), third = fake.new_stream(0);
  CuEvent event = new_event();
  fake.hold(stream);
  ASSERT_EQ(d.cuEventRecord(event, stream), 0);
  ASSERT_EQ(d.cuStreamWaitEvent(third, event, 0), 0);
  ASSERT_EQ(d.cuEventRecord(event, second), 0);
  fake.settle();
  EXPECT_EQ(d.cuEventQuery(event), 0);
  EXPECT_EQ(d.cuStreamQuery(third), kCuNotReady);
  fake.let_go(stream);
  EXPECT_EQ(d.cuStreamSynchronize(third), 0);
}

TEST_F(FakeDriverTest, TheLegacyStreamWaitsForBlockingOnesOnly) {
  const CuStream blocking = fake.new_stream(0, 0);
  fake.hold(blocking);
  fake.hold(stream);
  CuEvent event = new_event();
  ASSERT_EQ(d.cuEventRecord(event, nullptr), 0);
  fake.settle();
  EXPECT_EQ(d.cuEventQuery(event), kCuNotReady);
  fake.let_go(blocking);
  EXPECT_EQ(d.cuStreamSynchronize(nullptr), 0);
  fake.let_go(stream);
}

TEST_F(FakeDriverTest, WordsOfMemoryHoldAStream) {
  auto* word = reinterpret_cast<std::uint32_t*>(host);
  __atomic_store_n(word, 1u, __ATOMIC_RELEASE);
  CuPtr at = 0;
  ASSERT_EQ(d.cuMemHostGetDevicePointer(&at, host, 0), 0);
  ASSERT_EQ(d.cuStreamWaitValue32(stream, at, 7, kWaitValueEqual), 0);
  fake.settle();
  EXPECT_EQ(d.cuStreamQuery(stream), kCuNotReady);
  __atomic_store_n(word, 8u, __ATOMIC_RELEASE);
  fake.settle();
  EXPECT_EQ(d.cuStreamQuery(stream), kCuNotReady) << "equal, not at least";
  __atomic_store_n(word, 7u, __ATOMIC_RELEASE);
  EXPECT_EQ(d.cuStreamSynchronize(stream), 0);
}

TEST_F(FakeDriverTest, DmaOfUnregisteredMemoryLosesTheContext) {
  std::vector<std::byte> pageable(64);
  ASSERT_EQ(d.cuMemcpyHtoDAsync(memory, pageable.data(), 64, stream), 0);
  EXPECT_EQ(d.cuStreamSynchronize(stream), kCuIllegalAddress);
  CuPtr more = 0;
  EXPECT_EQ(d.cuMemAlloc(&more, 64), kCuIllegalAddress) << "for ever";
  EXPECT_NE(fake.complaints(), "");
}

TEST_F(FakeDriverTest, DmaOverTwoRegistrationsFails) {
  auto* pages = static_cast<std::byte*>(std::aligned_alloc(4096, 8192));
  ASSERT_EQ(d.cuMemHostRegister(pages, 4096, kHostRegisterDeviceMap), 0);
  ASSERT_EQ(d.cuMemHostRegister(pages, 64, kHostRegisterDeviceMap), kCuAlreadyRegistered);
  ASSERT_EQ(d.cuMemHostRegister(pages + 4096, 4096, kHostRegisterDeviceMap), 0);
  ASSERT_EQ(d.cuMemcpyDtoHAsync(pages + 4000, memory, 96, stream), 0);
  EXPECT_EQ(d.cuStreamSynchronize(stream), 0);
  ASSERT_EQ(d.cuMemcpyDtoHAsync(pages + 4000, memory, 192, stream), 0);
  EXPECT_EQ(d.cuStreamSynchronize(stream), kCuIllegalAddress);
  std::free(pages);
}

TEST_F(FakeDriverTest, AQueryBreaksACaptureUnlessTheThreadIsRelaxed) {
  const CuStream engine = fake.new_stream(0);
  CuEvent event = new_event();
  int mode = kCaptureRelaxed, status = 0;
  fake.begin_capture(engine, CaptureMode::kGlobal);
  d.cuThreadExchangeStreamCaptureMode(&mode);
  EXPECT_EQ(d.cuEventQuery(event), 0);
  EXPECT_EQ(d.cuStreamIsCapturing(engine, &status), 0);
  EXPECT_EQ(status, 1);
  d.cuThreadExchangeStreamCaptureMode(&mode);
  EXPECT_TRUE(fake.end_capture(engine));
  fake.begin_capture(engine, CaptureMode::kGlobal);
  EXPECT_EQ(d.cuEventQuery(event), kCuCaptureUnsupported);
  EXPECT_FALSE(fake.end_capture(engine));
  fake.begin_capture(engine, CaptureMode::kRelaxed);
  EXPECT_EQ(d.cuStreamQuery(engine), kCuCaptureUnsupported) << "the stream itself, in any mode";
  EXPECT_FALSE(fake.end_capture(engine));
}

TEST_F(FakeDriverTest, FaultsHitTheCallThatWasNamed) {
  fake.fail({.entry = "cuEventCreate", .call = 2, .code = kCuOutOfMemory});
  CuEvent event = nullptr;
  EXPECT_EQ(d.cuEventCreate(&event, 0), 0);
  EXPECT_EQ(d.cuEventCreate(&event, 0), kCuOutOfMemory);
  EXPECT_EQ(d.cuEventCreate(&event, 0), 0);
  EXPECT_EQ(fake.calls("cuEventCreate"), 3u);
  fake.deinitialise();
  EXPECT_EQ(d.cuEventCreate(&event, 0), kCuDeinitialized);
}

TEST_F(FakeDriverTest, WhatIsLeftIsNamed) {
  EXPECT_EQ(
      fake.leaks(),
      "1 streams\n1 pieces of device memory\n1 pieces of pinned memory\n1 retains of primary contexts\n");
}

// Two layers of three slots by four blocks; layer 1 in chunks.
class FakeKernelTest : public FakeDriverTest {
 protected:
  static constexpr std::uint32_t kSequence = 5;
  static constexpr std::size_t kImage = 320;
  void SetUp() override {
    FakeDriverTest::SetUp();
    ASSERT_EQ(d.cuModuleLoadData(&module, "code"), 0);
    ASSERT_EQ(d.cuModuleGetFunction(&function, module, "orbitkv_copy_16"), 0);
    ASSERT_EQ(d.cuModuleGetFunction(&function, module, "nothing"), 500);
    ASSERT_EQ(d.cuModuleGetFunction(&function, module, "orbitkv_copy_16"), 0);
    ASSERT_EQ(d.cuMemcpyHtoD(memory, std::vector<std::byte>(kBytes).data(), kBytes), 0);
    std::fill_n(host, kBytes, std::byte{0});
    for (std::size_t i = 0; i < 3 * kImage; ++i) host[i] = static_cast<std::byte>(i * 7);
    CuPtr at = 0;
    ASSERT_EQ(d.cuMemHostGetDevicePointer(&at, host, 0), 0);
    plan.sums = at + 2048;
    plan.flags = at + 3072;
    plan.counters = memory + 3072;
    plan.nonce = 0xABCDEF;
    plan.fragment_count = 2;
    plan.slot_count = 3;
    plan.signals = 2;
    plan.sequence = kSequence;
    plan.stage_bytes = 64;
    plan.small.fragments[0] = {.base = memory,
                               .block_stride = 64,
                               .row_stride = 0,
                               .image_offset = 0,
                               .row_bytes = 32,
                               .bytes = 32,
                               .first_slot = 0,
                               .slots = 3,
                               .pack = 2,
                               .chunks = 1,
                               .first_unit = 0,
                               .first_sum = 0,
                               .signal = 0};
    plan.small.fragments[1] = {.base = memory + 1024,
                               .block_stride = 256,
                               .row_stride = 128,
                               .image_offset = 128,
                               .row_bytes = 96,
                               .bytes = 192,
                               .first_slot = 0,
                               .slots = 3,
                               .pack = 1,
                               .chunks = 3,
                               .first_unit = 2,
                               .first_sum = 3,
                               .signal = 1};
    plan.units = 2 + 9;
    for (std::uint32_t i = 0; i < 3; ++i) plan.small.slots[i] = {at + kImage * i, 2 - i, 0};
  }
  CuResult launch() {
    void* parameters[] = {&plan};
    return d.cuLaunchKernel(function, 4, 1, 1, 512, 1, 1, 4096, stream, parameters, nullptr);
  }
  std::uint64_t word64(std::size_t at) const {
    std::uint64_t value = 0;
    std::memcpy(&value, host + at, sizeof value);
    return value;
  }
  std::uint64_t sum_at(std::size_t index) const {
    const std::uint64_t sum = word64(2048 + index * sizeof(PlanSum)) ^ plan.nonce;
    EXPECT_EQ(word64(2048 + index * sizeof(PlanSum) + 8), sum * kSumFactor + plan.nonce);
    return sum;
  }
  std::vector<std::byte> pages() {
    std::vector<std::byte> bytes(2048);
    EXPECT_EQ(d.cuMemcpyDtoH(bytes.data(), memory, bytes.size()), 0);
    return bytes;
  }

  CuModule module = nullptr;
  CuFunction function = nullptr;
  PlanLaunch plan{};
};

TEST_F(FakeKernelTest, RestoresSumsAndRaisesItsFlags) {
  ASSERT_EQ(launch(), 0);
  ASSERT_EQ(d.cuStreamSynchronize(stream), 0) << fake.complaints();
  const auto bytes = pages();
  for (std::size_t slot = 0; slot < 3; ++slot) {
    const std::span image(host + kImage * slot, kImage);
    const std::size_t block = 2 - slot;
    EXPECT_EQ(std::memcmp(image.data(), &bytes[block * 64], 32), 0);
    EXPECT_EQ(std::memcmp(&image[128], &bytes[1024 + block * 256], 96), 0);
    EXPECT_EQ(std::memcmp(&image[128 + 96], &bytes[1024 + block * 256 + 128], 96), 0);
    EXPECT_EQ(sum_at(slot), checksum::raw(image.first(32)));
    std::uint64_t sum = 0;
    for (std::size_t chunk = 0; chunk < 3; ++chunk) sum += sum_at(3 + slot * 3 + chunk);
    EXPECT_EQ(sum, checksum::raw(image.subspan(128, 192)));
  }
  EXPECT_EQ(word64(3072), kSequence | std::uint64_t{kSequence} << 32);
  EXPECT_EQ(fake.complaints(), "");
}

TEST_F(FakeKernelTest, DropsAFlag) {
  fake.drop_flags(1);
  ASSERT_EQ(launch(), 0);
  ASSERT_EQ(d.cuStreamSynchronize(stream), 0);
  EXPECT_EQ((word64(3072) & 0xFFFFFFFF) + (word64(3072) >> 32), kSequence);
}

TEST_F(FakeKernelTest, WrongPlansAreNamed) {
  const PlanLaunch right = plan;
  const auto refused = [&](auto change, const std::string& words) {
    FakeDriver inner;  // a context of its own, which is lost
    plan = right;
    change();
    ASSERT_EQ(inner.driver().cuInit(0), 0);
    CuContext own = nullptr;
    inner.driver().cuDevicePrimaryCtxRetain(&own, 0);
    inner.driver().cuCtxPushCurrent(own);
    CuModule code = nullptr;
    inner.driver().cuModuleLoadData(&code, "code");
    inner.driver().cuModuleGetFunction(&function, code, "orbitkv_copy_16");
    void* parameters[] = {&plan};
    const CuStream on = inner.new_stream(0);
    ASSERT_EQ(inner.driver().cuLaunchKernel(function, 4, 1, 1, 512, 1, 1, 4096, on, parameters, nullptr), 0);
    EXPECT_EQ(inner.driver().cuStreamSynchronize(on), kCuIllegalAddress);
    EXPECT_NE(inner.complaints().find(words), std::string::npos) << inner.complaints();
  };
  refused([&] { plan.units = 10; }, "units");
  refused([&] { plan.small.fragments[1].first_sum = 2; }, "share sums");
  refused([&] { plan.small.fragments[0].signal = 1, plan.small.fragments[1].signal = 0; }, "ascend");
  refused([&] { plan.small.fragments[0].base += 8; }, "accesses");
  refused([&] { plan.small.fragments[1].chunks = 2; }, "chunks");
  refused([&] { plan.small.fragments[1].first_slot = 1; }, "slots");
}

}  // namespace
}  // namespace orbitkv::device::cuda::fake
