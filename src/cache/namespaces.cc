#include "cache/namespaces.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "cache/tier.h"
#include "mem/kept_table.h"

namespace orbitkv::cache {

Namespaces::~Namespaces() {
  for (Entry& entry : entries_) close_spaces(entry);
}

std::optional<NamespaceIndex> Namespaces::intern(const model::NamespaceDigest& digest,
                                                 std::string_view text) {
  std::size_t unused = entries_.size();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].uses > 0 && entries_[i].digest == digest) {
      ++entries_[i].uses;
      const NamespaceIndex index(static_cast<std::uint32_t>(i));
      if (entries_[i].text.empty()) set_text(index, text);
      return index;
    }
    if (entries_[i].uses == 0) unused = i;
  }
  if (unused == limits::kNamespaces) return std::nullopt;
  if (unused == entries_.size()) entries_.emplace_back();
  entries_[unused] = {digest, 1, {}, {}};
  const NamespaceIndex index(static_cast<std::uint32_t>(unused));
  if (kept_ != nullptr) kept_->put_name_space(index, digest.bytes);
  set_text(index, text);
  return index;
}

void Namespaces::set_text(NamespaceIndex index, std::string_view text) {
  entries_[index.value].text = text;
  if (kept_ != nullptr) kept_->put_name_text(index, text);
}

void Namespaces::acquire(NamespaceIndex index) {
  ORBITKV_CHECK(entries_.at(index.value).uses > 0, "namespace is not interned");
  ++entries_[index.value].uses;
}

void Namespaces::release(NamespaceIndex index) {
  ORBITKV_CHECK(entries_.at(index.value).uses > 0, "namespace released more often than acquired");
  Entry& entry = entries_[index.value];
  if (--entry.uses == 0) close_spaces(entry);
}

const model::NamespaceDigest& Namespaces::digest(NamespaceIndex index) const {
  return entries_.at(index.value).digest;
}

std::uint32_t Namespaces::uses(NamespaceIndex index) const {
  return index.value < entries_.size() ? entries_[index.value].uses : 0;
}

std::optional<NamespaceIndex> Namespaces::find(const model::NamespaceDigest& digest) const {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].uses > 0 && entries_[i].digest == digest) {
      return NamespaceIndex(static_cast<std::uint32_t>(i));
    }
  }
  return std::nullopt;
}

// ---- spaces of the tier ----

// What was reopened is opened by the first who registers, too: only then it is asked for.
void Namespaces::open_spaces(NamespaceIndex index, const model::RankRegistration& rank) {
  if (tier_ == nullptr) return;
  std::vector<OfGroup>& spaces = entries_.at(index.value).spaces;
  for (const model::GroupShape& group : rank.groups) {
    const auto known = std::find_if(spaces.begin(), spaces.end(),
                                    [&](const OfGroup& each) { return each.group == group.group; });
    if (known != spaces.end() && !known->reopened) continue;
    const TierSpace opened = tier_->open_space(rank, group.group);
    if (opened == kNoTierSpace) continue;
    if (known != spaces.end()) {
      tier_->close_space(known->space);
      spaces.erase(known);
    }
    spaces.push_back({group.group, opened});
  }
}

void Namespaces::reopen_space(NamespaceIndex index, GroupId group, std::uint16_t shards, ByteCount slot) {
  if (tier_ == nullptr || space(index, group) != kNoTierSpace) return;
  Entry& entry = entries_.at(index.value);
  const TierSpace opened = tier_->reopen_space({entry.digest, group, shards, slot});
  if (opened != kNoTierSpace) return entry.spaces.push_back({group, opened, true});
  const auto same = [&](const Wanted& each) { return each.group == group; };
  if (std::none_of(entry.wanted.begin(), entry.wanted.end(), same))
    entry.wanted.push_back({group, shards, slot});
}

void Namespaces::reopen_spaces() {
  for (std::uint32_t i = 0; i < size(); ++i) {
    if (entries_[i].uses == 0) continue;
    for (const Wanted& each : std::exchange(entries_[i].wanted, {}))
      reopen_space(NamespaceIndex(i), each.group, each.shards, each.slot);
  }
}

void Namespaces::close_spaces(Entry& entry) {
  for (const OfGroup& each : entry.spaces) tier_->close_space(each.space);
  entry.spaces.clear();
  entry.wanted.clear();
}

bool Namespaces::lack_spaces() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& each) { return each.uses > 0 && each.spaces.empty(); });
}

TierSpace Namespaces::space(NamespaceIndex index, GroupId group) const {
  for (const OfGroup& each : entries_.at(index.value).spaces) {
    if (each.group == group) return each.space;
  }
  return kNoTierSpace;
}

}  // namespace orbitkv::cache
