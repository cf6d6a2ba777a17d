#include "ssd/segment_state.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

namespace orbitkv::ssd {
namespace {

using S = SegmentState;
using E = SegmentEvent;

// Every cell: what is not here stops the process.
TEST(SegmentStateTest, every_cell) {
  const std::map<std::pair<S, E>, S> legal{
      {{S::kFree, E::kRecovered}, S::kSealed},
      {{S::kFree, E::kOpen}, S::kOpening},
      {{S::kOpening, E::kOpened}, S::kOpen},
      {{S::kOpening, E::kOpenFailed}, S::kBad},
      {{S::kOpening, E::kPutBack}, S::kFree},
      {{S::kOpen, E::kSeal}, S::kSealing},
      {{S::kSealing, E::kSealed}, S::kSealed},
      {{S::kSealed, E::kReclaim}, S::kReclaiming},
      {{S::kReclaiming, E::kCopied}, S::kAwaitingFlush},
      {{S::kAwaitingFlush, E::kDurable}, S::kFree},
  };
  for (std::size_t s = 0; s <= kSegmentStates; ++s) {
    for (std::size_t e = 0; e <= kSegmentEvents; ++e) {
      const auto cell = legal.find({static_cast<S>(s), static_cast<E>(e)});
      const S expected = cell == legal.end() ? S::kIllegal : cell->second;
      EXPECT_EQ(next_state(static_cast<S>(s), static_cast<E>(e)), expected) << s << ", " << e;
    }
  }
}

TEST(SegmentStateDeathTest, an_illegal_step_stops) {
  SegmentState state = S::kFree;
  EXPECT_DEATH(step(state, E::kDurable), "event that its state does not allow");
}

}  // namespace
}  // namespace orbitkv::ssd
