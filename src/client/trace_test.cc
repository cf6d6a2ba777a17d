#include "client/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "base/limits.h"
#include "client/fake_device_suite.h"

namespace orbitkv::client {
namespace {

class TraceTest : public testing::Test {
 protected:
  TraceTest() {
    Registration registration;
    registration.instance.bytes.fill(std::byte{1});
    registration.name_space = "test";
    registration.num_blocks = 8;
    registration.block_tokens = 16;
    registration.groups = {client::Group{}};
    for (int i = 0; i < 2; ++i) {
      Layer layer;
      layer.name = i == 0 ? "a" : "b";
      layer.base = pages.data() + (1 - i) * 4096;  // the second lies below the first
      layer.bytes = 4096;
      layer.block_stride = layer.row_bytes = 512;
      registration.layers.push_back(layer);
    }
    entry = std::move(*make_entry(registration, 1, gpu));
    transfer.entry = entry.get();
    transfer.handle = {17};
    transfer.kind = model::PlanKind::kRestore;
    transfer.stats = {2048, 4, 1, 96, device::CopyMethod::kKernel, true};
    transfer.report = {1, 2, 3, 4, 5, 6, 2048, 4, "kernel"};
    transfer.parts.resize(2);
    for (std::uint32_t i = 0; i < 2; ++i) {
      Part& part = transfer.parts[i];
      part.group = &entry->groups[0];
      part.slots.resize(1);
      part.slots[0].block = 3 + i;
      part.images = {{SlabId(6), 1152 * i}};
    }
  }
  ~TraceTest() override { ::unlink(path.c_str()); }
  std::vector<std::string> lines() {
    std::vector<std::string> out;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) out.push_back(line);
    return out;
  }

  FakeDevice gpu;
  std::vector<std::byte> pages = std::vector<std::byte>(2 * 4096);
  std::unique_ptr<Entry> entry;
  Transfer transfer;
  std::string path = "/tmp/okv-trace-" + std::to_string(::getpid());
};

// The format that other programs read: change both.
TEST_F(TraceTest, ALineIsWhatTheHeaderSays) {
  auto trace = Trace::open(path);
  ASSERT_TRUE(trace.ok()) << trace.error().message();
  (*trace)->write(transfer, true);
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_EQ(lines()[0],
            R"({"op":17,"kind":"restore","device":"GPU-fake","method":"kernel","success":true,)"
            R"("bytes":2048,"fragments":4,"submissions":1,"plan_bytes":96,"bounced":true,)"
            R"("stages_ns":{"readiness":1,"dispatched":2,"dequeued":3,"claimed":4,"enqueued":5,"drained":6},)"
            R"("groups":[{"group":0,"num_blocks":8,"slot_bytes":1152,"header_bytes":128,)"
            R"("fragments":[[0,0,0,0,512,1,512,0,128],[1,0,1,-4096,512,1,512,0,640]],)"
            R"("slots":[[3,6,0],[4,6,1152]]}]})");
}

TEST_F(TraceTest, AFileIsContinuedAndItsEndIsSaidOnce) {
  {
    (*Trace::open(path))->write(transfer, true);
  }
  auto trace = std::move(*Trace::open(path));
  transfer.parts[0].images.resize(limits::kTraceUnits - 10);
  transfer.parts[0].slots.resize(limits::kTraceUnits - 10);
  trace->write(transfer, true);
  ASSERT_EQ(lines().size(), 2u);
  trace->write(transfer, true);
  trace->write(transfer, true);
  ASSERT_EQ(lines().size(), 3u);
  EXPECT_EQ(lines()[2], "{\"full\":true}");
}

TEST_F(TraceTest, AFullDiskEndsTheTrace) {
  auto trace = Trace::open("/dev/full");
  ASSERT_TRUE(trace.ok()) << trace.error().message();
  testing::internal::CaptureStderr();
  (*trace)->write(transfer, true);
  (*trace)->write(transfer, true);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("No space left"), std::string::npos) << said;
  EXPECT_EQ(said.find("takes no more"), said.rfind("takes no more")) << "once";
}

TEST_F(TraceTest, AFileThatCannotBeOpenedIsNamed) {
  const auto trace = Trace::open("/no such directory/trace");
  ASSERT_FALSE(trace.ok());
  EXPECT_NE(trace.error().message().find("/no such directory/trace"), std::string::npos);
}

}  // namespace
}  // namespace orbitkv::client
