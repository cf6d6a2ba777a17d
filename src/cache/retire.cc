#include "cache/retire.h"

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"

namespace orbitkv::cache {

namespace {

constexpr std::uint32_t kImageCost = 16;  // looks that the end of an image is worth

Error slab_retires() {
  return recompute("the slab that these blocks lie on retires; ask again");
}

}  // namespace

Status Retirer::begin(SlabSlot slab, TimePoint now) {
  if (state_ != RetireState::kIdle) return busy(format_text("slab %u retires; one at a time", slab_.value));
  if (p_.pool.slab(slab).state != mem::SlabState::kOffered) return reject("the slab is not in use");
  step(state_, RetireEvent::kBegin);
  slab_ = slab;
  next_ = 0;
  store_end_ = now + p_.store_wait;
  left_.clear();
  claimed_.clear();
  p_.pool.begin_retire(slab);
  p_.loads.doom(slab);
  p_.leases.fail_doomed(now);
  return ok_status();
}

bool Retirer::turn(TimePoint now) {
  switch (state_) {
    case RetireState::kImages: return sweep_images(now);
    case RetireState::kGrants: return sweep_grants(now);
    case RetireState::kClaims: settle_claims(now); return state_ != RetireState::kClaims;
    case RetireState::kDevice: return strip();
    case RetireState::kIdle:
    case RetireState::kDrained:
    case RetireState::kIllegal: break;
  }
  return false;
}

// Nothing new comes to the slab, so one pass over the table finds all that stands there.
bool Retirer::sweep_images(TimePoint now) {
  const Images::Store store = now < store_end_ ? Images::Store::kFirst : Images::Store::kNo;
  const std::uint32_t end = p_.images.table().high_water();
  for (std::uint32_t looks = 0; next_ < end && looks < p_.looks; ++looks) {
    const RecordId record(next_);
    if (p_.images.on_slab(record, slab_)) {
      const bool visible = p_.images.sealed(record);
      if (!p_.images.retire(record, slab_, store)) return false;
      stats_.images += visible ? 1 : 0;
      if (p_.images.on_slab(record, slab_)) left_.push_back(record);
      looks += kImageCost;
    }
    ++next_;
  }
  if (next_ < end) return true;
  step(state_, RetireEvent::kSwept);
  next_ = 0;
  return true;
}

bool Retirer::touches(const Operation& op) const {
  return std::any_of(op.slots.begin(), op.slots.end(), [&](const ImageSlot& slot) {
    return slot.record != kNoRecord && p_.images.on_slab(slot, slab_);
  });
}

bool Retirer::sweep_grants(TimePoint now) {
  for (std::uint32_t looks = 0; next_ < p_.operations.high_water(); ++next_) {
    if (looks >= p_.looks) return true;
    const Operation& op = p_.operations.at(OperationIndex(next_));
    looks += 1 + static_cast<std::uint32_t>(op.slots.size());
    if (op.open && touches(op)) take_grant_back(OperationIndex(next_), now);
  }
  step(state_, RetireEvent::kRevoked);
  next_ = 0;
  claims_end_ = now + p_.claim_wait;
  return true;
}

void Retirer::take_grant_back(OperationIndex index, TimePoint now) {
  const Operation& op = p_.operations.at(index);
  const OperationKey key = op.key;
  const bool save = op.kind == model::PlanKind::kSave;
  if ((save ? retire_action(op.publish) : retire_action(op.restore)) == RetireAction::kWithdraw) {
    if (save) {
      p_.publisher.withdraw(index, slab_retires(), now);
    } else {
      p_.restorer.withdraw(index, slab_retires());
    }
  }
  if (p_.operations.find(key) == index) {
    claimed_.push_back(key);
  } else {
    ++stats_.revoked;
  }
}

// A copy that was claimed is safe to leave alone: it goes to pages that nobody else will
// name. What is left of its operation is what lies on other slabs.
void Retirer::settle_claims(TimePoint now) {
  std::erase_if(claimed_, [&](const OperationKey& key) {
    const OperationIndex index = p_.operations.find(key);
    return index == kNoOperation || !touches(p_.operations.at(index));
  });
  if (!claimed_.empty() && now < claims_end_) return;
  const std::vector<OperationKey> claimed = claimed_;
  for (const OperationKey& key : claimed) {
    const OperationIndex index = p_.operations.find(key);
    if (index == kNoOperation) continue;
    ORBITKV_WARN("operation %llu of session %u holds slab %u claimed; the slab retires without it",
                 static_cast<unsigned long long>(key.operation.value), key.session.value, slab_.value);
    ++stats_.detached;
    if (p_.operations.at(index).kind == model::PlanKind::kSave) {
      p_.publisher.detach(index, slab_, now);
    } else {
      p_.restorer.detach(index, slab_);
    }
  }
  claimed_.clear();
  step(state_, RetireEvent::kDetached);
}

// Pins keep records, not bytes that nobody may copy any more. What the tier has under way
// comes again.
bool Retirer::strip() {
  std::uint32_t kept = next_;
  const std::size_t end = std::min<std::size_t>(left_.size(), std::size_t{next_} + p_.looks);
  for (std::size_t i = next_; i < end; ++i) {
    const RecordId record = left_[i];
    if (!p_.images.on_slab(record, slab_)) continue;
    if (!p_.images.strip(record, slab_)) left_[kept++] = record;
  }
  left_.erase(left_.begin() + kept, left_.begin() + static_cast<std::ptrdiff_t>(end));
  next_ = kept;
  if (next_ < left_.size()) return true;
  next_ = 0;
  const mem::SlabInfo& slab = p_.pool.slab(slab_);
  if (slab.used != slab.quarantined) return false;
  step(state_, RetireEvent::kQuiet);
  return true;
}

void Retirer::abandon() {
  step(state_, RetireEvent::kAbandon);
  p_.pool.abandon(slab_);
}

RetireReport Retirer::report() const {
  RetireReport report;
  report.state = state_;
  report.slab = slab_;
  report.claims = static_cast<std::uint32_t>(claimed_.size());
  if (state_ == RetireState::kIdle) return report;
  const mem::SlabInfo& slab = p_.pool.slab(slab_);
  report.left = slab.used - slab.quarantined;
  return report;
}

std::uint32_t Retirer::claims(SessionId session) const {
  return static_cast<std::uint32_t>(
      std::count_if(claimed_.begin(), claimed_.end(), [&](const OperationKey& key) {
        return key.session == session && p_.operations.find(key) != kNoOperation;
      }));
}

}  // namespace orbitkv::cache
