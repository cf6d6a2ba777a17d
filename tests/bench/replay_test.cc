// Replays of traces on a fake GPU: geometry is made again, counts are computed, bytes are
// compared.
#include "bench/replay.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "bench/gpu.h"
#include "bench/trace_line.h"
#include "tests/cuda/fake_driver.h"

namespace orbitkv::bench {
namespace {

using device::cuda::Driver;
using device::cuda::fake::FakeDriver;

// Two layers in one line; the second lies below the first.
const char* const kRestore =
    R"({"op":17,"kind":"restore","device":"GPU-fake","method":"kernel","success":true,)"
    R"("bytes":2048,"fragments":4,"submissions":1,"plan_bytes":160,"bounced":false,)"
    R"("stages_ns":{"readiness":1,"dispatched":2,"dequeued":3,"claimed":4,"enqueued":5,"drained":6},)"
    R"("groups":[{"group":0,"num_blocks":8,"slot_bytes":1152,"header_bytes":128,)"
    R"("fragments":[[0,0,0,0,512,1,512,0,128],[1,0,1,-4096,512,1,512,0,640]],)"
    R"("slots":[[6,6,0],[4,6,1152]]}]})";
// K and V as halves of one tensor, rows at a pitch.
const char* const kRows =
    R"({"op":18,"kind":"save","device":"GPU-fake","method":"direct","success":true,)"
    R"("bytes":3072,"fragments":6,"submissions":7,"plan_bytes":176,"bounced":false,)"
    R"("stages_ns":{"readiness":1,"dispatched":2,"dequeued":3,"claimed":4,"enqueued":5,"drained":6},)"
    R"("groups":[{"group":3,"num_blocks":1000000000,"slot_bytes":1152,"header_bytes":128,)"
    R"("fragments":[[0,0,0,0,2048,4,128,256,128],[0,1,0,1024,2048,4,128,256,640]],)"
    R"("slots":[[900000000,1,0],[4,1,1152],[77,0,0]]}]})";

class Replay : public testing::Test {
 protected:
  Replay() {
    options.json = true;
    options.runs = 1;
    options.file = path;
    options.window = "default";
    use_driver([this]() -> Result<const Driver*> {
      fake.driver().cuInit(0);
      return &fake.driver();
    });
  }
  ~Replay() override {
    use_driver(device::cuda::load_driver);
    ::unlink(path.c_str());
  }
  void trace(const std::vector<std::string>& lines) {
    std::ofstream file(path);
    for (const std::string& line : lines) file << line << "\n";
  }
  std::pair<int, std::string> run() {
    testing::internal::CaptureStdout();
    const int status = run_replay_bench(options);
    return {status, testing::internal::GetCapturedStdout()};
  }
  std::string errors() {
    testing::internal::CaptureStderr();
    run();
    return testing::internal::GetCapturedStderr();
  }

  FakeDriver fake;
  Options options;
  const std::string path = "/tmp/okv-replay-" + std::to_string(::getpid());
};

TEST_F(Replay, EachShapeIsRunOnceByEachMethod) {
  std::string again = kRestore;
  again.replace(again.find("[6,6,0]"), 7, "[1,6,0]");
  trace({kRestore, again});
  const auto [status, out] = run();
  EXPECT_EQ(status, 0);
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 3) << out;
  for (const char* method : {"direct", "kernel", "auto"})
    EXPECT_NE(out.find(std::string("\"case\":\"op17_restore_") + method), std::string::npos) << out;
  EXPECT_NE(out.find(R"("operations":2,"method":"direct","launches":1,"units":2,"dma_calls":1,)"
                     R"("plan_bytes":160,"submissions":2,"as_computed":true,"recorded_method":"kernel",)"
                     R"("recorded_submissions":1,"recorded_plan_bytes":160,"recorded_bounced":false,)"
                     R"("as_recorded":true)"),
            std::string::npos)
      << out;
  EXPECT_EQ(fake.leaks(), "");
  EXPECT_EQ(fake.complaints(), "");
}

// 2 TB of pages do not fit: the moved blocks alone do.
TEST_F(Replay, FarBlocksAreRenumberedAndRowsStayRows) {
  trace({kRows});
  const auto [status, out] = run();
  EXPECT_EQ(status, 0);
  EXPECT_NE(out.find(R"("dma_calls":6,"plan_bytes":176,"submissions":7,"as_computed":true)"),
            std::string::npos)
      << out;
  EXPECT_NE(out.find("\"as_recorded\":true"), std::string::npos) << out;
}

TEST_F(Replay, ARecordThatDiffersIsShown) {
  std::string other = kRestore;
  other.replace(other.find("\"plan_bytes\":160"), 16, "\"plan_bytes\":161");
  trace({other});
  const auto [status, out] = run();
  EXPECT_EQ(status, 0);
  EXPECT_EQ(out.find("\"as_recorded\":true"), std::string::npos) << out;
}

// The trace says one thing of the bytes and its geometry another.
TEST_F(Replay, AReplayThatIsNotWhatTheGeometrySaysFails) {
  std::string other = kRestore;
  other.replace(other.find("\"bytes\":2048"), 12, "\"bytes\":4096");
  trace({other});
  EXPECT_EQ(run().first, 1);
}

TEST_F(Replay, FailedOperationsAreLeftOut) {
  std::string failed = kRestore;
  failed.replace(failed.find("true"), 4, "false");
  trace({failed, "{\"full\":true}"});
  const auto [status, out] = run();
  EXPECT_EQ(status, 1);
  EXPECT_EQ(out, "");
}

TEST_F(Replay, ALineThatIsNoTraceIsNamed) {
  trace({kRestore, "{\"op\":1}"});
  EXPECT_NE(errors().find("line 2"), std::string::npos);
  EXPECT_EQ(run().first, 1);
}

TEST_F(Replay, ABlockBeyondTheRegisteredOnesIsRefused) {
  std::string wrong = kRestore;
  wrong.replace(wrong.find("[6,6,0]"), 7, "[8,6,0]");
  trace({wrong});
  EXPECT_EQ(run().first, 1);
}

TEST_F(Replay, WithoutAFileOrAGpuItSaysSo) {
  options.file = "/no such trace";
  EXPECT_NE(errors().find("/no such trace"), std::string::npos);
  options.file = path;
  trace({kRestore});
  use_driver([]() -> Result<const Driver*> { return reject("no driver"); });
  EXPECT_EQ(run().first, kSkipped);
}

TEST(TraceLine, EveryFieldIsRead) {
  const auto line = parse_trace_line(kRestore);
  ASSERT_TRUE(line.ok()) << line.error().message();
  EXPECT_EQ(line->op, 17u);
  EXPECT_EQ(line->direction, device::Direction::kRestore);
  EXPECT_EQ(line->method, "kernel");
  EXPECT_EQ(line->plan_bytes, 160u);
  ASSERT_EQ(line->groups.size(), 1u);
  EXPECT_EQ(line->groups[0].fragments[1].base, -4096);
  EXPECT_EQ(line->groups[0].slots[1].offset, 1152u);
  EXPECT_FALSE(parse_trace_line("[]").ok());
  EXPECT_FALSE(parse_trace_line("{").ok());
}

}  // namespace
}  // namespace orbitkv::bench
