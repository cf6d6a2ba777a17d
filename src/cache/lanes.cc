#include "cache/lanes.h"

#include "base/check.h"

namespace orbitkv::cache {

void Lanes::open(LeaseIndex lane, const Owner& owner) {
  if (lanes_.size() <= lane.value) lanes_.resize(lane.value + 1);
  Lane& l = lanes_[lane.value];
  ORBITKV_CHECK(l.count == 0, "a lane that holds loads has an owner");
  if (l.ringed) unring(lane);
  l.owner = owner;
}

void Lanes::promote(LeaseIndex lane) {
  Lane& l = lanes_[lane.value];
  if (l.owner.use == Use::kForeground) return;
  const bool ringed = l.ringed;
  if (ringed) unring(lane);
  l.owner.use = Use::kForeground;
  if (ringed) ring(lane);
}

// ---- in and out ----

void Lanes::push(LoadIndex load, LeaseIndex lane) {
  if (places_.size() <= load.value) places_.resize(load.value + 1);
  Lane& l = lanes_[lane.value];
  places_[load.value] = {lane, l.tail, kNoLoad, true};
  (l.tail == kNoLoad ? l.head : places_[l.tail.value].next) = load;
  l.tail = load;
  ++l.count;
  ++count_;
  if (!l.ringed) ring(lane);
}

// An empty lane leaves the ring when its turn comes.
void Lanes::remove(LoadIndex load) {
  Place& p = places_[load.value];
  ORBITKV_CHECK(p.queued, "a load leaves its lane twice");
  Lane& l = lanes_[p.lane.value];
  (p.prev == kNoLoad ? l.head : places_[p.prev.value].next) = p.next;
  (p.next == kNoLoad ? l.tail : places_[p.next.value].prev) = p.prev;
  p.queued = false;
  --l.count;
  --count_;
}

bool Lanes::sooner(LoadIndex load, LeaseIndex to) const {
  const Lane& from = lanes_[places_[load.value].lane.value];
  const Lane& other = lanes_[to.value];
  if (from.owner.use != other.owner.use) return other.owner.use == Use::kForeground;
  return other.count + 1 < from.count;
}

// ---- turns ----

void Lanes::ring(LeaseIndex lane) {
  Lane& l = lanes_[lane.value];
  Class& c = class_of(l.owner);
  if (c.by_account.size() <= l.owner.account.value) c.by_account.resize(l.owner.account.value + 1);
  Turns& turns = c.by_account[l.owner.account.value];
  turns.lanes.push_back(lane);
  l.ringed = true;
  if (turns.ringed) return;
  turns.ringed = true;
  c.accounts.push_back(l.owner.account);
}

void Lanes::unring(LeaseIndex lane) {
  Lane& l = lanes_[lane.value];
  std::erase(class_of(l.owner).by_account[l.owner.account.value].lanes, lane);
  l.ringed = false;
}

LoadIndex Lanes::front(Class& c) {
  while (!c.accounts.empty()) {
    Turns& turns = c.by_account[c.accounts.front().value];
    while (!turns.lanes.empty()) {
      Lane& lane = lanes_[turns.lanes.front().value];
      if (lane.head != kNoLoad) return lane.head;
      lane.ringed = false;
      turns.lanes.pop_front();
    }
    turns.ringed = false;
    c.accounts.pop_front();
  }
  return kNoLoad;
}

LoadIndex Lanes::front() {
  const LoadIndex urgent = front(classes_[static_cast<std::size_t>(Use::kForeground)]);
  return urgent != kNoLoad ? urgent : front(classes_[static_cast<std::size_t>(Use::kSpeculative)]);
}

void Lanes::served(LoadIndex load) {
  const LeaseIndex lane = places_[load.value].lane;
  Class& c = class_of(lanes_[lane.value].owner);
  remove(load);
  Turns& turns = c.by_account[c.accounts.front().value];
  ORBITKV_CHECK(turns.lanes.front() == lane, "it was not this load's turn");
  turns.lanes.pop_front();
  turns.lanes.push_back(lane);
  c.accounts.push_back(c.accounts.front());
  c.accounts.pop_front();
}

}  // namespace orbitkv::cache
