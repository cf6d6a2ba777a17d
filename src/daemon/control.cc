#include "daemon/control.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/limits.h"
#include "base/text.h"

namespace orbitkv::daemon {
namespace {
using nlohmann::json;

constexpr std::uint64_t kLongest = 10ull * 365 * 24 * 3600;  // seconds, of an age
constexpr Duration kEvictionWait = seconds(50);              // below what the operator's side waits
constexpr Duration kTurn = milliseconds(200);                // of an eviction, at the latest
constexpr std::uint64_t kNoSlab = ~std::uint64_t{0};

std::string text_of(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

// What is left out has its default, and what is not understood must not: a drop is for good.
Status check_drop(const json& in) {
  const auto is_wrong = [&](const char* key, auto right) {
    const auto it = in.find(key);
    return it != in.end() && !right(*it);
  };
  const auto is_text = [](const json& value) { return value.is_string(); };
  for (const char* key : {"scope", "where", "digest"})
    if (is_wrong(key, is_text)) return reject(format_text("drop: %s is a text", key));
  for (const char* key : {"unasked", "force", "dry_run"})
    if (is_wrong(key, [](const json& value) { return value.is_boolean(); }))
      return reject(format_text("drop: %s is true or false", key));
  if (is_wrong("unused_s", [](const json& value) { return value.is_number_unsigned(); }))
    return reject("drop: unused_s is a whole number of seconds");
  const auto all_texts = [&](const json& value) {
    return value.is_array() && std::all_of(value.begin(), value.end(), is_text);
  };
  if (is_wrong("digests", all_texts)) return reject("drop: digests is a list of texts");
  const auto place = [](const json& value) { return value == "all" || value == "memory" || value == "ssd"; };
  if (is_wrong("where", place)) return reject("drop: where is \"all\", \"memory\" or \"ssd\"");
  return ok_status();
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
  if (const auto bytes = in.find("bytes"); bytes != in.end() && !bytes->is_number_unsigned())
    return answer(reject("bytes is a whole number"));
  if (command == "evict")
    return evict(ByteCount(unsigned_or("bytes", ~std::uint64_t{0})), flag("wait"), now, std::move(answer));
  if (command == "ssd_list") return answer(list(text_or("after")));
  if (command == "ssd_drop" && tier_ == nullptr) return answer(no_ssd());
  if (command == "ssd_drop" || command == "drop") {
    if (const Status form = check_drop(in); !form.ok()) return answer(form.error());
    DropAsked asked;
    asked.scope = text_or("scope");
    asked.unasked = flag("unasked");
    asked.force = flag("force");
    asked.dry_run = flag("dry_run");
    asked.unused = seconds(static_cast<std::int64_t>(std::min(unsigned_or("unused_s", 0), kLongest)));
    asked.memory = text_or("where") != "ssd";
    asked.ssd = text_or("where") != "memory";
    if (in.contains("digest")) asked.digests.push_back(text_or("digest"));
    for (const json& digest : in.value("digests", json::array()))
      asked.digests.push_back(digest.is_string() ? digest.get<std::string>() : std::string());
    return drop(asked, now, std::move(answer));
  }
  if (command == "pool_list") return answer(pool_list(unsigned_or("after", 0)));
  if (command == "pool_add") return answer(pool_wanted(slabs_.add(ByteCount(unsigned_or("bytes", 0)))));
  if (command == "pool_drain") {
    const std::uint64_t slab = unsigned_or("slab", kNoSlab);
    if (slab != kNoSlab && slab > ~std::uint32_t{0}) return answer(reject("there is no slab of that number"));
    return answer(pool_wanted(slab == kNoSlab ? slabs_.drain(ByteCount(unsigned_or("bytes", 0)))
                                              : slabs_.drain(SlabId(static_cast<std::uint32_t>(slab)))));
  }
  if (command == "upgrade") return upgrade({text_or("binary"), flag("cold")}, std::move(answer));
  answer(
      reject("unknown command; this Manager knows evict, drop, ssd_list, ssd_drop, pool_list, pool_add, "
             "pool_drain and upgrade"));
}

void Control::upgrade(const FdStore::Successor& successor, Answer answer) const {
  if (!succeed_) return answer(reject("nothing of this Manager outlives it; start it with --keep"));
  succeed_(successor, std::move(answer));
}

// ---- evict ----

void Control::evict(ByteCount bytes, bool wait, TimePoint now, Answer answer) {
  if (wait && evictions_.size() >= limits::kControlsWaiting)
    return answer(busy(format_text("%u evictions wait; wait for their answers", limits::kControlsWaiting)));
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
  eviction.takes_at_turn = tier_ == nullptr || tier_->ready();
  eviction.turn_at = now;
}

// Nothing of it is being written any more. What is kept then is what the tier does not take: one that is
// being opened takes nothing yet.
bool Control::over(const Eviction& eviction, TimePoint now) const {
  const bool written = eviction.sum.being_written == 0 && (eviction.takes_at_turn || eviction.sum.kept == 0);
  return eviction.left == ByteCount() || written || now >= eviction.give_up;
}

void Control::poll_evictions(TimePoint now) {
  for (Eviction& eviction : evictions_) {
    if (over(eviction, now)) continue;
    // Each turn walks what is in memory, so there are few: others write meanwhile.
    const bool half = eviction.takes_at_turn && 2 * core_.stats().spilling <= eviction.written_at_turn;
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
    more = spaces.size() == limits::kListedNamespaces;
    if (more) break;
    spaces.push_back({{"digest", digest},
                      {"namespace", space.text},
                      {"records", space.records},
                      {"bytes", space.bytes.value},
                      {"asked", space.asked}});
  }
  json answer = {{"namespaces", spaces}, {"more", more}};
  if (!tier_->ready()) answer["reading"] = tier_->opening_text();
  return text_of(answer);
}

bool Control::poll(TimePoint now) {
  if (!waiting_.empty()) poll_waiting(now);
  if (!drops_.empty()) poll_drops();
  if (!evictions_.empty()) poll_evictions(now);
  return std::any_of(drops_.begin(), drops_.end(), [](const Drop& drop) { return drop.unused.has_value(); });
}

}  // namespace orbitkv::daemon
