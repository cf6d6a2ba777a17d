#include "sim/events.h"

#include <algorithm>
#include <utility>

namespace orbitkv::sim {
namespace {
struct Later {
  template <class Event>
  bool operator()(const Event& a, const Event& b) const {
    return a.time != b.time ? a.time > b.time : a.order > b.order;
  }
};
}  // namespace

void Events::at(TimePoint time, Run run) {
  std::size_t place = runs_.size();
  if (free_.empty()) {
    runs_.push_back(std::move(run));
  } else {
    place = free_.back();
    free_.pop_back();
    runs_[place] = std::move(run);
  }
  heap_.push_back({std::max(time, now_), ++asked_, place});
  std::push_heap(heap_.begin(), heap_.end(), Later());
}

bool Events::step(TimePoint end) {
  if (heap_.empty() || heap_.front().time > end) {
    now_ = std::max(now_, end);
    return false;
  }
  std::pop_heap(heap_.begin(), heap_.end(), Later());
  const Event event = heap_.back();
  heap_.pop_back();
  now_ = std::max(now_, event.time);
  ++ran_;
  Run run = std::move(runs_[event.place]);
  free_.push_back(event.place);
  run();
  return true;
}

}  // namespace orbitkv::sim
