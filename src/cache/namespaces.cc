#include "cache/namespaces.h"

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
      if (entries_[i].text.empty()) entries_[i].text = text;
      return NamespaceIndex(static_cast<std::uint32_t>(i));
    }
    if (entries_[i].uses == 0) unused = i;
  }
  if (unused == limits::kNamespaces) return std::nullopt;
  if (unused == entries_.size()) entries_.emplace_back();
  entries_[unused] = {digest, 1, std::string(text), {}};
  if (kept_ != nullptr)
    kept_->put_name_space(NamespaceIndex(static_cast<std::uint32_t>(unused)), digest.bytes);
  return NamespaceIndex(static_cast<std::uint32_t>(unused));
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

void Namespaces::open_spaces(NamespaceIndex index, const model::RankRegistration& rank) {
  if (tier_ == nullptr) return;
  for (const model::GroupShape& group : rank.groups) {
    if (space(index, group.group) != kNoTierSpace) continue;
    const TierSpace opened = tier_->open_space(rank, group.group);
    if (opened != kNoTierSpace) entries_.at(index.value).spaces.emplace_back(group.group, opened);
  }
}

void Namespaces::close_spaces(Entry& entry) {
  for (const auto& [group, space] : entry.spaces) tier_->close_space(space);
  entry.spaces.clear();
}

TierSpace Namespaces::space(NamespaceIndex index, GroupId group) const {
  for (const auto& [of, space] : entries_.at(index.value).spaces) {
    if (of == group) return space;
  }
  return kNoTierSpace;
}

}  // namespace orbitkv::cache
