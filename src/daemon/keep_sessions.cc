// Sessions and their processes, as they are kept for the next life and found by it.
#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "daemon/keep.h"
#include "daemon/kept_names.h"

namespace orbitkv::daemon {

using namespace kept;

namespace {

std::string session_name(SessionId session, Epoch epoch) {
  return std::string(kSession) +
         format_text("%x-%llx", session.value, static_cast<unsigned long long>(epoch.value));
}

// Of a life before the last, with its bound.
std::string process_name(Epoch epoch, SlabId below) {
  const std::string name = name_of(kProcess, epoch.value);
  return below.value == 0 ? name : name + format_text("-%x", below.value);
}

}  // namespace

// ---- of earlier lives ----

// What comes to the pool from now on, a process that does not attach again does not map.
void Keep::bound_process(Epoch epoch, OldSession& session) {
  SlabId& below = sessions_[epoch].below;
  if (session.unbounded && below.value == 0) {
    below = SlabId(pool_->next_name);
    put(process_name(epoch, below), session.process);
  }
  if (std::exchange(session.unbounded, false)) forget(name_of(kProcess, epoch.value));
}

// A process may have had several sessions.
void Keep::name_processes(const NameProcess& name) {
  for (const auto& slab : pool_->slabs) mappings_.slabs.push_back(slab.name);
  mappings_.retired = pool_->retired;
  for (auto& [epoch, session] : old_sessions_) {
    Session& known = sessions_[epoch];
    if (!name || !session.process.valid()) continue;
    OldProcess process = name(session.process);
    if (process.id.value != 0) bound_process(epoch, session);
    known.process = process.id;
    process.below = known.below;
    const auto same = [&](const OldProcess& each) { return each.id == process.id; };
    const auto at = std::find_if(mappings_.processes.begin(), mappings_.processes.end(), same);
    if (at != mappings_.processes.end())
      at->below = std::max(at->below, process.below);
    else if (process.id.value != 0)
      mappings_.processes.push_back(process);
  }
}

void Keep::adopt_sessions() {
  for (auto& [epoch, session] : old_sessions_) {
    if (!session.memory.valid()) {  // it had ended before, and its process had not
      close_session(epoch);
      continue;
    }
    const Session& known = sessions_[epoch];
    auto memory = shm::SessionMemory::adopt(std::move(session.memory), known.id, epoch);
    if (!memory.ok()) {
      ORBITKV_WARN("what a session of an earlier Manager has under way cannot be asked for: %s",
                   memory.error().message().c_str());
      close_session(epoch);
      continue;
    }
    const auto same = [&](const OldProcess& each) { return each.id == known.process; };
    const auto process = std::find_if(mappings_.processes.begin(), mappings_.processes.end(), same);
    const int pid = process == mappings_.processes.end() ? 0 : process->pid;
    old_grants_->add_session(epoch, std::move(*memory), {std::move(session.process), pid});
  }
  old_sessions_.clear();
}

std::vector<OldGrants::Condemned> Keep::take_condemned() {
  if (!old_grants_) return {};
  // Who has a session in this life is judged by that.
  return old_grants_->take_condemned([this](Epoch epoch) {
    const ProcessId process = sessions_[epoch].process;
    return std::any_of(sessions_.begin(), sessions_.end(), [process](const auto& each) {
      return each.second.open && each.second.process == process;
    });
  });
}

// ---- of this life ----

void Keep::open_session(const Opened& opened, const shm::SessionMemory& memory, const UniqueFd& pidfd) {
  table_->set_session(opened.session, opened.epoch);
  UniqueFd copy(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return;
  if (put(session_name(opened.session, opened.epoch), copy))
    put(name_of(kProcess, opened.epoch.value), pidfd);
  sessions_[opened.epoch] = {opened.session, opened.process, true, {}};
}

void Keep::close_session(Epoch epoch) {
  const auto session = sessions_.find(epoch);
  if (session == sessions_.end()) return;
  forget(session_name(session->second.id, epoch));
  parted_.push_back({epoch, session->second.process, session->second.below});
  sessions_.erase(session);
  if (parted_.size() <= limits::kKeptProcesses) return;
  forget(process_name(parted_.front().epoch, parted_.front().below));
  parted_.pop_front();
}

void Keep::forget_processes(const std::function<bool(ProcessId)>& may_map) {
  std::erase_if(parted_, [&](const Parted& each) {
    if (may_map(each.process)) return false;
    forget(process_name(each.epoch, each.below));
    return true;
  });
}

}  // namespace orbitkv::daemon
