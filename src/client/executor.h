// The engine-side executor of one device: one thread that waits for the grants of the
// transfers given to it, runs them side by side on one copy queue, and polls what runs.
// It spins while a batch runs, waits on the session's channel while grants are awaited,
// and sleeps when it has nothing. Transfers that are small may be started by the thread
// that asks for them, and helped along by one that waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "client/copy_queue.h"
#include "client/devices.h"
#include "client/operations.h"
#include "client/trace.h"
#include "client/transfer.h"

namespace orbitkv::client {

class Executor final : public Helper {
 public:
  struct Copiers {
    std::unique_ptr<device::Copier> queue;
    // For callers; null: they use the queue too. A copier that copies at once needs it, or
    // small copies would stand behind large ones.
    std::unique_ptr<device::Copier> callers;
  };
  Executor(Copiers copiers, OperationTable& operations, Trace* trace);
  ~Executor() override;  // stop()

  // Announces transfers, before their session is looked up: wait_empty() waits for them.
  void enter(std::uint32_t transfers);
  // Transfers that were announced and never came.
  void leave(std::uint32_t transfers);
  // Takes an announced transfer over, whose commands have been sent.
  void add(std::unique_ptr<Transfer> transfer);
  // The same, after doing in the caller's thread what can be done at once.
  void start_here(std::unique_ptr<Transfer> transfer);
  void help() override { queue_.try_poll(); }

  // Returns when nothing is left (a lost Manager ends what is unclaimed soon). False: waits
  // are bounded, and copies still run.
  bool wait_empty();
  // The same in slices, for who has something else to do meanwhile. kNotYet: the time is over.
  enum class Emptied : std::uint8_t { kYes, kBounded, kNotYet };
  Emptied wait_empty_for(Duration most);
  // No wait_empty() goes on after `end`; nullopt: they take as long as copies do.
  void bound_waits(std::optional<TimePoint> end);
  void stop();

 private:
  void run();
  bool take_incoming();  // false: stop
  CopyQueue::Round round();
  void wait_for_news(std::uint64_t seen, const CopyQueue::Round& last);

  std::mutex mutex_;
  std::condition_variable work_;   // for the thread
  std::condition_variable empty_;  // for wait_empty()
  std::vector<std::unique_ptr<Transfer>> incoming_;
  // In one order with Attachment::lost(): who announces after a session was lost sees it
  // lost, and who announced before is waited for.
  std::atomic<std::uint32_t> open_{0}, waiters_{0};
  bool stop_ = false;
  std::optional<TimePoint> waits_end_;
  std::atomic<bool> on_channel_{false};               // the thread sleeps there
  std::vector<std::unique_ptr<Transfer>> transfers_;  // of the thread
  std::uint32_t idle_spins_ = 0;
  CopyQueue queue_;
  std::unique_ptr<CopyQueue> callers_;
  std::thread thread_;
};

// One executor a device, started with the first registration on it. Any thread.
class Executors {
 public:
  Executors(OperationTable& operations, const device::CopierOptions& options, Trace* trace);
  ~Executors();  // stop()
  Result<Executor*> on(device::Device& device);
  bool wait_empty();
  Executor::Emptied wait_empty_for(Duration most);
  void bound_waits(std::optional<TimePoint> end);
  void stop();

 private:
  std::vector<Executor*> all();

  OperationTable& operations_;
  const device::CopierOptions options_;
  Trace* const trace_;
  std::mutex mutex_;
  std::map<device::Device*, std::unique_ptr<Executor>> executors_;
};

}  // namespace orbitkv::client
