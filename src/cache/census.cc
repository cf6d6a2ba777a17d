#include "cache/census.h"

#include <algorithm>
#include <set>

#include "cache/images.h"
#include "cache/interests.h"
#include "cache/leases.h"
#include "cache/leftovers.h"
#include "cache/loads.h"
#include "cache/operations.h"
#include "cache/recoveries.h"
#include "cache/sessions.h"

namespace orbitkv::cache {
namespace {
template <class State>
void add(Census::Counts<State>& counts, State state) {
  ++counts[static_cast<std::size_t>(state)];
}
}  // namespace

void Sessions::count(Census& census) const {
  for (const Session& session : sessions_) add(census.sessions, session.state);
}

void Operations::count(Census& census) const {
  for (const Operation& op : operations_) {
    if (!op.open) continue;
    if (op.kind == model::PlanKind::kSave) {
      add(census.publishes, op.publish);
    } else {
      add(census.restores, op.restore);
      census.pinned += op.pinned.size() -
                       static_cast<std::size_t>(std::count(op.pinned.begin(), op.pinned.end(), kNoRecord));
    }
  }
}

void Images::count(Census& census) const {
  for (std::uint32_t r = 0; r < table_.high_water(); ++r) {
    const HotRecord& hot = table_.hot(RecordId(r));
    if (hot.state == ImageState::kFree) continue;
    add(census.images, hot.state);
    const ColdRecord& cold = table_.cold(RecordId(r));
    census.pins += cold.pins;
    std::uint64_t held = cold.allocation != 0 ? cold.units : 0;
    for (std::uint32_t i = cold.further; i != 0; i = further_.at(i).next)
      if (further_.at(i).allocation != 0) held += further_.at(i).units;
    census.held += held * ByteCount(kUnit);
  }
}

void Loads::count(Census& census) const {
  for (const Load& load : loads_) {
    if (load.state == LoadState::kEnded) continue;
    add(census.loads, load.state);
    census.load_waiters += load.waiters.size();
  }
}

ByteCount Loads::draining() const {
  ByteCount all;
  for (const Load& load : loads_)
    if (load.state != LoadState::kEnded && load.drainer != kNoAccount) all += load.charge;
  return all;
}

ByteCount Leases::charged(const Operations& operations) const {
  ByteCount all;
  std::set<ChargeIndex> seen;
  for (const Lease& lease : leases_) {
    if (lease.charge == kNoCharge || lease.state == LeaseState::kRetired) continue;
    seen.insert(lease.charge);
    all += lease.hits * lease.block_bytes;
  }
  for (std::uint32_t i = 0; i < operations.high_water(); ++i) {
    const Operation& op = operations.at(OperationIndex(i));
    if (!op.open || op.charge == kNoCharge || !seen.insert(op.charge).second) continue;
    all += budgets_.bytes(op.charge);
  }
  return all + leftovers_.charged(seen);
}

ByteCount Leftovers::charged(std::set<ChargeIndex>& seen) const {
  ByteCount all;
  for (const Ended& ended : ended_)
    if (ended.charge != kNoCharge && seen.insert(ended.charge).second) all += p_.budgets.bytes(ended.charge);
  return all;
}

void Leftovers::count(Census& census) const {
  for (const Ended& ended : ended_) {
    const auto first = ended.records.begin() + static_cast<std::ptrdiff_t>(ended.begin);
    census.pinned += static_cast<std::uint64_t>(ended.records.end() - first -
                                                std::count(first, ended.records.end(), kNoRecord));
  }
}

void Leases::count(Census& census) const {
  for (const Lease& lease : leases_) {
    if (lease.state == LeaseState::kRetired) continue;
    add(census.leases, lease.state);
    const auto none = std::count(lease.records.begin(), lease.records.end(), kNoRecord);
    census.pinned += lease.records.size() - static_cast<std::size_t>(none);
    census.tickets += lease.places.unfinished() ? 1 : 0;
    const bool named = lease.recovery == kNoRecovery && !lease.warm;
    census.owned += named && lease.name.mode == QueryMode::kInterest ? 1 : 0;
  }
}

void Recoveries::count(Census& census) const {
  for (const Recovery& recovery : recoveries_) {
    if (recovery.state == RecoveryState::kRetired) continue;
    add(census.recoveries, recovery.state);
    census.tickets += recovery.places.unfinished() ? 1 : 0;
    census.owned += recovery.interest ? 1 : 0;
  }
}

void Interests::count(Census& census) const {
  for (const auto& [key, interest] : interests_) {
    add(census.interests, interest.state);
    census.owners += interest.revision.value != 0 ? 1 : 0;
  }
}

}  // namespace orbitkv::cache
