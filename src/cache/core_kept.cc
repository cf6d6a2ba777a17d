// What the core takes over from an earlier life of the Manager.
#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "cache/core_impl.h"
#include "mem/kept_scan.h"
#include "mem/kept_table.h"

namespace orbitkv::cache {
namespace {

bool by_place(const mem::KeptRead& a, const mem::KeptRead& b) {
  return std::tie(a.slab, a.offset) < std::tie(b.slab, b.offset);
}

}  // namespace

std::uint64_t Core::adopt(const mem::KeptPool& kept, TimePoint now, std::span<const mem::KeptRead> reads,
                          const std::function<void()>& goes_on) {
  Images& images = impl_->images;
  images.set_clock(now);
  std::vector<mem::KeptRead> sources(reads.begin(), reads.end());
  std::sort(sources.begin(), sources.end(), by_place);
  const auto pin_sources = [&](RecordId record, const mem::KeptPlace& place, AllocationId revision) {
    const auto [first, last] = std::equal_range(sources.begin(), sources.end(),
                                                mem::KeptRead{{}, place.slab, place.offset, {}}, by_place);
    for (auto source = first; source != last; ++source) {
      if (source->revision != revision) continue;
      images.pin({&record, 1});
      impl_->kept_reads[source->reader].push_back(record);
    }
  };
  std::vector<std::optional<NamespaceIndex>> spaces(limits::kNamespaces);
  using Kind = std::pair<NamespaceIndex, GroupId>;
  Kind last{NamespaceIndex(limits::kNamespaces), {}};
  std::set<Kind> opened;
  constexpr std::size_t kAhead = 8, kImagesPerSign = 1 << 16;
  for (std::size_t n = 0; n < kept.oldest_first.size(); ++n) {
    if (n % kImagesPerSign == 0 && goes_on) goes_on();
    if (n + kAhead < kept.oldest_first.size())
      __builtin_prefetch(&kept.images[kept.oldest_first[n + kAhead]]);
    const std::uint32_t i = kept.oldest_first[n];
    const std::size_t shards = kept.images[i].slot.shards;
    const std::uint32_t old = kept.images[i].slot.name_space.value;
    if (!spaces[old]) {
      model::NamespaceDigest digest;
      digest.bytes = kept.names[old].digest;
      spaces[old] = impl_->namespaces.intern(digest, kept.names[old].text);
    }
    // As many as there were, so there is a number for each.
    const auto slots = std::span(kept.images).subspan(i, shards);
    const RecordId record = images.adopt(slots, *spaces[old]);
    if (record == kNoRecord) continue;
    const mem::KeptImage& first = slots.front().slot;
    const Kind kind{*spaces[old], first.group};
    if (kind != std::exchange(last, kind) && opened.insert(kind).second)
      impl_->namespaces.reopen_space(*spaces[old], first.group, first.shards, first.place.bytes);
    if (sources.empty()) continue;
    for (const mem::KeptSlot& each : slots) pin_sources(record, each.slot.place, each.slot.revision);
  }
  for (const auto& space : spaces)
    if (space) impl_->namespaces.release(*space);
  return images.stats().sealed;
}

bool Core::lacks_spaces() const {
  return impl_->tier != nullptr && impl_->namespaces.lack_spaces();
}

void Core::end_kept_read(mem::KeptReader reader) {
  auto read = impl_->kept_reads.extract(reader);
  if (!read.empty()) impl_->leftovers.take(read.mapped(), {});
}

}  // namespace orbitkv::cache
