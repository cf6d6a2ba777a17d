// Command line of `orbitkv-sim`: seeds, findings, what was reached.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>

#include "base/log.h"
#include "base/version.h"
#include "sim/batch.h"
#include "sim/cells.h"
#include "sim/program.h"

namespace {
using namespace orbitkv;
using namespace orbitkv::sim;
using Clock = std::chrono::steady_clock;
using u64 = unsigned long long;
constexpr std::uint32_t kMostJobs = 256, kRare = 20;
constexpr int kUsageError = 2;

constexpr const char* kAbout =
    "Runs the production Manager and client in virtual time, with seeded work and faults, and checks\n"
    "every byte, every extent, every counter and every wait.\n\n"
    "  orbitkv-sim --seeds 1000            seeds 1 to 1000\n"
    "  orbitkv-sim --seed 17 --trace       one seed again, event by event\n"
    "  orbitkv-sim --seeds 10000 --table   which cells of the state machines were reached\n\n"
    "A run follows from seed, --ops and version alone. A finding is shrunk to the shortest program\n"
    "that still fails and printed with its trace; the exit status is 1 then, and when a cell was\n"
    "reached that is listed as one that cannot be; 2: the command line is wrong.";

std::atomic<bool> g_stop{false};
void on_signal(int) {
  g_stop = true;
}

struct Flags {
  std::uint64_t seed = 1;
  std::uint64_t seeds = 1;
  RunOptions run;
  std::uint32_t jobs = 1;
  bool json = false, shrink = true, trace = false, table = false, digests = false;
  std::uint32_t shrink_seconds = 60;
};

// The shortest program found, and what happens in it.
void show(const Flags& flags, std::uint64_t seed, const std::string& checker) {
  const Config config = draw_config(seed);
  Program program = draw_program(config, flags.run.actions);
  if (flags.shrink && !checker.empty()) {
    const auto end = Clock::now() + std::chrono::seconds(flags.shrink_seconds);
    program = shrink(config, std::move(program), {}, checker, [&] { return !g_stop && Clock::now() < end; });
    std::printf("the shortest program found has %zu actions:\n", program.size());
  }
  std::printf("%s%s", text_of(config).c_str(), text_of(program).c_str());
  std::fflush(stdout);
  if (checker == "stopped") return;  // it would stop this process too
  const Outcome outcome = run_program(config, program, {true, Plant::kNone});
  for (const std::string& line : outcome.trace) std::printf("%s\n", line.c_str());
}

struct Totals {
  std::uint64_t seeds = 0, operations = 0, events = 0, findings = 0;
};

void sum_up(const Flags& flags, const Totals& totals, double seconds,
            const std::vector<std::uint32_t>& reached) {
  const Coverage coverage = coverage_of(reached.data());
  if (flags.table) {
    std::printf("%s", table_text(reached.data()).c_str());
    for (const Coverage::Reached& each : coverage.reached)
      if (each.runs <= kRare) std::printf("reached by %u seeds: %s\n", each.runs, each.cell.c_str());
    for (const std::string& cell : coverage.missing) std::printf("not reached: %s\n", cell.c_str());
  }
  for (const std::string& cell : coverage.impossible)
    std::printf("reached, though listed as unreachable (sim/cells.cc): %s\n", cell.c_str());
  const double rate = static_cast<double>(totals.operations) / seconds;
  if (flags.json)
    std::printf(
        "{\"version\": \"%s\", \"seed\": %llu, \"seeds\": %llu, \"jobs\": %u, \"operations\": %llu, "
        "\"events\": %llu, "
        "\"seconds\": %.2f, \"ops_per_s\": %.0f, \"events_per_s\": %.0f, \"findings\": %llu, "
        "\"cells_reached\": %zu, \"cells\": %zu}\n",
        kVersion, static_cast<u64>(flags.seed), static_cast<u64>(totals.seeds), flags.jobs,
        static_cast<u64>(totals.operations), static_cast<u64>(totals.events), seconds, rate,
        static_cast<double>(totals.events) / seconds, static_cast<u64>(totals.findings),
        coverage.reached.size(), coverage.cells);
  else
    std::printf(
        "%llu seeds in %.1f s: %llu operations (%.0f/s), %llu events, %zu of %zu cells, %llu findings\n",
        static_cast<u64>(totals.seeds), seconds, static_cast<u64>(totals.operations), rate,
        static_cast<u64>(totals.events), coverage.reached.size(), coverage.cells,
        static_cast<u64>(totals.findings));
}

int run(const Flags& flags) {
  const auto begin = Clock::now();
  Totals totals;
  std::vector<std::uint32_t> reached;
  run_batch({flags.seed, flags.seeds, flags.run, flags.jobs}, reached, [&](const SeedResult& result) {
    ++totals.seeds;
    totals.operations += result.operations;
    totals.events += result.events;
    if (flags.digests)
      std::printf("seed %llu digest %016llx\n", static_cast<u64>(result.seed),
                  static_cast<u64>(result.digest));
    if (!result.checker.empty()) {
      ++totals.findings;
      std::printf("FINDING seed %llu --ops %u, version %s: %s: %s\n", static_cast<u64>(result.seed),
                  flags.run.actions, kVersion, result.checker.c_str(), result.text.c_str());
      if (flags.shrink || flags.trace) show(flags, result.seed, result.checker);
    } else if (flags.trace) {
      show(flags, result.seed, "");
    }
    std::fflush(stdout);
    return !g_stop.load();
  });
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  sum_up(flags, totals, seconds, reached);
  return totals.findings == 0 && coverage_of(reached.data()).impossible.empty() ? 0 : 1;
}
}  // namespace

int main(int argc, char** argv) {
  set_log_level(LogLevel::kOff);
  struct sigaction action{};
  action.sa_handler = on_signal;  // once: what has been done is printed
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  Flags flags;
  CLI::App app(kAbout, "orbitkv-sim");
  // CLI11 takes "-3" for a very large one.
  const auto whole = [](const std::string& text) -> std::string {
    return text.find_first_not_of("0123456789") == std::string::npos ? ""
                                                                     : text + " is no whole number from 0 up";
  };
  const auto some = [](const std::string& text) -> std::string {
    return text.find_first_not_of("0") == std::string::npos ? "is 0: nothing would be run" : "";
  };
  app.add_option("--seed", flags.seed, "the first seed")->check(whole)->capture_default_str();
  app.add_option("--seeds", flags.seeds, "how many seeds")->check(whole)->check(some)->capture_default_str();
  app.add_option("--ops", flags.run.actions, "actions of a seed's program")
      ->check(whole)
      ->check(some)
      ->capture_default_str();
  app.add_option("--jobs", flags.jobs, "seeds that run at once, each in a process of its own")
      ->check(whole)
      ->check(some)
      ->check(CLI::Range(1u, kMostJobs))
      ->capture_default_str();
  app.add_flag("--json", flags.json, "the last line is one JSON object");
  app.add_flag("--shrink,!--no-shrink", flags.shrink, "look for the shortest program of a finding [yes]");
  app.add_option("--shrink-seconds", flags.shrink_seconds, "at most for each finding")->capture_default_str();
  app.add_flag("--trace", flags.trace, "print the program and the trace of every seed");
  app.add_flag("--table", flags.table, "print which cells of the state machines were reached");
  app.add_flag("--digests", flags.digests, "print the digest of every run: equal runs, equal digests");
  app.set_version_flag("--version", std::string(kVersion));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  return run(flags);
}
