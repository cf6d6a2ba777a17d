// Handles of saves and restores: how many transfers are open, how they ended. A handle
// is one call of the engine; a transfer is what one executor carries out of it. A waiting
// thread helps its operation along before it sleeps. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "base/unique_fd.h"
#include "orbitkv/client.h"

namespace orbitkv::client {

struct TransferOutcome {
  bool success = true;
  std::uint32_t blocks = 0;
  std::string message;
  // Of a save that is a success: what it did not copy, because it was there or found no memory.
  std::uint32_t resident = 0, dropped = 0;
  bool being_made = false;  // there was no memory yet
};

// Brings operations nearer to their end from a thread that waits for one. Never blocks.
class Helper {
 public:
  virtual ~Helper() = default;
  virtual void help() = 0;
};

class OperationTable {
 public:
  OperationTable();
  // `helper`: the operation is so short that a waiting thread had better not sleep at once.
  OperationHandle open(std::uint32_t transfers, Helper* helper = nullptr);
  // Takes back a handle of which nothing was sent.
  void forget(OperationHandle handle);
  // One transfer's copies and layer events stand on the device's queues.
  void mark_enqueued(OperationHandle handle);
  // One transfer has ended. `report`: only if it was traced. announce() follows.
  void finish(OperationHandle handle, const TransferOutcome& outcome,
              const OperationReport* report = nullptr);
  // Makes the completion descriptor readable if an operation has ended that nobody took.
  void announce();
  OperationStatus poll(OperationHandle handle);
  OperationStatus wait(OperationHandle handle, std::uint32_t timeout_ms);
  Outcome wait_enqueued(OperationHandle handle, std::uint32_t timeout_ms);
  Outcome report(OperationHandle handle, OperationReport& out);
  bool wait_all(std::uint32_t timeout_ms);
  std::vector<OperationHandle> take_completed();
  void drop(OperationHandle handle);
  int completion_fd() const { return completion_.get(); }
  std::uint32_t open_count();

 private:
  struct State {
    std::uint32_t left = 0;          // transfers that have not ended
    std::uint32_t not_enqueued = 0;  // transfers
    std::uint32_t blocks = 0, resident = 0, left_out = 0;
    bool success = true;
    bool dropped = false;
    bool being_made = false;  // memory, when blocks were left out
    std::string message;
    Helper* helper = nullptr;
    std::optional<OperationReport> report;
  };
  // The last handles that reached a point, by handle modulo the size: a hint that a
  // spinning thread reads without the lock.
  using Marks = std::array<std::atomic<std::uint64_t>, 256>;
  static void set(Marks& marks, OperationHandle handle);
  void spin(std::unique_lock<std::mutex>& lock, OperationHandle handle, const Marks& marks);

  OperationStatus status_of(OperationHandle handle) const;  // lock held, like the four below
  std::optional<Outcome> enqueued_of(OperationHandle handle) const;
  void complete(OperationHandle handle);
  void announce_locked();
  void forget_oldest();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, State> states_;
  std::deque<OperationHandle> completed_;  // not taken yet, <= limits::kHandlesKept
  std::uint64_t next_ = 1;
  std::uint32_t open_ = 0;
  UniqueFd completion_;
  Marks ended_{}, enqueued_{};
};

}  // namespace orbitkv::client
