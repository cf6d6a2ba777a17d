// What all benchmarks share: pinning, samples and percentiles, medians over runs and
// the JSON line of one case. Called by the bench's main thread; never by the product.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"

namespace orbitkv::bench {

// How every `orbitkv bench X` is called.
struct Options {
  bool json = false;             // one object a line on stdout; else aligned text
  int runs = 5;                  // figures are medians over the runs
  std::string only_case;         // empty: all cases
  std::string self;              // path of this binary, for benches that start their Manager from it
  std::string device = "cpu:0";  // where pages lie: "cpu:0" or "cuda:<number>"
  std::string file;              // replay, endurance: the trace
  std::string window;            // copy on a GPU: this window instead of the tuned ones
  std::string path;              // ssd: the directory of its file
  ByteCount file_bytes;          // ssd: 0 = as much as it likes
  ByteCount block_bytes;         // endurance
  ByteCount daily_budget;        // endurance: 0 = half of what `all` writes
  bool on_gpu() const { return device.starts_with("cuda:"); }
  // A name that ends with * stands for all that begin so.
  bool wants(std::string_view name) const {
    if (only_case.ends_with('*')) return name.starts_with(only_case.substr(0, only_case.size() - 1));
    return only_case.empty() || only_case == name;
  }
};

// Exit status of a bench that this machine cannot run (no driver, no such GPU). The reason
// is one line on stderr.
inline constexpr int kSkipped = 77;
inline constexpr int kUsageError = 2;

// Cores this process may run on, as found at the first call (before anything is pinned).
// Both sides of a two-process bench are pinned to different ones: bench to cpus[0], the
// other side to cpus[1].
const std::vector<int>& usable_cpus();
// The calling thread only. False: the kernel refused (reported once, the bench goes on).
bool pin_thread(int cpu);
// The calling thread, and those that it starts from now on, on the cores that neither side
// of a bench is pinned to, if there are any; else on all.
void leave_pinned_cores();

// Samples of one run, in nanoseconds.
class Samples {
 public:
  void reserve(std::size_t n) { ns_.reserve(n); }
  void add(Duration d) { ns_.push_back(d.ns); }
  std::size_t size() const { return ns_.size(); }
  // 0 <= fraction <= 1; nearest rank. Sorts. Zero if there is no sample.
  Duration percentile(double fraction);

 private:
  std::vector<std::int64_t> ns_;
  bool sorted_ = false;
};

// What one run of one case yields. Absent = does not apply.
struct Run {
  Duration p50;
  Duration p99;
  std::optional<double> gb_per_s;
  double ceiling = 0;  // in the unit of `Ceiling::unit`; measured beside the run
};

// What the figure is compared with, measured in the same process and run.
struct Ceiling {
  enum class Unit : std::uint8_t { kMicroseconds, kGigabytesPerSecond };
  std::string name;  // "ring_ping"
  Unit unit = Unit::kMicroseconds;
};

// A further figure of a line, as JSON.
struct Extra {
  std::string key;
  std::string json;
};

struct Case {
  std::string bench;  // "channel"
  std::string name;   // "ping"
  std::optional<ByteCount> bytes;
  std::optional<std::uint64_t> fragments;
  std::optional<std::uint64_t> resident;  // blocks
  std::optional<Ceiling> ceiling;
  bool spread = false;  // least and most of the runs stand beside the median
  std::vector<Extra> extras{};
};

// Medians over `runs`, as one line (JSON without spaces around separators, or text).
// `ratio` is ours / ceiling for rates and ceiling / ours for times: 1 is the ceiling.
std::string format_line(const Case& what, std::vector<Run> runs, bool json);
// Prints it to stdout and flushes.
void report(const Case& what, std::vector<Run> runs, const Options& options);
// Cases shown so far, so that a name that no case has is noticed.
void count_report();
int reports();

double median(std::vector<double> values);  // 0 if empty

// A second process of the bench: forked before any thread exists, killed and reaped
// on destruction if it has not ended.
class ChildProcess {
 public:
  // The child runs `body` and leaves with its result, without running destructors of
  // the parent's objects. It dies when the parent's thread dies.
  static Result<ChildProcess> start(const std::function<int()>& body);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();
  int pid() const { return pid_; }
  void kill();
  // Exit status, or 128 + signal. Waits.
  int wait();

 private:
  explicit ChildProcess(int pid) : pid_(pid) {}
  int pid_ = -1;
};

}  // namespace orbitkv::bench
