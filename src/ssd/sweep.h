// Ends whole spaces: their records are gone at once (a sequence says so), and leave the
// index some at a time. Owned by the store; its thread only.
#pragma once

#include "ssd/store_state.h"

namespace orbitkv::ssd {

class Sweep {
 public:
  explicit Sweep(StoreState& state) : state_(state) {}

  // All records of the space, the last of which has at most this sequence; returns how many
  // could be found until now.
  std::uint64_t kill(SpaceIndex space, RecordSequence sequence);
  void step();
  bool idle() const { return state_.killed_records == 0; }

 private:
  StoreState& state_;
  std::uint32_t next_segment_ = 0;
};

}  // namespace orbitkv::ssd
