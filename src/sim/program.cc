#include "sim/program.h"

#include "sim/random.h"

namespace orbitkv::sim {
namespace {
constexpr TimePoint kFirst{1'010'000'000};

ActionKind draw_kind(Random& random, const Config& config, std::uint64_t total) {
  std::uint64_t at = random.below(total);
  std::size_t kind = 0;
  while (at >= config.weights[kind]) at -= config.weights[kind++];
  return static_cast<ActionKind>(kind);
}
// Minutes at times, for what is done by age.
Duration length_of_pass(const Action& action) {
  const std::int64_t most = action.words[1] % 16 == 0 ? 200'000 : 8000;
  return milliseconds(static_cast<std::int64_t>(action.words[0] % static_cast<std::uint64_t>(most)));
}
}  // namespace

Program draw_program(const Config& config, std::uint32_t actions) {
  Random random(config.seed, 0x9409u);
  std::uint64_t total = 0;
  for (const std::uint32_t weight : config.weights) total += weight;
  Program program;
  program.reserve(actions);
  TimePoint time = kFirst;
  for (std::uint32_t i = 0; i < actions; ++i) {
    Action action;
    action.number = i;
    action.kind = draw_kind(random, config, total);
    action.time = time;
    for (std::uint64_t& word : action.words) word = random.next();
    const bool pause = random.below(config.burst) == 0;
    const DurationRange& gap = pause ? config.pause : config.gap;
    time = time + random.between(gap.least, gap.most);
    if (action.kind == ActionKind::kPass) time = time + length_of_pass(action);
    program.push_back(action);
  }
  return program;
}

}  // namespace orbitkv::sim
