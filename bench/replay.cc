#include "bench/replay.h"

#include <cstdio>
#include <map>

#include "base/text.h"
#include "bench/compiled.h"
#include "bench/copy_rig.h"
#include "bench/dma.h"
#include "bench/replay_rig.h"
#include "bench/windows_choice.h"

namespace orbitkv::bench {
namespace {

using device::CopyMethod;
using device::Direction;

constexpr std::uint32_t kOperations = 10;  // a run
struct Forced {
  const char* name;
  CopyMethod method;
};
constexpr Forced kForced[] = {
    {"direct", CopyMethod::kDirect}, {"kernel", CopyMethod::kKernel}, {"auto", CopyMethod::kAuto}};

struct BothWays {
  Compiled kernel, dma;
  const Compiled& of(bool by_dma) const { return by_dma ? dma : kernel; }
};
BothWays compiled_of(const ReplayRig& rig, const Gpu& gpu, const device::cuda::Windows& windows,
                     Direction direction) {
  CompileFacts facts;
  facts.payload = rig.payload();
  facts.stage_bytes = windows.of(direction, device::CopyPace::kFull, rig.typical_fragment()).stage_bytes;
  facts.shared_bytes = static_cast<std::uint32_t>(gpu.context()->traits().shared_bytes);
  facts.max_pitch = gpu.context()->traits().max_pitch;
  facts.has_bulk = gpu.context()->kernels().bulk != nullptr;
  facts.batched_dma = gpu.driver().cuMemcpyBatchAsync != nullptr;
  const auto groups = rig.plan_groups();
  return {compile(groups, facts, Carrier::kKernel), compile(groups, facts, Carrier::kDma)};
}

// The operations of one shape, by the first of them.
struct Shape {
  const TraceLine* line = nullptr;
  std::size_t operations = 0;
};

class ShapeRunner {
 public:
  ShapeRunner(const Options& options, Gpu& gpu, const device::cuda::Windows& windows)
      : options_(options), gpu_(gpu), windows_(windows) {}

  Status run(const Shape& shape) {
    std::vector<const Forced*> wanted;
    for (const Forced& forced : kForced)
      if (options_.wants(name(shape, forced))) wanted.push_back(&forced);
    if (wanted.empty()) return ok_status();
    ORBITKV_ASSIGN_OR_RETURN(auto rig, ReplayRig::make(gpu_, *shape.line, windows_));
    const ByteCount payload(rig->payload());
    ORBITKV_ASSIGN_OR_RETURN(auto host, RegisteredMemory::make(gpu_, payload));
    ORBITKV_ASSIGN_OR_RETURN(auto device, GpuMemory::make(gpu_, payload));
    ORBITKV_ASSIGN_OR_RETURN(auto dma, Dma::make(gpu_, {device->at(), host->data()}));
    for (const Forced* forced : wanted) ORBITKV_RETURN_IF_ERROR(run_method(shape, *forced, *rig, *dma));
    return ok_status();
  }

 private:
  static std::string name(const Shape& shape, const Forced& forced) {
    return format_text("op%llu_%s_%s", static_cast<unsigned long long>(shape.line->op),
                       shape.line->direction == Direction::kSave ? "save" : "restore", forced.name);
  }

  Status run_method(const Shape& shape, const Forced& forced, ReplayRig& rig, Dma& dma) {
    const Direction direction = shape.line->direction;
    device::CopierOptions copying;
    copying.method = forced.method;
    ORBITKV_ASSIGN_OR_RETURN(auto copier, rig.copier(copying));
    ORBITKV_RETURN_IF_ERROR(rig.fill());
    ORBITKV_RETURN_IF_ERROR(once(*copier, rig, Direction::kSave));
    if (direction == Direction::kRestore) ORBITKV_RETURN_IF_ERROR(rig.spoil());
    std::vector<Run> runs;
    for (int i = 0; i < options_.runs; ++i) {
      Samples ours, plain;
      for (std::uint32_t n = 0; n < kOperations; ++n) {
        ORBITKV_ASSIGN_OR_RETURN(const Copied copied, copy_once(*copier, rig.batch(direction)));
        ours.add(copied.took);
        stats_ = copied.stats;
        ORBITKV_ASSIGN_OR_RETURN(const Duration one, dma.one(direction, ByteCount(rig.payload())));
        plain.add(one);
      }
      runs.push_back(run_of(ours, plain, rig.payload()));
    }
    ORBITKV_RETURN_IF_ERROR(compare_bytes(*copier, rig, direction));
    return report_method(shape, forced, rig, std::move(runs));
  }

