// A store of descriptors for tests: whose other side does what it is told, or only when it is let.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/fd_store.h"

namespace orbitkv::daemon::testing {

// Keeps descriptors in this process; removals wait until they are let happen.
struct Shelves {
  std::map<std::string, UniqueFd> held;
  std::set<std::string> removing;
  bool slow = false, deaf = false, full = false;
  std::string refuses;  // names that begin so
  void remove_all() {
    for (const std::string& name : removing) held.erase(name);
    removing.clear();
  }
  std::size_t count(std::string_view kind) const {
    std::size_t n = 0;
    for (const auto& [name, fd] : held) n += name.starts_with(kind) ? 1 : 0;
    return n;
  }
};

class TestStore final : public FdStore {
 public:
  explicit TestStore(Shelves& shelves) : shelves_(shelves) {}
  const char* kind() const override { return "test"; }
  Result<std::vector<Named>> take() override {
    if (shelves_.deaf) return reconnect("it does not answer");
    std::vector<Named> out;
    for (const auto& [name, fd] : shelves_.held)
      out.push_back({name, UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0))});
    return out;
  }
  Status put(const std::string& name, const UniqueFd& fd) override {
    if (shelves_.full || (!shelves_.refuses.empty() && name.starts_with(shelves_.refuses)))
      return busy("full");
    EXPECT_FALSE(shelves_.held.contains(name)) << name;
    shelves_.held[name] = UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
    return ok_status();
  }
  Ticket remove(const std::string& name) override {
    shelves_.removing.insert(name);
    if (!shelves_.slow) shelves_.remove_all();
    names_[++last_] = name;
    return Ticket(last_);
  }
  void forget(const std::string& name) override { shelves_.held.erase(name); }
  bool removed(Ticket ticket) override { return !shelves_.removing.contains(names_[ticket.value]); }
  void poll() override {}
  std::vector<std::string> refused() override { return {}; }
  int fd() const override { return -1; }
  bool alive() const override { return true; }
  void ready() override {}
  Status succeed(const Successor&) override { return ok_status(); }
  std::optional<Status> succeeded() override { return ok_status(); }

 private:
  Shelves& shelves_;
  std::map<std::uint64_t, std::string> names_;
  std::uint64_t last_ = 0;
};

}  // namespace orbitkv::daemon::testing
