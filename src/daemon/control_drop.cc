// Drops: blocks by namespace, scope or age, from memory and from SSD.
#include <algorithm>
#include <cctype>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/limits.h"
#include "base/text.h"
#include "cache/residency.h"
#include "daemon/control.h"
#include "daemon/scope.h"

namespace orbitkv::daemon {
namespace {
using nlohmann::json;

// Namespaces of one answer, also of ssd_list: with the longest names, every byte of them escaped,
// it fits a frame.
static_assert(limits::kListedNamespaces * (6 * limits::kNamespaceBytes + 512) <
              limits::kSocketFrameBytes - 1024);
constexpr Duration kReadingWait = seconds(30);  // leaves time for the device of what the operator waits
constexpr std::size_t kLeastDigits = 8;         // of a digest
constexpr Duration kMemoryRemembers = seconds(45 * 24 * 3600);  // the age of a block
// Beyond it the minutes of a last use wrap, and a block would look younger than it is.
using Minutes = decltype(cache::HotRecord::minute);
static_assert(kMemoryRemembers.ns / seconds(60).ns < std::numeric_limits<Minutes>::max());
}  // namespace

// Of memory and of the SSD, by digest.
std::vector<Control::Space> Control::spaces() const {
  std::map<model::NamespaceDigest, Space> all;
  for (const cache::NamespaceBlocks& each : core_.namespaces()) {
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

Result<std::vector<Control::Space>> Control::chosen(const DropAsked& asked) const {
  const int ways = !asked.digests.empty() + !asked.scope.empty() + asked.unasked;
  if (ways > 1) return reject("a drop is of digests, of a scope or of what is unasked for: name one of them");
  if (asked.everything() && asked.unused.ns == 0 && !asked.dry_run)
    return reject("the drop names nothing: give digests, a scope or an age");
  if (asked.unasked && tier_ == nullptr && !asked.force)
    return reject(
        "who asked for what is known of an SSD store, and this Manager has none; name digests, a scope or an "
        "age, or give --force, which drops everything then");
  if (asked.unasked && !asked.force && !tier_->asked_for_any())
    return reject(
        "no engine has registered since this Manager started, so that everything is unasked for: let the "
        "engines that share the store register first, or give --force");
  if (asked.memory && asked.unused > kMemoryRemembers)
    return reject(
        "blocks in memory remember their last use for 45 days: an age beyond that is of what is on SSD alone "
        "(--ssd-only)");
  std::vector<Space> all = spaces();
  if (asked.unasked && tier_ != nullptr) std::erase_if(all, [](const Space& each) { return each.asked; });
  if (!asked.scope.empty()) {
    std::erase_if(all, [&](const Space& each) { return scope_of(each.text) != asked.scope; });
    if (all.empty())
      return reject("no namespace has the scope \"" + asked.scope + "\"; see orbitkv drop --dry-run");
  }
  std::vector<Space> named;
  for (std::string prefix : asked.digests) {
    std::transform(prefix.begin(), prefix.end(), prefix.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
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
void Control::drop_stored(Drop& drop) const {
  for (std::size_t i = 0; i < drop.dropped.size(); ++i) {
    Space& space = drop.dropped[i];
    if (!space.stored || drop.asked.dry_run) continue;
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

void Control::begin_unused(Drop& drop) const {
  std::vector<model::NamespaceDigest> digests;
  for (const Space& space : drop.dropped) digests.push_back(space.digest);
  const auto run = drop.asked.dry_run ? ssd::UnusedRun::kCount : ssd::UnusedRun::kDrop;
  drop.unused = tier_->store().begin_unused(digests, drop.asked.unused, run);
}

void Control::go_on_unused(Drop& drop) const {
  const bool over = tier_->store().go_on(*drop.unused);
  // Their events may come before the end.
  const std::vector<ssd::TransferId> begun = drop.unused->take_flushes();
  drop.flushes.insert(drop.flushes.end(), begun.begin(), begun.end());
  if (!over) return;
  const ssd::UnusedDrop::Told told = drop.unused->told();
  drop.unused.reset();
  for (std::size_t i = 0; i < told.of.size(); ++i) {
    drop.dropped[i].records = told.of[i].records;
    drop.dropped[i].stored_bytes = told.of[i].bytes;
  }
  drop.left_records = told.left;
  drop.why_left = told.why_left;
}

void Control::begin_memory(Drop& drop, TimePoint now) {
  std::vector<model::NamespaceDigest> digests;
  for (const Space& space : drop.dropped) digests.push_back(space.digest);
  if (digests.empty()) return;  // none named is all of them
  const auto run = drop.asked.dry_run ? cache::DropRun::kCount : cache::DropRun::kDrop;
  drop.memory = core_.begin_drop({digests, drop.asked.unused}, run, now);
}

void Control::go_on(Drop& drop) {
  if (drop.memory) {
    const auto taken = core_.take_dropped(*drop.memory);
    if (!taken) return;
    drop.memory.reset();
    for (Space& space : drop.dropped) {
      const auto of = std::find_if(taken->begin(), taken->end(),
                                   [&](const auto& each) { return each.digest == space.digest; });
      if (of == taken->end()) continue;
      space.blocks = of->blocks;
      space.bytes = of->bytes;
    }
  }
  if (std::exchange(drop.then_unused, false)) begin_unused(drop);
}

void Control::drop(const DropAsked& asked, TimePoint now, Answer answer) {
  if (drops_.size() + waiting_.size() >= limits::kControlsWaiting)
    return answer(
        busy(format_text("%u drops are under way; wait for their answers", limits::kControlsWaiting)));
  if (asked.ssd && tier_ != nullptr && !tier_->ready())
    return waiting_.push_back({asked, now + kReadingWait, std::move(answer)});
  begin_drop(asked, now, std::move(answer));
}

void Control::poll_waiting(TimePoint now) {
  for (Waiting& each : std::exchange(waiting_, {})) {
    if (tier_->ready()) {
      begin_drop(each.asked, now, std::move(each.answer));
    } else if (now >= each.give_up) {
      each.answer(busy("what the SSD store holds is still being read (" + tier_->opening_text() +
                       "): nothing was dropped; ask again then"));
    } else {
      waiting_.push_back(std::move(each));
    }
  }
}

void Control::begin_drop(const DropAsked& asked, TimePoint now, Answer answer) {
  auto chosen_spaces = chosen(asked);
  if (!chosen_spaces.ok()) return answer(chosen_spaces.error());
  Drop drop;
  drop.asked = asked;
  drop.answer = std::move(answer);
  drop.dropped = std::move(*chosen_spaces);
  const bool ssd = asked.ssd && tier_ != nullptr;
  drop.then_unused = ssd && asked.unused.ns > 0;
  if (!ssd) {
    for (Space& space : drop.dropped) space.records = 0, space.stored_bytes = {};
  } else if (!drop.then_unused) {
    drop_stored(drop);
    if (drop.left > 0 && drop.dropped.empty()) return drop.answer(busy(drop.why_left));
  }
  if (asked.memory) begin_memory(drop, now);
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
    if (names.size() == limits::kListedNamespaces) continue;
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
               {"dry_run", drop.asked.dry_run},
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
  for (Drop& drop : drops_) go_on(drop);
  // One of them a turn.
  const auto walks = [](const Drop& drop) { return drop.unused.has_value(); };
  if (const auto it = std::find_if(drops_.begin(), drops_.end(), walks); it != drops_.end())
    go_on_unused(*it);
  const auto first =
      std::stable_partition(drops_.begin(), drops_.end(), [](const Drop& drop) { return !drop.over(); });
  std::vector<Drop> ended(std::make_move_iterator(first), std::make_move_iterator(drops_.end()));
  drops_.erase(first, drops_.end());
  for (Drop& drop : ended) {
    const bool by_age = drop.asked.unused.ns > 0;
    std::erase_if(drop.dropped,
                  [&](const Space& space) { return by_age && space.blocks == 0 && space.records == 0; });
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
