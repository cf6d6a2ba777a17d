#include "ssd/open_state.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

namespace orbitkv::ssd {
namespace {

using S = OpenState;
using E = OpenEvent;

// Every cell: what is not here stops the process.
TEST(OpenStateTest, every_cell) {
  const std::map<std::pair<S, E>, S> legal{
      {{S::kReading, E::kRead}, S::kSettling},  {{S::kReading, E::kClose}, S::kGivingUp},
      {{S::kSettling, E::kSettled}, S::kReady}, {{S::kSettling, E::kClose}, S::kSettling},
      {{S::kReady, E::kClose}, S::kReady},      {{S::kGivingUp, E::kClose}, S::kGivingUp},
      {{S::kGivingUp, E::kQuiet}, S::kGivenUp}, {{S::kGivenUp, E::kClose}, S::kGivenUp},
  };
  for (std::size_t s = 0; s <= kOpenStates; ++s) {
    for (std::size_t e = 0; e <= kOpenEvents; ++e) {
      const auto cell = legal.find({static_cast<S>(s), static_cast<E>(e)});
      const S expected = cell == legal.end() ? S::kIllegal : cell->second;
      EXPECT_EQ(next_state(static_cast<S>(s), static_cast<E>(e)), expected) << s << ", " << e;
    }
  }
}

TEST(OpenStateDeathTest, an_illegal_step_stops) {
  OpenState state = S::kReading;
  EXPECT_DEATH(step(state, E::kSettled), "event that its state does not allow");
}

}  // namespace
}  // namespace orbitkv::ssd
