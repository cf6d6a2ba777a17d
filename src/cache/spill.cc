#include "cache/spill.h"

#include <algorithm>

namespace orbitkv::cache {

namespace {

// The window is as large as what a burst of saves takes while the tier writes.
constexpr ByteCount kWindow = 64 * kMiB;
constexpr std::uint64_t kWindowShare = 20;  // or this part of the pool
constexpr int kTurn = 64;                   // images that one turn considers

}  // namespace

Tier::Key Spill::key_of(RecordId record) const {
  const BlockKey key = p_.images.key(record);
  return {p_.namespaces.space(key.name_space, key.group), key.hash};
}

bool Spill::store(RecordId record, const Tier::Key& key) {
  words_.clear();
  for (std::uint16_t s = 0; s < p_.images.shards(record); ++s) {
    words_.push_back(p_.images.words(p_.images.slot_of(record, ShardId(s))));
  }
  const Result<TransferId> transfer = p_.tier->store(key, words_);
  if (!transfer.ok()) {
    ++stats_.refused;
    return false;
  }
  p_.images.hold_for_io(record);
  under_way_.emplace(*transfer, record);
  return true;
}

void Spill::sealed(RecordId record) {
  if (p_.tier == nullptr) return;
  const Tier::Key key = key_of(record);
  if (key.space == kNoTierSpace || p_.namespaces.dropping(p_.images.key(record).name_space)) return;
  if (p_.tier->sealed(key, p_.images.bytes(record)) == Tier::Answer::kStore) store(record, key);
}

Keeper::Leave Spill::leaving(RecordId record) {
  const Tier::Key key = key_of(record);
  if (key.space == kNoTierSpace || p_.namespaces.dropping(p_.images.key(record).name_space))
    return Leave::kGo;
  if (p_.tier->leaving(key, p_.images.bytes(record)) != Tier::Answer::kStore) return Leave::kGo;
  return store(record, key) ? Leave::kHeld : Leave::kDirty;
}

ByteCount Spill::window() const {
  return std::max(kWindow, ByteCount(p_.pool.capacity().value / kWindowShare));
}

// Pinned ones become recent with their last unpin; those under way have been asked about.
void Spill::write_behind() {
  if (p_.tier == nullptr || p_.pool.free_bytes() >= window()) return;
  for (int turn = 0; turn < kTurn && p_.images.considered() < window(); ++turn) {
    const RecordId record = p_.images.next_unconsidered();
    if (record == kNoRecord) return;
    if (p_.images.unheld(record) && leaving(record) == Leave::kDirty) return;
    p_.images.consider_next();
  }
}

bool Spill::stored(TransferId transfer, bool ok) {
  const auto it = under_way_.find(transfer);
  if (it == under_way_.end()) return false;
  const RecordId record = it->second;
  under_way_.erase(it);
  if (ok) {
    ++stats_.stored;
    stats_.stored_bytes += p_.images.bytes(record);
  } else {
    ++stats_.failed;
  }
  p_.images.end_io(record, ok);
  return true;
}

void Spill::suspect(RecordId record) {
  if (p_.tier == nullptr) return;
  const Tier::Key key = key_of(record);
  if (key.space == kNoTierSpace) return;
  const SlotWords first = p_.images.words(p_.images.slot_of(record, ShardId(0)));
  p_.tier->suspect(key, {first.digest, first.revision});
}

}  // namespace orbitkv::cache
