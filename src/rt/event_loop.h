// The Manager's event loop: epoll over descriptors, one-shot and periodic timers, and
// a spinning poller (the session bells) that is asked before the thread blocks.
// Owned and called by one thread; only wake() and stop() may come from others.
// Callbacks run on the loop's thread, one at a time, and may add, modify and remove
// descriptors and timers, their own included. It owns no descriptor but its own two;
// it never throws and never blocks longer than the given bound.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "base/unique_fd.h"

namespace orbitkv::rt {

// What a descriptor waits for, and what a callback is told: bits of Ready.
struct Ready {
  std::uint32_t bits = 0;
  constexpr bool readable() const { return bits & 1; }
  constexpr bool writable() const { return bits & 2; }
  constexpr bool hung_up() const { return bits & 4; }  // error or hang-up: always reported
  constexpr bool edge() const { return bits & 8; }     // interest only: told once a change
  friend constexpr bool operator==(Ready, Ready) = default;
};
inline constexpr Ready kReadable{1};
inline constexpr Ready kReadWrite{3};
inline constexpr Ready kReadableEdge{9};  // for descriptors that nobody reads
inline constexpr Ready kHangUpOnly{0};

using TimerId = Id<struct TimerIdTag, std::uint64_t>;  // never 0, never reused

inline constexpr Duration kForever{-1};

// Work that announces itself in shared memory. All calls come from the loop's thread.
class Poller {
 public:
  virtual ~Poller() = default;
  // Does a bounded amount of work; true if there was any.
  virtual bool poll() = 0;
  // About to block: announce the sleep, fence, recheck. Returns how long the loop may
  // block before it must poll again: 0 = work was found, kForever = no bound needed.
  virtual Duration prepare_sleep() = 0;
  // Awake again (called after every prepare_sleep).
  virtual void cancel_sleep() = 0;
};

class EventLoop {
 public:
  using FdCallback = std::function<void(Ready)>;
  using TimerCallback = std::function<void()>;

  static Result<std::unique_ptr<EventLoop>> create();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;
  ~EventLoop();

  // Level triggered, unless kReadableEdge. kReject: not a descriptor that epoll takes, or already added.
  // remove() comes before the descriptor is closed; afterwards its callback no longer
  // runs, even if an event of it was already fetched.
  Status add(int fd, Ready interest, FdCallback callback);
  Status modify(int fd, Ready interest);  // kReject: not added
  void remove(int fd);                    // not added: nothing happens

  // A late periodic timer skips the ticks that it missed. `period` > 0.
  TimerId after(Duration delay, TimerCallback callback);
  TimerId every(Duration period, TimerCallback callback);
  void cancel(TimerId timer);  // unknown or already run: nothing happens

  // Waits at most `timeout` (0: does not wait; kForever) for an event, a timer or a
  // wake; runs what is due. Returns the number of callbacks that ran.
  std::size_t run_once(Duration timeout);
  // Until stop(): polls; while idle for less than `spin` keeps polling, then blocks.
  // Descriptors and timers are served at least every 50 us while the poller is busy.
  void run(Poller& poller, Duration spin);

  void wake();  // any thread: a blocked run_once returns
  void stop();  // any thread, and async-signal-safe: run() returns soon
  bool stopped() const { return stop_.load(std::memory_order_acquire); }

 private:
  struct Watch {
    std::uint32_t generation;
    FdCallback callback;
  };
  struct Timer {
    TimerId id;
    Duration period;  // 0: once
    TimerCallback callback;
  };
  using TimerKey = std::pair<std::int64_t, std::uint64_t>;  // due, id

  EventLoop() = default;
  TimerId schedule(Duration delay, Duration period, TimerCallback callback);
  int wait_ms(Duration timeout) const;
  std::size_t run_timers();
  bool dispatch(std::uint64_t token, std::uint32_t events);
  void block(Poller& poller);
  void drain_wake();

  UniqueFd epoll_;
  UniqueFd wake_;
  std::unordered_map<int, std::unique_ptr<Watch>> watches_;
  std::vector<std::unique_ptr<Watch>> removed_;  // alive until the batch that removed them ends
  std::map<TimerKey, Timer> timers_;
  std::unordered_map<std::uint64_t, std::int64_t> due_;  // timer id to due time
  std::uint32_t next_generation_ = 1;
  std::uint64_t next_timer_ = 1;
  std::atomic<bool> stop_{false};
};

}  // namespace orbitkv::rt
