#include "daemon/mappers.h"

#include <algorithm>

#include "base/check.h"

namespace orbitkv::daemon {

void Mappers::open(SessionId session, ProcessId process, int pid) {
  const bool fresh = sessions_.try_emplace(session, Session{process, pid}).second;
  ORBITKV_CHECK(fresh, "a session's id is given twice");
  const auto left = left_.find(process);
  if (left == left_.end() || !left->second.inherited) return;
  Session& heir = sessions_.at(session);
  heir.inherited = true;
  for (const SlabId slab : left->second.slabs) heir.slabs.emplace(slab, false);
  left_.erase(left);
}

void Mappers::inherit(ProcessId process, int pid, const std::set<SlabId>& slabs) {
  if (process.value != 0 && !slabs.empty()) left_[process] = {pid, true, slabs};
}

void Mappers::offered(SessionId session, SlabId slab) {
  sessions_.at(session).slabs.emplace(slab, false);
}

void Mappers::retracted(SessionId session, SlabId slab) {
  sessions_.at(session).slabs.erase(slab);
}

bool Mappers::holds(SessionId session, SlabId slab) const {
  const auto it = sessions_.find(session);
  return it != sessions_.end() && it->second.slabs.contains(slab);
}

bool Mappers::told(SessionId session, SlabId slab) const {
  return holds(session, slab) && sessions_.at(session).slabs.at(slab);
}

void Mappers::tell(SessionId session, SlabId slab) {
  sessions_.at(session).slabs.at(slab) = true;
}

bool Mappers::released(SessionId session, SlabId slab) {
  if (!told(session, slab)) return false;
  sessions_.at(session).slabs.erase(slab);
  return true;
}

void Mappers::close(SessionId session, Parting parting) {
  auto gone = sessions_.extract(session);
  if (gone.empty() || parting == Parting::kUnmapped) return;
  const Session& was = gone.mapped();
  if (was.process.value == 0 || was.slabs.empty()) return;
  Left& left = left_[was.process];
  left.pid = was.pid;
  left.inherited = was.inherited;  // then its next session is asked in its stead
  for (const auto& [slab, told] : was.slabs) left.slabs.insert(slab);
}

void Mappers::end(ProcessId process) {
  left_.erase(process);
  for (auto& [id, session] : sessions_)
    if (session.process == process) session.process = {};  // it leaves nothing behind
}

bool Mappers::anyone(SlabId slab) const {
  const auto maps = [&](const auto& each) { return each.second.slabs.contains(slab); };
  return std::any_of(sessions_.begin(), sessions_.end(), maps) ||
         std::any_of(left_.begin(), left_.end(), maps);
}

std::vector<int> Mappers::who(SlabId slab) const {
  std::set<int> pids;
  for (const auto& [id, session] : sessions_)
    if (session.slabs.contains(slab)) pids.insert(session.pid);
  for (const auto& [id, left] : left_)
    if (left.slabs.contains(slab)) pids.insert(left.pid);
  return {pids.begin(), pids.end()};
}

}  // namespace orbitkv::daemon
