// What a coordinator makes of its seats together: turns, the claim, the outcome; and the ranks.
#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "client/coordinator.h"

namespace orbitkv::client {

template <class Holds>
bool Coordinator::all(Holds holds) const {
  return std::all_of(places_.begin(), places_.end(), holds);
}

// ---- all of them ----

// Where seats of several coordinators meet, all take them in one order.
std::vector<std::uint32_t> Coordinator::in_order() const {
  std::vector<std::uint32_t> order(places_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const Seat &x = places_[a].seat, &y = places_[b].seat;
    return std::pair(x.authority.incarnation, x.instance) < std::pair(y.authority.incarnation, y.instance);
  });
  return order;
}

// A seat waits for budget while others hold some: two coordinators might wait for each other so.
// From now on a seat is asked when all before it have acquired; those behind the first that waits
// give back what they have, also where it is told only later that it does.
void Coordinator::give_way(TimePoint now) {
  const auto bound = [](const Place& p) { return static_cast<bool>(p.seat.authority); };
  const auto waits = [](const Place& p) { return lacks(p.state); };
  if (std::none_of(places_.begin(), places_.end(), waits)) return;
  ordered_ = ordered_ || (all(bound) && !all(waits));
  if (!ordered_) return;
  bool behind = false;
  for (const std::uint32_t i : in_order()) {
    const SeatState state = places_[i].state;
    if (behind && next(state, SeatEvent::kYield) != SeatState::kIllegal) move(i, SeatEvent::kYield, now);
    behind = behind || lacks(state);
  }
}

void Coordinator::take_turns(TimePoint now) {
  for (const std::uint32_t i : in_order()) {
    const Place& place = places_[i];
    if (place.state == SeatState::kAcquired) continue;
    if (is_back(place.state) && now >= place.due) submit(i, now);
    return;
  }
}

void Coordinator::look(TimePoint now) {
  const auto in = [](SeatState state) { return [state](const Place& p) { return p.state == state; }; };
  if (phase_ == Phase::kAcquiring) {
    give_way(now);
    if (ordered_) take_turns(now);
  }
  if (phase_ == Phase::kAcquiring && all(in(SeatState::kAcquired))) {
    phase_ = Phase::kClaiming;
    common_ = places_.front().blocks;
    for (const Place& place : places_) common_ = std::min(common_, place.blocks);
    for (std::uint32_t i = 0; i < places_.size(); ++i) {
      move(i, SeatEvent::kClaim, now);
      call(i, InterestVerb::kClaim, now);
    }
  }
  if (phase_ == Phase::kClaiming && all(in(SeatState::kClaimed))) {
    phase_ = Phase::kHolding;
    end_ = now + attempt_.times.hold;
  }
  if (phase_ == Phase::kHolding && all([this](const Place& p) { return told_well(p.seat); }))
    end({.verdict = Verdict::kRestored}, now);
  if (phase_ == Phase::kClosing && all(in(SeatState::kClosed))) finish();
  if (now < end_ || phase_ == Phase::kDone) return;
  if (phase_ == Phase::kClosing) {
    finish();
  } else if (phase_ == Phase::kHolding) {
    fail_all("not every rank told in time how its restore ended", now);
  } else {
    run_out(now);
  }
}

// The time is over. It is the one that does not answer that is named, then the one that was refused, and
// not those that gave way to it.
void Coordinator::run_out(TimePoint now) {
  const auto silent = [](const Place& p) { return p.silence.ever || p.silence.frames > 1; };
  const auto blame = [&](const Place& p) {
    if (p.state == SeatState::kAcquired || p.state == SeatState::kClaimed) return 0;
    return p.silence.ever ? 5 : silent(p) ? 4 : !p.said.empty() ? 3 : lacks(p.state) ? 2 : 1;
  };
  const auto late = std::max_element(places_.begin(), places_.end(),
                                     [&](const Place& a, const Place& b) { return blame(a) < blame(b); });
  const auto seat = static_cast<std::uint32_t>(late - places_.begin());
  Outcome outcome{Verdict::kMissed, wire::Missing::kTimeout, ParticipantIndex{seat}, silent(*late), {}};
  outcome.message =
      outcome.silent ? silence_text(seat, now) : format_text("participant %u did not have it in time", seat);
  if (!late->said.empty()) outcome.message += "; its Manager says: " + late->said;
  end(std::move(outcome), now);
}

