// Grants: turns an operation with lent slots or pinned sources into a plan and hands
// it to the client through Ports; keeps the order of those that wait for plan bank
// space. Owned by the core; single-threaded. Never grants past an older operation of
// the same session that waits for the bank.
#pragma once

#include "base/result.h"
#include "cache/core.h"
#include "cache/images.h"
#include "cache/namespaces.h"
#include "cache/operations.h"
#include "cache/sessions.h"
#include "model/plan.h"

namespace orbitkv::cache {

class Grants {
 public:
  struct Parts {
    Ports& ports;
    Images& images;
    Namespaces& namespaces;
    Sessions& sessions;
    Operations& operations;
  };
  explicit Grants(const Parts& parts) : p_(parts) {}

  // Grants now, or queues the operation until the bank has room. True: granted.
  bool submit(OperationIndex index);
  void bank_freed(SessionId session);
  // Before a claim: takes the operation back from the client, state kEnded. False: the
  // client was first (state kClaimed).
  bool withdraw(OperationIndex index, const Error& why);

 private:
  Ports::Grant try_grant(Operation& op);
  const model::Plan& plan_of(const Operation& op);

  Parts p_;
  model::Plan plan_;  // reused
};

}  // namespace orbitkv::cache
