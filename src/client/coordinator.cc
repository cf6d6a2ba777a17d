#include "client/coordinator.h"

#include <algorithm>
#include <limits>

#include "base/limits.h"
#include "base/text.h"
#include "client/claim_ids.h"

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

// A seat that is to give back what it has is told so in the same step.
void Coordinator::move(std::uint32_t index, SeatEvent event, TimePoint now) {
  SeatState& state = places_[index].state;
  const SeatState before = state;
  step(state, event);
  if (state == SeatState::kCancelling && before != state) call(index, InterestVerb::kCancel, now);
}

// ---- frames ----

// One frame of a seat is unanswered at a time; an answer to an earlier one is not looked at.
void Coordinator::send(std::uint32_t index, wire::Buffer frame, TimePoint now) {
  Place& place = places_[index];
  place.token = frame_token(attempt_.interest, ++last_token_);
  place.frame = std::move(frame);
  send_again(index, now);
}

void Coordinator::send_again(std::uint32_t index, TimePoint now) {
  Place& place = places_[index];
  place.due = now + attempt_.times.resend;
  if (place.silence.frames++ == 0) place.silence.since = now;
  sends_.push_back({ParticipantIndex{index}, place.token, place.frame});
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
    place.due = end_;
    return;
  }
  place.operation = InterestOperation(place.operation.value + 1);
  place.sent = 0;
  place.blocks = 0;
  move(index, SeatEvent::kSubmit, now);
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
  switch (places_[index].state) {
    case SeatState::kBack:
    case SeatState::kRefused: return ordered_ ? void() : submit(index, now);
    case SeatState::kLoading:
    case SeatState::kWaiting:
    case SeatState::kAcquired:
    case SeatState::kClaimed:
    case SeatState::kAsking: return call(index, InterestVerb::kPoll, now);
    case SeatState::kCancelling: return call(index, InterestVerb::kCancel, now);
    case SeatState::kClaiming: return call(index, InterestVerb::kClaim, now);
    case SeatState::kClosing: return call(index, InterestVerb::kClose, now);
    case SeatState::kSubmitting:
    case SeatState::kYielding:  // the answer to a part is followed by something else at once
    case SeatState::kClosed:
    case SeatState::kIllegal: break;
  }
}

void Coordinator::tick(TimePoint now) {
  for (std::uint32_t i = 0; i < places_.size() && phase_ != Phase::kDone; ++i) {
    Place& place = places_[i];
    if (now < place.due || place.state == SeatState::kClosed) continue;
    place.token == FrameToken{} ? speak(i, now) : send_again(i, now);
  }
  look(now);
}

TimePoint Coordinator::next_due(TimePoint now) const {
  if (phase_ == Phase::kDone) return TimePoint{std::numeric_limits<std::int64_t>::max()};
  TimePoint due = end_;
  for (const Place& place : places_) {
    const bool for_turn = ordered_ && is_back(place.state) && place.due <= now;
    if (place.state != SeatState::kClosed && !for_turn) due = std::min(due, place.due);
  }
  return due;
}

// ---- answers ----

bool Coordinator::arrive(ParticipantIndex seat, FrameToken token, std::span<const std::byte> frame,
                         TimePoint now) {
  const std::uint32_t index = seat.value;
  if (index >= places_.size()) return false;
  ++places_[index].silence.astray;
  if (token == FrameToken{} || places_[index].token != token) return false;
  const auto reply = wire::decode_interest_reply(frame);
  const auto error = reply.ok() ? Result<wire::ErrorReply>(bug("none")) : wire::decode_error_reply(frame);
  if (!reply.ok() && !error.ok()) return false;  // garbled: what is sent again is answered again
  Place& place = places_[index];
  const auto named = place.state == SeatState::kClosing ? InterestOperation() : place.operation;
  if (reply.ok() && (reply->interest != interest_of(index) || reply->operation != named)) return false;
  place.token = {};
  place.silence = {.ever = false};
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
  move(index, place.seat.authority ? SeatEvent::kNoPlace : SeatEvent::kNoneKnown, now);
  if (place.state == SeatState::kAsking) return call(index, InterestVerb::kPoll, now);
  back_off(index, now);
}

