#include "daemon/old_grants.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "base/result.h"
#include "shm/bootstrap.h"
#include "shm/record_state.h"

namespace orbitkv::daemon {

using shm::RecordState;

OldGrants::~OldGrants() {
  for (const Pending& each : pending_) end(each, Verdict::kQuarantine);
}

void OldGrants::add_session(Epoch epoch, shm::SessionMemory memory, UniqueFd process) {
  sessions_.try_emplace(epoch, Session{std::move(memory), std::move(process), 0});
}

void OldGrants::adopt(const std::vector<mem::KeptPool::Lent>& lent) {
  for (const mem::KeptPool::Lent& each : lent) {
    const mem::KeptPlace& place = each.lent.place;
    Pending made{pool_.adopt(each.slab, place.offset, place.bytes).dissolve(),
                 {mem::KeptRegion::kPending, static_cast<std::uint32_t>(pending_.size())},
                 each.lent.writer};
    if (pending_.size() == table_.shape().pending) {
      table_.taint_slab(each.slab);
      pool_.quarantine(mem::Extent::restore(made.extent));
      ++counts_.quarantined;
      continue;
    }
    table_.lend(made.at, {place, made.writer});
    pending_.push_back(made);
    if (const auto session = sessions_.find(made.writer.session); session != sessions_.end())
      ++session->second.pending;
  }
}

// A slab that retires takes its extents along: no copy there reaches memory that is lent again.
OldGrants::Verdict OldGrants::ask(const Pending& each) {
  if (pool_.slab(each.extent.slab).state != mem::SlabState::kOffered) return Verdict::kQuarantine;
  if (each.writer.operation.value == 0) return Verdict::kQuarantine;  // a device says nothing
  const auto session = sessions_.find(each.writer.session);
  if (session == sessions_.end() || each.writer.record.value >= limits::kRecords) return Verdict::kQuarantine;
  return ask(session->second, each.writer);
}

OldGrants::Verdict OldGrants::ask(Session& session, const mem::KeptWriter& writer) {
  // First: whatever it wrote before its end is read afterwards.
  const bool ended = !session.process.valid() || shm::process_ended(session.process);
  shm::RecordLayout& record = session.memory.record(writer.record);
  std::uint64_t word = record.word.load(std::memory_order_acquire);
  for (;;) {
    const auto found = shm::unpack(word);
    if (!found || found->operation < writer.operation || found->state == RecordState::kFree)
      return Verdict::kQuarantine;
    if (found->operation > writer.operation) return Verdict::kRelease;
    RecordState to = RecordState::kRevoked;
    switch (found->state) {
      case RecordState::kActive: return ended ? Verdict::kQuarantine : Verdict::kWait;
      case RecordState::kReserved:
      case RecordState::kPreparing: to = RecordState::kFailed; break;
      case RecordState::kGranted: break;
      default: return Verdict::kRelease;
    }
    record.manager.code = static_cast<std::uint16_t>(Code::kReconnect);
    record.manager.text_bytes = 0;
    if (record.word.compare_exchange_strong(word, shm::pack({writer.operation, to}),
                                            std::memory_order_acq_rel))
      return Verdict::kRelease;
  }
}

// The order is that of all extents: never free while it is lent, never lent while it is unsafe.
void OldGrants::end(const Pending& each, Verdict verdict) {
  if (verdict == Verdict::kQuarantine) table_.taint_slab(each.extent.slab);
  table_.free(each.at);
  mem::Extent extent = mem::Extent::restore(each.extent);
  if (verdict == Verdict::kQuarantine) {
    pool_.quarantine(std::move(extent));
    ++counts_.quarantined;
  } else {
    pool_.release(std::move(extent));
    ++counts_.released;
  }
  const auto session = sessions_.find(each.writer.session);
  if (session != sessions_.end()) --session->second.pending;
}

void OldGrants::settle() {
  std::erase_if(pending_, [&](const Pending& each) {
    const Verdict verdict = ask(each);
    if (verdict != Verdict::kWait) end(each, verdict);
    return verdict != Verdict::kWait;
  });
}

std::vector<Epoch> OldGrants::take_ended() {
  std::vector<Epoch> ended;
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    const auto at = it++;
    if (at->second.pending > 0) continue;
    ended.push_back(at->first);
    sessions_.erase(at);
  }
  return ended;
}

}  // namespace orbitkv::daemon
