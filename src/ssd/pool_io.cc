#include "ssd/pool_io.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <thread>
#include <vector>

#include "ssd/depth_tuner.h"
#include "ssd/io_front.h"
#include "ssd/turns.h"

namespace orbitkv::ssd {
namespace {

constexpr std::uint32_t kThreads = 16;

std::uint32_t threads_of(const IoOptions& options) {
  return std::clamp(options.threads == 0 ? kThreads : options.threads, 1u, 256u);
}

void sleep_for(Duration time) {
  timespec left{time.ns / 1'000'000'000, time.ns % 1'000'000'000};
  while (::clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
  }
}

// One submission: bytes moved, or -errno.
std::int64_t perform(const Transfer& transfer, std::uint64_t bytes) {
  const IoRequest& request = transfer.accepted().request;
  const int fd = transfer.accepted().fd;
  std::int64_t result;
  if (request.op == IoOp::kSync) {
    result = ::fdatasync(fd);
  } else {
    std::array<iovec, kPieces> memory;
    const int count = static_cast<int>(transfer.memory_of(transfer.done(), bytes, memory));
    const auto offset = static_cast<off_t>(transfer.file_offset());
    result = request.op == IoOp::kRead ? ::preadv(fd, memory.data(), count, offset)
                                       : ::pwritev(fd, memory.data(), count, offset);
  }
  return result < 0 ? -errno : result;
}

class PoolIo final : public QueuedFront {
 public:
  explicit PoolIo(const IoOptions& options)
      : QueuedFront(options),
        tuner_(std::min(this->options().depth, threads_of(options)),
               options.tune_depth ? DepthTuner::Tune::kYes : DepthTuner::Tune::kNo) {
    show();
    for (std::uint32_t i = 0; i < threads_of(options); ++i) threads_.emplace_back([this] { work(); });
  }
  ~PoolIo() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_there_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const char* name() const override { return "threads"; }
  void add_memory(std::span<std::byte>) override {}
  void remove_memory(std::span<std::byte>) override {}

 private:
  void hand_over(const Accepted& accepted) override {
    {
      const std::lock_guard lock(mutex_);
      turns_.push(accepted);
    }
    work_there_.notify_one();
  }

  bool can_go() const { return !turns_.empty() && tuner_.admits(); }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_there_.wait(lock, [this] { return can_go() || (stop_ && turns_.empty()); });
      if (turns_.empty()) return work_there_.notify_all();
      const Accepted next = turns_.front();
      turns_.pop();
      tuner_.started(next.bytes);
      show();
      // What ended may have made room for more than one; each that goes wakes the next.
      if (can_go()) work_there_.notify_one();
      lock.unlock();
      const Finished finished = run(next);
      lock.lock();
      tuner_.ended(next.bytes, monotonic_now(),
                   turns_.empty() ? DepthTuner::Waiting::kNo : DepthTuner::Waiting::kYes);
      show();
      completions().push({&finished, 1});
    }
  }

  Finished run(const Accepted& accepted) {
    Transfer transfer(accepted);
    bool over = false;
    while (!over) {
      const Transfer::Step step = transfer.next(options().faults, monotonic_now());
      if (step.delay > Duration{}) sleep_for(step.delay);
      over = transfer.ended(step.skip ? 0 : perform(transfer, step.bytes));
    }
    return transfer.finished(monotonic_now());
  }

  void show() {
    gauges().in_flight = tuner_.in_flight();
    gauges().depth = tuner_.depth();
    gauges().window = tuner_.window().value;
  }

  std::mutex mutex_;
  std::condition_variable work_there_;
  Turns turns_;
  DepthTuner tuner_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Io> make_pool_io(const IoOptions& options) {
  return std::make_unique<PoolIo>(options);
}

}  // namespace orbitkv::ssd
