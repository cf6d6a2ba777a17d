// The coordinators of a group's claims, driven by one thread: frames in, time, frames out.
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <system_error>
#include <thread>

#include "base/limits.h"
#include "base/text.h"
#include "client/claim_ids.h"
#include "client/coordinator.h"
#include "client/queries.h"
#include "orbitkv/interests.h"

namespace orbitkv::client {

namespace {

constexpr std::size_t kMostHashes = limits::kMetadataPerOperation.value / limits::kBlockHashBytes;
constexpr std::uint64_t kMostKeepMs = 5000;
constexpr Duration kLongestNap = milliseconds(100);

Outcome check(const std::vector<Participant>& participants) {
  if (participants.empty() || participants.size() > limits::kInterestGroup)
    return {Action::kReject, format_text("a group has 1 to %u participants", limits::kInterestGroup)};
  std::set<std::uint16_t> ranks;
  for (const Participant& each : participants) {
    if (each.ranks.empty() || each.ranks.size() > limits::kShards)
      return {Action::kReject, format_text("a participant has 1 to %u ranks", limits::kShards)};
    for (const std::uint16_t rank : each.ranks)
      if (!ranks.insert(rank).second)
        return {Action::kReject, format_text("rank %u is of two participants", rank)};
  }
  return {};
}

}  // namespace

struct PrefixGroup::Impl {
  Impl(const Options& o, std::vector<Participant> p, std::unique_ptr<Carrier> c)
      : options(o), participants(std::move(p)), carrier(std::move(c)) {}

  struct Claim {
    explicit Claim(Attempt attempt, TimePoint now) : coordinator(std::move(attempt), now) {}
    Coordinator coordinator;
    bool forgotten = false;  // nobody asks for it any more
    bool judged = false;     // its outcome stands in the stats
  };

  // A forked child has none of the threads: what is locked or waited on here stays so for ever.
  bool here() const { return ::getpid() == process; }
  void run();
  TimePoint tick(TimePoint now);
  void take(const Carrier::Arrival& arrival);
  void flush(Claim& claim);
  Claim* find(std::uint64_t claim) {
    const auto it = claim >> 32 ? claims.end() : claims.find(static_cast<ClaimNumber>(claim));
    return it == claims.end() || it->second.forgotten ? nullptr : &it->second;
  }
  Attempt attempt_of(const CommonList& list, InterestId interest) const;

