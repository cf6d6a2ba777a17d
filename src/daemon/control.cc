#include "daemon/control.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/limits.h"
#include "base/text.h"

namespace orbitkv::daemon {
namespace {
using nlohmann::json;

// Namespaces of one answer: with the longest names, every byte of them escaped, it fits a frame.
constexpr std::size_t kListed = 32;
static_assert(kListed * (6 * limits::kNamespaceBytes + 256) < limits::kSocketFrameBytes - 256);

constexpr std::size_t kWaiting = 32;             // commands of a kind that wait for the device
constexpr std::size_t kLeastDigits = 8;          // of a digest
constexpr Duration kEvictionWait = seconds(50);  // below what the operator's side waits
constexpr Duration kTurn = milliseconds(200);    // of an eviction, at the latest
constexpr std::uint64_t kNoSlab = ~std::uint64_t{0};

std::string text_of(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

// The first ones; a frame holds no more.
json names_of(const std::vector<ssd::SpaceStatus>& spaces) {
  json names = json::array();
  for (const ssd::SpaceStatus& space : spaces) {
    if (names.size() == kListed) break;
    names.push_back({{"digest", hex_text(space.digest.bytes)}, {"namespace", space.text}});
  }
  return names;
}

Error no_ssd() {
  return reject("this Manager has no SSD store; start it with --ssd-path FILE");
}
}  // namespace

void Control::ask(const std::string& question, TimePoint now, Answer answer) {
  const json in = json::parse(question, nullptr, false);
  if (!in.is_object()) return answer(reject("the command is no JSON object"));
  const auto command = in.value("command", json());
  const auto unsigned_or = [&](const char* key, std::uint64_t fallback) {
    const auto it = in.find(key);
    return it != in.end() && it->is_number_unsigned() ? it->get<std::uint64_t>() : fallback;
  };
  const auto text_or = [&](const char* key) {
    const auto it = in.find(key);
    return it != in.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  const auto flag = [&](const char* key) { return in.value(key, json(false)) == true; };
  if (command == "evict")
    return evict(ByteCount(unsigned_or("bytes", ~std::uint64_t{0})), flag("wait"), now, std::move(answer));
  if (command == "ssd_list") return answer(list(text_or("after")));
  if (command == "ssd_drop") {
    const Unasked unasked = !flag("unasked") ? Unasked::kNo
                            : flag("force")  ? Unasked::kForced
                                             : Unasked::kYes;
    auto spaces = chosen(text_or("digest"), unasked);
    if (!spaces.ok()) return answer(spaces.error());
    return drop(*spaces, now, std::move(answer));
  }
  if (command == "pool_list") return answer(pool_list(unsigned_or("after", 0)));
  if (command == "pool_add") return answer(pool_wanted(slabs_.add(ByteCount(unsigned_or("bytes", 0)))));
  if (command == "pool_drain") {
    const std::uint64_t slab = unsigned_or("slab", kNoSlab);
    return answer(pool_wanted(slab == kNoSlab ? slabs_.drain(ByteCount(unsigned_or("bytes", 0)))
                                              : slabs_.drain(SlabId(static_cast<std::uint32_t>(slab)))));
  }
  answer(reject(
      "unknown command; this Manager knows evict, ssd_list, ssd_drop, pool_list, pool_add and pool_drain"));
}

// ---- evict ----

void Control::evict(ByteCount bytes, bool wait, TimePoint now, Answer answer) {
  if (wait && evictions_.size() >= kWaiting)
    return answer(busy(format_text("%zu evictions wait; wait for their answers", kWaiting)));
  Eviction eviction;
  eviction.left = bytes;
  eviction.give_up = wait ? now + kEvictionWait : now;
  eviction.answer = std::move(answer);
  evict_more(eviction, now);
  evictions_.push_back(std::move(eviction));
  poll_evictions(now);
}

void Control::evict_more(Eviction& eviction, TimePoint now) {
  const cache::EvictReport turn = core_.evict(eviction.left, now);
  const std::uint64_t blocks = eviction.sum.blocks + turn.blocks;
  const ByteCount bytes = eviction.sum.bytes + turn.bytes;
  eviction.left = turn.bytes < eviction.left ? eviction.left - turn.bytes : ByteCount();
  eviction.sum = turn;
  eviction.sum.blocks = blocks;
  eviction.sum.bytes = bytes;
  eviction.written_at_turn = turn.being_written;
  eviction.turn_at = now;
}

// Nothing of it is being written any more. What is kept then is what the tier does not take.
bool Control::over(const Eviction& eviction, TimePoint now) const {
  return eviction.left == ByteCount() || eviction.sum.being_written == 0 || now >= eviction.give_up;
}

void Control::poll_evictions(TimePoint now) {
  for (Eviction& eviction : evictions_) {
    if (over(eviction, now)) continue;
    // Each turn walks what is in memory, so there are few: others write meanwhile.
    const bool half = 2 * core_.stats().spilling <= eviction.written_at_turn;
    if (half || now - eviction.turn_at >= kTurn) evict_more(eviction, now);
  }
  const auto first = std::stable_partition(evictions_.begin(), evictions_.end(),
                                           [&](const Eviction& each) { return !over(each, now); });
  std::vector<Eviction> ended(std::make_move_iterator(first), std::make_move_iterator(evictions_.end()));
  evictions_.erase(first, evictions_.end());
  for (const Eviction& each : ended)
    each.answer(text_of({{"evicted", each.sum.blocks},
                         {"evicted_bytes", each.sum.bytes.value},
                         {"free", pool_.free_bytes().value},
                         {"referenced", each.sum.referenced},
                         {"being_written", each.sum.being_written},
                         {"kept", each.sum.kept}}));
}

// ---- namespaces ----

Result<std::string> Control::list(const std::string& after) const {
  if (tier_ == nullptr) return no_ssd();
  std::vector<ssd::SpaceStatus> stored = tier_->store().spaces();
  std::sort(stored.begin(), stored.end(), [](const auto& a, const auto& b) { return a.digest < b.digest; });
  json spaces = json::array();
  bool more = false;
  for (const ssd::SpaceStatus& space : stored) {
    const std::string digest = hex_text(space.digest.bytes);
    if (digest <= after) continue;
    more = spaces.size() == kListed;
    if (more) break;
    spaces.push_back({{"digest", digest},
                      {"namespace", space.text},
                      {"records", space.records},
                      {"bytes", space.bytes.value},
                      {"asked", space.asked}});
  }
  return text_of({{"namespaces", spaces}, {"more", more}});
}

Result<std::vector<ssd::SpaceStatus>> Control::chosen(const std::string& prefix, Unasked unasked) const {
  if (tier_ == nullptr) return no_ssd();
  if (unasked == Unasked::kYes && !tier_->asked_for_any())
    return reject(
        "no engine has registered since this Manager started, so --unasked means everything: let the engines "
        "that share the store register first, or give --force");
  std::vector<ssd::SpaceStatus> spaces;
  for (ssd::SpaceStatus& space : tier_->store().spaces()) {
    const bool named = !prefix.empty() && hex_text(space.digest.bytes).starts_with(prefix);
    if (unasked == Unasked::kNo ? named : !space.asked) spaces.push_back(std::move(space));
  }
  if (unasked != Unasked::kNo) return spaces;
  if (prefix.empty()) return reject("ssd_drop names no namespace: give its digest");
  if (prefix.size() < kLeastDigits)
    return reject(
        format_text("\"%s\" is too short for something that cannot be undone: give at least %zu digits "
                    "of the digest; see orbitkv ssd list",
                    prefix.c_str(), kLeastDigits));
  if (spaces.empty())
    return reject("no stored namespace begins with \"" + prefix + "\"; see orbitkv ssd list");
  if (spaces.size() > 1)
    return reject(format_text("%zu namespaces begin with \"%s\"; give more of the digest", spaces.size(),
                              prefix.c_str()));
  return spaces;
}

void Control::drop(const std::vector<ssd::SpaceStatus>& spaces, TimePoint now, Answer answer) {
  if (drops_.size() >= kWaiting)
    return answer(busy(format_text("%zu drops are under way; wait for their answers", kWaiting)));
  Drop drop;
  drop.answer = std::move(answer);
  for (const ssd::SpaceStatus& space : spaces) {
    auto dropped = tier_->store().drop_space(space.digest);
    if (!dropped.ok()) {
      if (drop.dropped.empty()) return drop.answer(dropped.error());
      drop.left = spaces.size() - drop.dropped.size();
      drop.why_left = dropped.error().message();
      break;
    }
    drop.evicted += core_.drop_namespace(space.digest, now);
    drop.dropped.push_back(space);
    drop.records += dropped->records;
    drop.flushes.push_back(dropped->flushed);
  }
  drops_.push_back(std::move(drop));
  poll_drops();
}

void Control::poll(TimePoint now) {
  if (tier_ == nullptr) return;
  if (!drops_.empty()) poll_drops();
  if (!evictions_.empty()) poll_evictions(now);
}

void Control::poll_drops() {
  for (const ssd::StoreEvent& event : tier_->take_flushed()) {
    for (Drop& drop : drops_) {
      if (std::erase(drop.flushes, event.transfer) > 0) drop.failed |= !event.ok;
    }
  }
  const auto done = [](const Drop& drop) { return drop.flushes.empty(); };
  const auto first =
      std::stable_partition(drops_.begin(), drops_.end(), [&](const Drop& d) { return !done(d); });
  std::vector<Drop> ended(std::make_move_iterator(first), std::make_move_iterator(drops_.end()));
  drops_.erase(first, drops_.end());
  for (const Drop& drop : ended) {
    if (drop.failed) {
      drop.answer(
          recompute("the namespaces are gone until the next start, but a path could not write that down "
                    "(orbitkv status); drop them again when it can"));
    } else {
      drop.answer(text_of({{"namespaces", drop.dropped.size()},
                           {"names", names_of(drop.dropped)},
                           {"records", drop.records},
                           {"evicted", drop.evicted},
                           {"left", drop.left},
                           {"why_left", drop.why_left}}));
    }
  }
}

}  // namespace orbitkv::daemon
