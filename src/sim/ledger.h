// What must be true, kept beside the production code and from what its clients and devices
// do, not from what it says: who may read or write which bytes of the pool right now, and
// which blocks were ever written whole. Owned by the World; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "sim/content.h"

namespace orbitkv::sim {

// Bytes of one pool, which may outlive the Manager that made it. Offsets of different slabs and
// pools never meet.
struct Place {
  std::uint64_t pool = 0;
  SlabId slab;
  std::uint64_t offset = 0;
  ByteCount bytes;
};

enum class Use : std::uint8_t { kRead, kWrite };

class Ledger {
 public:
  // From a claim to its receipt, or from the start of an I/O to its end. The text says who
  // has been given bytes that somebody else still uses; nullopt: nobody.
  std::optional<std::string> take(const Place& place, Use use, const std::string& who);
  void leave(const Place& place, Use use);
  // Sources of a restore that began before a Manager died: nobody writes there while `still` says so.
  void hold(const Place& place, std::function<bool()> still) {
    sources_.emplace_back(place, std::move(still));
  }
  // Nobody uses any of it.
  bool free(const Place& place) const { return conflicting(place, Use::kWrite) == nullptr; }
  // Those who write in a pool now, and who did when their processes died.
  std::vector<Place> writers(std::uint64_t pool) const;
  // A bit there was flipped: whoever reads it finds that it does not verify.
  void damage(const Place& place) { damaged_.insert(key(place)); }
  bool damaged(const Place& place) const;
  // A device has written all of it into the pool.
  void written(Content content) { written_.insert(content); }
  bool was_written(Content content) const { return written_.contains(content); }

 private:
  struct Key {
    std::uint64_t pool = 0;
    std::uint32_t slab = 0;
    std::uint64_t offset = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Held {
    std::uint64_t end = 0;
    std::uint32_t readers = 0, writers = 0;
    std::string who;  // the last one
  };
  static Key key(const Place& place) { return {place.pool, place.slab.value, place.offset}; }
  const Held* conflicting(const Place& place, Use use) const;

  bool holds_source(const Place& place);

  std::map<Key, Held> uses_;
  std::vector<std::pair<Place, std::function<bool()>>> sources_;
  std::set<Key> damaged_;
  std::unordered_set<Content> written_;
};

}  // namespace orbitkv::sim
