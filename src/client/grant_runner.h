// Carries out one grant: copies the plan out of the bank, checks every range against
// slab, geometry and what the caller asked for, claims the record, copies and
// verifies through the Copier, and publishes the receipt. One runner per thread.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "client/attachment.h"
#include "client/operations.h"
#include "device/copier.h"

namespace orbitkv::client {

class GrantRunner {
 public:
  explicit GrantRunner(bool verify);

  // What the part's record says now: nullopt = not decided yet (or a slab of the grant
  // is not mapped and `slab_wait` is 0). Otherwise the part has ended on this side, and
  // its record is retired. A grant whose copies began always ends in a receipt.
  std::optional<PartOutcome> step(Attachment& link, const Part& part, Duration slab_wait);

  // The part was given up: its grant is declined when it comes. True: its record has
  // ended on this side. Looks at nothing of the part but its record.
  bool refuse(Attachment& link, const Part& part);

 private:
  Result<model::Plan> read_plan(Attachment& link, const Part& part, shm::GrantFields& fields);
  Status check_plan(const Part& part, const model::Plan& plan, std::uint32_t result_bytes) const;
  // Addresses of the images; nullopt: a slab did not come within `slab_wait`.
  Result<bool> locate(Attachment& link, const Part& part, const model::Plan& plan, Duration slab_wait);
  Status copy(const Part& part);
  PartOutcome run(Attachment& link, const Part& part, const shm::GrantFields& fields);
  PartOutcome finish(Attachment& link, const Part& part, const shm::GrantFields& fields,
                     const Status& copied);
  PartOutcome decline(Attachment& link, const Part& part, const Error& why);

  std::unique_ptr<device::Copier> copier_;
  std::vector<device::SlotCopy> slots_;  // of the grant at hand; reused
  wire::Buffer bytes_;
};

}  // namespace orbitkv::client
