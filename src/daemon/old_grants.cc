#include "daemon/old_grants.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "base/result.h"
#include "shm/bootstrap.h"
#include "shm/record_state.h"
#include "shm/shared_copy.h"
#include "wire/messages.h"

namespace orbitkv::daemon {
namespace {

using shm::RecordState;

// Their verification says what becomes of restores that take longer.
constexpr Duration kReadsStay = seconds(30);
constexpr Duration kLongestStep = seconds(1);  // else this process did not run

// Granted, Reserved or Preparing ends, as the life that it was asked of would have ended it. The
// word that stands then.
std::uint64_t take_back(shm::RecordLayout& record, std::uint64_t word) {
  for (;;) {
    const auto found = shm::unpack(word);
    if (!found) return word;
    RecordState to = RecordState::kFailed;
    switch (found->state) {
      case RecordState::kReserved:
      case RecordState::kPreparing: break;
      case RecordState::kGranted: to = RecordState::kRevoked; break;
      default: return word;
    }
    record.manager.code = static_cast<std::uint16_t>(Code::kReconnect);
    record.manager.text_bytes = 0;
    const std::uint64_t ended = shm::pack({found->operation, to});
    if (record.word.compare_exchange_strong(word, ended, std::memory_order_acq_rel)) return ended;
  }
}

// Both sides write there: what is read is copied once, then checked.
Result<model::Plan> plan_of(const shm::SessionMemory& memory, RecordIndex index, std::uint32_t& budget) {
  const auto lines = shm::load_shared<shm::ManagerLines>(&memory.record(index).manager);
  if (lines.plan_bytes > limits::kPlanBankBytes ||
      lines.plan_offset > limits::kPlanBankBytes - lines.plan_bytes)
    return reject("the plan lies outside of the plan bank");
  if (lines.plan_bytes > budget) return reject("plans share bytes of the plan bank");
  budget -= lines.plan_bytes;
  std::vector<std::byte> frame(lines.plan_bytes);
  shm::copy_shared(frame.data(), memory.plan_bank() + lines.plan_offset, frame.size());
  return wire::decode_plan(frame);
}

}  // namespace

OldGrants::~OldGrants() {
  for (const Operation& operation : operations_)
    for (const Lent& each : operation.extents) end(operation.writer, each, Verdict::kQuarantine);
}

// ---- what an earlier life left ----

void OldGrants::add_session(Epoch epoch, shm::SessionMemory memory, Process process) {
  Session& session =
      sessions_.try_emplace(epoch, Session{std::move(memory), std::move(process)}).first->second;
  for (std::uint32_t i = 0; i < limits::kRecords; ++i) {
    shm::RecordLayout& record = session.memory.record(RecordIndex(i));
    std::uint64_t word = record.word.load(std::memory_order_acquire);
    if (const auto found = shm::unpack(word); found && found->state == RecordState::kGranted)
      word = take_back(record, word);
    if (const auto found = shm::unpack(word); found && found->state == RecordState::kActive)
      read_plan(session, RecordIndex(i), found->operation);
  }
}

// A plan that lies can name nothing but blocks that are kept anyway.
void OldGrants::read_plan(Session& session, RecordIndex record, OperationId operation) {
  const auto plan = plan_of(session.memory, record, session.plan_bytes);
  if (!plan.ok() || plan->kind != model::PlanKind::kRestore || plan->operation != operation) return;
  const mem::KeptReader reader(++readers_);
  session.reading.push_back({reader, record, operation});
  for (const model::PlanEntry& e : plan->entries) reads_.push_back({reader, e.slab, e.offset, e.revision});
}

void OldGrants::adopt(const std::vector<mem::KeptPool::Lent>& lent, Device device) {
  const auto by_writer = [](const mem::KeptWriter& w) {
    return std::tuple(w.session, w.record, w.operation);
  };
  std::map<std::tuple<Epoch, RecordIndex, OperationId>, std::size_t> known;
  for (const mem::KeptPool::Lent& each : lent) {
    const mem::KeptPlace& place = each.lent.place;
    const Lent made{pool_.adopt(each.slab, place.offset, place.bytes).dissolve(),
                    {mem::KeptRegion::kPending, static_cast<std::uint32_t>(count_)}};
    // Of its device the life after this one would know no more.
    const bool lost = each.lent.writer.operation.value == 0 && device == Device::kUnknown;
    if (lost || count_ == table_.shape().pending) {
      table_.taint_slab(each.slab);
      pool_.quarantine(mem::Extent::restore(made.extent));
      ++counts_.quarantined;
      continue;
    }
    table_.lend(made.at, each.lent);
    const auto [at, fresh] = known.try_emplace(by_writer(each.lent.writer), operations_.size());
    if (fresh) operations_.push_back({each.lent.writer, {}});
    operations_[at->second].extents.push_back(made);
    ++count_;
    if (const auto session = sessions_.find(each.lent.writer.session); session != sessions_.end()) {
      ++session->second.pending;
      session->second.bytes += place.bytes;
    }
  }
}

// ---- verdicts ----

OldGrants::Verdict OldGrants::ask(const mem::KeptWriter& writer) {
  if (writer.operation.value == 0) return Verdict::kRelease;  // a device, whose end is known
  const auto session = sessions_.find(writer.session);
  if (session == sessions_.end() || writer.record.value >= limits::kRecords) return Verdict::kQuarantine;
  return ask(session->second, writer);
}

OldGrants::Verdict OldGrants::ask(Session& session, const mem::KeptWriter& writer) {
  shm::RecordLayout& record = session.memory.record(writer.record);
  std::uint64_t word = record.word.load(std::memory_order_acquire);
  const auto before = shm::unpack(word);
  if (before && before->operation == writer.operation) word = take_back(record, word);
  const auto found = shm::unpack(word);
  if (!found || found->operation < writer.operation || found->state == RecordState::kFree)
    return Verdict::kQuarantine;
  if (found->operation > writer.operation || found->state != RecordState::kActive) return Verdict::kRelease;
  return session.ended || session.given_up ? Verdict::kQuarantine : Verdict::kWait;
}

// A slab that retires takes its extents along: no copy there reaches memory that is lent again.
bool OldGrants::settle(Operation& operation) {
  const Verdict verdict = ask(operation.writer);
  std::erase_if(operation.extents, [&](const Lent& each) {
    const bool there = pool_.slab(each.extent.slab).state == mem::SlabState::kOffered;
    if (verdict == Verdict::kWait && there) return false;
    end(operation.writer, each, there ? verdict : Verdict::kQuarantine);
    return true;
  });
  return operation.extents.empty();
}

// The order is that of all extents: never free while it is lent, never lent while it is unsafe.
void OldGrants::end(const mem::KeptWriter& writer, const Lent& each, Verdict verdict) {
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
  --count_;
  const auto session = sessions_.find(writer.session);
  if (session == sessions_.end()) return;
  --session->second.pending;
  session->second.bytes -= each.extent.bytes;
}

// ---- turns ----

// Whether it has ended comes first: whatever it wrote before that is read afterwards. One of which that
// cannot be known counts as ended for what it writes, but not for what it may still read.
void OldGrants::look(Session& session, TimePoint now) {
  const bool known = session.process.fd.valid();
  session.ended = !known || shm::process_ended(session.process.fd);
  std::erase_if(session.reading, [&](const Reading& each) {
    const auto found = shm::unpack(session.memory.record(each.record).word.load(std::memory_order_acquire));
    const bool active = found && found->operation == each.operation && found->state == RecordState::kActive;
    if (active && !(known && session.ended) && now - begun_ < kReadsStay) return false;
    read_.push_back(each.reader);
    return true;
  });
  const std::uint64_t signs = session.memory.header().client_beat.load(std::memory_order_relaxed) +
                              session.pending + session.reading.size();
  session.silent = signs == session.signs ? Duration{session.silent.ns + step_.ns} : Duration{0};
  session.signs = signs;
}

void OldGrants::settle(TimePoint now) {
  if (begun_.ns == 0) begun_ = last_ = now;
  step_ = now - last_ <= kLongestStep ? now - last_ : Duration{0};
  last_ = now;
  for (auto& [epoch, session] : sessions_) look(session, now);
  std::erase_if(operations_, [this](Operation& each) { return settle(each); });
}

std::vector<Epoch> OldGrants::take_ended() {
  std::vector<Epoch> ended;
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    const auto at = it++;
    if (at->second.pending > 0 || !at->second.reading.empty()) continue;
    ended.push_back(at->first);
    sessions_.erase(at);
  }
  return ended;
}

