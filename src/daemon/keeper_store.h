// FdStore over the keeper that is the Manager's parent (keeper.h). Messages leave in the order of
// the calls; what the socket does not take now goes with a later poll(). A keeper that ends has
// closed all that it held: the Manager goes on, and keeps nothing more.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/fd_store.h"
#include "daemon/keeper_protocol.h"

namespace orbitkv::daemon {

// Who made the socket: a Manager behind a wrapper is no child of its keeper. 0: it has no pid here.
int keeper_of(int socket);
// "the keeper (pid 12)"
std::string keeper_named(int pid);
// How one that stands still goes on: "; if it was stopped: kill -CONT 12"
std::string keeper_remedy(int pid);

class KeeperStore final : public FdStore {
 public:
  explicit KeeperStore(UniqueFd socket);

  const char* kind() const override { return "keeper"; }
  Result<std::vector<Named>> take() override;
  Status put(const std::string& name, const UniqueFd& fd) override;
  Ticket remove(const std::string& name) override;
  void forget(const std::string& name) override;
  bool removed(Ticket ticket) override;
  void poll() override;
  std::vector<std::string> refused() override;
  int fd() const override { return socket_.get(); }
  bool alive() const override { return alive_; }
  void starting(std::string_view what) override;
  void fails(std::string_view why) override;
  void ready() override;
  bool leave_asked() override;
  Status succeed(const Successor& successor) override;
  std::optional<Status> succeeded() override;

 private:
  struct Letter {
    KeeperMessage message;
    UniqueFd fd;
  };
  std::uint64_t post(KeeperMessage message, UniqueFd fd = {});
  void flush();
  void lose();
  void take_message(const KeeperMessage& message);
  struct Reply {
    KeeperMessage message;
    UniqueFd fd;
  };
  Result<Reply> ask(KeeperMessage message);
  Error no_answer() const;

  UniqueFd socket_;
  int keeper_ = 0;  // its process; 0: it has no pid here
  bool alive_ = true, leave_ = false;
  std::uint64_t last_ = 0;
  std::deque<Letter> unsent_;
  std::map<std::uint64_t, std::string> puts_;  // unanswered
  std::map<std::uint64_t, bool> removals_;     // answered?
  std::vector<std::string> refused_;
  std::uint64_t succession_ = 0;  // the request; 0: none is unanswered
  std::optional<Status> succeeded_;
};

}  // namespace orbitkv::daemon
