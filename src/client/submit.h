// Turns a save or restore of the engine into parts: one grant record and one command
// each, split where a frame is full. Small parts run in the caller, the rest in the
// executor. Any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
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
  Submitter(Link& link, OperationTable& operations, Executor& executor, Registry& registry,
            const Options& options);

  // An Error: nothing was sent and no page is lent. Parts that the Manager refuses later
  // end the handle without success.
  Status save(RegistrationHandle registration, std::span<const SaveGroup> groups, OperationHandle& out);
  Status restore(RegistrationHandle registration, std::span<const Load> loads, OperationHandle& out);
  void close() { closed_ = true; }

 private:
  // A part and the command that asks for its grant.
  struct Draft {
    std::unique_ptr<Part> part;
    std::span<const BlockHash> hashes;  // save
    LeaseId lease;                      // restore
    std::uint32_t first = 0;            // restore: block of the lease
  };
  Result<Entry*> hold_entry(RegistrationHandle registration, std::uint32_t parts);
  Status run(RegistrationHandle registration, std::vector<Draft> drafts, OperationHandle& out);
  // False: the Manager never took the part (its record is free again).
  Status send(Attachment& link, Draft& draft);
  void encode(const Draft& draft, wire::Buffer& frame) const;
  bool small(const Part& part) const;
  Duration grant_within(const Part& part) const;
  void run_inline(Attachment& link, std::unique_ptr<Part> part);

  Link& link_;
  OperationTable& operations_;
  Executor& executor_;
  Registry& registry_;
  const Options& options_;
  std::atomic<bool> closed_{false};
  std::mutex inline_mutex_;
  GrantRunner inline_runner_;
};

}  // namespace orbitkv::client
