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

constexpr std::size_t kDrops = 32;  // that wait for the device

std::string text_of(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
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
  if (command == "evict") return answer(evict(ByteCount(unsigned_or("bytes", ~std::uint64_t{0})), now));
  if (command == "ssd_list") return answer(list(text_or("after")));
  if (command == "ssd_drop") {
    auto digests = chosen(text_or("digest"), in.value("unasked", json(false)) == true);
    if (!digests.ok()) return answer(digests.error());
    return drop(*digests, now, std::move(answer));
  }
  answer(reject("unknown command; this Manager knows evict, ssd_list and ssd_drop"));
}

Result<std::string> Control::evict(ByteCount bytes, TimePoint now) {
  const cache::EvictReport report = core_.evict(bytes, now);
  return text_of({{"evicted", report.blocks},
                  {"evicted_bytes", report.bytes.value},
                  {"free", pool_.free_bytes().value},
                  {"referenced", report.referenced},
                  {"being_written", report.being_written},
                  {"kept", report.kept}});
}

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

Result<std::vector<model::NamespaceDigest>> Control::chosen(const std::string& prefix, bool unasked) const {
  if (tier_ == nullptr) return no_ssd();
  std::vector<model::NamespaceDigest> digests;
  for (const ssd::SpaceStatus& space : tier_->store().spaces()) {
    const bool named = !prefix.empty() && hex_text(space.digest.bytes).starts_with(prefix);
    if (unasked ? !space.asked : named) digests.push_back(space.digest);
  }
  if (unasked) return digests;
  if (prefix.empty()) return reject("ssd_drop names no namespace: give its digest");
  if (digests.empty())
    return reject("no stored namespace begins with \"" + prefix + "\"; see orbitkv ssd list");
  if (digests.size() > 1)
    return reject(format_text("%zu namespaces begin with \"%s\"; give more of the digest", digests.size(),
                              prefix.c_str()));
  return digests;
}

void Control::drop(const std::vector<model::NamespaceDigest>& digests, TimePoint now, Answer answer) {
  if (drops_.size() >= kDrops)
    return answer(busy(format_text("%zu drops are under way; wait for their answers", kDrops)));
  Drop drop;
  drop.answer = std::move(answer);
  for (const model::NamespaceDigest& digest : digests) {
    auto dropped = tier_->store().drop_space(digest);
    if (!dropped.ok()) {
      if (drop.namespaces == 0) return drop.answer(dropped.error());
      drop.left = digests.size() - drop.namespaces;
      drop.why_left = dropped.error().message();
      break;
    }
    drop.evicted += core_.drop_namespace(digest, now);
    ++drop.namespaces;
    drop.records += dropped->records;
    drop.flushes.push_back(dropped->flushed);
  }
  drops_.push_back(std::move(drop));
  poll();
}

void Control::poll() {
  if (tier_ == nullptr) return;
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
      drop.answer(text_of({{"namespaces", drop.namespaces},
                           {"records", drop.records},
                           {"evicted", drop.evicted},
                           {"left", drop.left},
                           {"why_left", drop.why_left}}));
    }
  }
}

}  // namespace orbitkv::daemon
