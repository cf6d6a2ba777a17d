#include "cache/core.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "cache/core_impl.h"

namespace orbitkv::cache {

namespace {

ByteCount largest_slab(const mem::Pool& pool) {
  ByteCount most;
  for (const mem::SlabInfo& slab : pool.slabs())
    if (slab.state < mem::SlabState::kRetiring) most = std::max(most, slab.bytes);
  return most;
}

Error session_closed(SessionId session) {
  return reconnect(format_text("session %u is closed; open a new one", session.value));
}

Error session_stalled(SessionId session) {
  return busy(
      format_text("session %u gave no sign of life for too long (--stall-after); try again", session.value));
}

Budgets::Config budgets_of(const CoreConfig& c, ByteCount pool) {
  const ByteCount total = c.query_budget.value != 0 ? c.query_budget : kPoolsInQueryBudget * pool;
  const ByteCount instance =
      c.query_instance_budget.value != 0 ? c.query_instance_budget : ByteCount(total.value / 2);
  ORBITKV_CHECK(instance.value > 0 && instance <= total, "a query budget of one instance beyond that of all");
  return {total, instance};
}

void log_unknown(TransferId transfer) {
  ORBITKV_ERROR("the tier ends transfer %llu, which is not under way",
                static_cast<unsigned long long>(transfer.value));
}

}  // namespace

Core::Impl::Impl(const CoreConfig& c, mem::Pool& pool_in, Ports& ports, Tier* tier_in)
    : config(c),
      pool(pool_in),
      tier(tier_in),
      namespaces(tier_in),
      images({{c.max_blocks, c.seed}, c.eviction_batch, c.protected_percent}, pool_in, namespaces),
      instances(namespaces),
      operations(sessions, instances),
      budgets(budgets_of(c, pool_in.stats().configured)),
      leftovers({images, budgets, c.turn_unpins}),
      line(*this),
      loads({images, namespaces, budgets, ByteCount(pool_in.stats().configured.value / 2), tier_in}),
      leases(
          {c.lease_ttl, c.reply_ttl, c.load_wait, c.prepare_ttl, c.full_prefix_wait, c.turn_hashes, c.seed},
          {images, sessions, budgets, line, loads, leftovers, tier_in}),
      recoveries({c.reply_ttl, c.load_wait, c.prepare_ttl, pool_in.stats().configured, c.turn_hashes},
                 {images, sessions, budgets, line, leases, loads, leftovers, tier_in}),
      spill({images, namespaces, pool_in, tier_in}),
      grants({ports, images, namespaces, sessions, operations}),
      publisher({ports, images, instances, operations, grants, spill, c.publish_wait, c.turn_hashes}),
      restorer({ports, images, budgets, leases, leftovers, operations, grants, spill}),
      retirer({pool_in, images, loads, leases, operations, publisher, restorer, c.retire_store_wait,
               c.retire_claim_wait, c.retire_looks}),
      warms({sessions, line, leases}),
      drops({images, namespaces, loads}),
      interests({c.incarnation, c.reply_ttl, c.interest_idle}, {instances, namespaces, leases, recoveries}) {
  ORBITKV_CHECK(c.turn_hashes > 0, "turns that look nothing up never come to an end");
  ORBITKV_CHECK(c.retire_looks > 0, "turns that look at nothing never end a retirement");
  ORBITKV_CHECK(c.turn_unpins > 0, "turns that give nothing back never come to an end");
  leases.set_publishing(publisher);
  if (tier != nullptr) images.set_keeper(&spill);
  if (c.kept == nullptr) return;
  images.keep_in(*c.kept);
  namespaces.keep_in(*c.kept);
}

Core::Core(const CoreConfig& config, mem::Pool& pool, Ports& ports, Tier* tier)
    : impl_(std::make_unique<Impl>(config, pool, ports, tier)) {}

Core::~Core() = default;

// Open operations are left where they are: Images quarantines what is still lent, loading
// or being stored.
Core::Impl::~Impl() {
  for (std::uint32_t s = 0; s < limits::kSessions; ++s) {
    for (const OperationIndex op : operations.of_session(SessionId(s))) operations.close(op);
  }
}

// ---- sessions ----

void Core::open_session(SessionId session, TimePoint) {
  std::erase_if(impl_->ending, [&](const Impl::Ending& each) { return each.session == session; });
  impl_->sessions.open(session);
}

void Core::Impl::leave(RegistrationId id) {
  const InstanceId instance = instances.find(id)->instance;
  const AccountIndex account = instances.find_instance(instance)->account;
  if (!instances.remove(id)) return;
  warms.end_instance(instance);
  recoveries.end_instance(instance);
  leases.end_instance(instance);
  budgets.close(account);
  line.forget(account);
}

// ---- budgets ----

Admitting::Attempt Core::Impl::admit(const Waiter& waiter, TimePoint now) {
  return waiter.kind == Waiter::Kind::kPrefix ? leases.admit(waiter.index, now)
                                              : recoveries.admit(waiter.index, now);
}

// Only where that returns bytes of the limit that is full.
bool Core::Impl::make_way(AccountIndex account, Full full) {
  const ByteCount ahead = full == Full::kInstance ? budgets.speculative(account) : budgets.speculative();
  if (ahead == ByteCount(0)) return false;
  if (warms.make_way(account, full)) return true;
  const bool prefixes = leases.end_prepared(account, full);
  return recoveries.end_prepared(account, full) || prefixes;
}

void Core::Impl::run_line(TimePoint now) {
  if (line.count() == 0) return;
  line.run(now);
  leases.pump(now);
}

// Who waited for a load, for budget or for room looks again, however it came free.
void Core::Impl::wake(TimePoint now) {
  latest = now;
  begin_call();
  leases.look_at_publishers(now);
  recoveries.settle(now);  // what failed makes room
  run_line(now);
  recoveries.settle(now);
  if (tier == nullptr) return;
  warms.turn(now);
  const std::vector<RecordId> ended = loads.take_ended();
  for (const RecordId record : ended) publisher.wake(record, now);
  if (!ended.empty()) restorer.wake(now);
}

void Core::Impl::withdraw(OperationIndex index, const Error& why, TimePoint now) {
  if (operations.at(index).kind == model::PlanKind::kSave) {
    publisher.withdraw(index, why, now);
  } else {
    restorer.withdraw(index, why);
  }
}

// All that its engine has not claimed, and what it cannot claim any more. Waiting publishes
// first, or they would take over what the others give back.
bool Core::Impl::withdraw_all(SessionId session, const Error& why, Goes goes, TimePoint now) {
  std::vector<OperationIndex> order = operations.of_session(session);
  std::erase_if(order, [&](OperationIndex i) {
    const Operation& op = operations.at(i);
    return op.publish == PublishState::kClaimed || op.restore == RestoreState::kClaimed;
  });
  std::stable_partition(order.begin(), order.end(),
                        [&](OperationIndex i) { return operations.at(i).publish == PublishState::kWaiting; });
  bool all = true;
  for (const OperationIndex i : order) {
    if (goes == Goes::kAll || takes_back(operations.at(i))) {
      withdraw(i, why, now);
    } else {
      all = false;
    }
  }
  return all;
}

// What its process had claimed.
bool Core::Impl::lose_all(SessionId session, TimePoint now) {
  bool all = true;
  for (const OperationIndex i : operations.of_session(session)) {
    const Operation& op = operations.at(i);
    if (op.kind == model::PlanKind::kRestore) {
      restorer.lost(i);
    } else if (op.publish == PublishState::kReserved || op.publish == PublishState::kGranted) {
      all = false;
    } else if (takes_back(op)) {
      publisher.lost(i, now);
    } else {
      all = false;
    }
  }
  return all;
}

// Of restores the pins are left over. A save goes back whole; an orphan has nothing that would.
bool Core::Impl::takes_back(const Operation& op) {
  const bool holds = op.kind == model::PlanKind::kSave && op.publish != PublishState::kOrphaned;
  if (!holds || op.slots.empty()) return true;
  if (slots_left == 0) return false;
  slots_left -= std::min(slots_left, op.slots.size());
  return true;
}

// Of a session that is closed.
void Core::Impl::end_some(SessionId session, bool lost, TimePoint now) {
  bool all = withdraw_all(session, session_closed(session), Goes::kSome, now);
  if (lost) all = lose_all(session, now) && all;
  std::erase_if(ending, [&](const Ending& each) { return each.session == session; });
  if (!all) ending.push_back({session, lost});
}

void Core::Impl::end_turn(TimePoint now) {
  if (ending.empty()) return;
  const Ending first = ending.front();
  end_some(first.session, first.lost, now);
}

Error Core::Impl::not_open(SessionId session) const {
  const bool known = session.value < limits::kSessions;
  const bool stalled = known && sessions.at(session).state == SessionState::kStalled;
  return stalled ? session_stalled(session) : session_closed(session);
}

void Core::close_session(SessionId session_id, TimePoint now) {
  Session& session = impl_->sessions.at(session_id);
  const bool was_open = session.state == SessionState::kOpen || session.state == SessionState::kStalled;
  step(session.state, SessionEvent::kClosed);
  if (!was_open) return;
  impl_->warms.end_session(session_id);
  impl_->begin_call();
  impl_->interests.end_session(session_id);
  impl_->recoveries.end_session(session_id);
  impl_->leases.end_session(session_id);
  impl_->end_some(session_id, false, now);
  for (const RegistrationId id : session.registrations) impl_->leave(id);
  session.registrations.clear();
  if (session.state == SessionState::kClosing && session.open_operations == 0) {
    step(session.state, SessionEvent::kEmptied);
  }
  impl_->wake(now);
}

void Core::stall_session(SessionId session_id, TimePoint now) {
  Session* session = impl_->sessions.open_session(session_id);
  if (session == nullptr) return;
  impl_->begin_call();
  step(session->state, SessionEvent::kStalled);
  impl_->withdraw_all(session_id, session_stalled(session_id), Impl::Goes::kAll, now);
  impl_->wake(now);
}

void Core::revive_session(SessionId session_id) {
  Session& session = impl_->sessions.at(session_id);
  if (session.state == SessionState::kStalled) step(session.state, SessionEvent::kRevived);
}

void Core::process_ended(SessionId session_id, TimePoint now) {
  Session& session = impl_->sessions.at(session_id);
  if (session.state == SessionState::kOpen || session.state == SessionState::kStalled)
    close_session(session_id, now);
  step(session.state, SessionEvent::kProcessEnded);
  impl_->begin_call();
  impl_->end_some(session_id, true, now);
  impl_->wake(now);
}

bool Core::session_gone(SessionId session) const {
  const SessionState state = impl_->sessions.at(session).state;
  return state == SessionState::kGone || state == SessionState::kAbsent;
}

// ---- registration ----

Result<RegistrationId> Core::register_rank(SessionId session_id, const model::RankRegistration& rank,
                                           TimePoint) {
  Session* session = impl_->sessions.open_session(session_id);
  if (session == nullptr) return impl_->not_open(session_id);
  if (session->registrations.size() == limits::kRegistrationsPerSession) {
    return busy(format_text("%u registrations are in this session; unregister one",
                            limits::kRegistrationsPerSession));
  }
  impl_->instances.set_largest_slab(largest_slab(impl_->pool));
  ORBITKV_ASSIGN_OR_RETURN(const RegistrationId id, impl_->instances.add(session_id, rank));
  impl_->namespaces.open_spaces(impl_->instances.find(id)->name_space, rank);
  Instance& instance = *impl_->instances.find_instance(rank.instance);
  if (instance.account == kNoAccount) instance.account = impl_->budgets.open();
  session->registrations.push_back(id);
  return id;
}

Result<Registration*> Core::Impl::registration_of(SessionId session, RegistrationId id) {
  if (sessions.open_session(session) == nullptr) return not_open(session);
  Registration* r = instances.find(id);
  if (r == nullptr || r->session != session) {
    return reject(format_text("registration %llu is not of this session, or is unregistered; register again",
                              static_cast<unsigned long long>(id.value)));
  }
  return r;
}

Status Core::unregister(SessionId session, RegistrationId registration) {
  ORBITKV_ASSIGN_OR_RETURN(const Registration* r, impl_->registration_of(session, registration));
  if (r->open_operations > 0) {
    return busy(format_text("%u operations of the registration are open; wait for them", r->open_operations));
  }
  impl_->begin_call();
  std::erase(impl_->sessions.at(session).registrations, registration);
  impl_->leave(registration);
  impl_->wake(impl_->latest);
  return ok_status();
}

// ---- commands ----

Result<PublishAnswer> Core::publish(const PublishInput& in, TimePoint now) {
  ORBITKV_ASSIGN_OR_RETURN(Registration * r, impl_->registration_of(in.op.session, in.registration));
  impl_->begin_call();
  return impl_->publisher.publish(in, *r, now);
}

Result<std::uint32_t> Core::restore(const RestoreInput& in, TimePoint now) {
  ORBITKV_ASSIGN_OR_RETURN(Registration * r, impl_->registration_of(in.op.session, in.registration));
  impl_->begin_call();
  auto blocks = impl_->restorer.restore(in, *r, now);
  impl_->wake(now);  // leases may have ended
  return blocks;
}

// ---- completions ----

void Core::drained(const OperationKey& key, const DrainReport& report, TimePoint now) {
  const OperationIndex index = impl_->operations.find(key);
  if (index == kNoOperation) {
    ORBITKV_ERROR("receipt for operation %llu of session %u, which is not open",
                  static_cast<unsigned long long>(key.operation.value), key.session.value);
    return;
  }
  impl_->begin_call();
  const Operation& op = impl_->operations.at(index);
  if (op.kind == model::PlanKind::kSave) {
    impl_->publisher.drained(index, report, now);
    impl_->spill.write_behind();
    impl_->wake(now);
  } else {
    impl_->restorer.drained(index, report);
    impl_->restorer.wake(now);  // the device has room for one more
    impl_->wake(now);
  }
}

void Core::bank_freed(SessionId session, TimePoint) {
  if (impl_->sessions.open_session(session) != nullptr) impl_->grants.bank_freed(session);
}

void Core::loaded(TransferId transfer, bool ok, TimePoint now) {
  impl_->begin_call();
  if (!impl_->leases.loaded(transfer, ok, now)) log_unknown(transfer);
  impl_->wake(now);
}

void Core::stored(TransferId transfer, bool ok, TimePoint) {
  if (!impl_->spill.stored(transfer, ok)) log_unknown(transfer);
  impl_->spill.write_behind();
}

void Core::tier_opened(TimePoint now) {
  impl_->namespaces.reopen_spaces();
  tier_ready(now);
}

void Core::tier_ready(TimePoint now) {
  impl_->begin_call();
  impl_->loads.tier_ready();
  impl_->leases.pump(now);
  impl_->wake(now);
  // It takes stores again, too.
  if (impl_->retirer.report().state == RetireState::kImages) impl_->retirer.turn(now);
}

void Core::tick(TimePoint now) {
  impl_->begin_call();
  impl_->images.set_clock(now);
  impl_->leases.expire(now);
  impl_->recoveries.expire(now);
  impl_->interests.expire(now);
  impl_->recoveries.look_again();
  tier_ready(now);  // in case its word was lost
  impl_->spill.write_behind();
  impl_->publisher.tick(now);
  impl_->restorer.wake(now);
  impl_->images.abandon_idle_since({now.ns - impl_->config.incomplete_ttl.ns});
  retire_turn(now);
}

EvictReport Core::evict(ByteCount bytes, TimePoint) {
  const ImageStats before = impl_->images.stats();
  const std::uint64_t kept = impl_->images.evict_let_go(bytes);
  const ImageStats after = impl_->images.stats();
  const std::uint64_t blocks = after.evicted - before.evicted;
  return {blocks, after.evicted_bytes - before.evicted_bytes, after.pinned_images, after.held, kept};
}

// ---- status ----

CoreStats Core::stats() const {
  const ImageStats images = impl_->images.stats();
  const LeaseStats leases = impl_->leases.stats();
  const PublishStats& saves = impl_->publisher.stats();
  const RestoreStats& loads = impl_->restorer.stats();
  CoreStats s;
  s.sessions = impl_->sessions.living();
  s.instances = static_cast<std::uint32_t>(impl_->instances.all().size());
  s.leases = leases.leases;
  s.operations = impl_->operations.count();
  s.blocks = images.sealed;
  s.inflight_images = images.inflight;
  s.hits = leases.hits;
  s.misses = leases.misses;
  s.published = saves.published;
  s.published_bytes = saves.published_bytes;
  s.filtered = saves.filtered;
  s.dropped = saves.dropped;
  s.restored = loads.restored;
  s.restored_bytes = loads.restored_bytes;
  s.evicted = images.evicted;
  s.abandoned = images.abandoned;
  s.failed_verifications = loads.failed_verifications;
  s.failed_restores = loads.failed_restores;
  s.waits = saves.waits + loads.waits;
  s.expired_leases = leases.expired;
  s.quarantined_extents = images.quarantined_extents;
  const RecoveryStats recoveries = impl_->recoveries.stats();
  s.undelivered = leases.undelivered + recoveries.undelivered;
  s.tickets = impl_->leases.places().unfinished();
  s.looked_up = leases.looked_up + recoveries.looked_up;
  s.recoveries = recoveries.ready;
  s.recoveries_missed = recoveries.missed;
  s.recovery_waits = recoveries.waits;
  s.leased = images.pinned;
  s.interests = impl_->interests.stats();
  impl_->add_budget_stats(s);
  s.quarantined = impl_->pool.stats().quarantined;
  impl_->add_class_stats(s);
  impl_->add_tier_stats(s);
  return s;
}

Census Core::census() const {
  Census census;
  impl_->sessions.count(census);
  impl_->operations.count(census);
  impl_->images.count(census);
  impl_->loads.count(census);
  impl_->leases.count(census);
  impl_->leftovers.count(census);
  impl_->recoveries.count(census);
  for (const auto& [reader, records] : impl_->kept_reads) census.pinned += records.size();
  impl_->interests.count(census);
  census.retire = impl_->retirer.report().state;
  census.charged = impl_->leases.charged(impl_->operations) + impl_->loads.draining();
  return census;
}

void Core::Impl::add_budget_stats(CoreStats& s) const {
  const LeaseStats prefixes = leases.stats();
  const RecoveryStats sets = recoveries.stats();
  BudgetStats& b = s.budgets;
  b.limit = budgets.config().total;
  b.instance_limit = budgets.config().instance;
  b.used = budgets.used();
  b.peak = budgets.peak();
  b.speculative = budgets.speculative();
  b.draining = budgets.draining();
  b.waiting = line.count();
  b.waits = prefixes.budget_waits + sets.budget_waits;
  b.cut = prefixes.budget_cuts;
  b.bypassed = sets.bypassed;
  b.ended = prefixes.budget_misses + sets.budget_misses;
  const PreparedCounts& prepared = leases.places().prepared();
  b.prepared = prepared.all();
  b.prepares = prepared.begun;
  b.claimed = prepared.claimed;
  b.unclaimed = prepared.unclaimed;
  b.gave_way = prepared.gave_way;
  b.warms = warms.stats().hints;
  b.hints = warms.stats().given;
  b.warmed = warms.stats().blocks;
  b.warms_expired = warms.stats().expired;
  b.publisher_waits = prefixes.publisher_waits;
}

void Core::Impl::add_tier_stats(CoreStats& s) const {
  const LoadStats& in = loads.stats();
  s.loads = in.started;
  s.loaded = in.landed;
  s.loaded_bytes = in.landed_bytes.value;
  s.load_failures = in.failed;
  s.loads_gone = in.gone;
  s.loads_given_up = in.abandoned;
  s.shared_loads = in.shared;
  s.loads_refused_memory = in.refused_memory;
  s.loads_refused_bounds = in.refused_bounds;
  s.load_timeouts = leases.stats().wait_timeouts;
  s.early_leases = leases.stats().early;
  s.awaited_restores = restorer.stats().awaited;
  s.loading = loads.count();
  s.loading_bytes = loads.bytes();
  const SpillStats& out = spill.stats();
  s.spilled = out.stored;
  s.spilled_bytes = out.stored_bytes.value;
  s.spill_failures = out.failed;
  s.spills_refused = out.refused;
  s.spilling = images.stats().held;
}

std::vector<InstanceStats> Core::instances() const {
  std::vector<InstanceStats> out;
  for (const auto& [id, instance] : impl_->instances.all()) {
    const auto world = static_cast<std::uint16_t>(instance.ranks.size());
    out.push_back({id, instance.present, world, impl_->leases.count(id), impl_->line.count(instance.account),
                   impl_->budgets.used(instance.account)});
  }
  return out;
}

}  // namespace orbitkv::cache
