#include "cache/drops.h"

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"

namespace orbitkv::cache {

Drops::~Drops() {
  for (const Drop& drop : drops_) let_go(drop);
}

DropId Drops::begin(const DropWhat& what, DropRun run, TimePoint now) {
  ORBITKV_CHECK(drops_.size() < limits::kControlsWaiting, "more drops than may wait");
  p_.images.set_clock(now);
  Drop& drop = drops_.emplace_back();
  drop.id = DropId(++last_id_);
  drop.run = run;
  drop.filter.unused = what.unused;
  drop.filter.of.assign(p_.namespaces.size(), false);
  drop.tally.resize(p_.namespaces.size());
  drop.end = p_.images.table().high_water();
  for (std::uint32_t i = 0; i < p_.namespaces.size(); ++i) {
    const NamespaceIndex index(i);
    if (p_.namespaces.uses(index) == 0) continue;
    const auto named = std::find(what.digests.begin(), what.digests.end(), p_.namespaces.digest(index));
    if (!what.digests.empty() && named == what.digests.end()) continue;
    drop.filter.of[i] = true;
    drop.chosen.push_back(index);
    p_.namespaces.acquire(index);
    if (drop.whole()) p_.namespaces.begin_drop(index);
  }
  if (drop.whole()) p_.loads.doom(drop.filter.of);
  return drop.id;
}

bool Drops::turn(TimePoint now) {
  const auto it = std::find_if(drops_.begin(), drops_.end(), [](const Drop& d) { return !d.over(); });
  if (it == drops_.end()) return false;
  p_.images.set_clock(now);
  const std::uint32_t looks = std::min(it->end - it->next, limits::kDropLooks);
  const Images::Range range{it->next, it->next + looks};
  if (it->run == DropRun::kDrop) {
    it->next = p_.images.drop_some(range, it->filter, it->tally);
  } else {
    p_.images.count_some(range, it->filter, it->tally);
    it->next = range.end;
  }
  return !it->over() || std::next(it) != drops_.end();
}

std::optional<std::vector<NamespaceBlocks>> Drops::take(DropId id) {
  const auto it = std::find_if(drops_.begin(), drops_.end(), [&](const Drop& d) { return d.id == id; });
  ORBITKV_CHECK(it != drops_.end(), "a drop is told twice");
  if (!it->over()) return std::nullopt;
  std::vector<NamespaceBlocks> out = told(*it);
  let_go(*it);
  drops_.erase(it);
  return out;
}

std::vector<NamespaceBlocks> Drops::told(const Drop& drop) const {
  std::vector<NamespaceBlocks> out;
  for (const NamespaceIndex index : drop.chosen) {
    const Images::OfNamespace& of = drop.tally[index.value];
    if (of.images == 0) continue;
    out.push_back({p_.namespaces.digest(index), p_.namespaces.text(index), of.images, of.bytes});
  }
  return out;
}

void Drops::let_go(const Drop& drop) {
  for (const NamespaceIndex index : drop.chosen) {
    if (drop.whole()) p_.namespaces.end_drop(index);
    p_.namespaces.release(index);
  }
}

}  // namespace orbitkv::cache
