#include "sim/events.h"

#include <algorithm>
#include <utility>

namespace orbitkv::sim {

void Events::at(TimePoint time, Run run) {
  heap_.push_back({std::max(time, now_), ++asked_, std::move(run)});
  std::push_heap(heap_.begin(), heap_.end(), later);
}

bool Events::step(TimePoint end) {
  if (heap_.empty() || heap_.front().time > end) {
    now_ = std::max(now_, end);
    return false;
  }
  std::pop_heap(heap_.begin(), heap_.end(), later);
  Event event = std::move(heap_.back());
  heap_.pop_back();
  now_ = std::max(now_, event.time);
  ++ran_;
  event.run();
  return true;
}

}  // namespace orbitkv::sim
