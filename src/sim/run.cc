#include "sim/run.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/text.h"
#include "base/unique_fd.h"
#include "sim/cells.h"
#include "sim/program.h"

namespace orbitkv::sim {

Outcome run_program(const Config& config, const Program& program, const World::Options& options) {
  World world(config, options);
  return world.run(program);
}

Outcome run_seed(std::uint64_t seed, const RunOptions& options) {
  const Config config = draw_config(seed);
  return run_program(config, draw_program(config, options.actions), {false, options.plant});
}

std::string checker_of(const Config& config, const Program& program, const World::Options& options) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  const pid_t child = ::fork();
  if (child < 0) return {};
  if (child == 0) {
    // What a failed check says is said once, by the run that shows it.
    const int null = ::open("/dev/null", O_WRONLY);
    if (null >= 0) ::dup2(null, STDERR_FILENO);
    const Outcome outcome = run_program(config, program, options);
    const std::string checker = outcome.finding ? outcome.finding->checker : "";
    [[maybe_unused]] const auto n = ::write(ends[1], checker.data(), checker.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  char text[64];
  const auto n = ::read(ends[0], text, sizeof text);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return "stopped";
  return std::string(text, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
}

// Chunks from half of the program down to one action; whatever can go, goes.
Program shrink(const Config& config, Program program, const World::Options& options,
               const std::string& checker, const std::function<bool()>& time_left) {
  const auto fails = [&](const Program& p) { return checker_of(config, p, options) == checker; };
  for (std::size_t chunk = std::max<std::size_t>(program.size() / 2, 1); chunk > 0; chunk /= 2) {
    for (std::size_t at = program.size(); at > 0 && time_left();) {
      const std::size_t begin = at > chunk ? at - chunk : 0;
      Program without = program;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(begin),
                    without.begin() + static_cast<std::ptrdiff_t>(at));
      if (fails(without)) program = std::move(without);
      at = std::min(begin, program.size());
    }
  }
  return program;
}

std::string text_of(const Program& program) {
  std::string text;
  for (const Action& action : program)
    text += format_text(
        "  action %5u at %12.3f ms  %-18s words %llx %llx %llx %llx\n", action.number,
        static_cast<double>(action.time.ns - 1'000'000'000) / 1e6, info_of(action.kind).name,
        static_cast<unsigned long long>(action.words[0]), static_cast<unsigned long long>(action.words[1]),
        static_cast<unsigned long long>(action.words[2]), static_cast<unsigned long long>(action.words[3]));
  return text;
}

std::string text_of(const Config& config) {
  std::string text = format_text("  pool %llu KiB, %u chains of %u blocks, SSD %s\n",
                                 static_cast<unsigned long long>(config.pool.value / 1024), config.chains,
                                 config.chain_blocks, config.ssd.on ? "on" : "off");
  for (const EnginePlan& engine : config.engines) {
    const SpacePlan& space = config.spaces[engine.space];
    text += format_text("  engine %u: space %u, %u ranks, %u pages, %zu groups%s\n", engine.index,
                        engine.space, space.world, engine.pages, space.groups.size(),
                        engine.one_process ? ", one process" : "");
  }
  if (config.favourite) text += format_text("  leans towards %s\n", name_of_state(*config.favourite).c_str());
  return text;
}

}  // namespace orbitkv::sim
