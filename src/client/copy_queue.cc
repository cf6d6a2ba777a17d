#include "client/copy_queue.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "rt/spin.h"

namespace orbitkv::client {
namespace {
// The parts of an operation are granted within microseconds of each other, and one batch
// of all is cheaper and, for layer events, earlier in the order of the layers. Yet some
// wait for other publishers, or for room in the plan bank that those granted hold: no
// granted part waits for longer than this.
constexpr Duration kMergeFor = microseconds(200);
constexpr Duration kMergeEventsFor = milliseconds(2);
constexpr int kTriesBeforeLock = 2000;

TransferOutcome sum_of(const Transfer& transfer) {
  TransferOutcome sum{transfer.failure.empty(), 0, transfer.failure};
  for (const Part& part : transfer.parts) {
    sum.success &= part.outcome.success;
    sum.blocks += part.outcome.blocks;
    sum.resident += part.outcome.resident;
    sum.dropped += part.outcome.dropped;
    sum.being_made |= part.outcome.being_made;
    if (sum.message.empty()) sum.message = part.outcome.message;
  }
  return sum;
}

std::string method_name(const Transfer& transfer) {
  if (transfer.stats.fragments == 0) return "none";
  if (!transfer.entry->gpu) return "host";
  switch (transfer.stats.method) {
    case device::CopyMethod::kDirect: return "direct";
    case device::CopyMethod::kKernel: return "kernel";
    case device::CopyMethod::kAuto: break;
  }
  return "auto";
}
}  // namespace

CopyQueue::CopyQueue(std::unique_ptr<device::Copier> copier, OperationTable& operations, Trace* trace)
    : operations_(operations), trace_(trace), copier_(std::move(copier)) {}

// The executor's rounds leave room for callers.
CopyQueue::Turn CopyQueue::take_turn() {
  for (int i = 0; i < kTriesBeforeLock && callers_.load(std::memory_order_relaxed) > 0; ++i) rt::spin_pause();
  return Turn(turn_);
}

bool CopyQueue::advance(Transfer& transfer) {
  return advance_in(take_turn(), transfer);
}

// A thread that spins takes a mutex again before one that sleeps on it is awake: callers
// spin as well, and the executor lets them pass.
bool CopyQueue::advance_first(Transfer& transfer) {
  Turn turn(turn_, std::try_to_lock);
  if (!turn.owns_lock()) {
    callers_.fetch_add(1, std::memory_order_relaxed);
    for (int i = 0; i < kTriesBeforeLock && !turn.try_lock(); ++i) rt::spin_pause();
    if (!turn.owns_lock()) turn.lock();
    callers_.fetch_sub(1, std::memory_order_relaxed);
  }
  return advance_in(std::move(turn), transfer);
}

bool CopyQueue::advance_in(Turn turn, Transfer& transfer) {
  const bool over = advance_in_turn(transfer);
  const News news = std::exchange(transfer.news, {});
  turn.unlock();
  tell(transfer, news);
  return over;
}

// A transfer that is settled stays the caller's: nobody else touches it meanwhile.
void CopyQueue::tell(Transfer& t, News news) {
  if (news.receipts) t.link->channel().ring_manager();
  if (!news.settled) return;
  operations_.announce();
  if (!writes_trace(t)) return;
  trace_->write(t, sum_of(t).success);
  t.entry->open_transfers.fetch_sub(1, std::memory_order_release);
}

CopyQueue::Round CopyQueue::poll() {
  const auto turn = take_turn();
  poll_in_turn();
  return {std::exchange(ended_, 0), running_.size()};
}

void CopyQueue::try_poll() {
  Turn turn(turn_, std::try_to_lock);
  if (turn.owns_lock()) poll_in_turn();
}

bool CopyQueue::advance_in_turn(Transfer& t) {
  if (!t.settled) t.stamp(&OperationReport::dequeued_ns);
  while (!t.settled && !t.ticket && step(t)) {
  }
  if (!t.settled) return false;
  for (Part& part : t.parts)
    if (part.state == PartState::kGivenUp && runner_.refuse(*t.link, part)) part.state = PartState::kEnded;
  return !t.any(PartState::kGivenUp);
}

bool CopyQueue::step(Transfer& t) {
  for (Part& part : t.parts)
    if (part.state == PartState::kAsked) runner_.look(*t.link, part);
  const bool full = running_.size() == limits::kCopyBatches;
  const bool asked = t.any(PartState::kAsked), granted = t.any(PartState::kGranted);
  if ((asked || (granted && full)) && monotonic_now() >= t.deadline) {
    give_up(t, asked ? "the Manager gave no grant in time; nothing was copied"
                     : "the copies before this one did not end in time; nothing was copied");
    return true;
  }
  if (asked && (!granted || waits_for_more(t))) return false;
  if (!granted && !t.owes_events()) {
    settle(t);
    return true;
  }
  if (full) return false;
  start(t);
  return true;
}

bool CopyQueue::waits_for_more(Transfer& t) {
  const TimePoint now = monotonic_now();
  if (t.merge_until.ns == 0) t.merge_until = now + (t.events.empty() ? kMergeFor : kMergeEventsFor);
  return now < t.merge_until;
}

// A Manager that is alive but silent must not keep an engine waiting: the pages of what
// is unclaimed are free at once, and a grant that still comes is declined.
void CopyQueue::give_up(Transfer& t, const std::string& why) {
  for (Part& part : t.parts) {
    if (part.state != PartState::kAsked && part.state != PartState::kGranted) continue;
    part.outcome = {false, 0, why};
    part.slabs.clear();
    part.state = runner_.refuse(*t.link, part) ? PartState::kEnded : PartState::kGivenUp;
  }
}

// Everything that is granted, in one batch. Events go with the last of a transfer's
// batches; the first has waited for the ready stream when the next begins.
void CopyQueue::start(Transfer& t) {
  device::CopyBatch batch;
  batch.direction = t.kind == model::PlanKind::kSave ? device::Direction::kSave : device::Direction::kRestore;
  batch.groups.reserve(t.parts.size());
  for (Part& part : t.parts)
    if (part.state == PartState::kGranted && runner_.claim(*t.link, part))
      batch.groups.push_back({&part.group->geometry, part.slots});
  t.carries_events = t.owes_events() && !t.any(PartState::kAsked);
  if (batch.groups.empty() && !t.carries_events) return;
  t.stamp(&OperationReport::claimed_ns);
  batch.ready = std::move(t.ready);
  if (t.carries_events) {
    batch.events = t.events;
    ++t.event_tries;
  }
  t.enqueued = false;
  auto ticket = copier_->submit(std::move(batch));
  if (!ticket.ok()) return end_batch(t, {ticket.error(), {}});
  t.ticket = *ticket;
  running_.push_back(&t);
  if (poll_batch(t)) std::erase(running_, &t);
}

void CopyQueue::poll_in_turn() {
  ended_ += std::erase_if(running_, [this](Transfer* transfer) { return poll_batch(*transfer); });
}

bool CopyQueue::poll_batch(Transfer& t) {
  const bool enqueued = t.enqueued || copier_->enqueued(*t.ticket);
  auto end = copier_->poll(*t.ticket);
  if (enqueued && !t.enqueued) {
    t.enqueued = true;
    t.stamp(&OperationReport::enqueued_ns);
    const bool last = !t.any(PartState::kAsked) && (t.events.empty() || t.carries_events);
    if (!end && last && !t.failed()) operations_.mark_enqueued(t.handle);
  }
  if (!end) return false;
  end_batch(t, *end);
  return true;
}

void CopyQueue::end_batch(Transfer& t, const device::CopyEnd& end) {
  // The pages stay lent and the grants claimed: the Manager quarantines when the process ends.
  if (!end.proven) return;
  t.ticket.reset();
  t.stats.bytes += end.stats.bytes;
  t.stats.fragments += end.stats.fragments;
  t.stats.submissions += end.stats.submissions;
  t.stats.plan_bytes += end.stats.plan_bytes;
  t.stats.bounced |= end.stats.bounced;
  if (end.stats.fragments > 0) t.stats.method = end.stats.method;
  t.stamp(&OperationReport::enqueued_ns);
  t.stamp(&OperationReport::drained_ns);
  for (Part& part : t.parts)
    if (part.state == PartState::kActive) {
      runner_.finish(*t.link, part, end.status);
      t.news.receipts = true;
    }
  if (t.carries_events && (t.enqueued || end.status.ok())) t.events_stand = true;
  if (!end.status.ok()) {
    ORBITKV_WARN("a copy failed: %s", end.status.error().message().c_str());
    if (t.failure.empty()) t.failure = end.status.error().message();
    give_up(t, t.failure);  // nobody knows how far the ready stream was waited for
  }
  if (!t.any(PartState::kAsked) && !t.any(PartState::kGranted) && !t.owes_events()) settle(t);
}

void CopyQueue::settle(Transfer& t) {
  t.settled = true;
  const TransferOutcome sum = sum_of(t);
  const bool traced = t.called.ns != 0;
  if (traced) {
    t.report.bytes = t.stats.bytes;
    t.report.fragments = t.stats.fragments;
    t.report.method = method_name(t);
  }
  t.news.settled = true;
  // Whoever sees the operation done finds its pages free.
  if (!writes_trace(t)) t.entry->open_transfers.fetch_sub(1, std::memory_order_release);
  operations_.finish(t.handle, sum, traced ? &t.report : nullptr);
}

}  // namespace orbitkv::client
