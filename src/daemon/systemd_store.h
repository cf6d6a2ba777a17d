// FdStore over systemd's descriptor store: FDSTORE and FDSTOREREMOVE to $NOTIFY_SOCKET, and the
// descriptors from 3 on at the next start. Notifications leave once each and in the order of the calls; what
// the socket does not take now goes with a later poll(). systemd answers nothing; a removal is known to be
// done when it closes the barrier that is sent behind it. docs/upgrade.md has a unit file.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "daemon/fd_store.h"

namespace orbitkv::daemon {

class SystemdStore final : public FdStore {
 public:
  // What systemd says to the process in its environment.
  struct Given {
    std::string notify_socket;  // path, or @ and an abstract name
    std::uint32_t most = 0;     // descriptors that the unit may store
    std::vector<Named> stored;
  };
  // Reads and clears it: children do not inherit it. Without a store `most` is 0.
  static Given read_environment();
  static bool offered();  // systemd stores descriptors of this process
  // `silence`: how long a start may go without starting(); 0: as long as the unit says.
  static Result<std::unique_ptr<SystemdStore>> open(Given given, Duration silence = {});

  const char* kind() const override { return "systemd"; }
  Result<std::vector<Named>> take() override;
  Status put(const std::string& name, const UniqueFd& fd) override;
  Ticket remove(const std::string& name) override;
  void forget(const std::string& name) override;
  bool removed(Ticket ticket) override;
  void poll() override;
  std::vector<std::string> refused() override;
  int fd() const override { return -1; }
  bool alive() const override { return true; }
  void starting(std::string_view what) override;
  void fails(std::string_view why) override;
  void ready() override;
  Status succeed(const Successor& successor) override;
  std::optional<Status> succeeded() override { return std::nullopt; }

 private:
  SystemdStore(Given given, Duration silence) : given_(std::move(given)), silence_(silence) {}
  struct Letter {
    std::string text;
    UniqueFd fd;
    std::string put;    // what it stores; empty: it stores nothing
    bool news = false;  // that need not arrive
  };
  void post(Letter letter);
  void flush();

  Given given_;
  const Duration silence_;
  UniqueFd socket_;
  std::set<std::string> names_;  // that are stored once all that is posted has been handled
  std::deque<Letter> unsent_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, UniqueFd> barriers_;  // our ends, by ticket
  std::vector<std::string> refused_;
};

}  // namespace orbitkv::daemon
