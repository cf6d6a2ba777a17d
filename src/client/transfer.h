// A save or restore, or a part of a long one, as an executor carries it out: one grant
// record a part, one copy batch at a time, one end. Plain data; guarded by the copy
// queue that advances it (client/copy_queue.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "client/attachment.h"
#include "client/operations.h"
#include "client/registry.h"
#include "device/copier.h"
#include "model/plan.h"

namespace orbitkv::client {

enum class PartState : std::uint8_t {
  kAsked,    // the Manager has not decided
  kGranted,  // its images are located; not claimed
  kActive,   // claimed: ends by a receipt
  kGivenUp,  // ended for the engine; its record is refused as soon as it can be
  kEnded,
};

// Where an image lies, for traces.
struct ImagePlace {
  SlabId slab;
  std::uint64_t offset = 0;
};

// One grant record's worth of a transfer.
struct Part {
  Entry* entry = nullptr;  // of the transfer
  GroupId group_id;
  const RegisteredGroup* group = nullptr;
  model::PlanKind kind = model::PlanKind::kSave;
  RecordRef ref;
  std::vector<std::uint32_t> blocks;  // engine blocks asked for, in order; kHole = none
  // What its command says beside: the caller's, until it has been sent.
  std::span<const BlockHash> hashes;  // save
  LeaseId lease;                      // restore
  std::uint32_t first = 0;            // restore: block of the lease
  bool traced = false;

  PartState state = PartState::kAsked;
  TimePoint slab_due;       // a slab of the grant is not mapped; 0: none is missed
  shm::GrantFields fields;  // from kGranted on, like the next two
  std::vector<device::SlotCopy> slots;
  std::vector<SlabTable::Use> slabs;  // that `slots` lie in: mapped until the part has ended
  std::vector<ImagePlace> images;     // traced only
  TransferOutcome outcome;            // kGivenUp and kEnded
};

// What has happened to a transfer and is told by system calls: after the operation's
// handle, which a thread may be waiting for.
struct News {
  bool receipts = false;  // the Manager's bell
  bool settled = false;   // the completion descriptor, and the trace
};

struct Transfer {
  OperationHandle handle;
  Entry* entry = nullptr;      // held by entry->open_transfers until it is settled, and traced
  Attachment* link = nullptr;  // goes only after the executor has let the transfer go
  model::PlanKind kind = model::PlanKind::kSave;
  TimePoint deadline;  // what is unclaimed by then is given up, and never claimed
  device::Fence ready;
  std::vector<device::LayerEvent> events;
  std::vector<Part> parts;

  TimePoint merge_until;                     // 0: no part has been granted yet
  std::optional<device::CopyTicket> ticket;  // a batch runs
  bool enqueued = false;                     // all of that batch
  bool carries_events = false;               // that batch
  bool events_stand = false;
  std::uint8_t event_tries = 0;
  bool settled = false;  // told to the table; but for the trace, entry and groups are no longer ours
  News news;
  std::string failure;  // of the device

  TimePoint called;  // 0: not traced
  OperationReport report;
  device::CopyStats stats;

  bool any(PartState state) const {
    return std::any_of(parts.begin(), parts.end(), [&](const Part& part) { return part.state == state; });
  }
  bool owes_events() const { return !events.empty() && !events_stand && event_tries < 2; }
  bool failed() const {
    return !failure.empty() || std::any_of(parts.begin(), parts.end(), [](const Part& part) {
      return part.state >= PartState::kGivenUp && !part.outcome.success;
    });
  }
  // The first pass counts. No clock is read without a trace.
  void stamp(std::uint64_t OperationReport::* stage) {
    if (called.ns == 0 || report.*stage != 0) return;
    report.*stage = static_cast<std::uint64_t>(std::max<std::int64_t>(1, (monotonic_now() - called).ns));
  }
};

}  // namespace orbitkv::client
