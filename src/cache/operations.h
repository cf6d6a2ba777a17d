// Open publishes and restores: one object from the accepted command to its end. The
// objects are recycled, so the short path allocates nothing. Owned by the core;
// single-threaded. Closing an operation returns its metadata bytes and its place at
// the session, the registration and the device; its slots and pins are the caller's.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "cache/budgets.h"
#include "cache/core.h"
#include "cache/images.h"
#include "cache/instances.h"
#include "cache/sessions.h"
#include "cache/transitions.h"
#include "mem/budget.h"
#include "model/plan.h"

namespace orbitkv::cache {

struct Operation {
  OperationKey key;
  model::PlanKind kind = model::PlanKind::kSave;
  PublishState publish = PublishState::kEnded;  // of a save
  RestoreState restore = RestoreState::kEnded;  // of a restore
  RegistrationId registration;
  DeviceIndex device;
  NodeId node = kAnyNode;  // of the device
  RegisteredGroup group;
  KeySpace space;
  bool open = false;

  // What the grant copies: blocks[i] <-> slots[i].
  std::vector<std::uint32_t> blocks;
  std::vector<ImageSlot> slots;
  // Save, until slots are lent: one a block.
  std::vector<BlockHash> hashes;
  // Restore: the pinned images, in the order of slots.
  std::vector<RecordId> pinned;
  // Restore, awaiting: of `pinned`, those before it have landed.
  std::uint32_t landed = 0;
  bool on_device = false;  // it counts against its device's share
  std::uint32_t lent = 0;  // save: of `slots`, those that are still there

  TimePoint opened;                // of a save
  TimePoint deadline;              // end of waiting for other publishers, or for the tier
  bool awaited = false;            // save: somebody waits for this one
  bool looks_again = false;        // save, waiting: what it waited for has ended
  ChargeIndex charge = kNoCharge;  // restore: of its lease, held
  mem::Reservation metadata;
};

class Operations {
 public:
  Operations(Sessions& sessions, Instances& instances) : sessions_(sessions), instances_(instances) {}

  struct Want {
    OperationKey key;
    model::PlanKind kind = model::PlanKind::kSave;
    ByteCount metadata;
    bool awaits = false;  // restore: not on its device yet, admit() follows
  };
  // kReject: the record is out of range or holds an open operation. kBusy: metadata full,
  // or (restore) the device's share.
  Result<OperationIndex> open(const Want& want, Registration& registration);
  // kNoOperation where unknown or another operation holds the record by now.
  OperationIndex find(const OperationKey& key) const;
  // An awaiting restore gets its share of the device. False: there is none.
  bool admit(OperationIndex index);
  void close(OperationIndex index);
  // Its metadata and its place at the device go back before it is closed.
  void return_credits(OperationIndex index);

  Operation& at(OperationIndex index) { return operations_[index.value]; }
  const Operation& at(OperationIndex index) const { return operations_[index.value]; }
  std::uint32_t count() const { return count_; }
  // Indices ever used are below this.
  std::uint32_t high_water() const { return static_cast<std::uint32_t>(operations_.size()); }
  void count(Census& census) const;
  // Open operations of a session, oldest record first.
  std::vector<OperationIndex> of_session(SessionId session) const;

 private:
  Sessions& sessions_;
  Instances& instances_;
  std::deque<Operation> operations_;
  std::vector<OperationIndex> free_;
  std::uint32_t count_ = 0;
};

}  // namespace orbitkv::cache
