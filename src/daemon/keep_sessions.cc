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

}  // namespace

// ---- of earlier lives ----

// A process may have had several sessions.
void Keep::name_processes(const NameProcess& name) {
  for (const auto& slab : pool_->slabs) mappings_.slabs.push_back(slab.name);
  mappings_.retired = pool_->retired;
  for (auto& [epoch, session] : old_sessions_) {
    Session& known = sessions_[epoch];
    if (!name || !session.process.valid()) continue;
    const OldProcess process = name(session.process);
    known.process = process.id;
    const auto same = [&](const OldProcess& each) { return each.id == process.id; };
    if (process.id.value != 0 && std::none_of(mappings_.processes.begin(), mappings_.processes.end(), same))
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
  sessions_[opened.epoch] = {opened.session, opened.process, true};
}

void Keep::close_session(Epoch epoch) {
  const auto session = sessions_.find(epoch);
  if (session == sessions_.end()) return;
  forget(session_name(session->second.id, epoch));
  parted_.push_back({epoch, session->second.process});
  sessions_.erase(session);
  if (parted_.size() <= limits::kKeptProcesses) return;
  forget(name_of(kProcess, parted_.front().epoch.value));
  parted_.pop_front();
}

void Keep::forget_processes(const std::function<bool(ProcessId)>& may_map) {
  std::erase_if(parted_, [&](const Parted& each) {
    if (may_map(each.process)) return false;
    forget(name_of(kProcess, each.epoch.value));
    return true;
  });
}

}  // namespace orbitkv::daemon
