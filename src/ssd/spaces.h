// Which shapes of images the store knows: those that engines use, and those of records that
// were found. Owned by the store; its thread only. A space's number stays its own while
// anything names it: uses, records and transfers.
// Never merges two shapes: of one namespace and group, but different in bytes, are two spaces.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "base/result.h"
#include "ssd/format_entries.h"

namespace orbitkv::ssd {

struct Space {
  SpaceShape shape;
  ImageLayout layout;
  std::uint32_t image_pages = 0;
  bool known = false;  // false: the number is free
  bool asked = false;  // an engine has interned it since the start
  std::uint32_t uses = 0;
  std::uint32_t holds = 0;           // transfers under way
  std::uint64_t records = 0;         // of the index
  RecordSequence killed;             // records up to it are gone, whatever the index still says
  std::uint64_t killed_records = 0;  // of those that it still has
  std::uint32_t writes = 0;          // of users, accepted and not ended
  std::uint64_t last_use = 0;        // StoreState::uses after that of a record of it

  std::uint64_t visible_records() const { return records - killed_records; }
  std::uint64_t record_bytes() const { return std::uint64_t{image_pages} * kPageBytes * shape.shards; }
};

class Spaces {
 public:
  // The space of this shape, made if there is none. kBusy: limits::kStoredSpaces; kReject:
  // the shape breaks its rules.
  Result<SpaceIndex> enter(const SpaceShape& shape);
  // Forgets it if nothing names it any more.
  void let_go(SpaceIndex space);
  void let_all_go();  // each of them
  // Rises when a space is forgotten, whose number another one may have then.
  std::uint64_t ended() const { return ended_; }

  bool known(SpaceIndex space) const { return space.value < spaces_.size() && spaces_[space.value].known; }
  Space& at(SpaceIndex space) { return spaces_[space.value]; }
  const Space& at(SpaceIndex space) const { return spaces_[space.value]; }
  // All of the namespace; of one group of it.
  std::vector<SpaceIndex> of(const model::NamespaceDigest& digest) const;
  std::vector<SpaceIndex> of(const model::NamespaceDigest& digest, GroupId group) const;
  std::vector<SpaceIndex> asked() const;
  // One of this namespace, group, number of shards and slot_bytes, in whole units.
  std::optional<SpaceIndex> like(const SpaceShape& shape, std::uint32_t unit) const;
  // What spaces() of the store says; ascending digests.
  std::vector<SpaceStatus> list() const;

 private:
  std::deque<Space> spaces_;  // never move
  std::multimap<model::NamespaceDigest, SpaceIndex> by_digest_;
  std::vector<SpaceIndex> free_;
  std::uint64_t ended_ = 0;
};

}  // namespace orbitkv::ssd