// Whether nothing comes back at all, or nothing of use, is what tells a dead channel from a bad one.
std::string Coordinator::silence_text(std::uint32_t index, TimePoint now) const {
  const Silence& silence = places_[index].silence;
  const double waited = static_cast<double>((now - silence.since).ns) / 1e9;
  std::string text =
      format_text("participant %u %s: %u frames were sent to it in %.1f s, ", index,
                  silence.ever ? "did not answer in time" : "answers no more", silence.frames, waited);
  text += silence.astray == 0 ? std::string("and nothing came back")
                              : format_text("and what came back (%u) answers none of them", silence.astray);
  return text + "; check its carrier and what answers at the far end";
}

// Whatever a seat may hold goes back: also one whose first submit was never answered.
void Coordinator::end(Outcome outcome, TimePoint now) {
  if (outcome_.verdict != Verdict::kOpen) return;
  outcome_ = std::move(outcome);
  phase_ = Phase::kClosing;
  end_ = now + attempt_.times.close;
  attempt_.hashes = {};
  for (std::uint32_t i = 0; i < places_.size(); ++i) {
    move(i, SeatEvent::kClose, now);
    call(i, InterestVerb::kClose, now);
  }
}

// What is left are the outcome and what the ranks tell.
void Coordinator::finish() {
  phase_ = Phase::kDone;
  for (Place& place : places_) {
    place.token = {};
    place.frame = {};
    place.leases = {};
  }
}

void Coordinator::fail(std::uint32_t index, std::string_view what, TimePoint now) {
  Outcome outcome{.verdict = Verdict::kFailed, .seat = ParticipantIndex{index}};
  outcome.message = format_text("participant %u: %.*s", index, static_cast<int>(what.size()), what.data());
  end(std::move(outcome), now);
}

// It is no seat's fault.
void Coordinator::fail_all(std::string what, TimePoint now) {
  Outcome outcome{.verdict = Verdict::kFailed};
  outcome.message = std::move(what);
  end(std::move(outcome), now);
}

void Coordinator::give_up(TimePoint now) {
  fail_all("it was given up", now);
}

// ---- ranks ----

bool Coordinator::told_well(const Seat& seat) const {
  return std::all_of(seat.ranks.begin(), seat.ranks.end(),
                     [&](std::uint16_t rank) { return reported_.at(rank) == std::pair(true, true); });
}

bool Coordinator::report(std::uint16_t rank, bool success, TimePoint now) {
  if (!handed_) return false;
  const auto it = reported_.find(rank);
  if (it == reported_.end() || it->second.first) return true;
  it->second = {true, success};
  if (!success) fail_all(format_text("the restore of rank %u failed", rank), now);
  look(now);
  return true;
}

bool Coordinator::quiet() const {
  return !handed_ ||
         std::all_of(reported_.begin(), reported_.end(), [](const auto& each) { return each.second.first; });
}

std::vector<std::vector<wire::TicketLease>> Coordinator::take_leases() {
  std::vector<std::vector<wire::TicketLease>> out;
  if (phase_ != Phase::kHolding) return out;
  handed_ = true;
  for (const Place& place : places_) out.push_back(place.leases);
  return out;
}

std::uint32_t Coordinator::unclosed() const {
  const auto open = [](const Place& place) { return place.state != SeatState::kClosed; };
  return static_cast<std::uint32_t>(std::count_if(places_.begin(), places_.end(), open));
}

}  // namespace orbitkv::client
