#include "ssd/completions.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "base/check.h"

namespace orbitkv::ssd {

Completions::Completions(std::uint32_t capacity)
    : ready_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), ring_(capacity) {
  ORBITKV_CHECK(ready_.valid(), "no descriptor left for an eventfd; raise the limit of open files");
}

void Completions::push(std::span<const Finished> finished) {
  if (finished.empty()) return;
  const std::lock_guard lock(mutex_);
  ORBITKV_CHECK(count_ + finished.size() <= ring_.size(), "more results than requests were accepted");
  for (const Finished& one : finished) ring_[(first_ + count_++) % ring_.size()] = one;
  if (signalled_) return;
  signalled_ = true;
  // Under the lock, so that the owner's read cannot come between.
  const std::uint64_t one = 1;
  ORBITKV_CHECK(::write(ready_.get(), &one, sizeof one) == sizeof one, "the results' eventfd takes no event");
}

std::size_t Completions::pop(std::span<Finished> out) {
  const std::lock_guard lock(mutex_);
  const std::size_t taken = std::min(out.size(), count_);
  for (std::size_t i = 0; i < taken; ++i) out[i] = ring_[(first_ + i) % ring_.size()];
  first_ = (first_ + taken) % ring_.size();
  count_ -= taken;
  if (count_ == 0 && signalled_) {
    signalled_ = false;
    std::uint64_t events;
    ORBITKV_CHECK(::read(ready_.get(), &events, sizeof events) == sizeof events,
                  "somebody else reads the results' eventfd");
  }
  return taken;
}

void Completions::wait(Duration most) const {
  const TimePoint end = monotonic_now() + most;
  pollfd ready{ready_.get(), POLLIN, 0};
  for (;;) {
    const Duration left = std::max(end - monotonic_now(), Duration{});
    const timespec time{left.ns / 1'000'000'000, left.ns % 1'000'000'000};
    if (::ppoll(&ready, 1, most < Duration{} ? nullptr : &time, nullptr) >= 0) return;  // else EINTR
  }
}

}  // namespace orbitkv::ssd
