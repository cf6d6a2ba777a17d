// What the core takes over from an earlier life of the Manager.
#include <array>
#include <vector>

#include "base/limits.h"
#include "cache/core_impl.h"
#include "mem/kept_scan.h"
#include "mem/kept_table.h"

namespace orbitkv::cache {

std::uint64_t Core::adopt(const mem::KeptPool& kept, TimePoint now) {
  Images& images = impl_->images;
  images.set_clock(now);
  std::vector<std::optional<NamespaceIndex>> spaces(limits::kNamespaces);
  constexpr std::size_t kAhead = 8;
  for (std::size_t n = 0; n < kept.oldest_first.size(); ++n) {
    if (n + kAhead < kept.oldest_first.size())
      __builtin_prefetch(&kept.images[kept.oldest_first[n + kAhead]]);
    const std::uint32_t i = kept.oldest_first[n];
    const std::size_t shards = kept.images[i].slot.shards;
    const std::uint32_t old = kept.images[i].slot.name_space.value;
    if (!spaces[old]) {
      model::NamespaceDigest digest;
      digest.bytes = kept.names[old];
      spaces[old] = impl_->namespaces.intern(digest);
    }
    // As many as there were, so there is a number for each.
    images.adopt(std::span(kept.images).subspan(i, shards), *spaces[old]);
  }
  for (const auto& space : spaces)
    if (space) impl_->namespaces.release(*space);
  return images.stats().sealed;
}

}  // namespace orbitkv::cache
