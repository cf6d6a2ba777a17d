// Interned namespace digests: records hold 32 bits instead of 32 bytes. An entry
// lives while an instance or a record uses it; then its number may serve another
// digest. With it go the spaces that the tier has for its groups: images need theirs
// when they leave, long after the instance has ended. Owned by the core; single-threaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "model/geometry.h"

namespace orbitkv::mem {
class KeptTable;
}  // namespace orbitkv::mem

namespace orbitkv::cache {

class Tier;
using TierSpace = Id<struct TierSpaceTag, std::uint32_t>;
inline constexpr TierSpace kNoTierSpace{0xFFFFFFFFu};

class Namespaces {
 public:
  // nullptr: no tier, no spaces.
  explicit Namespaces(Tier* tier = nullptr) : tier_(tier) {}
  // Numbers are written there when they are given; outlives this.
  void keep_in(mem::KeptTable& table) { kept_ = &table; }
  ~Namespaces();  // closes the spaces
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  // One use more. nullopt: limits::kNamespaces are in use. `text`: what the digest was made of;
  // empty: not known.
  std::optional<NamespaceIndex> intern(const model::NamespaceDigest& digest, std::string_view text = {});
  void acquire(NamespaceIndex index);
  void release(NamespaceIndex index);
  const model::NamespaceDigest& digest(NamespaceIndex index) const;
  const std::string& text(NamespaceIndex index) const { return entries_.at(index.value).text; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(entries_.size()); }  // indices are below
  std::uint32_t uses(NamespaceIndex index) const;
  // nullopt: nobody uses it.
  std::optional<NamespaceIndex> find(const model::NamespaceDigest& digest) const;

  // While it is dropped the tier is given nothing of it.
  void begin_drop(NamespaceIndex index) { ++entries_.at(index.value).drops; }
  void end_drop(NamespaceIndex index) { --entries_.at(index.value).drops; }
  bool dropping(NamespaceIndex index) const { return entries_[index.value].drops > 0; }

  // Opens the spaces of the rank's groups that are not open.
  void open_spaces(NamespaceIndex index, const model::RankRegistration& rank);
  // Of images from an earlier life, until a rank registers.
  void reopen_space(NamespaceIndex index, GroupId group, std::uint16_t shards, ByteCount slot);
  // Those that the tier had not found when it was asked.
  void reopen_spaces();
  TierSpace space(NamespaceIndex index, GroupId group) const;
  bool lack_spaces() const;  // one that is used has none

 private:
  struct OfGroup {
    GroupId group;
    TierSpace space;
    bool reopened = false;
  };
  struct Wanted {
    GroupId group;
    std::uint16_t shards = 1;
    ByteCount slot;
  };
  struct Entry {
    model::NamespaceDigest digest;
    std::uint32_t uses = 0;
    std::string text = {};
    std::vector<OfGroup> spaces = {};
    std::uint32_t drops = 0;
    std::vector<Wanted> wanted = {};  // to be reopened; one a group
  };
  void set_text(NamespaceIndex index, std::string_view text);
  void close_spaces(Entry& entry);

  Tier* tier_;
  mem::KeptTable* kept_ = nullptr;
  std::vector<Entry> entries_;
};

}  // namespace orbitkv::cache
