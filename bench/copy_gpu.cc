#include "bench/copy_gpu.h"

#include <algorithm>
#include <cstdio>

#include "base/text.h"
#include "bench/dma.h"
#include "bench/windows_choice.h"

namespace orbitkv::bench {
namespace {

using device::CopyMethod;
using device::Direction;
using device::cuda::Window;
using device::cuda::Windows;

enum class Way : std::uint8_t { kRestore, kSave, kBoth };
constexpr const char* kWayNames[] = {"h2d", "d2h", "both"};

enum class Method : std::uint8_t { kAuto, kUnverified, kKernel, kDirect, kCalls, kBatched };
constexpr const char* kMethodNames[] = {"auto", "unverified", "kernel", "direct", "calls", "batched"};
bool is_rival(Method method) {
  return method >= Method::kCalls;
}

device::CopierOptions options_for(Method method) {
  device::CopierOptions options;
  options.verify = method != Method::kUnverified;
  if (method == Method::kKernel) options.method = CopyMethod::kKernel;
  if (method == Method::kDirect) options.method = CopyMethod::kDirect;
  return options;
}

Direction direction_of(Way way) {
  return way == Way::kSave ? Direction::kSave : Direction::kRestore;
}

std::string size_text(std::uint64_t bytes) {
  const bool whole = bytes % kMiB.value == 0;
  return std::to_string(whole ? bytes / kMiB.value : bytes / kKiB.value) + (whole ? "MiB" : "KiB");
}

// ---- windows ----

std::string window_json(const Window& w) {
  return format_text("{\"ctas\":%u,\"stage_bytes\":%u,\"loads\":%u,\"stores\":%u}", w.ctas, w.stage_bytes,
                     w.loads, w.stores);
}

// ---- one case ----

struct CopyCase {
  std::string shape_name;  // "16KiB_split"
  Way way = Way::kRestore;
  Method method = Method::kAuto;
  Window window;
  std::string name() const {
    const bool dma = method >= Method::kDirect;
    return format_text("%s_%s_%s_%u", kWayNames[static_cast<int>(way)], shape_name.c_str(),
                       kMethodNames[static_cast<int>(method)], dma ? 0 : window.ctas);
  }
};

class CaseRunner {
 public:
  CaseRunner(CopyBed& bed, CopyRig& rig, Dma& dma, const CopyLoad& load)
      : bed_(bed), rig_(rig), dma_(dma), load_(load) {}

  // Images that a restore will find right, and the first proof that saves are.
  Status prepare() {
    ORBITKV_ASSIGN_OR_RETURN(auto copier, bed_.copier({}));
    for (const Set set : {Set::kFirst, Set::kSecond}) {
      ORBITKV_RETURN_IF_ERROR(copy_once(*copier, rig_.batch(Direction::kSave, rig_.slots(set))));
      ORBITKV_RETURN_IF_ERROR(none_wrong(rig_.wrong_image_bytes(set), "saved images"));
    }
    return ok_status();
  }

  Result<std::vector<Run>> run(const CopyCase& what, int runs) {
    ORBITKV_ASSIGN_OR_RETURN(auto copier, bed_.copier(options_for(what.method)));
    // One operation off the clock: what is made at first need is made.
    ORBITKV_RETURN_IF_ERROR(copy_once(*copier, rig_.batch(direction_of(what.way), rig_.slots(Set::kFirst))));
    if (what.way != Way::kSave) ORBITKV_RETURN_IF_ERROR(rig_.spoil_pages());
    if (what.way == Way::kSave) rig_.spoil_images(Set::kFirst);
    if (what.way == Way::kBoth) ORBITKV_RETURN_IF_ERROR(copy_set(Direction::kRestore, Set::kSecond));
    std::vector<Run> out;
    for (int i = 0; i < runs; ++i) {
      auto run = what.way == Way::kBoth  ? both(*copier)
                 : is_rival(what.method) ? rival(what)
                                         : ours(what, *copier);
      if (!run.ok()) return run.error();
      out.push_back(*run);
    }
    ORBITKV_RETURN_IF_ERROR(compare(what));
    return out;
  }
  const device::CopyStats& stats() const { return stats_; }
  std::uint64_t bytes(const CopyCase& what) const {
    const std::uint64_t all = rig_.shape().set_bytes().value;
    return is_rival(what.method) ? std::min(all, load_.rival_bytes) : all;
  }

