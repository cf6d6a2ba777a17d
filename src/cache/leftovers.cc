#include "cache/leftovers.h"

#include <algorithm>
#include <utility>

namespace orbitkv::cache {

Leftovers::~Leftovers() {
  while (any()) turn();
}

void Leftovers::unpin(std::span<RecordId> records, Use use) {
  const auto end = std::remove(records.begin(), records.end(), kNoRecord);
  p_.images.unpin({records.begin(), end}, use);
}

void Leftovers::take(std::vector<RecordId>& records, const Pins& pins) {
  const std::size_t count = records.size() - pins.kept;
  if (fits(count)) {
    at_once_ -= count;
    unpin(std::span(records).subspan(pins.kept), pins.use);
    records.resize(pins.kept);
    if (pins.charge != kNoCharge) p_.budgets.drop(pins.charge);
    return;
  }
  Ended& ended = ended_.emplace_back();
  ended.use = pins.use;
  ended.charge = pins.charge;
  // What is shorter is copied.
  const auto middle = records.begin() + static_cast<std::ptrdiff_t>(pins.kept);
  if (pins.kept >= count) {
    ended.records.assign(middle, records.end());
    records.resize(pins.kept);
  } else {
    std::vector<RecordId> stay(records.begin(), middle);
    ended.records = std::exchange(records, std::move(stay));
    ended.begin = pins.kept;
  }
}

void Leftovers::take(HashList& list) {
  if (list.size() > HashList::kPiece) {
    lists_.push_back(std::move(list));
  } else {
    list.free_some(1);
  }
}

// From the back; a short one ends with another in its turn.
void Leftovers::unpin_some(std::size_t most) {
  while (!ended_.empty() && most > 0) {
    Ended& ended = ended_.front();
    const std::size_t count = std::min(ended.records.size() - ended.begin, most);
    const std::size_t kept = ended.records.size() - count;
    unpin(std::span(ended.records).subspan(kept), ended.use);
    ended.records.resize(kept);
    most -= count;
    if (kept > ended.begin) return;
    if (ended.charge != kNoCharge) p_.budgets.drop(ended.charge);
    ended_.pop_front();
  }
}

void Leftovers::turn() {
  unpin_some(p_.turn_unpins);
  if (!lists_.empty() && lists_.front().free_some(limits::kPiecesPerTurn)) lists_.pop_front();
}

}  // namespace orbitkv::cache
