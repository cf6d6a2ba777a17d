// FdStore over systemd's descriptor store: FDSTORE and FDSTOREREMOVE to $NOTIFY_SOCKET, and the
// descriptors from 3 on at the next start. systemd answers nothing; a removal is known to be done
// when it closes the barrier that is sent behind it. docs/upgrade.md has a unit file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

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
  static Result<std::unique_ptr<SystemdStore>> open(Given given);

  const char* kind() const override { return "systemd"; }
  Result<std::vector<Named>> take() override;
  Status put(const std::string& name, const UniqueFd& fd) override;
  Ticket remove(const std::string& name) override;
  void forget(const std::string& name) override { forgotten_.push_back(remove(name)); }
  bool removed(Ticket ticket) override;
  void poll() override;
  std::vector<std::string> refused() override { return {}; }
  int fd() const override { return -1; }
  bool alive() const override { return true; }
  void ready() override;
  Status succeed(const std::string& binary) override;

 private:
  explicit SystemdStore(Given given) : given_(std::move(given)) {}
  struct Removal {
    std::string name;
    UniqueFd barrier;  // our end; none: not told yet
  };
  Status tell(const std::string& text, int fd = -1) const;
  void tell_removal(Removal& removal);

  Given given_;
  UniqueFd socket_;
  std::uint32_t held_ = 0;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, Removal> removals_;
  std::vector<Ticket> forgotten_;
};

}  // namespace orbitkv::daemon
