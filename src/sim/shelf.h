// What outlives each Manager of a run: descriptors under names, as the keeper or systemd has
// them, with the letters that are on their way there, and the ends of processes as pidfds tell
// of them. A letter takes its time; a death loses the last ones, as if they had not been sent;
// faults lose, refuse and hold up others. Keeps session memories whose descriptors somebody has.
// Owned by the ManagerNode; one thread. Knows nothing of what the descriptors are.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "base/unique_fd.h"
#include "daemon/fd_store.h"
#include "shm/session_memory.h"

namespace orbitkv::sim {

class World;
class ManagerNode;

class Shelf {
 public:
  Shelf(World& world, ManagerNode& manager) : world_(world), manager_(manager) {}

  // Of a new life, which begins with what is there.
  std::unique_ptr<daemon::FdStore> open();
  // The life is over; `word` says how many of its letters had not been sent.
  void end_life(std::uint64_t word);

  // ---- processes: pipes that are readable once they have ended ----
  const UniqueFd& process(std::uint32_t number);
  void end_process(std::uint32_t number);
  // 0: it has ended, or is none.
  std::uint32_t number_of(int process) const;
  // The session memory that the next put() is about.
  void lend(std::shared_ptr<shm::SessionMemory> memory) { lent_ = std::move(memory); }

  // ---- faults: of the next that is put, or of what is told from now on ----
  enum class Fault : std::uint8_t { kLose, kRefuse, kRefuseLater };
  void fault_next(Fault fault) { faults_.push_back(fault); }
  void stall(Duration time);

  // ---- for those who look ----
  // Descriptors of a kind, here and on their way: tables by the start of their names.
  std::vector<int> all(std::string_view kind) const;
  std::vector<std::string> names() const;
  // Session memories of which somebody has a descriptor.
  std::vector<const shm::SessionMemory*> memories() const;
  bool quiet() const { return letters_.empty(); }

 private:
  class Store;
  struct Letter {
    bool put = false;
    std::string name;
    UniqueFd fd;
    std::uint64_t ticket = 0;  // of a removal whose receipt is wanted
    TimePoint due;
    bool lost = false, refused = false;
  };
  void post(Letter letter);
  void deliver();  // what is due
  void apply(Letter& letter);
  bool may_release(const std::string& name) const;
  Status put(const std::string& name, const UniqueFd& fd);
  std::uint64_t remove(const std::string& name);
  static UniqueFd duplicate(const UniqueFd& fd);

  World& world_;
  ManagerNode& manager_;
  std::map<std::string, UniqueFd> held_;
  std::deque<Letter> letters_;
  std::set<std::uint64_t> open_tickets_;
  std::vector<std::string> refused_;
  std::set<std::string> taken_;  // by the life at hand, when it began
  std::map<std::string, std::shared_ptr<shm::SessionMemory>> memories_;
  std::shared_ptr<shm::SessionMemory> lent_;
  struct Living {
    UniqueFd end, told;  // where its end is read, and written
    std::uint64_t inode = 0;
  };
  std::map<std::uint32_t, Living> processes_;
  std::vector<Fault> faults_;
  TimePoint stalled_until_;
  std::uint64_t last_ticket_ = 0, posted_ = 0;
};

}  // namespace orbitkv::sim
