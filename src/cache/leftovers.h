// What has ended and is not back yet: pins, with the charge that stands for them, and lists of hashes.
// A little goes back at once, all else over turns, in the order of coming; a charge with the last of its
// pins. Owned by the core; single-threaded. Never returns a charge before its pins.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "cache/budgets.h"
#include "cache/hash_list.h"
#include "cache/images.h"

namespace orbitkv::cache {

class Leftovers {
 public:
  struct Parts {
    Images& images;
    Budgets& budgets;
    std::uint32_t turn_unpins;  // of one call, and of a turn
  };
  explicit Leftovers(const Parts& parts) : p_(parts), at_once_(parts.turn_unpins) {}
  ~Leftovers();

  // What one call gives back at once is counted from here on.
  void begin_call() { at_once_ = p_.turn_unpins; }
  // So many pins would go at once.
  bool fits(std::size_t pins) const { return pins <= at_once_; }
  struct Pins {
    std::size_t kept = 0;  // of the records: those before it stay
    Use use = Use::kForeground;
    ChargeIndex charge = kNoCharge;  // of those that go
  };
  // Afterwards the first `kept` are left. kNoRecord is no pin.
  void take(std::vector<RecordId>& records, const Pins& pins);
  // Empty afterwards.
  void take(HashList& list);

  bool any() const { return !ended_.empty() || !lists_.empty(); }
  void turn();
  // Whoever pins as many gives as many back first, so that what is left over does not grow.
  void pay(std::size_t pins) {
    if (!ended_.empty()) unpin_some(pins);
  }

  void count(Census& census) const;
  // Of charges that `seen` has not; recounted.
  ByteCount charged(std::set<ChargeIndex>& seen) const;

 private:
  struct Ended {
    std::vector<RecordId> records;
    std::size_t begin = 0;  // those from it on are pinned
    Use use = Use::kForeground;
    ChargeIndex charge = kNoCharge;
  };
  void unpin(std::span<RecordId> records, Use use);
  void unpin_some(std::size_t most);

  Parts p_;
  std::size_t at_once_;
  std::deque<Ended> ended_;
  std::deque<HashList> lists_;
};

}  // namespace orbitkv::cache