  static Status once(device::Copier& copier, ReplayRig& rig, Direction direction) {
    const auto copied = copy_once(copier, rig.batch(direction));
    if (!copied.ok()) return copied.error();
    return ok_status();
  }
  static Run run_of(Samples& ours, Samples& plain, std::uint64_t bytes) {
    Run run;
    run.p50 = ours.percentile(0.5);
    run.p99 = ours.percentile(0.99);
    run.gb_per_s = static_cast<double>(bytes) / static_cast<double>(run.p50.ns);
    run.ceiling = static_cast<double>(bytes) / static_cast<double>(plain.percentile(0.5).ns);
    return run;
  }
  static Status compare_bytes(device::Copier& copier, ReplayRig& rig, Direction direction) {
    if (direction == Direction::kSave) {
      ORBITKV_RETURN_IF_ERROR(rig.spoil());
      ORBITKV_RETURN_IF_ERROR(once(copier, rig, Direction::kRestore));
    }
    ORBITKV_ASSIGN_OR_RETURN(const bool right, rig.restored());
    if (!right) return bug("restored pages have wrong bytes, or others were touched");
    return ok_status();
  }

  Status report_method(const Shape& shape, const Forced& forced, const ReplayRig& rig,
                       std::vector<Run> runs) {
    const TraceLine& line = *shape.line;
    const BothWays compiled = compiled_of(rig, gpu_, windows_, line.direction);
    const bool by_dma = stats_.method == CopyMethod::kDirect;
    const Compiled& ours = compiled.of(by_dma);
    const Compiled& traced = compiled.of(line.method == "direct");
    const bool computed = stats_.submissions == ours.submissions() && stats_.plan_bytes == ours.plan_bytes &&
                          stats_.fragments == line.fragments && stats_.bytes == line.bytes;
    const bool recorded =
        !line.bounced && line.plan_bytes == traced.plan_bytes && line.submissions == traced.submissions();
    Case what{"replay",
              name(shape, forced),
              ByteCount(rig.payload()),
              stats_.fragments,
              {},
              Ceiling{"one_dma", Ceiling::Unit::kGigabytesPerSecond}};
    what.spread = true;
    const auto number = [](std::uint64_t value) { return std::to_string(value); };
    what.extras = {{"operations", number(shape.operations)},
                   {"method", by_dma ? "\"direct\"" : "\"kernel\""},
                   {"launches", number(ours.launches)},
                   {"units", number(ours.units)},
                   {"dma_calls", number(ours.dma_calls)},
                   {"plan_bytes", number(ours.plan_bytes)},
                   {"submissions", number(stats_.submissions)},
                   {"as_computed", computed ? "true" : "false"},
                   {"recorded_method", "\"" + line.method + "\""},
                   {"recorded_submissions", number(line.submissions)},
                   {"recorded_plan_bytes", number(line.plan_bytes)},
                   {"recorded_bounced", line.bounced ? "true" : "false"},
                   {"as_recorded", recorded ? "true" : "false"}};
    report(what, std::move(runs), options_);
    if (computed) return ok_status();
    return bug(
        format_text("%s: %u submissions, %llu bytes of plan and %llu fragments are not what its geometry "
                    "compiles to",
                    what.name.c_str(), stats_.submissions, static_cast<unsigned long long>(stats_.plan_bytes),
                    static_cast<unsigned long long>(stats_.fragments)));
  }

  const Options& options_;
  Gpu& gpu_;
  const device::cuda::Windows& windows_;
  device::CopyStats stats_;
};

// In the order of their first operations; failed ones moved who knows what.
std::vector<Shape> shapes_of(const TraceFile& file) {
  std::vector<Shape> shapes;
  std::map<std::string, std::size_t> known;
  for (const TraceLine& line : file.lines) {
    if (!line.success || line.groups.empty()) continue;
    const auto [at, fresh] = known.try_emplace(line.shape_key, shapes.size());
    if (fresh) shapes.push_back({&line, 0});
    ++shapes[at->second].operations;
  }
  return shapes;
}

Status replay(const Options& options, const TraceFile& file, Gpu& gpu) {
  ORBITKV_ASSIGN_OR_RETURN(const auto windows, choose_windows(options.window, gpu));
  ShapeRunner runner(options, gpu, windows);
  for (const Shape& shape : shapes_of(file)) {
    const Status done = runner.run(shape);
    if (!done.ok())
      return Error(done.error().code(),
                   format_text("operation %llu: %s", static_cast<unsigned long long>(shape.line->op),
                               done.error().message().c_str()));
  }
  return ok_status();
}

}  // namespace

int run_replay_bench(const Options& options) {
  if (options.file.empty()) {
    std::fprintf(stderr, "bench replay: name the trace: orbitkv bench replay FILE\n");
    return kUsageError;
  }
  const auto file = read_trace(options.file);
  if (!file.ok()) {
    std::fprintf(stderr, "bench replay: %s\n", file.error().message().c_str());
    return 1;
  }
  if (file->full) std::fprintf(stderr, "bench replay: the trace is full, later operations are not in it\n");
  if (shapes_of(*file).empty()) {
    std::fprintf(stderr, "bench replay: %s holds no operation that succeeded\n", options.file.c_str());
    return 1;
  }
  auto gpu = Gpu::open(options.on_gpu() ? options.device : "cuda:0");
  if (!gpu.ok()) return skip("replay", gpu.error());
  pin_thread(usable_cpus().front());
  const Status done = replay(options, *file, **gpu);
  if (done.ok()) return 0;
  std::fprintf(stderr, "bench replay: %s\n", done.error().message().c_str());
  return 1;
}

}  // namespace orbitkv::bench
