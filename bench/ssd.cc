#include "bench/ssd.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <utility>

#include "base/text.h"
#include "bench/fio.h"
#include "bench/pairs.h"
#include "bench/ssd_manager.h"
#include "bench/ssd_rig.h"
#include "ssd/io.h"

namespace orbitkv::bench {
namespace {

constexpr Duration kRunTime = seconds(1);

struct SsdCase {
  ssd::IoOp op;
  ByteCount block;
  std::uint32_t depth;
  std::string name() const {
    const std::string size = block < kMiB
                                 ? format_text("%lluKiB", static_cast<unsigned long long>(block.value >> 10))
                                 : format_text("%lluMiB", static_cast<unsigned long long>(block.value >> 20));
    return format_text("%s_%s_qd%u", op == ssd::IoOp::kRead ? "read" : "write", size.c_str(), depth);
  }
};

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds_of = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

// Keeps `depth` requests on their way, as the store does.
class Load {
 public:
  Load(const SsdCase& what, const SsdFile& file, const SsdMemory& memory)
      : what_(what), file_(file), memory_(memory) {
    for (std::uint32_t i = 0; i < what.depth; ++i)
      pieces_.push_back(memory.bytes().subspan(i * what.block.value, what.block.value));
    results_.resize(what.depth);
  }

  Status open() {
    auto io = ssd::make_io(ssd::IoKind::kAuto, {});
    if (!io.ok()) return io.error();
    io_ = std::move(*io);
    const auto opened = io_->open(file_.path(), {});
    if (!opened.ok()) return opened.error();
    index_ = opened->file;
    io_->add_memory(memory_.bytes());
    return ok_status();
  }

  bool run(Run& out, double& cpu_s_per_gib) {
    Samples samples;
    const double cpu = cpu_seconds();
    const TimePoint start = monotonic_now();
    for (std::uint32_t i = 0; i < what_.depth; ++i) submit(i);
    std::uint64_t bytes = 0;
    std::uint32_t running = what_.depth;
    TimePoint now = start;
    while (running > 0) {
      const std::size_t got = io_->reap(results_, seconds(60));
      if (got == 0) return false;
      now = monotonic_now();
      running -= static_cast<std::uint32_t>(got);
      batch_.clear();
      for (std::size_t i = 0; i < got; ++i) {
        if (results_[i].error != 0) return false;
        samples.add(results_[i].took);
        bytes += what_.block.value;
        if (now - start < kRunTime) add(static_cast<std::uint32_t>(results_[i].tag.value));
      }
      running += static_cast<std::uint32_t>(io_->submit(batch_));
    }
    out.gb_per_s = static_cast<double>(bytes) / static_cast<double>((now - start).ns);
    out.p50 = samples.percentile(0.5);
    out.p99 = samples.percentile(0.99);
    cpu_s_per_gib = (cpu_seconds() - cpu) / (static_cast<double>(bytes) / static_cast<double>(kGiB.value));
    return true;
  }

  ssd::IoStats stats() const { return io_->stats(); }
  const char* engine() const { return io_->name(); }

 private:
  void add(std::uint32_t slot) {
    const std::uint64_t blocks = file_.bytes().value / what_.block.value;
    batch_.push_back({ssd::IoTag(slot), what_.op, index_, random_() % blocks * what_.block.value,
                      std::span(pieces_).subspan(slot, 1)});
  }
  void submit(std::uint32_t slot) {
    batch_.clear();
    add(slot);
    io_->submit(batch_);
  }

  const SsdCase what_;
  const SsdFile& file_;
  const SsdMemory& memory_;
  ssd::FileIndex index_;
  std::vector<std::span<std::byte>> pieces_;
  std::vector<ssd::IoRequest> batch_;
  std::vector<ssd::IoResult> results_;
  std::mt19937_64 random_{1};
  std::unique_ptr<ssd::Io> io_;  // goes first: after a failure requests still name the pieces
};

class SsdBench {
 public:
  SsdBench(const Options& options, const SsdFile& file, bool fio)
      : options_(options), file_(file), fio_(fio) {}

