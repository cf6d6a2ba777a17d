// What the operator asks of Core about blocks: by namespace, by age, by class; and what
// publishes do.
#include <algorithm>

#include "cache/core_impl.h"

namespace orbitkv::cache {

DropId Core::begin_drop(const DropWhat& what, DropRun run, TimePoint now) {
  return impl_->drops.begin(what, run, now);
}

bool Core::turn(TimePoint now) {
  const bool had_work = impl_->works();
  impl_->begin_call();
  impl_->leftovers.turn();
  impl_->end_turn(now);
  if (impl_->leases.expires()) impl_->leases.expire(now);
  if (impl_->images.sweeps()) impl_->images.sweep();
  impl_->publisher.turn(now);
  impl_->line.next_turn();
  impl_->leases.take_turn(now);
  impl_->recoveries.take_turn(now);
  if (had_work) {
    impl_->leases.pump(now);
    impl_->wake(now);  // a charge may be back
  }
  const bool drops = impl_->drops.turn(now);
  return drops || impl_->works();
}

bool Core::works() const {
  return impl_->works();
}

std::optional<std::vector<NamespaceBlocks>> Core::take_dropped(DropId drop) {
  return impl_->drops.take(drop);
}

std::vector<NamespaceBlocks> Core::namespaces() const {
  const Namespaces& all = impl_->namespaces;
  std::vector<NamespaceBlocks> out;
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    const NamespaceIndex index(i);
    if (all.uses(index) > 0) out.push_back({all.digest(index), all.text(index), 0, {}});
  }
  return out;
}

std::optional<PublishActivity> Core::publish_activity(const InstanceId& id, TimePoint now) const {
  const Instance* instance = impl_->instances.find_instance(id);
  if (instance == nullptr) return std::nullopt;
  PublishActivity out;
  out.instance = id;
  out.dropped = instance->dropped;
  std::vector<SessionId> sessions;
  for (const RegistrationId rank : instance->ranks) {
    const Registration* registered = impl_->instances.find(rank);
    if (registered == nullptr) continue;
    const SessionId session = registered->session;
    if (std::find(sessions.begin(), sessions.end(), session) == sessions.end()) sessions.push_back(session);
  }
  for (const SessionId session : sessions) {
    for (const OperationIndex index : impl_->operations.of_session(session)) {
      const Operation& op = impl_->operations.at(index);
      const Registration* of = impl_->instances.find(op.registration);
      if (op.kind != model::PlanKind::kSave || of == nullptr || of->instance != id) continue;
      ++(op.publish == PublishState::kWaiting ? out.waiting : out.open);
      out.lent += op.lent * op.group.slot_bytes;
      out.oldest = std::max(out.oldest, now - op.opened);
    }
  }
  return out;
}

void Core::Impl::add_class_stats(CoreStats& s) const {
  const ImageStats stats = images.stats();
  const auto of = [&](EvictionClass which) {
    const Residency::Listed listed = images.listed(which);
    return CoreStats::OfClass{listed.records, stats.evicted_of[static_cast<std::size_t>(which)],
                              listed.units * Images::kUnitBytes};
  };
  s.reclaimable = of(EvictionClass::kReclaimable);
  s.probationary = of(EvictionClass::kProbationary);
  s.retained = of(EvictionClass::kRetained);
  s.protected_share = images.protected_share();
}

}  // namespace orbitkv::cache
