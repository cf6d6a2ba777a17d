// Virtual time and what is to happen in it: events in the order of their times, those of
// one time in the order in which they were asked for. Owned by the World; one thread.
// While it lives, monotonic_now() of the thread is its time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/time.h"

namespace orbitkv::sim {

constexpr Duration operator-(Duration a, Duration b) {
  return {a.ns - b.ns};
}

class Events {
 public:
  using Run = std::function<void()>;
  Events() { set_virtual_clock(&now_); }
  ~Events() { set_virtual_clock(nullptr); }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  TimePoint now() const { return now_; }
  void at(TimePoint time, Run run);
  void after(Duration delay, Run run) { at(now_ + delay, std::move(run)); }
  // The machine slept: time passes without anything happening in it. What was due meanwhile
  // is late.
  void jump(Duration time) { now_ = now_ + time; }
  // Runs the next event that is due by `end`. False: there is none, and it is `end`.
  bool step(TimePoint end);
  std::uint64_t count() const { return ran_; }

 private:
  struct Event {
    TimePoint time;
    std::uint64_t order = 0;
    Run run;
  };
  static bool later(const Event& a, const Event& b) {
    return a.time != b.time ? a.time > b.time : a.order > b.order;
  }
  TimePoint now_{1'000'000'000};
  std::uint64_t asked_ = 0, ran_ = 0;
  std::vector<Event> heap_;
};

}  // namespace orbitkv::sim
