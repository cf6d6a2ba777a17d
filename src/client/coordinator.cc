#include "client/coordinator.h"

#include <algorithm>
#include <limits>

#include "base/limits.h"
#include "base/text.h"

namespace orbitkv::client {

using wire::InterestReply;

namespace {

constexpr Duration kLongestPause = milliseconds(500);  // of a Manager that is busy
constexpr Duration times(std::int64_t n, Duration d) {
  return nanoseconds(n * d.ns);
}

}  // namespace

Coordinator::Coordinator(Attempt attempt, TimePoint now)
    : attempt_(std::move(attempt)), end_(now + attempt_.times.wait) {
  for (const Seat& seat : attempt_.seats) {
    places_.push_back({});
    places_.back().seat = seat;
    for (const std::uint16_t rank : seat.ranks) reported_[rank] = {false, false};
  }
  for (std::uint32_t i = 0; i < places_.size(); ++i) submit(i, now);
}

// ---- frames ----

// One frame of a seat is unanswered at a time; an answer to an earlier one is not looked at.
void Coordinator::send(std::uint32_t index, wire::Buffer frame, TimePoint now) {
  Place& place = places_[index];
  const std::uint64_t attempt = attempt_.interest.value & 0xFFFFFFFF;
  place.token = attempt << 32 | ++last_token_;
  place.frame = std::move(frame);
  place.due = now + attempt_.times.resend;
  sends_.push_back({index, place.token, place.frame});
}

void Coordinator::call(std::uint32_t index, InterestVerb verb, TimePoint now) {
  const Place& place = places_[index];
  wire::InterestCall out;
  out.name = {place.seat.instance, interest_of(index), place.operation};
  out.authority = place.seat.authority;
  out.verb = verb;
  if (verb == InterestVerb::kClaim) out.blocks = common_;
  if (verb == InterestVerb::kClose) out.name.operation = {};
  wire::Buffer frame;
  wire::encode(out, frame);
  send(index, std::move(frame), now);
}

// A higher operation; whatever the one before it holds goes back with its first part.
void Coordinator::submit(std::uint32_t index, TimePoint now) {
  Place& place = places_[index];
  if (place.operation.value == limits::kInterestOperations) {  // there is no other: its time ends it
    place.stage = Stage::kBack;
    place.due = end_;
    return;
  }
  place.operation = InterestOperation(place.operation.value + 1);
  place.stage = Stage::kSubmitting;
  place.sent = 0;
  place.blocks = 0;
  place.waits = place.asked = false;
  submit_part(index, now);
}

void Coordinator::submit_part(std::uint32_t index, TimePoint now) {
  const Place& place = places_[index];
  wire::InterestSubmit out;
  out.name = {place.seat.instance, interest_of(index), place.operation};
  out.authority = place.seat.authority;
  out.kind = attempt_.kind;
  out.group = attempt_.group;
  out.origin = attempt_.origin;
  out.boundary = attempt_.boundary;
  out.first = place.sent;
  out.total = static_cast<std::uint32_t>(attempt_.hashes.size());
  const std::size_t count = std::min<std::size_t>(wire::interest_hashes_per_frame(), out.total - out.first);
  out.hashes = std::span(attempt_.hashes).subspan(out.first, count);
  wire::Buffer frame;
  wire::encode(out, frame);
  send(index, std::move(frame), now);
}

// Its time has come, and nothing of it is unanswered: a poll keeps what is held and tells what is new.
void Coordinator::speak(std::uint32_t index, TimePoint now) {
  switch (places_[index].stage) {
    case Stage::kBack: return ordered_ ? void() : submit(index, now);
    case Stage::kSubmitting: return submit_part(index, now);
    case Stage::kAcquiring:
    case Stage::kAcquired:
    case Stage::kClaimed: return call(index, InterestVerb::kPoll, now);
    case Stage::kCancelling: return call(index, InterestVerb::kCancel, now);
    case Stage::kClaiming: return call(index, InterestVerb::kClaim, now);
    case Stage::kClosing: return call(index, InterestVerb::kClose, now);
    case Stage::kClosed: break;
  }
}

void Coordinator::tick(TimePoint now) {
  for (std::uint32_t i = 0; i < places_.size() && phase_ != Phase::kDone; ++i) {
    Place& place = places_[i];
    if (now < place.due || place.stage == Stage::kClosed) continue;
    if (place.token == 0) {
      speak(i, now);
      continue;
    }
    place.due = now + attempt_.times.resend;
    sends_.push_back({i, place.token, place.frame});
  }
  look(now);
}

TimePoint Coordinator::next_due(TimePoint now) const {
  if (phase_ == Phase::kDone) return TimePoint{std::numeric_limits<std::int64_t>::max()};
  TimePoint due = end_;
  for (const Place& place : places_) {
    const bool for_turn = ordered_ && place.stage == Stage::kBack && place.due <= now;
    if (place.stage != Stage::kClosed && !for_turn) due = std::min(due, place.due);
  }
  return due;
}

// ---- answers ----

bool Coordinator::arrive(std::uint32_t index, std::uint64_t token, std::span<const std::byte> frame,
                         TimePoint now) {
  if (index >= places_.size() || token == 0 || places_[index].token != token) return false;
  const auto reply = wire::decode_interest_reply(frame);
  const auto error = reply.ok() ? Result<wire::ErrorReply>(bug("none")) : wire::decode_error_reply(frame);
  if (!reply.ok() && !error.ok()) return false;  // garbled: what is sent again is answered again
  Place& place = places_[index];
  const auto named = place.stage == Stage::kClosing ? InterestOperation() : place.operation;
  if (reply.ok() && (reply->interest != interest_of(index) || reply->operation != named)) return false;
  place.token = 0;
  place.heard = true;
  place.due = now + attempt_.times.keep;
  if (reply.ok()) {
    on_reply(index, *reply, now);
  } else {
    on_error(index, *error, now);
  }
  look(now);
  return true;
}

// What was asked goes to the end of the line, so to say: later, as a new operation.
void Coordinator::back_off(std::uint32_t index, TimePoint now) {
  places_[index].stage = Stage::kBack;
  pause(places_[index], times(10, attempt_.times.poll), kLongestPause, now);
}

// Twice as long as the last time.
void Coordinator::pause(Place& place, Duration first, Duration most, TimePoint now) {
  place.pause = std::clamp(times(2, place.pause), first, std::max(first, most));
  place.due = now + place.pause;
}

// No place for it: the seats behind it give way as they do to one that waits for budget. That takes an
// authority to be ordered by; a poll tells it and submits nothing.
void Coordinator::put_off(std::uint32_t index, TimePoint now) {
  Place& place = places_[index];
  place.waits = true;
  if (place.seat.authority || place.asked) return back_off(index, now);
  place.asked = true;
  call(index, InterestVerb::kPoll, now);
}

void Coordinator::on_error(std::uint32_t index, const wire::ErrorReply& error, TimePoint now) {
  Place& place = places_[index];
  if (error.code == Code::kBusy) {
    if (place.stage == Stage::kSubmitting) {
      place.said = error.text;
      return put_off(index, now);
    }
    pause(place, attempt_.times.poll, times(10, attempt_.times.poll), now);
  } else if (place.stage == Stage::kClosing) {
    // A session that is gone holds nothing; but it may only have been slow.
    place.due = now + attempt_.times.resend;
    if (error.code != Code::kReconnect) place.stage = Stage::kClosed;
  } else if (place.stage != Stage::kClaimed || !told_well(place.seat)) {
    fail(index, error.text, now);
  }
}

// The first answer names what the seat is bound to from then on.
bool Coordinator::bind(std::uint32_t index, const InterestReply& reply, TimePoint now) {
  Place& place = places_[index];
  if (!reply.authority) return true;
  if (place.seat.authority && reply.authority != place.seat.authority) {
    fail(index, "answers under another authority", now);
    return false;
  }
  if (reply.authority.consumers != place.seat.ranks.size()) {
    fail(index,
         format_text("has an instance of %u ranks, and the group was told of %zu", reply.authority.consumers,
                     place.seat.ranks.size()),
         now);
    return false;
  }
  place.seat.authority = reply.authority;
  const auto same = [&](const Place& other) {
    return other.seat.instance == place.seat.instance &&
           other.seat.authority.incarnation == reply.authority.incarnation;
  };
  if (std::count_if(places_.begin(), places_.end(), same) == 1) return true;
  fail(index, "is an instance that another participant has named", now);
  return false;
}

// No count is taken for granted: leases of what was not asked would be restored.
bool Coordinator::believable(const Place& place, const InterestReply& reply) const {
  const bool prefix = attempt_.kind == wire::InterestKind::kPrefix;
  if (reply.phase == InterestPhase::kAcquired)
    return reply.blocks <= attempt_.hashes.size() && (prefix || reply.blocks == attempt_.hashes.size());
  if (reply.phase != InterestPhase::kClaimed) return true;
  if (reply.blocks != common_) return false;
  if (place.stage != Stage::kClaiming) return true;
  std::uint64_t leased = 0;
  for (const wire::TicketLease& lease : reply.leases) leased += lease.blocks;
  return leased == common_ &&
         (!prefix || (reply.leases.size() == 1 && reply.leases[0].group == attempt_.group));
}

void Coordinator::on_reply(std::uint32_t index, const InterestReply& reply, TimePoint now) {
  Place& place = places_[index];
  if (place.stage == Stage::kClosing) {
    if (reply.phase == InterestPhase::kClosed) place.stage = Stage::kClosed;
    return;
  }
  if (!bind(index, reply, now)) return;
  if (reply.phase != InterestPhase::kUnknown) place.said.clear();
  if (!believable(place, reply)) return fail(index, "answers what was not asked", now);
  switch (place.stage) {
    case Stage::kSubmitting:
    case Stage::kAcquiring: return on_acquire(index, reply, now);
    case Stage::kCancelling:
      place.stage = Stage::kBack;
      place.due = now;
      return;
    case Stage::kAcquired:
      if (reply.phase != InterestPhase::kAcquired) fail(index, "lost what it had acquired", now);
      return;
    case Stage::kClaiming: return on_claim(index, reply, now);
    case Stage::kClaimed:
      if (reply.phase != InterestPhase::kClaimed && !told_well(place.seat))
        fail(index, "lost what was claimed", now);
      return;
    case Stage::kBack:
    case Stage::kClosing:
    case Stage::kClosed: return;
  }
}

void Coordinator::on_acquire(std::uint32_t index, const InterestReply& reply, TimePoint now) {
  Place& place = places_[index];
  const bool submitting = place.stage == Stage::kSubmitting;
  switch (reply.phase) {
    case InterestPhase::kCollecting:
      if (!submitting) return fail(index, "asks for a list that it had", now);
      place.sent =
          std::min<std::uint32_t>(reply.blocks, static_cast<std::uint32_t>(attempt_.hashes.size()) - 1);
      if (!place.yields) submit_part(index, now);
      return;
    case InterestPhase::kAcquiring:
      place.stage = Stage::kAcquiring;
      place.waits = !reply.admitted;
      pause(place, attempt_.times.poll, times(10, attempt_.times.poll), now);
      return;
    case InterestPhase::kAcquired:
      place.stage = Stage::kAcquired;
      place.pause = {};
      place.blocks = reply.blocks;
      place.waits = false;
      return;
    case InterestPhase::kMissing:
      return end({Verdict::kMissed, reply.why, index, "a participant has none of it"}, now);
    case InterestPhase::kUnknown:
    case InterestPhase::kEnded:
      if (submitting && reply.newest <= place.operation) return back_off(index, now);
      return fail(index, "lost what it was asked for", now);
    case InterestPhase::kClaimed:
    case InterestPhase::kClosed: return fail(index, "answers what was not asked", now);
  }
}

void Coordinator::on_claim(std::uint32_t index, const InterestReply& reply, TimePoint now) {
  if (reply.phase != InterestPhase::kClaimed) return fail(index, "lost what it had acquired", now);
  places_[index].stage = Stage::kClaimed;
  places_[index].leases = reply.leases;
}

}  // namespace orbitkv::client
