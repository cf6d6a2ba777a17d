// The life of one grant on this side, but for the copy: copies the plan out of the bank,
// checks every range against slab, geometry and what the caller asked for, claims the
// record, and publishes the receipt. Holds scratch memory only; one thread at a time.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "client/attachment.h"
#include "client/transfer.h"

namespace orbitkv::client {

class GrantRunner {
 public:
  // A grant may name a slab that is being offered just now: waited for so long.
  explicit GrantRunner(Duration slab_wait = milliseconds(1000)) : slab_wait_(slab_wait) {}

  // What the part's record says now: kAsked stays (not decided, or a slab is missing), or
  // becomes kGranted, or kEnded, its record retired.
  void look(Attachment& link, Part& part);
  // kGranted becomes kActive, which always ends in a receipt; false: it ended instead.
  bool claim(Attachment& link, Part& part);
  // kActive becomes kEnded, with a receipt. `copied`: how the batch ended. The Manager's bell
  // is the caller's to ring: whoever waits for the copy comes first.
  void finish(Attachment& link, Part& part, const Status& copied);
  // The part was given up: its grant is declined when it comes. True: its record has
  // ended on this side. Looks at nothing of the part but its record.
  bool refuse(Attachment& link, const Part& part);

 private:
  Result<bool> read(Attachment& link, Part& part);
  Status check_plan(const Part& part, const model::Plan& plan) const;
  // False: a slab is not mapped yet.
  Result<bool> locate(Attachment& link, Part& part, const model::Plan& plan);
  // The part uses it from now on. nullptr: it is not mapped yet.
  Result<const mem::MappedSlab*> use_slab(Attachment& link, Part& part, SlabId name);
  TransferOutcome encode_result(const Part& part, const Status& copied);
  void decline(Attachment& link, const Part& part, const Error& why);

  const Duration slab_wait_;
  std::vector<device::SlotCopy> spare_;  // of a part that has ended
  wire::Buffer bytes_;
};

}  // namespace orbitkv::client
