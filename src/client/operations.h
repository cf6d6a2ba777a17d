// Handles of saves and restores: how many parts are open, how they ended. A handle
// is one call of the engine; a part is one grant record. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "base/unique_fd.h"
#include "client/attachment.h"
#include "client/registry.h"
#include "model/plan.h"
#include "orbitkv/client.h"

namespace orbitkv::client {

// One grant record's worth of a save or restore.
struct Part {
  OperationHandle handle;
  Entry* entry = nullptr;  // held open by entry->open_parts
  GroupId group_id;
  const RegisteredGroup* group = nullptr;
  model::PlanKind kind = model::PlanKind::kSave;
  RecordRef ref;
  Epoch session;                      // that `ref` belongs to: records of another life look alike
  std::vector<std::uint32_t> blocks;  // engine blocks asked for, in order; kHole = none
  TimePoint deadline;                 // unclaimed by then: given up, and never claimed
  bool given_up = false;              // its handle has ended; entry and group are no longer ours
};

struct PartOutcome {
  bool success = true;
  std::uint32_t blocks = 0;
  std::string message;
};

class OperationTable {
 public:
  OperationTable();
  OperationHandle open(std::uint32_t parts);
  // Takes back a handle of which nothing was sent.
  void forget(OperationHandle handle);
  void finish_part(OperationHandle handle, const PartOutcome& outcome);
  OperationStatus poll(OperationHandle handle);
  OperationStatus wait(OperationHandle handle, std::uint32_t timeout_ms);
  bool wait_all(std::uint32_t timeout_ms);
  std::vector<OperationHandle> take_completed();
  void drop(OperationHandle handle);
  int completion_fd() const { return completion_.get(); }
  std::uint32_t open_count();

 private:
  struct State {
    std::uint32_t parts_left = 0;
    std::uint32_t blocks = 0;
    bool success = true;
    bool dropped = false;
    std::string message;
  };
  OperationStatus status_of(OperationHandle handle) const;  // lock held, like the two below
  void complete(OperationHandle handle);
  void forget_oldest();

  std::mutex mutex_;
  std::condition_variable ended_;
  std::map<std::uint64_t, State> states_;
  std::deque<OperationHandle> completed_;  // not taken yet, <= limits::kHandlesKept
  std::uint64_t next_ = 1;
  std::uint32_t open_ = 0;
  UniqueFd completion_;
};

}  // namespace orbitkv::client
