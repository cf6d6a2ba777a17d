// evict, drop, ssd list, ssd drop, pool: ControlRequests (daemon/control.h).
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "daemon/cli/ask.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/fields.h"
#include "daemon/exits.h"

namespace orbitkv::daemon::cli {
namespace {
using nlohmann::json;

constexpr std::size_t kDigestLeast = 8;
constexpr std::uint32_t kControlMs = 60'000;  // a drop waits for the device

Result<json> control(const std::string& socket, const char* name, const json& request) {
  const std::string asked = request.dump(-1, ' ', false, json::error_handler_t::replace);
  ORBITKV_ASSIGN_OR_RETURN(const std::string text, ask_control({socket, name, kControlMs}, asked));
  json answer = json::parse(text, nullptr, false);
  if (!answer.is_object()) return bug("the Manager's answer is no JSON object");
  return answer;
}

int failed(const char* name, const Error& error) {
  std::fprintf(stderr, "orbitkv %s: %s\n", name, error.message().c_str());
  return kExitFailed;
}

// Of words that no Manager could do anything with.
int wrong_words(const char* name, const Error& error) {
  failed(name, error);
  return kExitUsage;
}

void print_namespaces(const json& list) {
  if (list.empty()) std::printf("no namespace is stored\n");
  for (const json& space : list)
    std::printf("%s  %10llu blocks  %10s  %s\n    %s\n",
                space.at("digest").get<std::string>().substr(0, 16).c_str(), count_of(space, "records"),
                size_of(space, "bytes").c_str(),
                space.at("asked").get<bool>() ? "asked for" : "not asked for since the start",
                space.at("namespace").get<std::string>().c_str());
}

void print_dropped(const json& answer) {
  std::printf("%s %llu namespaces with %llu blocks (%s) on SSD and %llu (%s) in memory\n",
              answer.at("dry_run").get<bool>() ? "would drop" : "dropped", count_of(answer, "namespaces"),
              count_of(answer, "records"), size_of(answer, "stored_bytes").c_str(),
              count_of(answer, "evicted"), size_of(answer, "evicted_bytes").c_str());
  const json& names = answer.at("names");
  for (const json& name : names) {
    const auto scope = name.at("scope").get<std::string>();
    std::printf("%s  %10llu blocks on SSD, %llu in memory%s%s\n    %s\n",
                name.at("digest").get<std::string>().substr(0, 16).c_str(), count_of(name, "records"),
                count_of(name, "blocks"), scope.empty() ? "" : ", scope ", scope.c_str(),
                name.at("namespace").get<std::string>().c_str());
  }
  if (names.size() < count_of(answer, "namespaces"))
    std::printf("and %llu more\n", count_of(answer, "namespaces") - names.size());
}

Status check_digest(const std::string& text) {
  if (text.size() >= kDigestLeast && text.find_first_not_of("0123456789abcdefABCDEF") == text.npos)
    return ok_status();
  return reject("'" + echo_of(text) +
                "' is no beginning of a digest: at least 8 digits, as orbitkv drop "
                "--dry-run shows them");
}

// What a drop was answered; 1 if something is left.
int show_dropped(const char* name, const json& answer, bool as_json) {
  if (as_json)
    std::printf("%s\n", answer.dump().c_str());
  else
    print_dropped(answer);
  const auto left = count_of(answer, "left"), records = count_of(answer, "left_records");
  const auto why = answer.at("why_left").get<std::string>();
  if (left + records == 0 && why.empty()) return 0;
  if (left + records == 0) {
    std::fprintf(stderr, "orbitkv %s: nothing is left, but %s\n", name, why.c_str());
    return 1;
  }
  std::fprintf(stderr, "orbitkv %s: %llu namespaces and %llu blocks on SSD are left: %s\n", name, left,
               records, why.c_str());
  return 1;
}

void print_slabs(const json& slabs) {
  for (const json& slab : slabs) {
    std::string waits = slab.contains("waits_for") ? slab.at("waits_for").get<std::string>() : "";
    if (slab.contains("processes"))
      for (const json& pid : slab.at("processes")) waits += " " + pid.dump();
    std::printf("slab %5llu  %-8s  %10s, used %s, quarantined %s%s%s\n", count_of(slab, "slab"),
                slab.at("state").get<std::string>().c_str(), size_of(slab, "bytes").c_str(),
                size_of(slab, "used").c_str(), size_of(slab, "quarantined").c_str(),
                waits.empty() ? "" : "; waits for ", waits.c_str());
  }
}

int change_pool(const char* name, const PoolFlags& flags, const json& request) {
  auto answer = control(flags.socket, name, request);
  if (!answer.ok()) return failed(name, answer.error());
  if (flags.json)
    std::printf("%s\n", answer->dump().c_str());
  else
    std::printf("%llu slabs are wanted, %llu are in use; see orbitkv pool list\n",
                count_of(*answer, "wanted"), count_of(*answer, "in_use"));
  return 0;
}
}  // namespace

Result<Duration> parse_age(const std::string& text) {
  constexpr std::uint64_t kLongest = 10ull * 365 * 24 * 3600;
  char* end = nullptr;
  const std::uint64_t number = std::strtoull(text.c_str(), &end, 10);
  const std::string unit(end);
  std::uint64_t scale = 0;
  if (unit == "s") scale = 1;
  if (unit == "m") scale = 60;
  if (unit == "h") scale = 3600;
  if (unit == "d") scale = 24 * 3600;
  const bool digits = !text.empty() && text.front() >= '0' && text.front() <= '9';
  if (!digits || scale == 0 || number == 0 || number > kLongest / scale)
    return reject("'" + echo_of(text) + "' is not an age; write for example 30m, 2h or 7d");
  return seconds(static_cast<std::int64_t>(number * scale));
}

int pool_list(const PoolFlags& flags) {
  json all = json::array(), last;
  std::uint64_t after = 0;
  for (bool more = true; more;) {
    auto answer = control(flags.socket, "pool list", {{"command", "pool_list"}, {"after", after}});
    if (!answer.ok()) return failed("pool list", answer.error());
    for (const json& slab : answer->at("slabs")) all.push_back(slab);
    more = answer->at("more").get<bool>() && !answer->at("slabs").empty();
    if (more) after = all.back().at("slab").get<std::uint64_t>() + 1;
    last = std::move(*answer);
  }
  if (flags.json) {
    std::printf(
        "%s\n",
        json({{"slabs", all}, {"wanted", last.at("wanted")}, {"limit", last.at("limit")}}).dump().c_str());
    return 0;
  }
  print_slabs(all);
  std::printf("%llu slabs are wanted; all together may take %s\n", count_of(last, "wanted"),
              size_of(last, "limit").c_str());
  return 0;
}

int pool_add(const PoolFlags& flags) {
  auto bytes = parse_size(flags.amount);
  if (!bytes.ok()) return wrong_words("pool add", bytes.error());
  return change_pool("pool add", flags, {{"command", "pool_add"}, {"bytes", bytes->value}});
}

// A number alone names a slab, also one that is too large for that.
int pool_drain(const PoolFlags& flags) {
  const bool number =
      !flags.amount.empty() && flags.amount.find_first_not_of("0123456789") == std::string::npos;
  if (number) {
    const std::uint64_t slab = flags.amount.size() <= 10 ? std::stoull(flags.amount) : ~std::uint64_t{0};
    if (slab > ~std::uint32_t{0})
      return wrong_words("pool drain",
                         reject("no slab has that number (orbitkv pool list); a size has a unit, "
                                "for example 4GiB"));
    return change_pool("pool drain", flags, {{"command", "pool_drain"}, {"slab", slab}});
  }
  auto bytes = parse_size(flags.amount);
  if (!bytes.ok()) return wrong_words("pool drain", bytes.error());
  return change_pool("pool drain", flags, {{"command", "pool_drain"}, {"bytes", bytes->value}});
}

int evict(const EvictFlags& flags) {
  json request = {{"command", "evict"}, {"wait", flags.wait}};
  if (!flags.bytes.empty()) {
    auto bytes = parse_size(flags.bytes);
    if (!bytes.ok()) return wrong_words("evict", bytes.error());
    request["bytes"] = bytes->value;
  }
  auto answer = control(flags.socket, "evict", request);
  if (!answer.ok()) return failed("evict", answer.error());
  if (flags.json) {
    std::printf("%s\n", answer->dump().c_str());
  } else {
    std::printf(
        "evicted %llu blocks, %s; %s are free now; %llu blocks are still referenced, %llu are being written "
        "to SSD, %llu wait for that\n",
        count_of(*answer, "evicted"), size_of(*answer, "evicted_bytes").c_str(),
        size_of(*answer, "free").c_str(), count_of(*answer, "referenced"), count_of(*answer, "being_written"),
        count_of(*answer, "kept"));
  }
  return 0;
}

int ssd_list(const SsdFlags& flags) {
  json all = json::array();
  std::string after, reading;
  for (bool more = true; more;) {
    auto answer = control(flags.socket, "ssd list", {{"command", "ssd_list"}, {"after", after}});
    if (!answer.ok()) return failed("ssd list", answer.error());
    for (const json& space : answer->at("namespaces")) all.push_back(space);
    reading = answer->value("reading", "");
    more = answer->at("more").get<bool>() && !answer->at("namespaces").empty();
    if (more) after = all.back().at("digest").get<std::string>();
  }
  if (flags.json)
    std::printf("%s\n", json({{"namespaces", all}, {"reading", reading}}).dump().c_str());
  else
    print_namespaces(all);
  if (!flags.json && !reading.empty())
    std::printf("what is on SSD is still being read (%s): there may be more\n", reading.c_str());
  return 0;
}

int ssd_drop(const SsdFlags& flags) {
  if (flags.drop.empty() == !flags.unasked)
    return wrong_words("ssd drop",
                       reject("name one namespace by its digest (orbitkv ssd list), or give --unasked"));
  json request = {{"command", "ssd_drop"}};
  if (flags.force && !flags.unasked) return wrong_words("ssd drop", reject("--force is for --unasked"));
  if (flags.unasked) {
    request["unasked"] = true;
    request["force"] = flags.force;
  } else {
    const Status digest = check_digest(flags.drop);
    if (!digest.ok()) return wrong_words("ssd drop", digest.error());
    request["digest"] = flags.drop;
  }
  auto answer = control(flags.socket, "ssd drop", request);
  if (!answer.ok()) return failed("ssd drop", answer.error());
  return show_dropped("ssd drop", *answer, flags.json);
}

int drop(const DropFlags& flags) {
  const bool named = !flags.digests.empty() || !flags.scope.empty() || flags.all_unasked;
  if (!named && flags.older_than.empty() && !flags.dry_run)
    return wrong_words("drop", reject("name what is to go: digests, --scope, --older-than or --all-unasked; "
                                      "--dry-run alone shows what there is"));
  if (flags.force && !flags.all_unasked) return wrong_words("drop", reject("--force is for --all-unasked"));
  if (flags.memory_only && flags.ssd_only)
    return wrong_words("drop", reject("--memory-only and --ssd-only exclude each other"));
  for (const std::string& text : flags.digests) {
    const Status digest = check_digest(text);
    if (!digest.ok()) return wrong_words("drop", digest.error());
  }
  json request = {
      {"command", "drop"},       {"digests", flags.digests},
      {"scope", flags.scope},    {"unasked", flags.all_unasked},
      {"force", flags.force},    {"where", flags.memory_only ? "memory" : flags.ssd_only ? "ssd" : "all"},
      {"dry_run", flags.dry_run}};
  if (!flags.older_than.empty()) {
    auto age = parse_age(flags.older_than);
    if (!age.ok()) return wrong_words("drop", age.error());
    if (*age < seconds(60))
      return wrong_words("drop", reject("ages are counted in minutes; write at least 1m"));
    request["unused_s"] = age->ns / seconds(1).ns;
  }
  auto answer = control(flags.socket, "drop", request);
  if (!answer.ok()) return failed("drop", answer.error());
  return show_dropped("drop", *answer, flags.json);
}

}  // namespace orbitkv::daemon::cli
