#include "cache/namespaces.h"

#include "base/check.h"
#include "base/limits.h"

namespace orbitkv::cache {

std::optional<NamespaceIndex> Namespaces::intern(const model::NamespaceDigest& digest) {
  std::size_t unused = entries_.size();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].uses > 0 && entries_[i].digest == digest) {
      ++entries_[i].uses;
      return NamespaceIndex(static_cast<std::uint32_t>(i));
    }
    if (entries_[i].uses == 0) unused = i;
  }
  if (unused == limits::kNamespaces) return std::nullopt;
  if (unused == entries_.size()) entries_.emplace_back();
  entries_[unused] = {digest, 1};
  return NamespaceIndex(static_cast<std::uint32_t>(unused));
}

void Namespaces::acquire(NamespaceIndex index) {
  ORBITKV_CHECK(entries_.at(index.value).uses > 0, "namespace is not interned");
  ++entries_[index.value].uses;
}

void Namespaces::release(NamespaceIndex index) {
  ORBITKV_CHECK(entries_.at(index.value).uses > 0, "namespace released more often than acquired");
  --entries_[index.value].uses;
}

const model::NamespaceDigest& Namespaces::digest(NamespaceIndex index) const {
  return entries_.at(index.value).digest;
}

std::uint32_t Namespaces::uses(NamespaceIndex index) const {
  return index.value < entries_.size() ? entries_[index.value].uses : 0;
}

}  // namespace orbitkv::cache
