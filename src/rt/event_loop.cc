#include "rt/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

#include "base/check.h"
#include "rt/spin.h"

namespace orbitkv::rt {
namespace {

constexpr std::uint64_t kWakeToken = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kEventsPerTurn = 64;
// While polling, the clock is read once per this many polls.
constexpr std::uint32_t kPollsPerClock = 16;
constexpr Duration kTurn = microseconds(50);

std::uint32_t to_epoll(Ready interest) {
  return (interest.readable() ? EPOLLIN : 0u) | (interest.writable() ? EPOLLOUT : 0u) |
         (interest.edge() ? static_cast<std::uint32_t>(EPOLLET) : 0u);
}

Ready from_epoll(std::uint32_t events) {
  return Ready{(events & (EPOLLIN | EPOLLPRI) ? 1u : 0u) | (events & EPOLLOUT ? 2u : 0u) |
               (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP) ? 4u : 0u)};
}

std::uint64_t token_of(int fd, std::uint32_t generation) {
  return std::uint64_t{generation} << 32 | static_cast<std::uint32_t>(fd);
}

}  // namespace

Result<std::unique_ptr<EventLoop>> EventLoop::create() {
  std::unique_ptr<EventLoop> loop(new EventLoop);
  loop->epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!loop->epoll_.valid()) return errno_error("epoll_create1 (raise the limit of open files, ulimit -n)");
  loop->wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!loop->wake_.valid()) return errno_error("eventfd (raise the limit of open files, ulimit -n)");
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeToken}};
  if (::epoll_ctl(loop->epoll_.get(), EPOLL_CTL_ADD, loop->wake_.get(), &event) != 0) {
    return errno_error("epoll_ctl of the wake descriptor");
  }
  return loop;
}

EventLoop::~EventLoop() = default;

Status EventLoop::add(int fd, Ready interest, FdCallback callback) {
  if (watches_.contains(fd)) {
    return reject("descriptor " + std::to_string(fd) + " is already watched; modify() or remove() it");
  }
  auto watch = std::make_unique<Watch>(next_generation_++, std::move(callback));
  epoll_event event{.events = to_epoll(interest), .data = {.u64 = token_of(fd, watch->generation)}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return errno_error("epoll_ctl: cannot watch descriptor " + std::to_string(fd));
  }
  watches_.emplace(fd, std::move(watch));
  return ok_status();
}

Status EventLoop::modify(int fd, Ready interest) {
  const auto it = watches_.find(fd);
  if (it == watches_.end()) return reject("descriptor " + std::to_string(fd) + " is not watched; add() it");
  epoll_event event{.events = to_epoll(interest), .data = {.u64 = token_of(fd, it->second->generation)}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    return errno_error("epoll_ctl: cannot change descriptor " + std::to_string(fd));
  }
  return ok_status();
}

