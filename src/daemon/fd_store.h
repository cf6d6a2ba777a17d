// Where descriptors outlive the Manager's process: the keeper (keeper_store.h) or systemd
// (systemd_store.h). Both keep duplicates under names, and hand them to the next life. Owned by
// the Manager's Keep; core thread; nothing here waits but take(). A descriptor that cannot be
// kept is told, never an error of anything else: its memory ends with the process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace orbitkv::daemon {

class FdStore {
 public:
  struct Named {
    std::string name;
    UniqueFd fd;
  };
  using Ticket = Id<struct FdTicketTag, std::uint64_t>;

  virtual ~FdStore() = default;
  virtual const char* kind() const = 0;
  // What an earlier life left; once, first.
  virtual Result<std::vector<Named>> take() = 0;
  // Letters, digits and dashes, at most limits::kKeptNameBytes; not in use. kBusy: full, or
  // the store has gone: not kept. It may turn out later: refused().
  virtual Status put(const std::string& name, const UniqueFd& fd) = 0;
  // One that is not there counts as removed.
  virtual Ticket remove(const std::string& name) = 0;
  // The same, and nobody asks for the receipt.
  virtual void forget(const std::string& name) = 0;
  // The receipt: the store has closed its duplicate, or has ended itself.
  virtual bool removed(Ticket ticket) = 0;
  // Takes what has come.
  virtual void poll() = 0;
  // Names that could not be kept after all, since the last call.
  virtual std::vector<std::string> refused() = 0;
  // Readable when poll() has something to do; -1: never.
  virtual int fd() const = 0;
  // False: it has ended, and what it held is closed.
  virtual bool alive() const = 0;
  // The Manager goes on with its start, and with what. Once that was not said for long, whoever starts it
  // may end it. What cannot be sent now is not sent.
  virtual void starting(std::string_view what) { (void)what; }
  // It ends without having served.
  virtual void fails(std::string_view why) { (void)why; }
  // The Manager serves.
  virtual void ready() = 0;

  // The operator wants the Manager to make place for its successor; told once.
  virtual bool leave_asked() { return false; }
  struct Successor {
    std::string binary;  // empty: what stands at the same path
    bool cold = false;   // even if it cannot go on with what is kept
  };
  // What runs as the next life, once this one has made place for it. Asked for, not waited for.
  virtual Status succeed(const Successor& successor) = 0;
  // The answer to the last succeed(), told once.
  virtual std::optional<Status> succeeded() = 0;
};

}  // namespace orbitkv::daemon
