// Whose load goes next: what somebody waits for before what is done ahead of need, instances
// in turn, then the leases of an instance, each in the order of its need. A lane belongs to a
// lease. Owned by cache/loads.h; core thread. Knows loads as numbers.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/ids.h"
#include "cache/budgets.h"
#include "cache/residency.h"

namespace orbitkv::cache {

using LeaseIndex = Id<struct LeaseIndexTag, std::uint32_t>;
using LoadIndex = Id<struct LoadIndexTag, std::uint32_t>;
inline constexpr LoadIndex kNoLoad{kNoLink};

class Lanes {
 public:
  struct Owner {
    AccountIndex account = kNoAccount;
    Use use = Use::kForeground;
  };
  // A lane that is empty has a new owner.
  void open(LeaseIndex lane, const Owner& owner);
  // What its owner has begun ahead of need is needed now.
  void promote(LeaseIndex lane);

  void push(LoadIndex load, LeaseIndex lane);
  void remove(LoadIndex load);
  // Whose turn it is; kNoLoad: nothing is queued. It stays so until served() or remove().
  LoadIndex front();
  // It is out of its lane, and others have their turn.
  void served(LoadIndex load);

  LeaseIndex lane_of(LoadIndex load) const { return places_[load.value].lane; }
  // In `to` its turn comes sooner than where it is.
  bool sooner(LoadIndex load, LeaseIndex to) const;
  bool urgent(LeaseIndex lane) const { return lanes_[lane.value].owner.use == Use::kForeground; }
  bool empty() const { return count_ == 0; }

 private:
  struct Place {
    LeaseIndex lane;
    LoadIndex prev = kNoLoad, next = kNoLoad;
    bool queued = false;
  };
  struct Lane {
    Owner owner;
    LoadIndex head = kNoLoad, tail = kNoLoad;
    std::uint32_t count = 0;
    bool ringed = false;
  };
  struct Turns {
    std::deque<LeaseIndex> lanes;  // that hold something, or held something
    bool ringed = false;
  };
  struct Class {
    std::vector<Turns> by_account;
    std::deque<AccountIndex> accounts;
  };

  Class& class_of(const Owner& owner) { return classes_[static_cast<std::size_t>(owner.use)]; }
  void ring(LeaseIndex lane);
  void unring(LeaseIndex lane);
  LoadIndex front(Class& c);

  std::vector<Place> places_;  // by load
  std::vector<Lane> lanes_;    // by lease
  std::array<Class, 2> classes_;
  std::uint32_t count_ = 0;
};

}  // namespace orbitkv::cache
