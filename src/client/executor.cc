#include "client/executor.h"

namespace orbitkv::client {
namespace {
constexpr Duration kSlabWait = milliseconds(1000);
constexpr std::uint32_t kSpins = 2000;  // a grant usually comes within microseconds
}  // namespace

Executor::Executor(Link& link, OperationTable& operations, bool verify)
    : link_(link), operations_(operations), runner_(verify), thread_([this] { run(); }) {}

Executor::~Executor() {
  stop();
}

void Executor::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (auto link = link_.use(); link.get()) link->channel().wake_waiters();
  if (thread_.joinable()) thread_.join();
}

void Executor::settle(OperationTable& operations, const Part& part, const PartOutcome& outcome) {
  operations.finish_part(part.handle, outcome);
  part.entry->open_parts.fetch_sub(1, std::memory_order_release);
}

void Executor::add(std::unique_ptr<Part> part) {
  std::lock_guard lock(mutex_);
  parts_.push_back(std::move(part));
  changed_.notify_all();
}

void Executor::wait_empty() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return parts_.empty() || stop_; });
}

// True if the part is over. A Manager that is alive but silent must not keep an engine
// waiting: an unclaimed part is given up at its deadline, its pages are free at once, and
// a grant that still comes is declined.
bool Executor::look_at(Attachment* link, Part& part) {
  const bool ours = link && link->epoch() == part.session;
  if (part.given_up) return !ours || runner_.refuse(*link, part);
  std::optional<PartOutcome> outcome = PartOutcome{false, 0, "the Manager is gone; nothing was copied"};
  if (ours) outcome = runner_.step(*link, part, kSlabWait);
  if (outcome) {
    settle(operations_, part, *outcome);
    return true;
  }
  if (monotonic_now() < part.deadline) return false;
  part.given_up = true;
  settle(operations_, part, {false, 0, "the Manager gave no grant in time; nothing was copied"});
  return runner_.refuse(*link, part);
}

// One look at every part. The queue is unlocked while a part runs; only this thread
// removes parts.
bool Executor::sweep() {
  auto link = link_.use();
  bool progress = false;
  std::unique_lock lock(mutex_);
  for (std::size_t i = 0; i < parts_.size() && !stop_;) {
    Part& part = *parts_[i];
    lock.unlock();
    const bool over = look_at(link.get(), part);
    lock.lock();
    if (over) {
      parts_.erase(parts_.begin() + static_cast<std::ptrdiff_t>(i));
      changed_.notify_all();
      progress = true;
    } else {
      ++i;
    }
  }
  return progress;
}

void Executor::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !parts_.empty(); });
      if (stop_) return;
    }
    std::uint64_t seen = 0;
    if (auto link = link_.use(); link.get()) seen = link->channel().bell();
    if (sweep()) continue;
    if (auto link = link_.use(); link.get()) link->channel().wait(seen, kSpins, shm::kRecheckMs);
  }
}

}  // namespace orbitkv::client
