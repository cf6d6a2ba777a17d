// Runs of seeds: one run, and the shortest program that still fails the same way. Each run
// of a search for it is a process of its own, so that a stopped process is a finding like
// another. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "sim/world.h"

namespace orbitkv::sim {

struct RunOptions {
  std::uint32_t actions = 2000;
  Plant plant = Plant::kNone;
};

Outcome run_seed(std::uint64_t seed, const RunOptions& options);
Outcome run_program(const Config& config, const Program& program, const World::Options& options);

// The checker that a program fails in a process of its own, "stopped" if it did not survive;
// empty: none.
std::string checker_of(const Config& config, const Program& program, const World::Options& options);

// Leaves actions out for as long as `checker` still fails and `time_left` says so.
Program shrink(const Config& config, Program program, const World::Options& options,
               const std::string& checker, const std::function<bool()>& time_left);

// One line an action.
std::string text_of(const Program& program);
std::string text_of(const Config& config);

}  // namespace orbitkv::sim