std::vector<mem::KeptReader> OldGrants::take_read() {
  return std::exchange(read_, {});
}

// ---- engines that stand still ----

bool OldGrants::stalled(const Session& session) const {
  return stalls_.after.ns > 0 && session.pending > 0 && session.silent >= stalls_.after;
}

bool OldGrants::stalled() const {
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [this](const auto& each) { return stalled(each.second); });
}

void OldGrants::relieve() {
  for (auto& [epoch, session] : sessions_) session.given_up = session.given_up || stalled(session);
}

std::vector<OldGrants::Condemned> OldGrants::take_condemned(const std::function<bool(Epoch)>& spared) {
  std::vector<Condemned> out;
  if (!stalls_.kill) return out;
  for (auto& [epoch, session] : sessions_) {
    // Of whose process the number is not known, it is not known either whether it is here again.
    const bool hopeless =
        session.process.pid > 0 && stalled(session) && session.silent.ns >= 2 * stalls_.after.ns;
    if (!hopeless || session.ended || session.condemned || spared(epoch)) continue;
    session.condemned = true;
    out.push_back({session.process.pid, session.process.fd.get()});
  }
  return out;
}

std::vector<OldGrants::View> OldGrants::view() const {
  std::vector<View> out;
  for (const auto& [epoch, session] : sessions_)
    out.push_back({session.process.pid, session.pending, session.reading.size(), session.bytes,
                   session.silent, stalled(session)});
  return out;
}

}  // namespace orbitkv::daemon
