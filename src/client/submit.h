// Turns a save or restore of the engine into transfers: one grant record and one command
// a part, split where a frame is full. Whatever can be refused is refused before the first
// command; the caller's stream is remembered in the caller's thread. Small transfers are
// started by the caller, the rest by the device's executor. Any thread.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "client/executor.h"
#include "client/io_thread.h"
#include "client/link.h"
#include "client/operations.h"
#include "orbitkv/client.h"

namespace orbitkv::client {

class Submitter {
 public:
  Submitter(Link& link, OperationTable& operations, Registry& registry, const Options& options);

  // An Error: nothing was sent and no page is lent. Parts that the Manager refuses later
  // end the handle without success.
  Status save(RegistrationHandle registration, std::span<const SaveGroup> groups, const SaveOptions& options,
              OperationHandle& out);
  Status restore(RegistrationHandle registration, std::span<const Load> loads, const RestoreOptions& options,
                 OperationHandle& out);
  void close() { closed_ = true; }

 private:
  using Transfers = std::vector<std::unique_ptr<Transfer>>;
  struct Request {
    model::PlanKind kind = model::PlanKind::kSave;
    std::uint64_t ready_stream = kNoStream;
    std::span<const LayerEvent> events;
    TimePoint called;  // 0: not traced
    std::uint32_t parts = 0;
    Transfers transfers;
  };
  class Held;

  Request new_request(model::PlanKind kind, std::uint64_t ready_stream) const;
  static Transfer& new_transfer(Request& request);
  static Part& new_part(Request& request, GroupId group, std::span<const std::uint32_t> blocks);
  Result<Entry*> hold_entry(RegistrationHandle registration);
  Status run(RegistrationHandle registration, Request request, OperationHandle& out);
  // Everything but records and handles.
  static Status prepare(Entry& entry, Request& request);
  Status send_all(Attachment& link, Transfers& transfers, Held& held);
  // An Error: the Manager never took the part, and its record is free again.
  Status send(Attachment& link, const Part& part);
  // After a refusal: true if it may be sent again, with a new record.
  static bool wait_for_room(Attachment& link, Part& part, const Status& sent, const Transfer& transfer);
  bool small(const Transfer& transfer) const;
  Duration grant_within(model::PlanKind kind) const;

  Link& link_;
  OperationTable& operations_;
  Registry& registry_;
  const Options& options_;
  std::atomic<bool> closed_{false};
};

}  // namespace orbitkv::client