  const Options options;
  const std::vector<Participant> participants;
  const std::unique_ptr<Carrier> carrier;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<ClaimNumber, Claim> claims;
  std::vector<ParticipantStats> stats = std::vector<ParticipantStats>(participants.size());  // by participant
  // Ids of another coordinator, or of an earlier life of this one, must not be met again.
  ClaimIds ids{[] { return std::random_device{}(); }};
  bool stop = false;   // from then on no claim begins, and nobody waits
  bool ended = false;  // the thread has nothing to do any more
  const pid_t process = ::getpid();
  std::thread thread;
};

// When there is something to do next.
TimePoint PrefixGroup::Impl::tick(TimePoint now) {
  TimePoint due = now + kLongestNap;
  for (auto it = claims.begin(); it != claims.end();) {
    Claim& claim = it->second;
    claim.coordinator.tick(now);
    flush(claim);
    due = std::min(due, claim.coordinator.next_due(now));
    const bool over = claim.forgotten && claim.coordinator.phase() == Coordinator::Phase::kDone;
    it = over ? claims.erase(it) : std::next(it);
  }
  return due;
}

void PrefixGroup::Impl::flush(Claim& claim) {
  for (Coordinator::Send& out : claim.coordinator.take_sends()) {
    ++stats[out.seat.value].sent;
    carrier->send(out.seat, out.token, std::move(out.frame));
  }
  const Coordinator::Outcome& outcome = claim.coordinator.outcome();
  if (outcome.verdict == Coordinator::Verdict::kOpen || std::exchange(claim.judged, true)) return;
  if (outcome.silent) ++stats[outcome.seat.value].silent;
}

void PrefixGroup::Impl::take(const Carrier::Arrival& arrival) {
  if (arrival.participant.value >= stats.size()) return;
  const auto it = claims.find(claim_number(arrival.token));
  const bool answers = it != claims.end() && it->second.coordinator.arrive(arrival.participant, arrival.token,
                                                                           arrival.frame, monotonic_now());
  ParticipantStats& of = stats[arrival.participant.value];
  ++(answers ? of.answered : of.astray);
  if (answers) carrier->heard(arrival.participant);
  if (it != claims.end()) flush(it->second);
}

void PrefixGroup::Impl::run() {
  std::unique_lock lock(mutex);
  while (!stop || !claims.empty()) {
    const TimePoint now = monotonic_now();
    const TimePoint due = tick(now);
    changed.notify_all();
    if (stop && carrier->over()) claims.clear();  // nobody can be told; Managers end it by themselves
    if (stop && claims.empty()) break;
    const auto nap = std::max<std::int64_t>(1'000'000, due.ns - now.ns);
    lock.unlock();
    Carrier::Arrival arrival;
    const bool came = carrier->receive(static_cast<std::uint32_t>(nap / 1'000'000), arrival);
    lock.lock();
    if (came) take(arrival);
  }
  ended = true;
  changed.notify_all();
}

Attempt PrefixGroup::Impl::attempt_of(const CommonList& list, InterestId interest) const {
  Attempt out;
  out.interest = interest;
  for (const Participant& each : participants)
    out.seats.push_back({each.instance, each.ranks, each.authority});
  out.group = GroupId(list.group);
  if (list.boundary > 0) out.kind = wire::InterestKind::kRecovery;
  out.origin = list.origin;
  out.boundary = list.boundary;
  out.hashes.assign(list.hashes.begin(), list.hashes.end());
  out.times.wait = milliseconds(options.timeout_ms);
  out.times.hold = milliseconds(options.restore_ms);
  out.times.close = milliseconds(options.timeout_ms);
  out.times.resend = milliseconds(options.resend_ms);
  out.times.poll = milliseconds(options.poll_ms);
  out.times.keep = milliseconds(std::min(4 * std::uint64_t{options.resend_ms}, kMostKeepMs));
  return out;
}

PrefixGroup::PrefixGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

std::unique_ptr<PrefixGroup> PrefixGroup::open(const Options& options, std::vector<Participant> participants,
                                               std::unique_ptr<Carrier> carrier, Outcome& outcome) {
  outcome = check(participants);
  if (outcome.ok() && carrier == nullptr) outcome = {Action::kReject, "a group without a carrier"};
  const auto least = std::min({options.timeout_ms, options.restore_ms, options.resend_ms, options.poll_ms});
  if (outcome.ok() && least == 0) outcome = {Action::kReject, "the times of a group are above 0"};
  if (!outcome.ok()) return nullptr;
  try {
    auto impl = std::make_unique<Impl>(options, std::move(participants), std::move(carrier));
    std::unique_ptr<PrefixGroup> group(new PrefixGroup(std::move(impl)));
    group->impl_->thread = std::thread([of = group->impl_.get()] { of->run(); });
    return group;
  } catch (const std::system_error& error) {
    outcome = {Action::kRetry, format_text("the group's thread cannot start: %s", error.what())};
    return nullptr;
  }
}

PrefixGroup::~PrefixGroup() {
  if (!impl_->here()) {
    [[maybe_unused]] const auto* left = impl_.release();
    return;
  }
  stop();
  if (impl_->thread.joinable()) impl_->thread.join();
}

void PrefixGroup::stop() {
  if (!impl_->here()) return;
  std::lock_guard lock(impl_->mutex);
  impl_->stop = true;
  for (auto& [id, claim] : impl_->claims) {
    claim.forgotten = true;
    claim.coordinator.give_up(monotonic_now());
    impl_->flush(claim);
  }
  impl_->changed.notify_all();
}

bool PrefixGroup::finish(std::uint32_t timeout_ms) {
  if (!impl_->here()) return false;
  stop();
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return impl_->ended; });
}

namespace {

const Outcome kStopped{Action::kReject, "the group is closed"};
const Outcome kForked{Action::kReject,
                      "the group is another process's, which forked this one; open one here"};
const Outcome kUnknown{Action::kReject, "no such claim; it was closed"};

}  // namespace

Outcome PrefixGroup::begin(const CommonList& list, std::uint64_t& claim) {
  if (!impl_->here()) return kForked;
  if (list.hashes.empty() || list.hashes.size() > kMostHashes)
    return {Action::kReject, format_text("a list has 1 to %zu hashes", kMostHashes)};
  if (list.boundary > 0 ? list.origin >= list.boundary || list.group != 0 : list.origin > 0)
    return {Action::kReject,
            "a recovery has an origin before its boundary and no group; a prefix has neither"};
  std::lock_guard lock(impl_->mutex);
  if (impl_->stop) return kStopped;
  if (impl_->claims.size() == limits::kInterestsPerInstance)
    return {Action::kRetry,
            format_text("%u claims of the group are open; close some", limits::kInterestsPerInstance)};
  const InterestId interest =
      impl_->ids.next([&](ClaimNumber number) { return impl_->claims.contains(number); });
  const ClaimNumber number = claim_number(interest);
  const auto made =
      impl_->claims.try_emplace(number, impl_->attempt_of(list, interest), monotonic_now()).first;
  claim = number;
  impl_->flush(made->second);
  return {};
}

