#include "cache/warms.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/text.h"

namespace orbitkv::cache {

Warms::~Warms() {
  end_if([](const Hint&) { return true; });
}

// ---- hints come and go ----

template <class Which>
bool Warms::end_if(Which which) {
  bool ended = false;
  for (Hint& hint : hints_) {
    if (hint.state == WarmState::kEnded || !which(hint)) continue;
    end(hint);
    ended = true;
  }
  return ended;
}

void Warms::end(Hint& hint) {
  if (hint.state == WarmState::kLoading) p_.leases.end_warm(hint.piece);
  step(hint.state, WarmEvent::kEnd);
  Session& session = p_.sessions.at(hint.session);
  session.metadata->release(std::move(hint.metadata));
  --session.warms;
  --stats_.hints;
  std::vector<BlockHash>().swap(hint.hashes);
}

Warms::Hint* Warms::place() {
  const auto it =
      std::find_if(hints_.begin(), hints_.end(), [](const Hint& h) { return h.state == WarmState::kEnded; });
  if (it != hints_.end()) return &*it;
  if (hints_.size() == limits::kWarms) return nullptr;
  hints_.emplace_back();
  return &hints_.back();
}

Status Warms::add(SessionId session_id, const WarmPart& part, const LeaseTarget& target, TimePoint now) {
  if (part.request_id.size() > limits::kRequestIdBytes) {
    return reject(format_text("request id has %zu bytes, the limit is %u", part.request_id.size(),
                              limits::kRequestIdBytes));
  }
  cancel(session_id, {part.instance, part.group, part.request_id, TicketKind::kWarm});
  Session& session = p_.sessions.at(session_id);
  if (session.warms == limits::kWarmsPerSession) {
    return busy(format_text("%u hints of this session live; cancel some or wait", limits::kWarmsPerSession));
  }
  Hint* hint = place();
  if (hint == nullptr) return busy(format_text("%u hints live on this host; wait", limits::kWarms));
  auto metadata = session.metadata->reserve(part.hashes.size() * ByteCount(limits::kBlockHashBytes));
  if (!metadata) return metadata_full(*session.metadata);
  Hint fresh;
  fresh.state = WarmState::kQueued;
  fresh.session = session_id;
  fresh.instance = part.instance;
  fresh.group = part.group;
  fresh.request_id = part.request_id;
  fresh.target = target;
  fresh.hashes.assign(part.hashes.begin(), part.hashes.end());
  fresh.first_use = now + part.hint.first_use;
  const bool bounded = part.hint.max_wait.ns > 0 && part.hint.max_wait.ns < limits::kWarmLife.ns;
  fresh.end = now + (bounded ? part.hint.max_wait : limits::kWarmLife);
  fresh.weight = std::uint64_t{part.hint.priority} * part.hint.confidence;
  fresh.metadata = std::move(*metadata);
  *hint = std::move(fresh);
  ++session.warms;
  ++stats_.hints;
  ++stats_.given;
  return ok_status();
}

void Warms::cancel(SessionId session, const TicketName& name) {
  end_if([&](const Hint& h) {
    return h.session == session && h.instance == name.instance && h.group == name.group &&
           h.request_id == name.request_id;
  });
}

void Warms::end_session(SessionId session) {
  end_if([&](const Hint& h) { return h.session == session; });
}

void Warms::end_instance(const InstanceId& instance) {
  end_if([&](const Hint& h) { return h.instance == instance; });
}

bool Warms::make_way(AccountIndex account, Full full) {
  return end_if([&](const Hint& h) {
    return h.state == WarmState::kLoading && (full == Full::kTotal || h.target.account == account);
  });
}

// ---- pieces ----

void Warms::settle() {
  for (const LeaseIndex piece : p_.leases.take_warmed()) {
    const auto loads = [&](const Hint& h) { return h.state == WarmState::kLoading && h.piece == piece; };
    const auto it = std::find_if(hints_.begin(), hints_.end(), loads);
    if (it == hints_.end()) continue;
    p_.leases.end_warm(piece);
    step(it->state, WarmEvent::kLanded);
    if (it->over) end(*it);
  }
}

// Nobody waits for a result, nor for his turn. A miss that is not told is waited for by nobody.
bool Warms::quiet() const {
  return p_.leases.places().waiting() == 0 && p_.line.count() == 0;
}

Warms::Hint* Warms::next_hint() {
  Hint* best = nullptr;
  for (Hint& h : hints_) {
    if (h.state != WarmState::kQueued || h.no_room) continue;
    const bool sooner = best == nullptr || h.first_use < best->first_use ||
                        (h.first_use == best->first_use && h.weight > best->weight);
    if (sooner) best = &h;
  }
  return best;
}

// False: there is no room for more now.
bool Warms::begin(Hint& hint, TimePoint now) {
  const Leases::Warmed done = p_.leases.warm(
      {hint.session, hint.instance, hint.group, hint.target, std::span(hint.hashes).subspan(hint.next), now});
  hint.next += done.next;
  hint.over = done.over || hint.next == hint.hashes.size();
  stats_.blocks += done.blocks;
  if (done.loads) {
    hint.piece = *done.loads;
    step(hint.state, WarmEvent::kLoads);
    return true;
  }
  if (!hint.over) return done.next > 0;
  end(hint);
  return true;
}

void Warms::turn(TimePoint now) {
  if (stats_.hints == 0) return;
  settle();
  const std::uint32_t before = stats_.hints;
  end_if([&](const Hint& h) { return h.end <= now; });
  stats_.expired += before - stats_.hints;
  if (!quiet()) return;
  for (Hint& hint : hints_) hint.no_room = false;
  // What an instance has no room for holds up nobody else's.
  const std::uint64_t most = p_.leases.stats().looked_up + limits::kLookUpsPerTurn;
  for (Hint* hint = next_hint(); hint != nullptr && p_.leases.stats().looked_up < most; hint = next_hint())
    hint->no_room = !begin(*hint, now);
  p_.leases.pump(now);
}

}  // namespace orbitkv::cache
