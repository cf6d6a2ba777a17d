// Which engines give no sign of life: their beat, commands, receipts and frames stand still
// for longer than they may. Owned by the Host; its thread. Time counts only as far as the
// Manager ran itself: a look that comes late says nothing about the engines. Decides only;
// the Host revokes, revives and has processes ended. Takes nothing back by itself.
#pragma once

#include <array>
#include <cstdint>

#include "base/ids.h"
#include "base/limits.h"
#include "base/time.h"

namespace orbitkv::daemon {

enum class Health : std::uint8_t {
  kHealthy,
  kStalled,
  kCondemned,  // its process is to end
  kIllegal,
};
enum class HealthEvent : std::uint8_t {
  kSign,
  kSilent,   // for as long as is allowed
  kCondemn,  // for twice as long, holding claims that nobody else can end
  kCount,
};
// A cell that says kIllegal is a bug of ours.
Health next(Health from, HealthEvent event);

class StallWatch {
 public:
  struct Options {
    Duration after{0};  // 0: nobody is watched
    bool kill = false;  // condemn those that hold claims
  };
  struct Stats {
    std::uint64_t stalls = 0, revivals = 0, condemned = 0;
  };
  enum class Verdict : std::uint8_t { kNone, kStalled, kRevived, kCondemned };

  explicit StallWatch(const Options& options) : options_(options) {}
  bool on() const { return options_.after.ns > 0; }

  // Before a look at every session; four times a second.
  void begin_look(TimePoint now);
  // `signs` is anything that changes with a sign of life. What became of it, said once.
  Verdict look(SessionId session, std::uint64_t signs, bool holds_claims);
  // A new session has the place.
  void reset(SessionId session) { watched_[session.value] = {}; }

  Health health(SessionId session) const { return watched_[session.value].health; }
  Duration silent(SessionId session) const { return watched_[session.value].silent; }
  const Stats& stats() const { return stats_; }

 private:
  // A longer step means that the Manager itself did not run: it was stopped, or its machine.
  static constexpr Duration kLongestStep = seconds(1);
  struct Watched {
    Health health = Health::kHealthy;
    bool seen = false;
    std::uint64_t signs = 0;
    Duration silent{0};
  };
  Options options_;
  std::array<Watched, limits::kSessions> watched_{};
  TimePoint last_look_;
  Duration step_{0};
  Stats stats_;
};

}  // namespace orbitkv::daemon
