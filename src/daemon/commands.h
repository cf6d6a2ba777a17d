// Decodes the commands of a session's ring, calls the core and answers. Every
// command gets exactly one reply. Core thread only.
#pragma once

#include <optional>
#include <vector>

#include "cache/core.h"
#include "daemon/session.h"

namespace orbitkv::daemon {

class CommandServer {
 public:
  explicit CommandServer(cache::Core& core) : core_(core) {}
  // The session's next command; a ring that cannot be poisons the session.
  std::optional<wire::CommandBytes> pop(Session& session);
  // What it costs, about, in bytes of request frames.
  ByteCount answer(Session& session, const wire::CommandBytes& bytes, TimePoint now);
  // Refuse new work from now on (shutdown); ping is still answered.
  void refuse_all() { refusing_ = true; }

 private:
  Status dispatch(Session& session, const wire::Command& command, TimePoint now);
  Status query(Session& session, TimePoint now);
  Status publish(Session& session, TimePoint now);
  Status restore(Session& session, TimePoint now);
  Status release(Session& session);
  Status cancel(Session& session);
  Status poll(Session& session, TimePoint now);
  Status read_recovery(Session& session, TimePoint now);
  Status warm(Session& session, TimePoint now);
  Status publish_activity(TimePoint now);
  Status submit_interest(Session& session, TimePoint now);
  Status interest(Session& session, TimePoint now);
  // A prepared operation whose request the core refused ends here.
  void fail_if_prepared(Session& session, const cache::OperationKey& op, const Error& why);

  cache::Core& core_;
  bool refusing_ = false;
  std::vector<std::byte> request_, reply_;  // reused; one command at a time
  std::vector<std::uint32_t> indices_;
};

}  // namespace orbitkv::daemon
