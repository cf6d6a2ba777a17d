// Virtual time and what is to happen in it: events in the order of their times, those of
// one time in the order in which they were asked for. Owned by the World; one thread.
// While it lives, monotonic_now() of the thread is its time.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/time.h"

namespace orbitkv::sim {

constexpr Duration operator-(Duration a, Duration b) {
  return {a.ns - b.ns};
}

// What is to happen: called once, and moved. Most of them need no memory of their own.
class Run {
 public:
  template <class What>
    requires(!std::same_as<std::remove_cvref_t<What>, Run>)
  Run(What&& what) {  // NOLINT(google-explicit-constructor): a lambda is one
    using Kept = std::remove_cvref_t<What>;
    if constexpr (fits<Kept>()) {
      ::new (static_cast<void*>(room_)) Kept(std::forward<What>(what));
    } else {
      ::new (static_cast<void*>(room_)) Kept*(new Kept(std::forward<What>(what)));
    }
    does_ = &does<Kept>;
  }
  Run(Run&& other) noexcept { take(other); }
  Run& operator=(Run&& other) noexcept {
    if (this == &other) return *this;
    end();
    take(other);
    return *this;
  }
  ~Run() { end(); }
  void operator()() { does_(Do::kCall, room_, nullptr); }

 private:
  static constexpr std::size_t kRoom = 56;
  enum class Do : std::uint8_t { kCall, kMove, kEnd };
  using Does = void (*)(Do what, std::byte* room, std::byte* from);

  template <class Kept>
  static constexpr bool fits() {
    return sizeof(Kept) <= kRoom && alignof(Kept) <= alignof(std::max_align_t) &&
           std::is_nothrow_move_constructible_v<Kept>;
  }
  template <class Kept>
  static void does(Do what, std::byte* room, std::byte* from) {
    using Held = std::conditional_t<fits<Kept>(), Kept, Kept*>;
    const auto at = [](std::byte* place) { return std::launder(reinterpret_cast<Held*>(place)); };
    if constexpr (fits<Kept>()) {
      if (what == Do::kCall) return (*at(room))();
      if (what == Do::kMove) ::new (static_cast<void*>(room)) Held(std::move(*at(from)));
      at(what == Do::kMove ? from : room)->~Held();
    } else {
      if (what == Do::kCall) return (**at(room))();
      if (what == Do::kMove) ::new (static_cast<void*>(room)) Held(*at(from));
      if (what == Do::kEnd) delete *at(room);
    }
  }
  void take(Run& other) {
    does_ = std::exchange(other.does_, nullptr);
    if (does_ != nullptr) does_(Do::kMove, room_, other.room_);
  }
  void end() {
    if (does_ != nullptr) does_(Do::kEnd, room_, nullptr);
  }

  Does does_ = nullptr;
  alignas(std::max_align_t) std::byte room_[kRoom];
};

class Events {
 public:
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
    std::size_t place = 0;  // in runs_
  };
  TimePoint now_{1'000'000'000};
  std::uint64_t asked_ = 0, ran_ = 0;
  std::vector<Event> heap_;
  std::vector<Run> runs_;
  std::vector<std::size_t> free_;  // of them
};

}  // namespace orbitkv::sim
