// Who may map which slab: each session that was told of one, and after its end its process,
// until that says that it has let go, or ends. A process of an earlier life of the Manager maps what it did
// until its first session of this one is asked. Owned by Slabs; the host's thread. What is
// written here decides when bytes count as free, never what may be lent.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"

namespace orbitkv::daemon {

// One process, never given again. 0: nobody will tell of its end.
using ProcessId = Id<struct ProcessIdTag, std::uint64_t>;

class Mappers {
 public:
  void open(SessionId session, ProcessId process, int pid);
  // A process of an earlier life, that may map these; before any session.
  void inherit(ProcessId process, int pid, const std::set<SlabId>& slabs);
  void offered(SessionId session, SlabId slab);
  // The offer was taken back before it was sent.
  void retracted(SessionId session, SlabId slab);
  bool holds(SessionId session, SlabId slab) const;
  // Whether it has been told that the slab retires.
  bool told(SessionId session, SlabId slab) const;
  void tell(SessionId session, SlabId slab);
  // Its receipt. False: it was not told, or has said so before.
  bool released(SessionId session, SlabId slab);

  enum class Parting : bool { kUnmapped, kUnknown };
  void close(SessionId session, Parting parting);
  void end(ProcessId process);

  bool anyone(SlabId slab) const;
  // It has no session that answers for what it may map.
  bool left(ProcessId process) const { return left_.contains(process); }
  // Process ids, as the operator knows them.
  std::vector<int> who(SlabId slab) const;
  std::size_t processes() const { return left_.size(); }  // that have no session and may map some

 private:
  struct Session {
    ProcessId process;
    int pid = 0;
    std::map<SlabId, bool> slabs = {};  // told
    bool inherited = false;             // some of them
  };
  struct Left {
    int pid = 0;
    bool inherited = false;
    std::set<SlabId> slabs;
  };
  std::map<SessionId, Session> sessions_;
  std::map<ProcessId, Left> left_;
};

}  // namespace orbitkv::daemon
