// One run: virtual time, a Manager without sockets, engines with production clients, their
// devices, a disk in memory, and those who watch. Single-threaded and a function of the
// program alone. Owned by run.h; everything else of sim/ lives in it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fault.h"
#include "sim/cells.h"
#include "sim/config.h"
#include "sim/device.h"
#include "sim/events.h"
#include "sim/ledger.h"
#include "sim/plants.h"

namespace orbitkv::sim {

class ManagerNode;
class Engine;
class Process;

// What a checker says.
struct Finding {
  std::string checker;  // its name: findings of one name are the same when shrinking
  std::string text;
  TimePoint time;
};

struct Outcome {
  std::optional<Finding> finding;  // the run ended there
  std::uint64_t digest = 0;        // of everything that was noted: equal runs, equal digests
  std::uint64_t operations = 0;    // commands, claims, receipts, tier completions
  std::uint64_t events = 0;
  std::vector<std::string> trace;  // if asked for
};

class World {
 public:
  struct Options {
    bool trace = false;
    Plant plant = Plant::kNone;
  };
  World(const Config& config, const Options& options);
  ~World();
  Outcome run(const Program& program);

  const Config& config() const { return config_; }
  Events& events() { return events_; }
  TimePoint now() const { return events_.now(); }
  Ledger& ledger() { return ledger_; }
  Dma& dma() { return *dma_; }
  ManagerNode& manager() { return *manager_; }
  Engine& engine(std::uint64_t word);
  std::vector<std::unique_ptr<Engine>>& engines() { return engines_; }
  Plant plant() const { return options_.plant; }

  // A generator of its own for whoever names itself.
  template <class... Names>
  Random random(Names... names) const {
    return Random(config_.seed, names...);
  }
  // Never the same twice: fillings of pages.
  Content filling() { return mix(config_.seed, ++fillings_) >> 1; }
  std::uint32_t next_process() { return ++processes_; }

  // Part of the digest, and a line of the trace where there is one.
  enum class Note : std::uint8_t { kAction, kCall, kReply, kOperation, kFrame, kCopy, kManager, kFault };
  void note(Note note, std::uint64_t a, std::uint64_t b = 0);
  bool tracing() const { return options_.trace; }
  [[gnu::format(printf, 2, 3)]] void say(const char* format, ...);
  void count_operations(std::uint64_t n) { outcome_.operations += n; }
  // The run ends after this event.
  void fail(const char* checker, const std::string& text);
  bool failed() const { return outcome_.finding.has_value(); }

  // Whose code runs, for its fault points.
  void set_current(Process* process) { current_ = process; }
  bool on_fault_point(FaultPoint point);
  void cover_fault(ActionKind kind);
  // Time that nobody could use: stopped processes, a machine that slept.
  // So far: of what goes on still only the part that is over.
  Duration delays() const {
    const Duration left = delayed_until_ - now();
    return left.ns > 0 ? delays_ - left : delays_;
  }
  void delay(Duration time) {
    delays_.ns += time.ns;
    if (delayed_until_ < now() + time) delayed_until_ = now() + time;
  }
  void jump(Duration time);
  // Engines that have not heard of the Manager's death save what they compute, for so long; those that
  // were stopped, too.
  void go_on(Duration time);

 private:
  // A fault that waits for a state to show, but not for long.
  struct Aimed {
    Action action;
    std::size_t state = 0;  // of a Met
    TimePoint until;
  };
  void act(const Action& action);
  Engine* usable_engine(std::uint64_t word);  // nullptr: none
  void wait_for_engines(const Action& action);
  bool aim(const Action& action);
  void strike(const Action& action);
  void strike_aimed();
  Met look() const;
  void act_engine(const Action& action);
  void act_engine(Engine& engine, const Action& action);
  void act_fault(const Action& action);
  void act_crowd(const Action& action);
  void act_kept(const Action& action);
  void act_io(const Action& action);
  void tick();
  void quiesce();
  void check_quiet();
  bool slabs_settled() const;
  void check_slabs_quiet();
  void check_tables();
  void run_until(TimePoint end);

  Config config_;
  Options options_;
  Events events_;
  Ledger ledger_;
  std::unique_ptr<Dma> dma_;
  std::unique_ptr<ManagerNode> manager_;
  std::vector<std::unique_ptr<Engine>> engines_;
  Outcome outcome_;
  std::uint64_t fillings_ = 0;
  std::uint32_t processes_ = 0;
  Process* current_ = nullptr;
  std::vector<Aimed> aimed_;
  Duration delays_;
  TimePoint delayed_until_;
  Duration late_;  // of the program
};

}  // namespace orbitkv::sim