void Coordinator::on_error(std::uint32_t index, const wire::ErrorReply& error, TimePoint now) {
  Place& place = places_[index];
  if (error.code == Code::kBusy) {
    if (is_submitting(place.state)) {
      place.said = error.text;
      return put_off(index, now);
    }
    pause(place, attempt_.times.poll, times(10, attempt_.times.poll), now);
  } else if (place.state == SeatState::kClosing) {
    // A session that is gone holds nothing; but it may only have been slow.
    place.due = now + attempt_.times.resend;
    if (error.code != Code::kReconnect) move(index, SeatEvent::kGone, now);
  } else if (!needs_no_more(place)) {
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
  if (place.state != SeatState::kClaiming) return true;
  std::uint64_t leased = 0;
  for (const wire::TicketLease& lease : reply.leases) leased += lease.blocks;
  return leased == common_ &&
         (!prefix || (reply.leases.size() == 1 && reply.leases[0].group == attempt_.group));
}

void Coordinator::on_reply(std::uint32_t index, const InterestReply& reply, TimePoint now) {
  Place& place = places_[index];
  if (place.state == SeatState::kClosing) {
    if (reply.phase == InterestPhase::kClosed) move(index, SeatEvent::kGone, now);
    return;
  }
  if (needs_no_more(place)) return;
  if (!bind(index, reply, now)) return;
  if (reply.phase != InterestPhase::kUnknown) place.said.clear();
  if (!believable(place, reply)) return fail(index, "answers what was not asked", now);
  switch (place.state) {
    case SeatState::kSubmitting:
    case SeatState::kAsking:
    case SeatState::kYielding:
    case SeatState::kLoading:
    case SeatState::kWaiting: return on_acquire(index, reply, now);
    case SeatState::kCancelling:
      move(index, SeatEvent::kCancelled, now);
      place.due = now;
      return;
    case SeatState::kAcquired:
      if (reply.phase != InterestPhase::kAcquired) fail(index, "lost what it had acquired", now);
      return;
    case SeatState::kClaiming: return on_claim(index, reply, now);
    case SeatState::kClaimed:
      if (reply.phase != InterestPhase::kClaimed) fail(index, "lost what was claimed", now);
      return;
    case SeatState::kBack:
    case SeatState::kRefused:
    case SeatState::kClosing:
    case SeatState::kClosed:
    case SeatState::kIllegal: return;
  }
}

void Coordinator::on_acquire(std::uint32_t index, const InterestReply& reply, TimePoint now) {
  Place& place = places_[index];
  const bool submitting = is_submitting(place.state);
  switch (reply.phase) {
    case InterestPhase::kCollecting:
      if (!submitting) return fail(index, "asks for a list that it had", now);
      place.sent =
          std::min<std::uint32_t>(reply.blocks, static_cast<std::uint32_t>(attempt_.hashes.size()) - 1);
      move(index, SeatEvent::kPart, now);
      if (place.state == SeatState::kSubmitting) submit_part(index, now);
      return;
    case InterestPhase::kAcquiring:
      pause(place, attempt_.times.poll, times(10, attempt_.times.poll), now);
      return move(index, reply.admitted ? SeatEvent::kLoads : SeatEvent::kWaits, now);
    case InterestPhase::kAcquired:
      place.pause = {};
      place.blocks = reply.blocks;
      return move(index, SeatEvent::kReady, now);
    case InterestPhase::kMissing:
      return end(
          {Verdict::kMissed, reply.why, ParticipantIndex{index}, false, "a participant has none of it"}, now);
    case InterestPhase::kUnknown:
    case InterestPhase::kEnded:
      if (!submitting || reply.newest > place.operation)
        return fail(index, "lost what it was asked for", now);
      move(index, SeatEvent::kForgotten, now);
      return back_off(index, now);
    case InterestPhase::kClaimed:
    case InterestPhase::kClosed: return fail(index, "answers what was not asked", now);
  }
}

void Coordinator::on_claim(std::uint32_t index, const InterestReply& reply, TimePoint now) {
  if (reply.phase != InterestPhase::kClaimed) return fail(index, "lost what it had acquired", now);
  move(index, SeatEvent::kLeased, now);
  places_[index].leases = reply.leases;
}

}  // namespace orbitkv::client
