#include "daemon/host.h"

#include <algorithm>

#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "wire/lifecycle.h"

namespace orbitkv::daemon {
Host::Host(const cache::CoreConfig& config, mem::Pool& pool, Owner& owner, SsdTier* tier, Epoch epoch,
           const Slabs::Config& slabs)
    : pool_(pool),
      owner_(owner),
      core_(config, pool, *this, tier),
      commands_(core_),
      slabs_({pool, core_, owner, tier}, slabs),
      next_epoch_(epoch.value) {}

Session& Host::session(SessionId id) const {
  auto& session = sessions_[id.value];
  ORBITKV_CHECK(session != nullptr, "a session that does not exist");
  return *session;
}

Session* Host::find(SessionId id) const {
  return id.value < sessions_.size() ? sessions_[id.value].get() : nullptr;
}

// ---- turns ----

// A session that is over is left to tick(). What a turn has left in the ring is not rung again.
bool Host::rung(Session& session) {
  if (session.life == Session::Life::kEnded) return false;
  const bool rang = session.channel().rung();
  return rang || session.left_over;
}

// A session that was cut off may go on writing; nobody reads it, so it keeps nobody awake.
bool Host::prepare_sleep() {
  bool quiet = true;
  for (SessionId id : live_)
    if (!session(id).poisoned()) quiet &= session(id).channel().prepare_sleep();
  return quiet;
}

void Host::cancel_sleep() {
  for (SessionId id : live_) session(id).channel().cancel_sleep();
}

// What came after the end is not answered, and must not keep the Manager awake.
void Host::discard_commands(Session& session) {
  for (std::uint32_t i = 0; i < limits::kRingEntries && session.channel().pop_command(); ++i) {
  }
  if (session.channel().poisoned()) session.poison("the command ring's tail is impossible");
}

// Receipts before the commands that may have come after them: whoever was told that a
// save is done finds its blocks. What a receipt frees may let others go on.
bool Host::take_receipts(Session& session, bool all_records, TimePoint now) {
  if (session.poisoned()) return false;
  receipts_.clear();
  session.follow(all_records, receipts_);
  for (const Session::Receipt& receipt : receipts_) {
    cache::DrainReport report;
    report.success = receipt.success;
    report.text = receipt.text;
    (receipt.kind == model::PlanKind::kSave ? report.digests : report.failed) = receipt.words;
    core_.drained(receipt.op, report, now);
  }
  session.heard += receipts_.size();
  if (session.take_bank_freed()) core_.bank_freed(session.id(), now);
  return !receipts_.empty();
}

bool Host::serve(Session& session, bool all_records, TimePoint now) {
  session.left_over = false;
  if (session.poisoned()) {
    close(session, "it broke the protocol", now);  // perhaps seen while another was served
    return false;
  }
  bool busy = take_receipts(session, all_records, now);
  if (session.life == Session::Life::kOpen)
    busy |= serve_commands(session, now);
  else
    discard_commands(session);
  if (session.poisoned()) close(session, "it broke the protocol", now);
  return busy;
}

// A scheduler asks what a worker of another session has just published: every session's
// receipts count before a command is answered. By bytes, too, for a command may name thousands
// of blocks: who floods must not make the others wait for more than that.
bool Host::serve_commands(Session& session, TimePoint now) {
  std::uint32_t served = 0;
  ByteCount asked;
  const auto may_ask = [&] {
    return served < limits::kCommandsPerTurn && asked < limits::kRequestBytesPerTurn;
  };
  for (; may_ask(); ++served) {
    const auto bytes = commands_.pop(session);
    if (!bytes) break;
    for (SessionId id : live_) take_receipts(*sessions_[id.value], false, now);
    asked += commands_.answer(session, *bytes, now);
  }
  session.left_over = !may_ask();
  session.heard += served;
  if (served) session.channel().ring_client();
  return served > 0;
}

void Host::tick(TimePoint now) {
  slabs_.tick(now);
  tell_slabs(now);
  stalls_.begin_look(now);
  const std::vector<SessionId> ids = live_;
  for (SessionId id : ids) {
    Session& each = session(id);
    offer_slabs(each, now);
    serve(each, true, now);  // recovers a lost wake, and the receipts of closed sessions
    look_for_stall(each, now);
    collect(each);
  }
  core_.tick(now);
}

bool Host::turn(TimePoint now) {
  const bool retires = slabs_.turn(now);
  if (retires) tell_slabs(now);
  return core_.turn(now) || retires;
}

void Host::tell_slabs(TimePoint now) {
  for (const SessionId id : live_) {
    Session& each = session(id);
    if (each.life != Session::Life::kOpen) continue;
    const Status told = slabs_.tell(each);
    if (!told.ok()) close(each, told.error().message().c_str(), now);
  }
}

void Host::drain(TimePoint now) {
  draining_ = true;
  commands_.refuse_all();
  slabs_.stop();
  for (SessionId id : live_) close(session(id), "the Manager stops", now);
  collect_all();
}

// ---- ports ----

cache::Ports::Grant Host::grant(const cache::OperationKey& op, const model::Plan& plan) {
  Session& of = session(op.session);
  const Grant result = of.grant(op, plan);
  of.channel().ring_client();
  return result;
}

cache::Ports::Revoke Host::revoke(const cache::OperationKey& op, const Error& why) {
  Session& of = session(op.session);
  const Revoke result = of.revoke(op, why);
  of.channel().ring_client();
  return result;
}

void Host::fail(const cache::OperationKey& op, const Error& why) {
  session(op.session).fail(op, why);
  session(op.session).channel().ring_client();
}

// It may be another session's event that ended it, so its own client is told at once.
void Host::reap(const cache::OperationKey& op) {
  session(op.session).reap(op);
  session(op.session).channel().ring_client();
}

void Host::drop(const cache::OperationKey& op, const Dropped& dropped) {
  session(op.session).drop(op, dropped);
}

}  // namespace orbitkv::daemon
