#include "ssd/spaces.h"

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"

namespace orbitkv::ssd {
namespace {

bool same(const SpaceShape& a, const SpaceShape& b) {
  return a.digest == b.digest && a.group == b.group && a.shards == b.shards && a.slot_bytes == b.slot_bytes &&
         a.fragments == b.fragments;
}

}  // namespace

Result<SpaceIndex> Spaces::enter(const SpaceShape& shape) {
  for (const SpaceIndex index : of(shape.digest, shape.group)) {
    if (same(at(index).shape, shape)) return index;
  }
  ORBITKV_RETURN_IF_ERROR(validate_shape(shape));
  SpaceIndex index(static_cast<std::uint32_t>(spaces_.size()));
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else if (spaces_.size() < limits::kStoredSpaces) {
    spaces_.emplace_back();
  } else {
    return busy("the SSD store knows " + std::to_string(limits::kStoredSpaces) +
                " groups of namespaces; drop namespaces that nobody uses (orbitkv status lists them)");
  }
  Space& space = at(index);
  space = Space{};
  space.shape = shape;
  space.layout = image_layout(shape);
  space.image_pages = image_pages(shape);
  space.known = true;
  by_digest_.emplace(shape.digest, index);
  return index;
}

void Spaces::let_go(SpaceIndex index) {
  Space& space = at(index);
  if (!space.known || space.uses > 0 || space.holds > 0 || space.records > 0) return;
  const auto [first, last] = by_digest_.equal_range(space.shape.digest);
  const auto entry = std::find_if(first, last, [index](const auto& e) { return e.second == index; });
  ORBITKV_CHECK(entry != last, "a space that its namespace does not list");
  by_digest_.erase(entry);
  space = Space{};
  free_.push_back(index);
  ++ended_;
}

void Spaces::let_all_go() {
  for (std::uint32_t i = 0; i < spaces_.size(); ++i) let_go(SpaceIndex(i));
}

std::vector<SpaceIndex> Spaces::of(const model::NamespaceDigest& digest) const {
  std::vector<SpaceIndex> out;
  const auto [first, last] = by_digest_.equal_range(digest);
  for (auto entry = first; entry != last; ++entry) out.push_back(entry->second);
  return out;
}

std::vector<SpaceIndex> Spaces::of(const model::NamespaceDigest& digest, GroupId group) const {
  std::vector<SpaceIndex> out = of(digest);
  std::erase_if(out, [&](SpaceIndex index) { return at(index).shape.group != group; });
  return out;
}

std::vector<SpaceIndex> Spaces::asked() const {
  std::vector<SpaceIndex> out;
  for (const auto& [digest, index] : by_digest_)
    if (at(index).asked) out.push_back(index);
  return out;
}

std::optional<SpaceIndex> Spaces::like(const SpaceShape& shape, std::uint32_t unit) const {
  const auto units = [unit](std::uint64_t bytes) { return (bytes + unit - 1) / unit; };
  for (const SpaceIndex index : of(shape.digest, shape.group)) {
    const SpaceShape& known = at(index).shape;
    if (known.shards == shape.shards && units(known.slot_bytes) == units(shape.slot_bytes)) return index;
  }
  return std::nullopt;
}

std::vector<SpaceStatus> Spaces::list() const {
  std::vector<SpaceStatus> out;
  for (const auto& [digest, index] : by_digest_) {
    const Space& space = at(index);
    if (out.empty() || out.back().digest != digest) out.push_back({digest, space.shape.text, 0, {}, false});
    SpaceStatus& status = out.back();
    status.records += space.visible_records();
    status.bytes += ByteCount(space.visible_records() * space.record_bytes());
    status.asked |= space.asked;
  }
  std::erase_if(out, [](const SpaceStatus& status) { return status.records == 0 && !status.asked; });
  return out;
}

}  // namespace orbitkv::ssd