void EventLoop::remove(int fd) {
  const auto it = watches_.find(fd);
  if (it == watches_.end()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  // The callback may be the one that runs now: it dies after the batch.
  removed_.push_back(std::move(it->second));
  watches_.erase(it);
}

TimerId EventLoop::schedule(Duration delay, Duration period, TimerCallback callback) {
  const TimerId id(next_timer_++);
  const std::int64_t due = (monotonic_now() + delay).ns;
  timers_.emplace(TimerKey{due, id.value}, Timer{id, period, std::move(callback)});
  due_.emplace(id.value, due);
  return id;
}

TimerId EventLoop::after(Duration delay, TimerCallback callback) {
  return schedule(delay, Duration{}, std::move(callback));
}

TimerId EventLoop::every(Duration period, TimerCallback callback) {
  ORBITKV_CHECK(period.ns > 0, "a periodic timer needs a period");
  return schedule(period, period, std::move(callback));
}

void EventLoop::cancel(TimerId timer) {
  const auto it = due_.find(timer.value);
  if (it == due_.end()) return;
  timers_.erase(TimerKey{it->second, timer.value});
  due_.erase(it);
}

int EventLoop::wait_ms(Duration timeout) const {
  std::int64_t ns = timeout.ns < 0 ? std::numeric_limits<std::int64_t>::max() : timeout.ns;
  if (ns == 0) return 0;
  if (!timers_.empty())
    ns = std::min(ns, std::max<std::int64_t>(0, timers_.begin()->first.first - monotonic_now().ns));
  if (ns == std::numeric_limits<std::int64_t>::max()) return -1;
  // Rounded up: a wait that ends early would spin through the last millisecond.
  constexpr std::int64_t kMs = 1'000'000;
  return static_cast<int>(
      std::min<std::int64_t>(ns / kMs + (ns % kMs != 0), std::numeric_limits<int>::max()));
}

std::size_t EventLoop::run_timers() {
  if (timers_.empty()) return 0;
  const std::int64_t now = monotonic_now().ns;
  std::size_t ran = 0;
  // Ids made by callbacks of this turn wait for the next one, so a zero delay cannot hold the loop.
  const std::uint64_t first_new = next_timer_;
  for (auto it = timers_.begin(); it != timers_.end() && it->first.first <= now; it = timers_.begin()) {
    if (it->first.second >= first_new) break;
    auto node = timers_.extract(it);
    const Timer& timer = node.mapped();
    const std::uint64_t id = timer.id.value;
    if (timer.period.ns == 0) due_.erase(id);
    timer.callback();
    ++ran;
    const auto alive = due_.find(id);
    if (timer.period.ns == 0 || alive == due_.end()) continue;
    const std::int64_t missed = (now - node.key().first) / timer.period.ns;
    node.key().first += (missed + 1) * timer.period.ns;
    alive->second = node.key().first;
    timers_.insert(std::move(node));
  }
  return ran;
}

bool EventLoop::dispatch(std::uint64_t token, std::uint32_t events) {
  if (token == kWakeToken) {
    drain_wake();
    return false;
  }
  const auto it = watches_.find(static_cast<int>(token & 0xFFFFFFFFu));
  // Removed, or removed and added again, by an earlier callback of this batch.
  if (it == watches_.end() || it->second->generation != token >> 32) return false;
  it->second->callback(from_epoll(events));
  return true;
}

std::size_t EventLoop::run_once(Duration timeout) {
  std::array<epoll_event, kEventsPerTurn> events;
  const int got =
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms(timeout));
  ORBITKV_CHECK(got >= 0 || errno == EINTR, "epoll_wait failed");
  std::size_t ran = 0;
  for (int i = 0; i < got; ++i) ran += dispatch(events[i].data.u64, events[i].events);
  ran += run_timers();
  removed_.clear();
  return ran;
}

void EventLoop::block(Poller& poller) {
  const Duration limit = poller.prepare_sleep();
  // stop() writes the eventfd after the flag, so a stop between the two is not slept over.
  run_once(limit);
  poller.cancel_sleep();
}

void EventLoop::run(Poller& poller, Duration spin) {
  TimePoint last_work = monotonic_now();
  TimePoint last_turn = last_work;
  bool worked = false;
  for (std::uint32_t polls = 1; !stopped(); ++polls) {
    if (poller.poll()) {
      worked = true;
    } else {
      spin_pause();
    }
    if (polls % kPollsPerClock != 0) continue;
    const TimePoint now = monotonic_now();
    if (worked) last_work = now;
    worked = false;
    if (now - last_work >= spin) {
      block(poller);
      last_turn = monotonic_now();
    } else if (now - last_turn >= kTurn) {
      run_once(Duration{0});
      last_turn = now;
    }
  }
}

void EventLoop::drain_wake() {
  std::uint64_t count;
  [[maybe_unused]] const auto n = ::read(wake_.get(), &count, sizeof count);
}

void EventLoop::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(wake_.get(), &one, sizeof one);
}

void EventLoop::stop() {
  stop_.store(true, std::memory_order_release);
  wake();
}

}  // namespace orbitkv::rt
