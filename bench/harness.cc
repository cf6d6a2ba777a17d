#include "bench/harness.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/log.h"

namespace orbitkv::bench {

namespace {

std::vector<int> read_affinity() {
  std::vector<int> cpus;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {0};
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

const std::vector<int>& usable_cpus() {
  // Once: pinning narrows the answer.
  static const std::vector<int> cpus = read_affinity();
  return cpus;
}

bool pin_thread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (::sched_setaffinity(0, sizeof set, &set) == 0) return true;
  ORBITKV_WARN("cannot pin to core %d; the figures will scatter (check the cpuset of this shell)", cpu);
  return false;
}

void leave_pinned_cores() {
  const std::vector<int>& cpus = usable_cpus();
  cpu_set_t set;
  CPU_ZERO(&set);
  for (std::size_t i = cpus.size() > 2 ? 2 : 0; i < cpus.size(); ++i) CPU_SET(cpus[i], &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

Duration Samples::percentile(double fraction) {
  if (ns_.empty()) return {};
  if (!std::exchange(sorted_, true)) std::sort(ns_.begin(), ns_.end());
  const double rank = std::ceil(fraction * static_cast<double>(ns_.size()));
  const auto index = static_cast<std::size_t>(std::max(1.0, rank)) - 1;
  return {ns_[std::min(index, ns_.size() - 1)]};
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

namespace {

double microseconds_of(Duration d) {
  return static_cast<double>(d.ns) / 1000.0;
}

template <class F>
double median_of(const std::vector<Run>& runs, F figure) {
  std::vector<double> values;
  for (const Run& run : runs) values.push_back(figure(run));
  return median(std::move(values));
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value >= 100 ? "%.1f" : "%.3f", value);
  return text;
}

// Collects "key":value pairs, or " key=value" for people.
class Line {
 public:
  explicit Line(bool json) : json_(json) {}
  void text(std::string_view key, std::string_view value) {
    // Names come from the benches themselves and hold nothing that needs escaping.
    field(key, json_ ? "\"" + std::string(value) + "\"" : std::string(value));
  }
  void raw(std::string_view key, const std::string& value) { field(key, value); }
  std::string finish() { return json_ ? "{" + out_ + "}" : out_; }

 private:
  void field(std::string_view key, const std::string& value) {
    if (!out_.empty()) out_ += json_ ? "," : "  ";
    out_ += json_ ? "\"" + std::string(key) + "\":" + value : std::string(key) + "=" + value;
  }
  bool json_;
  std::string out_;
};

void add_ceiling(const Ceiling& ceiling, const std::vector<Run>& runs, bool json, Line& line) {
  const bool time = ceiling.unit == Ceiling::Unit::kMicroseconds;
  const double value = median_of(runs, [](const Run& r) { return r.ceiling; });
  const double ratio = median_of(runs, [&](const Run& r) {
    const double ours = time ? microseconds_of(r.p50) : r.gb_per_s.value_or(0);
    const double over = time ? r.ceiling : ours;
    const double under = time ? ours : r.ceiling;
    return under > 0 ? over / under : 0;
  });
  const std::string unit = time ? "us" : "gb_per_s";
  line.raw("ceiling", json ? "{\"name\":\"" + ceiling.name + "\",\"" + unit + "\":" + number(value) + "}"
                           : ceiling.name + ":" + number(value) + unit);
  line.raw("ratio", number(ratio));
}

template <class F>
void add_spread(const std::string& key, const std::vector<Run>& runs, Line& line, F figure) {
  std::vector<double> values;
  for (const Run& run : runs) values.push_back(figure(run));
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  line.raw(key + "_min", number(*least));
  line.raw(key + "_max", number(*most));
}

}  // namespace

std::string format_line(const Case& what, std::vector<Run> runs, bool json) {
  Line line(json);
  line.text("bench", what.bench);
  line.text("case", what.name);
  line.raw("p50_us", number(median_of(runs, [](const Run& r) { return microseconds_of(r.p50); })));
  line.raw("p99_us", number(median_of(runs, [](const Run& r) { return microseconds_of(r.p99); })));
  if (!runs.empty() && runs.front().gb_per_s) {
    line.raw("gb_per_s", number(median_of(runs, [](const Run& r) { return r.gb_per_s.value_or(0); })));
  }
  if (what.spread && !runs.empty()) {
    if (runs.front().gb_per_s)
      add_spread("gb_per_s", runs, line, [](const Run& r) { return r.gb_per_s.value_or(0); });
    else
      add_spread("p50_us", runs, line, [](const Run& r) { return microseconds_of(r.p50); });
  }
  if (what.bytes) line.raw("bytes", std::to_string(what.bytes->value));
  if (what.fragments) line.raw("fragments", std::to_string(*what.fragments));
  if (what.resident) line.raw("resident", std::to_string(*what.resident));
  line.raw("runs", std::to_string(runs.size()));
  if (what.ceiling) add_ceiling(*what.ceiling, runs, json, line);
  for (const Extra& extra : what.extras) line.raw(extra.key, extra.json);
  return line.finish();
}

namespace {
int g_reported = 0;
}

void count_report() {
  ++g_reported;
}

int reports() {
  return g_reported;
}

void report(const Case& what, std::vector<Run> runs, const Options& options) {
  count_report();
  std::printf("%s\n", format_line(what, std::move(runs), options.json).c_str());
  std::fflush(stdout);
}

Result<ChildProcess> ChildProcess::start(const std::function<int()>& body) {
  std::fflush(nullptr);  // else both would print what is buffered
  const int parent = ::getpid();
  const int pid = ::fork();
  if (pid < 0) return errno_error("fork of the bench's second process");
  if (pid > 0) return ChildProcess(pid);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  const int status = body();
  std::fflush(nullptr);
  ::_exit(status);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0) return;
  kill();
  wait();
}

void ChildProcess::kill() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

int ChildProcess::wait() {
  if (pid_ <= 0) return -1;
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace orbitkv::bench
