// What the operator asks of Core about blocks: by namespace, by age, by class; and what
// publishes do.
#include <algorithm>

#include "cache/core_impl.h"

namespace orbitkv::cache {

std::vector<NamespaceBlocks> Core::Impl::named(const Images::Tally& tally) const {
  std::vector<NamespaceBlocks> out;
  for (std::uint32_t i = 0; i < tally.size(); ++i) {
    const NamespaceIndex index(i);
    if (namespaces.uses(index) == 0) continue;
    out.push_back({namespaces.digest(index), namespaces.text(index), tally[i].images, tally[i].bytes});
  }
  return out;
}

std::vector<NamespaceBlocks> Core::drop(const DropWhat& what, DropRun run, TimePoint now) {
  Namespaces& all = impl_->namespaces;
  Images::Filter filter;
  filter.unused = what.unused;
  filter.of.assign(all.size(), what.digests.empty());
  std::vector<NamespaceIndex> chosen;  // used until their names are told
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    if (all.uses(NamespaceIndex(i)) == 0) continue;
    const auto named = std::find(what.digests.begin(), what.digests.end(), all.digest(NamespaceIndex(i)));
    if (named != what.digests.end()) filter.of[i] = true;
    if (!filter.of[i]) continue;
    all.acquire(NamespaceIndex(i));
    chosen.emplace_back(i);
  }
  impl_->images.set_clock(now);
  const bool drops = run == DropRun::kDrop;
  if (drops && what.unused.ns == 0)
    for (const NamespaceIndex index : chosen) impl_->loads.doom(index);
  const Images::Tally tally = drops ? impl_->images.drop_all(filter) : impl_->images.tally(filter);
  std::vector<NamespaceBlocks> out = impl_->named(tally);
  std::erase_if(out, [](const NamespaceBlocks& each) { return each.blocks == 0; });
  for (const NamespaceIndex index : chosen) all.release(index);
  return out;
}

std::vector<NamespaceBlocks> Core::namespaces(TimePoint) const {
  Images::Filter all;
  all.of.assign(impl_->namespaces.size(), true);
  return impl_->named(impl_->images.tally(all));
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
      for (const ImageSlot& slot : op.slots)
        if (slot.record != kNoRecord) out.lent += op.group.slot_bytes;
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
