// One Copier and the batches that run on it, one a transfer, limits::kCopyBatches at
// most. Advances transfers: looks at their grants, claims, submits, polls, publishes
// receipts, and settles what has ended. The executor's thread and callers take turns;
// everything of a transfer is guarded by the turn. What needs system calls (bells, the
// trace) is done by advance(), after its turn. No call blocks on the device, but a copier
// that copies at once (the host's) does so in here.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "client/grant_runner.h"
#include "client/operations.h"
#include "client/trace.h"
#include "client/transfer.h"
#include "device/copier.h"

namespace orbitkv::client {

class CopyQueue {
 public:
  // `trace` may be null. Both outlive the queue.
  CopyQueue(std::unique_ptr<device::Copier> copier, OperationTable& operations, Trace* trace);

  // One look at the transfer. True: it is over, and nothing here knows it any more.
  bool advance(Transfer& transfer);
  // The same for a thread of the engine: it goes before the executor's rounds.
  bool advance_first(Transfer& transfer);

  struct Round {
    std::size_t ended = 0;    // batches, by whomever, since the last poll: advance their transfers
    std::size_t running = 0;  // that are left
  };
  Round poll();
  // Nothing if another thread has the turn.
  void try_poll();

 private:
  using Turn = std::unique_lock<std::mutex>;
  Turn take_turn();
  bool advance_in(Turn turn, Transfer& transfer);
  bool advance_in_turn(Transfer& transfer);
  void tell(Transfer& transfer, News news);
  bool writes_trace(const Transfer& transfer) const { return trace_ && transfer.called.ns != 0; }
  // True: something was done, and more may be to do.
  bool step(Transfer& transfer);
  bool waits_for_more(Transfer& transfer);
  void start(Transfer& transfer);
  void poll_in_turn();
  bool poll_batch(Transfer& transfer);  // true: it has ended
  void end_batch(Transfer& transfer, const device::CopyEnd& end);
  void give_up(Transfer& transfer, const std::string& why);
  void settle(Transfer& transfer);

  OperationTable& operations_;
  Trace* const trace_;
  std::mutex turn_;
  std::atomic<int> callers_{0};  // who want to go first
  GrantRunner runner_;
  std::vector<Transfer*> running_;
  std::size_t ended_ = 0;  // batches, since the last poll()
  // Drains what still runs when it goes; transfers outlive it.
  std::unique_ptr<device::Copier> copier_;
};

}  // namespace orbitkv::client
