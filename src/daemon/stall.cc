#include "daemon/stall.h"

#include "base/check.h"
#include "cache/transitions.h"

namespace orbitkv::daemon {
namespace {

using H = Health;
constexpr auto kStates = static_cast<std::size_t>(H::kIllegal);
constexpr auto kEvents = static_cast<std::size_t>(HealthEvent::kCount);
constexpr std::array<std::array<Health, kEvents>, kStates> kHealth{{
    // kSign, kSilent, kCondemn
    {{H::kHealthy, H::kStalled, H::kIllegal}},        // kHealthy
    {{H::kHealthy, H::kStalled, H::kCondemned}},      // kStalled
    {{H::kCondemned, H::kCondemned, H::kCondemned}},  // kCondemned
}};

}  // namespace

Health next(Health from, HealthEvent event) {
  if (from == H::kIllegal || event == HealthEvent::kCount) return H::kIllegal;
  return kHealth[static_cast<std::size_t>(from)][static_cast<std::size_t>(event)];
}

void StallWatch::begin_look(TimePoint now) {
  const Duration passed = now - last_look_;
  last_look_ = now;
  step_ = passed <= kLongestStep ? passed : Duration{0};
}

StallWatch::Verdict StallWatch::look(SessionId session, std::uint64_t signs, bool holds_claims) {
  Watched& w = watched_[session.value];
  HealthEvent event = HealthEvent::kSign;
  if (w.seen && signs == w.signs) {
    w.silent = Duration{w.silent.ns + step_.ns};
    if (w.silent < options_.after) return Verdict::kNone;
    const bool hopeless = options_.kill && holds_claims && w.silent.ns >= 2 * options_.after.ns;
    event = hopeless && w.health != H::kHealthy ? HealthEvent::kCondemn : HealthEvent::kSilent;
  } else {
    w.seen = true;
    w.signs = signs;
    w.silent = Duration{0};
  }
  const Health before = w.health;
  w.health = next(before, event);
  ORBITKV_CHECK(w.health != H::kIllegal, "an engine is condemned that has not been seen to stall");
  cache::Passed<Health, HealthEvent>::mark(before, event);
  if (w.health == before) return Verdict::kNone;
  switch (w.health) {
    case H::kStalled: ++stats_.stalls; return Verdict::kStalled;
    case H::kCondemned: ++stats_.condemned; return Verdict::kCondemned;
    default: ++stats_.revivals; return Verdict::kRevived;
  }
}

}  // namespace orbitkv::daemon
