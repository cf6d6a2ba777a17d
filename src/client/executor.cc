#include "client/executor.h"

#include <chrono>
#include <iterator>

#include "rt/spin.h"

namespace orbitkv::client {
namespace {
constexpr std::uint32_t kSpins = 2000;  // a grant usually comes within microseconds
// Small copies end within this many pauses (about 50 us); then the core is offered to others.
constexpr std::uint32_t kPausesBeforeYield = 1000;
}  // namespace

Executor::Executor(Copiers copiers, OperationTable& operations, Trace* trace)
    : queue_(std::move(copiers.queue), operations, trace) {
  if (copiers.callers) callers_ = std::make_unique<CopyQueue>(std::move(copiers.callers), operations, trace);
  thread_ = std::thread([this] { run(); });
}

Executor::~Executor() {
  stop();
}

void Executor::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    work_.notify_all();
    empty_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Executor::enter(std::uint32_t transfers) {
  open_.fetch_add(transfers);
}

void Executor::leave(std::uint32_t transfers) {
  if (open_.fetch_sub(transfers) != transfers || waiters_.load() == 0) return;
  std::lock_guard lock(mutex_);
  empty_.notify_all();
}

void Executor::add(std::unique_ptr<Transfer> transfer) {
  Attachment& link = *transfer->link;  // stays: the transfer is open
  std::lock_guard lock(mutex_);
  incoming_.push_back(std::move(transfer));
  work_.notify_one();
  if (on_channel_.load(std::memory_order_relaxed)) link.channel().wake_waiters();
}

void Executor::start_here(std::unique_ptr<Transfer> transfer) {
  CopyQueue& queue = callers_ ? *callers_ : queue_;
  if (queue.advance_first(*transfer))
    leave(1);
  else
    add(std::move(transfer));
}

bool Executor::wait_empty() {
  Emptied emptied = Emptied::kNotYet;
  while (emptied == Emptied::kNotYet) emptied = wait_empty_for(seconds(1));
  return emptied == Emptied::kYes;
}

Executor::Emptied Executor::wait_empty_for(Duration most) {
  std::unique_lock lock(mutex_);
  waiters_.fetch_add(1);
  const TimePoint slice = monotonic_now() + most;
  const auto over = [&] { return open_.load() == 0 || stop_; };
  const auto end = [&] { return waits_end_ ? std::min(*waits_end_, slice) : slice; };
  for (TimePoint now = monotonic_now(); !over() && now < end(); now = monotonic_now())
    empty_.wait_for(lock, std::chrono::nanoseconds((end() - now).ns));
  waiters_.fetch_sub(1);
  if (over()) return Emptied::kYes;
  return waits_end_ && monotonic_now() >= *waits_end_ ? Emptied::kBounded : Emptied::kNotYet;
}

void Executor::bound_waits(std::optional<TimePoint> end) {
  std::lock_guard lock(mutex_);
  waits_end_ = end;
  empty_.notify_all();
}

bool Executor::take_incoming() {
  std::unique_lock lock(mutex_);
  work_.wait(lock, [&] { return stop_ || !transfers_.empty() || !incoming_.empty(); });
  std::move(incoming_.begin(), incoming_.end(), std::back_inserter(transfers_));
  incoming_.clear();
  return !stop_;
}

// One look at every transfer and every batch. A waiting thread may have ended some.
CopyQueue::Round Executor::round() {
  const auto over = static_cast<std::uint32_t>(
      std::erase_if(transfers_, [this](const auto& transfer) { return queue_.advance(*transfer); }));
  CopyQueue::Round last = queue_.poll();
  last.ended += over;
  if (over > 0) leave(over);
  return last;
}

void Executor::wait_for_news(std::uint64_t seen, const CopyQueue::Round& last) {
  if (last.running > 0) {
    rt::spin_pause();
    if (++idle_spins_ > kPausesBeforeYield) std::this_thread::yield();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    if (stop_ || !incoming_.empty()) return;
    on_channel_.store(true, std::memory_order_relaxed);
  }
  transfers_.front()->link->channel().wait(seen, kSpins, shm::kRecheckMs);
  on_channel_.store(false, std::memory_order_relaxed);
}

void Executor::run() {
  while (take_incoming()) {
    const std::uint64_t seen = transfers_.front()->link->channel().bell();
    const CopyQueue::Round last = round();
    if (last.ended > 0) idle_spins_ = 0;
    if (last.ended == 0 && !transfers_.empty()) wait_for_news(seen, last);
  }
}

// ---- all of them ----

Executors::Executors(OperationTable& operations, const device::CopierOptions& options, Trace* trace)
    : operations_(operations), options_(options), trace_(trace) {}

Executors::~Executors() {
  stop();
}

Result<Executor*> Executors::on(device::Device& device) {
  std::lock_guard lock(mutex_);
  auto& executor = executors_[&device];
  if (!executor) {
    Executor::Copiers copiers;
    ORBITKV_ASSIGN_OR_RETURN(copiers.queue, device.new_copier(options_));
    if (!Devices::is_gpu(device)) {
      ORBITKV_ASSIGN_OR_RETURN(copiers.callers, device.new_copier(options_));
    }
    executor = std::make_unique<Executor>(std::move(copiers), operations_, trace_);
  }
  return executor.get();
}

std::vector<Executor*> Executors::all() {
  std::lock_guard lock(mutex_);
  std::vector<Executor*> all;
  for (auto& [device, executor] : executors_)
    if (executor) all.push_back(executor.get());
  return all;
}

bool Executors::wait_empty() {
  bool empty = true;
  for (Executor* executor : all()) empty &= executor->wait_empty();
  return empty;
}

// One that is bounded ends the wait for all.
Executor::Emptied Executors::wait_empty_for(Duration most) {
  const TimePoint slice = monotonic_now() + most;
  auto emptied = Executor::Emptied::kYes;
  for (Executor* executor : all()) {
    const auto one = executor->wait_empty_for(std::max(slice - monotonic_now(), Duration{}));
    if (one == Executor::Emptied::kBounded) return one;
    if (one == Executor::Emptied::kNotYet) emptied = one;
  }
  return emptied;
}

void Executors::bound_waits(std::optional<TimePoint> end) {
  for (Executor* executor : all()) executor->bound_waits(end);
}

void Executors::stop() {
  for (Executor* executor : all()) executor->stop();
}

}  // namespace orbitkv::client
