// Drops: blocks by namespace, scope or age, from memory and from SSD.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/limits.h"
#include "base/text.h"
#include "daemon/control.h"

namespace orbitkv::daemon {
namespace {
using nlohmann::json;

// Names of one answer: with the longest, every byte of them escaped, it fits a frame.
constexpr std::size_t kListed = 32;
static_assert(kListed * (6 * limits::kNamespaceBytes + 512) < limits::kSocketFrameBytes - 1024);
constexpr std::size_t kLeastDigits = 8;  // of a digest
constexpr std::size_t kWaiting = 32;     // drops that wait for the device

// docs/protocol.md, "Namespace": of a text that is a JSON object.
std::string scope_of(const std::string& text) {
  const json object = json::parse(text, nullptr, false);
  const auto found = object.is_object() ? object.find("scope") : object.end();
  return object.is_object() && found != object.end() && found->is_string() ? found->get<std::string>() : "";
}
}  // namespace

// Of memory and of the SSD, by digest.
std::vector<Control::Space> Control::spaces(TimePoint now) const {
  std::map<model::NamespaceDigest, Space> all;
  for (const cache::NamespaceBlocks& each : core_.namespaces(now)) {
    Space& space = all[each.digest];
    space.digest = each.digest;
    space.text = each.text;
  }
  if (tier_ != nullptr) {
    for (const ssd::SpaceStatus& each : tier_->store().spaces()) {
      Space& space = all[each.digest];
      space.digest = each.digest;
      space.text = each.text;
      space.stored = true;
      space.asked = each.asked;
      space.records = each.records;
      space.stored_bytes = each.bytes;
    }
  }
  std::vector<Space> out;
  for (auto& [digest, space] : all) out.push_back(std::move(space));
  return out;
}

Result<std::vector<Control::Space>> Control::chosen(const DropAsked& asked, TimePoint now) const {
  const int ways = !asked.digests.empty() + !asked.scope.empty() + asked.unasked;
  if (ways > 1) return reject("a drop is of digests, of a scope or of what is unasked for: name one of them");
  if (asked.everything() && asked.unused.ns == 0 && !asked.dry_run)
    return reject("the drop names nothing: give digests, a scope or an age");
  if (asked.unasked && tier_ == nullptr)
    return reject(
        "who asked for what is known of an SSD store, and this Manager has none; name digests, a scope or an "
        "age");
  if (asked.unasked && !asked.force && !tier_->asked_for_any())
    return reject(
        "no engine has registered since this Manager started, so that everything is unasked for: let the "
        "engines that share the store register first, or give --force");
  std::vector<Space> all = spaces(now);
  if (asked.unasked) std::erase_if(all, [](const Space& each) { return each.asked; });
  if (!asked.scope.empty()) {
    std::erase_if(all, [&](const Space& each) { return scope_of(each.text) != asked.scope; });
    if (all.empty())
      return reject("no namespace has the scope \"" + asked.scope + "\"; see orbitkv drop --dry-run");
  }
  std::vector<Space> named;
  for (const std::string& prefix : asked.digests) {
    if (prefix.size() < kLeastDigits)
      return reject(
          format_text("\"%s\" is too short for something that cannot be undone: give at least %zu digits "
                      "of the digest; see orbitkv drop --dry-run",
                      prefix.c_str(), kLeastDigits));
    std::vector<Space> found;
    for (const Space& each : all)
      if (hex_text(each.digest.bytes).starts_with(prefix)) found.push_back(each);
    if (found.empty())
      return reject("no stored namespace begins with \"" + prefix + "\"; see orbitkv drop --dry-run");
    if (found.size() > 1)
      return reject(format_text("%zu namespaces begin with \"%s\"; give more of the digest", found.size(),
                                prefix.c_str()));
    const auto same = [&](const Space& each) { return each.digest == found[0].digest; };
    if (std::none_of(named.begin(), named.end(), same)) named.push_back(std::move(found[0]));
  }
  return asked.digests.empty() ? all : named;
}

// Each namespace is durably gone with its event; what cannot be dropped is left, and what comes behind it.
void Control::drop_stored(const DropAsked& asked, Drop& drop) const {
  for (std::size_t i = 0; i < drop.dropped.size(); ++i) {
    Space& space = drop.dropped[i];
    if (!space.stored || asked.dry_run) continue;
    auto dropped = tier_->store().drop_space(space.digest);
    if (!dropped.ok()) {
      drop.left = drop.dropped.size() - i;
      drop.why_left = dropped.error().message();
      drop.dropped.resize(i);
      return;
    }
    space.records = dropped->records;
    drop.flushes.push_back(dropped->flushed);
  }
}

void Control::drop_unused(const DropAsked& asked, Drop& drop) const {
  std::vector<model::NamespaceDigest> digests;
  for (const Space& space : drop.dropped) digests.push_back(space.digest);
  const auto run = asked.dry_run ? ssd::Store::UnusedRun::kCount : ssd::Store::UnusedRun::kDrop;
  const ssd::Store::Unused unused = tier_->store().drop_unused(digests, asked.unused, run);
  for (std::size_t i = 0; i < digests.size(); ++i) {
    drop.dropped[i].records = unused.of[i].records;
    drop.dropped[i].stored_bytes = unused.of[i].bytes;
  }
  drop.left_records = unused.left;
  drop.why_left = unused.why_left;
  drop.flushes.insert(drop.flushes.end(), unused.flushes.begin(), unused.flushes.end());
}

void Control::drop_memory(const DropAsked& asked, Drop& drop, TimePoint now) {
  std::vector<model::NamespaceDigest> digests;
  for (const Space& space : drop.dropped) digests.push_back(space.digest);
  if (digests.empty()) return;  // none named is all of them
  const auto run = asked.dry_run ? cache::DropRun::kCount : cache::DropRun::kDrop;
  for (const cache::NamespaceBlocks& each : core_.drop({digests, asked.unused}, run, now)) {
    for (Space& space : drop.dropped) {
      if (space.digest != each.digest) continue;
      space.blocks = each.blocks;
      space.bytes = each.bytes;
    }
  }
}

void Control::drop(const DropAsked& asked, TimePoint now, Answer answer) {
  if (drops_.size() >= kWaiting)
    return answer(busy(format_text("%zu drops are under way; wait for their answers", kWaiting)));
  auto chosen_spaces = chosen(asked, now);
  if (!chosen_spaces.ok()) return answer(chosen_spaces.error());
  Drop drop;
  drop.answer = std::move(answer);
  drop.dry_run = asked.dry_run;
  drop.dropped = std::move(*chosen_spaces);
  const bool ssd = asked.ssd && tier_ != nullptr;
  if (!ssd) {
    for (Space& space : drop.dropped) space.records = 0, space.stored_bytes = {};
  } else if (asked.unused.ns > 0) {
    drop_unused(asked, drop);
  } else {
    drop_stored(asked, drop);
    if (drop.left > 0 && drop.dropped.empty()) return drop.answer(busy(drop.why_left));
  }
  if (asked.memory) drop_memory(asked, drop, now);
  const bool by_age = asked.unused.ns > 0;
  std::erase_if(drop.dropped,
                [&](const Space& space) { return by_age && space.blocks == 0 && space.records == 0; });
  drops_.push_back(std::move(drop));
  poll_drops();
}

std::string Control::answer_of(const Drop& drop) {
  std::uint64_t blocks = 0, records = 0;
  ByteCount bytes, stored_bytes;
  json names = json::array();
  for (const Space& space : drop.dropped) {
    blocks += space.blocks;
    bytes += space.bytes;
    records += space.records;
    stored_bytes += space.stored_bytes;
    if (names.size() == kListed) continue;
    names.push_back({{"digest", hex_text(space.digest.bytes)},
                     {"namespace", space.text},
                     {"scope", scope_of(space.text)},
                     {"blocks", space.blocks},
                     {"bytes", space.bytes.value},
                     {"records", space.records},
                     {"stored_bytes", space.stored_bytes.value}});
  }
  return json({{"namespaces", drop.dropped.size()},
               {"names", names},
               {"records", records},
               {"stored_bytes", stored_bytes.value},
               {"evicted", blocks},
               {"evicted_bytes", bytes.value},
               {"dry_run", drop.dry_run},
               {"left", drop.left},
               {"left_records", drop.left_records},
               {"why_left", drop.why_left}})
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

void Control::poll_drops() {
  if (tier_ != nullptr) {
    for (const ssd::StoreEvent& event : tier_->take_flushed()) {
      for (Drop& drop : drops_)
        if (std::erase(drop.flushes, event.transfer) > 0) drop.failed |= !event.ok;
    }
  }
  const auto first = std::stable_partition(drops_.begin(), drops_.end(),
                                           [&](const Drop& drop) { return !drop.flushes.empty(); });
  std::vector<Drop> ended(std::make_move_iterator(first), std::make_move_iterator(drops_.end()));
  drops_.erase(first, drops_.end());
  for (const Drop& drop : ended) {
    if (drop.failed) {
      drop.answer(
          recompute("the namespaces are gone until the next start, but a path could not write that down "
                    "(orbitkv status); drop them again when it can"));
    } else {
      drop.answer(answer_of(drop));
    }
  }
}

}  // namespace orbitkv::daemon