  int run(const SsdCase& what) {
    auto memory = SsdMemory::make(ByteCount(what.block.value * what.depth));
    if (!memory.ok()) return fail(what, memory.error().message());
    Load load(what, file_, *memory);
    if (const Status status = load.open(); !status.ok()) return fail(what, status.error().message());
    const FioJob job{what.op == ssd::IoOp::kWrite, file_.path(), file_.bytes(), what.block, what.depth,
                     memory->fio_memory()};
    std::vector<Run> runs(static_cast<std::size_t>(options_.runs));
    std::vector<double> ratios, ours, theirs;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const Status pair = by_turns(i, [&](Side side) -> Status {
        if (side == Side::kOurs)
          return load.run(runs[i], ours.emplace_back()) ? ok_status() : bug("a request failed");
        if (!fio_) return ok_status();
        ORBITKV_ASSIGN_OR_RETURN(const FioFigures figures, run_fio(job));
        runs[i].ceiling = figures.gb_per_s;
        theirs.push_back(figures.cpu_s_per_gib);
        return ok_status();
      });
      if (!pair.ok()) return fail(what, pair.error().message());
      if (fio_) ratios.push_back(*runs[i].gb_per_s / runs[i].ceiling);
    }
    show(what, std::move(runs), load, {{"pages", "\"" + memory->pages() + "\""}}, {ratios, ours, theirs});
    return 0;
  }

 private:
  struct Figures {
    std::vector<double> ratios, ours, theirs;
  };
  static int fail(const SsdCase& what, const std::string& why) {
    std::fprintf(stderr, "bench ssd %s: %s\n", what.name().c_str(), why.c_str());
    return 1;
  }
  void show(const SsdCase& what, std::vector<Run> runs, const Load& load, std::vector<Extra> extras,
            const Figures& figures) {
    Case line{"ssd", what.name(), what.block, {}, {}, {}};
    line.spread = true;
    line.extras = std::move(extras);
    const auto add = [&](const char* key, double value) {
      line.extras.push_back({key, format_text("%.3f", value)});
    };
    line.extras.push_back({"engine", format_text("\"%s\"", load.engine())});
    line.extras.push_back({"window_kib", std::to_string(load.stats().window.value >> 10)});
    add("cpu_s_per_gib", median(figures.ours));
    if (fio_) {
      line.ceiling = Ceiling{"fio", Ceiling::Unit::kGigabytesPerSecond};
      add("lower_quartile", lower_quartile(figures.ratios));
      add("fio_cpu_s_per_gib", median(figures.theirs));
    }
    report(line, std::move(runs), options_);
  }

  const Options& options_;
  const SsdFile& file_;
  const bool fio_;
};

std::vector<SsdCase> cases() {
  std::vector<SsdCase> out;
  for (const ssd::IoOp op : {ssd::IoOp::kRead, ssd::IoOp::kWrite})
    for (const ByteCount block : {64 * kKiB, 256 * kKiB, 1 * kMiB, 4 * kMiB})
      for (const std::uint32_t depth : {8u, 32u}) out.push_back({op, block, depth});
  return out;
}

}  // namespace

std::string ssd_case_names() {
  std::string out;
  ssd::IoOp op = ssd::IoOp::kSync;  // a line for each
  for (const SsdCase& what : cases())
    out += (std::exchange(op, what.op) == what.op ? " " : "\n  ") + what.name();
  return out + "\n  " + manager_read_names();
}

int run_ssd_bench(const Options& options) {
  std::vector<SsdCase> wanted = cases();
  std::erase_if(wanted, [&](const SsdCase& what) { return !options.wants(what.name()); });
  const bool manager = wants_manager_reads(options);
  if (wanted.empty() && !manager) {
    std::fprintf(stderr, "bench ssd has no case \"%s\"; its cases: %s\n", options.only_case.c_str(),
                 ssd_case_names().c_str());
    return kUsageError;
  }
  const char* temporary = std::getenv("TMPDIR");
  std::string directory = options.path;
  if (directory.empty()) directory = temporary != nullptr ? temporary : ".";
  const auto file = SsdFile::make(directory, options.file_bytes);
  if (!file.ok()) {
    std::fprintf(stderr, "bench ssd: %s\n", file.error().message().c_str());
    return 1;
  }
  const bool fio = have_fio();
  if (!fio) std::fprintf(stderr, "bench ssd: finds no fio, so no ratio is shown; install fio\n");
  SsdBench bench(options, *file, fio);
  int status = 0;
  for (const SsdCase& what : wanted) status |= bench.run(what);
  if (manager) status |= run_manager_reads(options, {directory, *file, fio});
  return status;
}

}  // namespace orbitkv::bench