 private:
  Result<Run> ours(const CopyCase& what, device::Copier& copier) {
    Samples samples, ceiling;
    const Direction direction = direction_of(what.way);
    for (std::uint32_t i = 0; i < load_.operations; ++i) {
      ORBITKV_ASSIGN_OR_RETURN(const Copied copied,
                               copy_once(copier, rig_.batch(direction, rig_.slots(Set::kFirst))));
      samples.add(copied.took);
      stats_ = copied.stats;
      ORBITKV_ASSIGN_OR_RETURN(const Duration plain, dma_.one(direction, rig_.shape().set_bytes()));
      ceiling.add(plain);
    }
    return make_run(samples, ceiling, bytes(what));
  }
  Result<Run> rival(const CopyCase& what) {
    Samples samples, ceiling;
    const Direction direction = direction_of(what.way);
    const ByteCount fragment(rig_.shape().fragment_bytes);
    std::vector<Piece> pieces = rig_.pieces(Set::kFirst);
    pieces.resize(bytes(what) / fragment.value);
    for (std::uint32_t i = 0; i < load_.operations; ++i) {
      auto took = what.method == Method::kCalls ? dma_.each(direction, pieces, fragment)
                                                : dma_.batched(direction, pieces, fragment);
      if (!took.ok()) return took.error();
      samples.add(*took);
      ORBITKV_ASSIGN_OR_RETURN(const Duration plain, dma_.one(direction, ByteCount(bytes(what))));
      ceiling.add(plain);
    }
    stats_ = {};
    stats_.fragments = pieces.size();
    stats_.submissions = what.method == Method::kCalls ? static_cast<std::uint32_t>(pieces.size()) : 1;
    stats_.method = CopyMethod::kDirect;
    return make_run(samples, ceiling, bytes(what));
  }
  // Restores of the first set beside saves of the second.
  Result<Run> both(device::Copier& copier) {
    const std::size_t operations = 4 * std::size_t{load_.operations};
    CopierLane restores(copier, rig_, Direction::kRestore, Set::kFirst);
    CopierLane saves(copier, rig_, Direction::kSave, Set::kSecond);
    ORBITKV_ASSIGN_OR_RETURN(const double rate, rate_of_both(restores, saves, operations));
    const ByteCount half = restores.bytes();
    ORBITKV_ASSIGN_OR_RETURN(auto down, DmaLane::make(bed_, Direction::kRestore, half));
    ORBITKV_ASSIGN_OR_RETURN(auto up, DmaLane::make(bed_, Direction::kSave, half));
    Run run;
    ORBITKV_ASSIGN_OR_RETURN(run.ceiling, rate_of_both(*down, *up, operations));
    run.gb_per_s = rate;
    run.p50.ns = static_cast<std::int64_t>(static_cast<double>(rig_.shape().set_bytes().value) / rate);
    run.p99 = run.p50;
    stats_ = restores.stats();
    return run;
  }
  static Run make_run(Samples& ours, Samples& ceiling, std::uint64_t bytes) {
    Run run;
    run.p50 = ours.percentile(0.5);
    run.p99 = ours.percentile(0.99);
    run.gb_per_s = static_cast<double>(bytes) / static_cast<double>(run.p50.ns);
    run.ceiling = static_cast<double>(bytes) / static_cast<double>(ceiling.percentile(0.5).ns);
    return run;
  }

  Status copy_set(Direction direction, Set set) {
    ORBITKV_ASSIGN_OR_RETURN(auto copier, bed_.copier({}));
    const auto copied = copy_once(*copier, rig_.batch(direction, rig_.slots(set)));
    if (!copied.ok()) return copied.error();
    return ok_status();
  }
  static Status none_wrong(std::uint64_t bytes, const char* where) {
    if (bytes == 0) return ok_status();
    return bug(format_text("%llu bytes of the %s are wrong", static_cast<unsigned long long>(bytes), where));
  }
  // What the case moved, and that nothing else changed.
  Status compare(const CopyCase& what) {
    if (is_rival(what.method)) return compare_rival(what);
    if (what.way == Way::kSave) return none_wrong(rig_.wrong_image_bytes(Set::kFirst), "saved images");
    if (what.way == Way::kRestore) ORBITKV_RETURN_IF_ERROR(copy_set(Direction::kRestore, Set::kSecond));
    ORBITKV_ASSIGN_OR_RETURN(const std::uint64_t wrong, rig_.wrong_page_bytes());
    ORBITKV_RETURN_IF_ERROR(none_wrong(wrong, "pages"));
    if (what.way == Way::kRestore) return ok_status();
    return none_wrong(rig_.wrong_image_bytes(Set::kSecond), "saved images");
  }
  // It moves a part of the set, and no headers: the rest is made whole for the next case.
  Status compare_rival(const CopyCase& what) {
    std::vector<Piece> pieces = rig_.pieces(Set::kFirst);
    pieces.resize(bytes(what) / rig_.shape().fragment_bytes);
    if (what.way == Way::kSave) {
      ORBITKV_RETURN_IF_ERROR(none_wrong(rig_.wrong_image_bytes(pieces), "saved images"));
      return copy_set(Direction::kSave, Set::kFirst);
    }
    ORBITKV_ASSIGN_OR_RETURN(const std::uint64_t wrong, rig_.wrong_page_bytes(pieces));
    ORBITKV_RETURN_IF_ERROR(none_wrong(wrong, "pages"));
    ORBITKV_RETURN_IF_ERROR(copy_set(Direction::kRestore, Set::kFirst));
    return copy_set(Direction::kRestore, Set::kSecond);
  }

