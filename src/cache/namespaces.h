// Interned namespace digests: records hold 32 bits instead of 32 bytes. An entry
// lives while an instance or a record uses it; then its number may serve another
// digest. Owned by the core; single-threaded.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "model/geometry.h"

namespace orbitkv::cache {

class Namespaces {
 public:
  // One use more. nullopt: limits::kNamespaces are in use.
  std::optional<NamespaceIndex> intern(const model::NamespaceDigest& digest);
  void acquire(NamespaceIndex index);
  void release(NamespaceIndex index);
  const model::NamespaceDigest& digest(NamespaceIndex index) const;
  std::uint32_t uses(NamespaceIndex index) const;

 private:
  struct Entry {
    model::NamespaceDigest digest;
    std::uint32_t uses = 0;
  };
  std::vector<Entry> entries_;
};

}  // namespace orbitkv::cache
