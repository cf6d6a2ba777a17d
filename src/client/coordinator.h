// The coordinator of one attempt: what one engine, whose ranks stand at several Managers, can restore
// everywhere. Submits the list to all at once, finds the shortest run, claims exactly that of each or
// nothing of any, and holds it until every rank has told how its restore ended. Pure: time and frames
// come in as calls, frames to be sent go out, each with a token that its answer must bear. Frames may
// be lost, doubled, late or out of order. One thread. Never tells a lease before all have claimed,
// never says success while a rank has not, and always ends.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "client/seat_state.h"
#include "orbitkv/frames.h"
#include "wire/messages.h"

namespace orbitkv::client {

// One Manager of the attempt, and the ranks whose instance is registered there.
struct Seat {
  InstanceId instance;
  std::vector<std::uint16_t> ranks;  // of the whole engine
  InterestAuthority authority = {};  // zero: whatever it is when it is first asked
};

struct AttemptTimes {
  Duration wait = seconds(5);           // from the first submit to the last claim
  Duration hold = seconds(60);          // from there until every rank has told
  Duration close = seconds(5);          // for closes to be answered
  Duration resend = milliseconds(500);  // of what is not answered
  Duration poll = milliseconds(2);      // while blocks are on their way; grows to ten times that
  Duration keep = seconds(2);           // what is held is spoken of; well below the Manager's 30 s
};

struct Attempt {
  InterestId interest;
  std::vector<Seat> seats;
  wire::InterestKind kind = wire::InterestKind::kPrefix;
  GroupId group;
  std::uint64_t origin = 0, boundary = 0;  // of a recovery
  std::vector<BlockHash> hashes;
  AttemptTimes times;
};

class Coordinator {
 public:
  enum class Phase : std::uint8_t {
    kAcquiring,
    kClaiming,
    kHolding,  // claimed everywhere; ranks restore
    kClosing,  // the outcome is known, and what may be held is given back
    kDone,
  };
  enum class Verdict : std::uint8_t { kOpen, kRestored, kMissed, kFailed };
  struct Send {
    ParticipantIndex seat;
    FrameToken token;
    wire::Buffer frame;
  };
  struct Outcome {
    Verdict verdict = Verdict::kOpen;
    wire::Missing why = wire::Missing::kNone;  // missed
    ParticipantIndex seat{};                   // that it was for
    bool silent = false;  // a time-out, and what was sent last to the seat was answered by nothing
    std::string message{};
  };

  Coordinator(Attempt attempt, TimePoint now);

  // False: no answer to what was asked last.
  bool arrive(ParticipantIndex seat, FrameToken token, std::span<const std::byte> frame, TimePoint now);
  void tick(TimePoint now);
  // How a rank's restore ended; of a rank that has died: not well. Told twice it counts once. False:
  // no lease was told, so no rank can have restored.
  bool report(std::uint16_t rank, bool success, TimePoint now);
  // Nobody wants it any more.
  void give_up(TimePoint now);
  std::vector<Send> take_sends() { return std::exchange(sends_, {}); }
  // When tick() has something to do next, as far as is known.
  TimePoint next_due(TimePoint now) const;

  Phase phase() const { return phase_; }
  // Once it is not open it stays as it is.
  const Outcome& outcome() const { return outcome_; }
  // No rank may be copying: none was given a lease, or each has told how that ended. Pages that
  // were to be restored into are the engine's again only then, whatever the outcome.
  bool quiet() const;
  std::uint32_t blocks() const { return common_; }
  // While it is held: by seat, of each group one. From then on ranks may be copying.
  std::vector<std::vector<wire::TicketLease>> take_leases();
  bool knows(std::uint16_t rank) const { return reported_.contains(rank); }
  // Seats that did not answer a close; their Manager ends it by itself.
  std::uint32_t unclosed() const;