  CopyBed& bed_;
  CopyRig& rig_;
  Dma& dma_;
  const CopyLoad& load_;
  device::CopyStats stats_;
};

// ---- shapes ----

struct NamedShape {
  std::string name;
  CopyShape shape;
};

// As many blocks as keep the fragments of a block at 64 or fewer, 16 blocks at least.
CopyShape shape_of(const CopyLoad& load, std::uint64_t fragment, std::uint16_t components) {
  const std::uint64_t all = load.set_bytes / fragment;
  CopyShape shape;
  shape.fragment_bytes = fragment;
  shape.components = components;
  const std::uint64_t of_a_block = std::clamp<std::uint64_t>(all / 16, 2, 64);
  shape.layers = static_cast<std::uint16_t>(of_a_block / components);
  shape.blocks = static_cast<std::uint32_t>(all / of_a_block);
  return shape;
}

std::vector<NamedShape> shapes_of(const CopyLoad& load) {
  std::vector<NamedShape> out;
  for (const std::uint64_t fragment : load.fragments) {
    out.push_back({size_text(fragment), shape_of(load, fragment, 1)});
    out.push_back({size_text(fragment) + "_split", shape_of(load, fragment, 2)});
  }
  const CopyShape layered{2048, 36, 2, 128};
  if (layered.set_bytes().value <= load.set_bytes) out.push_back({"36x128x4KiB_split", layered});
  return out;
}

std::vector<CopyCase> cases_of(const NamedShape& shape, const Windows& windows, bool bulk) {
  std::vector<CopyCase> out;
  for (const Way way : {Way::kRestore, Way::kSave, Way::kBoth}) {
    for (const Method method : {Method::kAuto, Method::kUnverified, Method::kKernel, Method::kDirect,
                                Method::kCalls, Method::kBatched}) {
      if (way == Way::kBoth && method != Method::kAuto && method != Method::kKernel) continue;
      Window window = windows.of(direction_of(way), device::CopyPace::kFull, shape.shape.fragment_bytes);
      if (!bulk) window.ctas = windows.any_ctas_of(device::CopyPace::kFull);
      out.push_back({shape.name, way, method, window});
    }
  }
  return out;
}

void report_case(const CopyCase& what, const CaseRunner& runner, std::vector<Run> runs,
                 const Options& options) {
  const device::CopyStats& stats = runner.stats();
  Case line{
      "copy",
      what.name(),
      ByteCount(runner.bytes(what)),
      stats.fragments,
      {},
      Ceiling{what.way == Way::kBoth ? "dma_both_ways" : "one_dma", Ceiling::Unit::kGigabytesPerSecond}};
  line.spread = true;
  line.extras = {{"method", stats.method == CopyMethod::kKernel ? "\"kernel\"" : "\"direct\""},
                 {"submissions", std::to_string(stats.submissions)},
                 {"plan_bytes", std::to_string(stats.plan_bytes)}};
  if (stats.method == CopyMethod::kKernel) line.extras.push_back({"window", window_json(what.window)});
  report(line, std::move(runs), options);
}

Status run_shape(const NamedShape& shape, const std::vector<CopyCase>& cases, CopyBed& bed,
                 const Options& options, const CopyLoad& load) {
  ORBITKV_ASSIGN_OR_RETURN(auto rig, CopyRig::make(bed, shape.shape));
  ORBITKV_ASSIGN_OR_RETURN(auto dma, Dma::make(bed.gpu(), {bed.plain_device(), bed.plain_host()}));
  CaseRunner runner(bed, *rig, *dma, load);
  ORBITKV_RETURN_IF_ERROR(runner.prepare());
  for (const CopyCase& what : cases) {
    if (what.method == Method::kBatched && bed.gpu().driver().cuMemcpyBatchAsync == nullptr) continue;
    auto runs = runner.run(what, options.runs);
    if (!runs.ok()) return Error(runs.error().code(), what.name() + ": " + runs.error().message());
    report_case(what, runner, *std::move(runs), options);
  }
  return ok_status();
}

Status run_shapes(Gpu& gpu, const Options& options, const CopyLoad& load) {
  ORBITKV_ASSIGN_OR_RETURN(const Windows windows, choose_windows(options.window, gpu));
  std::unique_ptr<CopyBed> bed;
  for (const NamedShape& shape : shapes_of(load)) {
    auto cases = cases_of(shape, windows, gpu.context()->kernels().bulk != nullptr);
    std::erase_if(cases, [&](const CopyCase& what) { return !options.wants(what.name()); });
    if (cases.empty()) continue;
    if (!bed) {
      ORBITKV_ASSIGN_OR_RETURN(bed, CopyBed::make(gpu, {ByteCount(load.set_bytes)}));
      bed->parts().set_windows(windows);
    }
    ORBITKV_RETURN_IF_ERROR(run_shape(shape, cases, *bed, options, load));
  }
  return ok_status();
}

}  // namespace

int run_copy_gpu_bench(const Options& options, const CopyLoad& load) {
  auto gpu = Gpu::open(options.device);
  if (!gpu.ok()) return skip("copy", gpu.error());
  pin_thread(usable_cpus().front());
  const Status done = run_shapes(**gpu, options, load);
  if (done.ok()) return 0;
  std::fprintf(stderr, "bench copy: %s\n", done.error().message().c_str());
  return 1;
}

}  // namespace orbitkv::bench