namespace {

CommonPrefix to_prefix(Coordinator& c, const Carrier& carrier) {
  CommonPrefix out;
  const Coordinator::Outcome& end = c.outcome();
  out.loading = c.phase() == Coordinator::Phase::kAcquiring || c.phase() == Coordinator::Phase::kClaiming;
  if (c.phase() == Coordinator::Phase::kHolding) {
    out.blocks = c.blocks();
    for (const auto& seat : c.take_leases()) {
      out.leases.emplace_back();
      for (const wire::TicketLease& lease : seat)
        out.leases.back().push_back({lease.group.value, lease.blocks, lease.lease});
    }
  } else if (!out.loading) {
    out.why = static_cast<Missing>(end.why);
    out.participant = end.seat;
    out.message = end.message;
    if (end.verdict == Coordinator::Verdict::kMissed && out.why == Missing::kTimeout)
      if (const std::string trouble = carrier.trouble(end.seat); !trouble.empty())
        out.message += "; its carrier says: " + trouble;
  }
  return out;
}

}  // namespace

Outcome PrefixGroup::poll(std::uint64_t claim, std::uint32_t timeout_ms, CommonPrefix& out) {
  if (!impl_->here()) return kForked;
  std::unique_lock lock(impl_->mutex);
  const auto settled = [&] {
    const Impl::Claim* found = impl_->find(claim);
    if (impl_->stop || found == nullptr) return true;
    const Coordinator::Phase phase = found->coordinator.phase();
    return phase != Coordinator::Phase::kAcquiring && phase != Coordinator::Phase::kClaiming;
  };
  impl_->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), settled);
  if (impl_->stop) return kStopped;
  Impl::Claim* found = impl_->find(claim);
  if (found == nullptr) return kUnknown;
  out = to_prefix(found->coordinator, *impl_->carrier);
  return {};
}

Outcome PrefixGroup::restored(std::uint64_t claim, std::uint16_t rank, bool success) {
  if (!impl_->here()) return kForked;
  std::lock_guard lock(impl_->mutex);
  Impl::Claim* found = impl_->find(claim);
  if (found == nullptr) return kUnknown;
  if (!found->coordinator.knows(rank))
    return {Action::kReject, format_text("rank %u is of no participant", rank)};
  if (!found->coordinator.report(rank, success, monotonic_now()))
    return {Action::kReject, "no lease of the claim was told, so no rank has restored from it"};
  impl_->flush(*found);
  impl_->changed.notify_all();
  return {};
}

Outcome PrefixGroup::wait(std::uint64_t claim, std::uint32_t timeout_ms, CommonRestore& out) {
  if (!impl_->here()) return kForked;
  std::unique_lock lock(impl_->mutex);
  const auto over = [&] {
    const Impl::Claim* found = impl_->find(claim);
    return impl_->stop || found == nullptr ||
           (found->coordinator.outcome().verdict != Coordinator::Verdict::kOpen &&
            found->coordinator.quiet());
  };
  impl_->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), over);
  if (impl_->stop) return kStopped;
  const Impl::Claim* found = impl_->find(claim);
  if (found == nullptr) return kUnknown;
  const Coordinator::Outcome& end = found->coordinator.outcome();
  out.done = end.verdict != Coordinator::Verdict::kOpen;
  out.success = end.verdict == Coordinator::Verdict::kRestored;
  out.quiet = found->coordinator.quiet();
  out.message = end.message;
  return {};
}

Outcome PrefixGroup::close(std::uint64_t claim) {
  if (!impl_->here()) return kForked;
  std::lock_guard lock(impl_->mutex);
  Impl::Claim* found = impl_->find(claim);
  if (found == nullptr) return kUnknown;
  found->forgotten = true;
  found->coordinator.give_up(monotonic_now());
  impl_->flush(*found);
  impl_->changed.notify_all();
  return {};
}

Outcome PrefixGroup::stats(std::vector<ParticipantStats>& out) const {
  if (!impl_->here()) return kForked;
  std::lock_guard lock(impl_->mutex);
  out = impl_->stats;
  return {};
}

}  // namespace orbitkv::client