 private:
  // Since the last answer, or since the beginning.
  struct Silence {
    TimePoint since{};         // of the first frame
    std::uint32_t frames = 0;  // that were sent, again or anew
    std::uint32_t astray = 0;  // that came, and answer none of them
    bool ever = true;          // nothing was answered yet
  };
  struct Place {
    Seat seat;
    SeatState state = SeatState::kBack;
    InterestOperation operation;
    std::uint32_t sent = 0;    // of the list: what the Manager is known to have
    std::uint32_t blocks = 0;  // acquired
    std::string said;          // why the last submit was put off
    Silence silence;
    std::vector<wire::TicketLease> leases;
    FrameToken token;  // of the frame that is not answered; 0: none
    wire::Buffer frame;
    TimePoint due;   // to send it again, or the next one
    Duration pause;  // the last one; grows while nothing comes of it
  };

  static bool is_back(SeatState s) { return s == SeatState::kBack || s == SeatState::kRefused; }
  static bool is_submitting(SeatState s) {
    return s == SeatState::kSubmitting || s == SeatState::kAsking || s == SeatState::kYielding;
  }
  // Budget, room or a place: those behind it give way.
  static bool lacks(SeatState s) {
    return s == SeatState::kWaiting || s == SeatState::kRefused || s == SeatState::kAsking;
  }
  // Several seats may stand at one session: each is a coordinator of its own there.
  InterestId interest_of(std::uint32_t index) const {
    return InterestId(attempt_.interest.value + (std::uint64_t{index} << 32));
  }
  void send(std::uint32_t index, wire::Buffer frame, TimePoint now);
  void send_again(std::uint32_t index, TimePoint now);
  void call(std::uint32_t index, InterestVerb verb, TimePoint now);
  void submit(std::uint32_t index, TimePoint now);
  void submit_part(std::uint32_t index, TimePoint now);
  void speak(std::uint32_t index, TimePoint now);
  void back_off(std::uint32_t index, TimePoint now);
  void pause(Place& place, Duration first, Duration most, TimePoint now);
  void on_error(std::uint32_t index, const wire::ErrorReply& error, TimePoint now);
  void on_reply(std::uint32_t index, const wire::InterestReply& reply, TimePoint now);
  void put_off(std::uint32_t index, TimePoint now);
  void run_out(TimePoint now);
  bool bind(std::uint32_t index, const wire::InterestReply& reply, TimePoint now);
  bool believable(const Place& place, const wire::InterestReply& reply) const;
  void on_acquire(std::uint32_t index, const wire::InterestReply& reply, TimePoint now);
  void on_claim(std::uint32_t index, const wire::InterestReply& reply, TimePoint now);
  void look(TimePoint now);
  void take_turns(TimePoint now);
  void give_way(TimePoint now);
  void move(std::uint32_t index, SeatEvent event, TimePoint now);
  void end(Outcome outcome, TimePoint now);
  void finish();
  void fail(std::uint32_t index, std::string_view what, TimePoint now);
  void fail_all(std::string what, TimePoint now);
  std::string silence_text(std::uint32_t index, TimePoint now) const;
  bool told_well(const Seat& seat) const;
  // Its ranks have what was claimed: whatever became of its Manager since.
  bool needs_no_more(const Place& place) const {
    return place.state == SeatState::kClaimed && told_well(place.seat);
  }
  std::vector<std::uint32_t> in_order() const;
  template <class Holds>
  bool all(Holds holds) const;

  Attempt attempt_;
  std::vector<Place> places_;
  Phase phase_ = Phase::kAcquiring;
  Outcome outcome_;
  bool ordered_ = false;  // one seat after the other: there is pressure
  bool handed_ = false;
  std::uint32_t common_ = 0;
  std::map<std::uint16_t, std::pair<bool, bool>> reported_;  // by rank: whether, and how
  TimePoint end_;                                            // of the phase
  std::uint32_t last_token_ = 0;
  std::vector<Send> sends_;
};

}  // namespace orbitkv::client
