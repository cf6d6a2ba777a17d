#include "daemon/slabs.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "daemon/keep.h"
#include "wire/lifecycle.h"

namespace orbitkv::daemon {
namespace {

using cache::RetireState;

constexpr Duration kSpacesWithin = seconds(30);   // engines register after a restart
constexpr Duration kReplaceWithin = seconds(10);  // or the slab retires without
constexpr Duration kRetryAfter = seconds(5);
constexpr Duration kBetweenShrinks = seconds(10);
constexpr std::uint64_t kHeadroomShare = 16;

unsigned long long mebibytes(ByteCount bytes) {
  return bytes.value >> 20;
}

ByteCount largest(const mem::Pool& pool) {
  ByteCount most;
  for (const mem::SlabInfo& slab : pool.slabs()) most = std::max(most, slab.bytes);
  return most;
}

// What one would be, had the pool been made whole.
ByteCount planned(const mem::Pool& pool) {
  const std::uint64_t each = pool.stats().configured.value / std::max(1u, pool.planned_slabs());
  const std::uint64_t page = each < 64 * kMiB.value ? 4096 : limits::kHugePageBytes.value;
  return std::min(limits::kSlabBytes, ByteCount((each + page - 1) / page * page));
}

std::string pids_text(const std::vector<int>& pids) {
  std::string text = pids.empty() ? "who keeps descriptors" : "";
  for (const int pid : pids) text += format_text("%s%d", text.empty() ? "" : ", ", pid);
  return text;
}

}  // namespace

Slabs::Slabs(const Parts& parts, const Config& config)
    : p_(parts),
      config_(config),
      slab_bytes_(std::max(largest(parts.pool), planned(parts.pool))),
      configured_(parts.pool.planned_slabs()),
      wanted_(configured_) {
  if (config.keep != nullptr) wanted_ = config.keep->wanted(configured_).value_or(configured_);
  const ByteCount share(parts.pool.stats().configured.value / kHeadroomShare);
  if (config_.headroom.value == 0) config_.headroom = std::max(slab_bytes_, share);
}

// ---- what clients are told ----

void Slabs::open(const Session& session, ProcessId process) {
  mappers_.open(session.id(), process, session.pid());
}

void Slabs::inherit(const KeptMappings& mappings) {
  std::set<SlabId> all(mappings.slabs.begin(), mappings.slabs.end());
  for (const mem::KeptRetired& each : mappings.retired)
    if (all.insert(each.name).second) gone_.push_back({each.name, each.bytes, true});
  for (const OldProcess& each : mappings.processes)
    mappers_.inherit(each.id, each.pid, {all.begin(), all.lower_bound(each.below)});
  inherited_ = p_.tier != nullptr && !mappings.slabs.empty();
}

Status Slabs::offer(Session& session) {
  for (;;) {
    wire::SlabOffer offer{p_.pool.id(), {}};
    std::vector<int> fds;
    std::uint32_t last = session.slabs_offered;
    for (const Offered& each : offered_) {
      if (each.number <= session.slabs_offered || fds.size() == limits::kFdsPerMessage) continue;
      offer.slabs.push_back({each.slab.id, each.slab.bytes, each.slab.huge == each.slab.bytes, each.kept});
      fds.push_back(p_.pool.slab_fd(each.slab.slot));
      last = each.number;
    }
    if (fds.empty()) return ok_status();
    std::vector<std::byte> frame;
    wire::encode(offer, frame);
    const Status sent = p_.frames.send(session.id(), std::move(frame), std::move(fds));
    if (!sent.ok()) return sent.error().code() == Code::kBusy ? ok_status() : sent;  // the next tick goes on
    for (const wire::SlabOffer::Slab& slab : offer.slabs) mappers_.offered(session.id(), slab.id);
    session.slabs_offered = last;
  }
}

Status Slabs::tell(Session& session) {
  for (const Gone& gone : gone_) {
    if (!mappers_.holds(session.id(), gone.name) || mappers_.told(session.id(), gone.name)) continue;
    if (p_.frames.retract(session.id(), gone.name)) {
      mappers_.retracted(session.id(), gone.name);
      continue;
    }
    std::vector<std::byte> frame;
    wire::encode(wire::SlabRetire{gone.name}, frame);
    const Status sent = p_.frames.send(session.id(), std::move(frame), {});
    if (!sent.ok()) return sent.error().code() == Code::kBusy ? ok_status() : sent;
    mappers_.tell(session.id(), gone.name);
  }
  return ok_status();
}

// Whoever may still copy into it has not unmapped it: an honest client publishes its receipt
// before it lets go.
bool Slabs::released(const Session& session, SlabId slab) {
  const bool retires = told_ && p_.pool.slab(*told_).id == slab;
  if (retires && p_.core.retiring_claims(session.id()) > 0) return false;
  return mappers_.released(session.id(), slab);
}

// ---- slabs that come ----

void Slabs::take() {
  // The device may be asked to write into a slab as soon as the core can place a block there.
  for (const mem::SlabInfo& slab : p_.pool.collect_offered()) {
    const bool kept = config_.keep != nullptr && config_.keep->offer(slab, p_.pool.slab_memory(slab.slot));
    offered_.push_back({++last_number_, slab, kept});
    if (p_.tier != nullptr) p_.tier->add_slab(slab);
  }
  if (p_.tier != nullptr) p_.tier->map_waiting();
  settle_start();
}

// A pool that is not prefaulted lends from it at once.
Result<SlabId> Slabs::add_one() {
  auto added = p_.pool.add(slab_bytes_);
  if (added.ok()) take();
  return added;
}

// What could not be built at the start is not tried again by itself.
void Slabs::settle_start() {
  if (started_ || p_.pool.building()) return;
  started_ = true;
  if (p_.pool.build_failure()) wanted_ = std::max(1u, count().offered);
}

Slabs::Count Slabs::count() const {
  Count count;
  for (const mem::SlabInfo& slab : p_.pool.slabs()) {
    count.offered += slab.state == mem::SlabState::kOffered ? 1 : 0;
    count.building += slab.state < mem::SlabState::kOffered ? 1 : 0;
  }
  return count;
}

// The last slab of a pool may be smaller than the others; what takes its place is not.
ByteCount Slabs::limit() const {
  return wanted_ * slab_bytes_ + config_.headroom;
}

// The last slab of the configured pool may be smaller.
ByteCount Slabs::wanted_bytes() const {
  return wanted_ == configured_ ? p_.pool.stats().configured : wanted_ * slab_bytes_;
}

// At once: this life may end before its next turn.
void Slabs::note_wanted() const {
  if (config_.keep != nullptr) config_.keep->note_wanted(wanted_, configured_);
}

ByteCount Slabs::retired_bytes() const {
  ByteCount bytes;
  for (const Gone& gone : gone_)
    if (gone.abandoned) bytes += gone.bytes;
  return bytes;
}

bool Slabs::may_add(ByteCount bytes) const {
  const mem::PoolStats pool = p_.pool.stats();
  return pool.capacity + pool.building + pool.retiring + retired_bytes() + bytes <= limit();
}

// ---- slabs that go ----

void Slabs::tick(TimePoint now) {
  take();
  forget_released();
  note_quarantine(now);
  replace(now);
  choose(now);
  step(now);
  note_wanted();
  if (config_.keep == nullptr) return;
  config_.keep->forget_processes([this](ProcessId process) { return mappers_.left(process); });
}

void Slabs::note_quarantine(TimePoint now) {
  for (const mem::SlabInfo& slab : p_.pool.slabs())
    if (slab.state == mem::SlabState::kOffered && slab.quarantined.value > 0)
      quarantined_.try_emplace(slab.slot, now);
}

void Slabs::forget_released() {
  std::erase_if(gone_, [&](const Gone& gone) {
    if (!gone.abandoned || mappers_.anyone(gone.name)) return false;
    return config_.keep == nullptr || config_.keep->let_go(gone.name);
  });
}

// So many as are wanted, as far as the limit allows.
void Slabs::replace(TimePoint now) {
  const Count have = count();
  if (!started_ || have.building > 0 || have.offered >= wanted_) {
    said_smaller_ = said_smaller_ && have.offered < wanted_;
    return;
  }
  const bool failed = p_.pool.build_failure().has_value();
  if (failed && !std::exchange(build_failed_, failed)) retry_ = now + kRetryAfter;
  if (now < retry_) return;
  if (!may_add(slab_bytes_)) return say_smaller();
  build_failed_ = false;
  const auto added = add_one();
  if (!added.ok()) retry_ = now + kRetryAfter;
  if (!added.ok() && !std::exchange(said_smaller_, true))
    ORBITKV_WARN("the pool is %u slabs smaller than it should be: %s", wanted_ - have.offered,
                 added.error().message().c_str());
}

void Slabs::say_smaller() {
  if (std::exchange(said_smaller_, true)) return;
  std::string who;
  for (const Waiting& each : abandoned())
    who += format_text("%sslab %u by %s", who.empty() ? "" : "; ", each.slab.value,
                       pids_text(each.processes).c_str());
  ORBITKV_WARN(
      "the pool stays smaller until %llu MiB of retired slabs are let go of (%s); more room: "
      "--retire-headroom",
      mebibytes(retired_bytes()), who.empty() ? "one retires now" : who.c_str());
}

void Slabs::choose(TimePoint now) {
  if (stopped_ || p_.core.retiring().state != RetireState::kIdle) return;
  if (!next_) choose_quarantined(now);
  if (!next_) choose_spare(now);
  if (!next_) return;
  if (p_.pool.building() && now - next_->since < kReplaceWithin) return;
  const SlabSlot slot = next_->slot;
  next_.reset();
  const mem::SlabInfo slab = p_.pool.slab(slot);
  if (!p_.core.retire_slab(slot, now).ok()) return;
  quarantined_.erase(slot);
  ++retired_count_;
  ORBITKV_INFO("slab %u retires: %llu of its %llu MiB are lent, %llu KiB quarantined", slab.id.value,
               mebibytes(slab.used), mebibytes(slab.bytes),
               static_cast<unsigned long long>(slab.quarantined.value >> 10));
}

// What an earlier life left could go to the tier and not be lost, were its namespace registered. Nothing
// is lent from a tainted slab meanwhile but what came back to it.
bool Slabs::hold(TimePoint now) {
  if (!inherited_) return false;
  if (hold_until_.ns == 0) hold_until_ = now + kSpacesWithin;
  inherited_ = now < hold_until_ && p_.core.lacks_spaces();
  return inherited_;
}

// The oldest first. What replaces it comes before it goes, if there is room for both.
void Slabs::choose_quarantined(TimePoint now) {
  const auto oldest = std::min_element(quarantined_.begin(), quarantined_.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (oldest == quarantined_.end() || now - oldest->second < config_.retire_after) return;
  if (!started_ || hold(now)) return;
  next_ = Next{oldest->first, now};
  const Count have = count();
  if (have.building == 0 && have.offered <= wanted_ && may_add(slab_bytes_)) (void)add_one();
}

// The one that the operator named, else the emptiest, of those the newest.
void Slabs::choose_spare(TimePoint now) {
  if (count().offered <= wanted_) drained_.reset();
  if (!started_ || count().offered <= wanted_) return;
  std::optional<SlabSlot> best;
  for (const mem::SlabInfo& slab : p_.pool.slabs()) {
    if (slab.state != mem::SlabState::kOffered) continue;
    const bool named = drained_ && slab.id == *drained_;
    const auto rank = [](const mem::SlabInfo& each) { return std::pair(each.used, ~each.id.value); };
    if (named || !best || rank(slab) < rank(p_.pool.slab(*best))) best = slab.slot;
    if (named) break;
  }
  drained_.reset();
  next_ = Next{*best, now};
}

// What waits for time, a receipt or the device is looked at with the ticks.
bool Slabs::turn(TimePoint now) {
  return more_ && step(now);
}

bool Slabs::step(TimePoint now) {
  more_ = p_.core.retire_turn(now);
  follow();
  return more_;
}

void Slabs::follow() {
  const cache::RetireReport report = p_.core.retiring();
  if (report.state < RetireState::kClaims || report.state == RetireState::kIllegal) return;
  if (!told_) {
    const mem::SlabInfo& slab = p_.pool.slab(report.slab);
    std::erase_if(offered_, [&](const Offered& each) { return each.slab.id == slab.id; });
    gone_.push_back({slab.id, slab.bytes, false});
    told_ = report.slab;
  }
  if (report.state != RetireState::kDrained) return;
  // The store may have its pages for a while: nothing waits for that but their account.
  if (config_.keep != nullptr) config_.keep->abandon({p_.pool.slab(report.slab).id, gone_.back().bytes});
  if (p_.tier != nullptr) p_.tier->remove_slab(report.slab);
  p_.core.abandon_slab();
  gone_.back().abandoned = true;
  told_.reset();
  forget_released();
}

// A slab that goes takes a moment to relieve anybody, and only the operator brings it back.
void Slabs::on_pressure(TimePoint now) {
  const bool enough = wanted_ > 1 && (wanted_ - 1) * slab_bytes_ >= config_.least;
  if (config_.least.value == 0 || !enough) return;
  if (count().offered > wanted_ || (shrunk_.ns != 0 && now - shrunk_ < kBetweenShrinks)) return;
  shrunk_ = now;
  --wanted_;
  ORBITKV_WARN(
      "memory is short: the pool goes down to %u slabs (--pool-min; orbitkv pool add brings them back)",
      wanted_);
}

// ---- for the operator ----

Result<std::uint32_t> Slabs::add(ByteCount bytes) {
  const std::uint64_t slabs = (bytes.value + slab_bytes_.value - 1) / slab_bytes_.value;
  if (slabs == 0 || wanted_ + slabs > limits::kSlabs)
    return reject(format_text("%llu slabs of %llu MiB cannot be added to %u; there may be %u in all",
                              static_cast<unsigned long long>(slabs), mebibytes(slab_bytes_), wanted_,
                              limits::kSlabs));
  wanted_ += static_cast<std::uint32_t>(slabs);
  said_smaller_ = false;
  retry_ = {};
  note_wanted();
  return wanted_;
}

Result<std::uint32_t> Slabs::drain(ByteCount bytes) {
  const std::uint64_t slabs = bytes.value / slab_bytes_.value;
  if (slabs == 0 || slabs >= wanted_)
    return reject(format_text("of %u slabs of %llu MiB each, whole ones can be drained, and one must stay",
                              wanted_, mebibytes(slab_bytes_)));
  wanted_ -= static_cast<std::uint32_t>(slabs);
  note_wanted();
  return wanted_;
}

Result<std::uint32_t> Slabs::drain(SlabId name) {
  const auto known = [&](const Offered& each) { return each.slab.id == name; };
  if (std::none_of(offered_.begin(), offered_.end(), known))
    return reject(format_text("slab %u is not in use; see orbitkv pool list", name.value));
  if (wanted_ < 2) return reject("the last slab cannot be drained; add one first");
  if (drained_) return busy(format_text("slab %u is to be drained first", drained_->value));
  drained_ = name;
  --wanted_;
  note_wanted();
  return wanted_;
}

std::vector<Slabs::Waiting> Slabs::abandoned() const {
  std::vector<Waiting> out;
  for (const Gone& gone : gone_)
    if (gone.abandoned) out.push_back({gone.name, gone.bytes, mappers_.who(gone.name)});
  return out;
}

}  // namespace orbitkv::daemon
