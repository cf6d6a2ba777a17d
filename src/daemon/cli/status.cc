#include <cstdio>
#include <nlohmann/json.hpp>

#include "daemon/cli/ask.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/fields.h"

namespace orbitkv::daemon::cli {
namespace {
using nlohmann::json;

void print_ssd(const json& ssd) {
  std::printf("ssd       %llu blocks, %s of %s, by %s; %llu read, %llu written, %s queued",
              count_of(ssd, "records"), size_of(ssd, "live_bytes").c_str(), size_of(ssd, "capacity").c_str(),
              ssd.at("io").get<std::string>().c_str(), count_of(ssd, "reads"), count_of(ssd, "writes"),
              size_of(ssd, "queued_bytes").c_str());
  if (const double written = ssd.at("written_bytes").get<double>(); written > 0)
    std::printf(", amplification %.2f", ssd.at("device_written_bytes").get<double>() / written);
  if (const auto state = ssd.value("state", "ready"); state != "ready") {
    const json& opening = ssd.at("opening");
    std::printf(
        "\n          BEING READ (%s): %llu of %llu segments, about %.0f s left; until then blocks on it are "
        "missed",
        state.c_str(), count_of(opening, "segments_read"), count_of(opening, "segments"),
        opening.at("seconds_left").get<double>());
  }
  if (count_of(ssd, "damaged_batches") > 0)
    std::printf("\n          %llu segments or batches were damaged when it was read",
                count_of(ssd, "damaged_batches"));
  const json& admission = ssd.at("admission");
  std::printf(
      "\n          blocks not written: %llu that the SSD did not take, %llu not expected back, %llu over the "
      "budget\n",
      count_of(admission, "refused"), count_of(admission, "unlikely"), count_of(admission, "over_budget"));
  for (const json& path : ssd.at("paths")) {
    std::printf("          %s: %s, %s of %s used\n", path.at("path").get<std::string>().c_str(),
                path.at("state").get<std::string>().c_str(), size_of(path, "used").c_str(),
                size_of(path, "capacity").c_str());
    for (const char* what : {"why", "note"})
      if (const auto text = path.at(what).get<std::string>(); !text.empty())
        std::printf("          %s\n", text.c_str());
  }
}

void print_nodes(const json& pool) {
  for (const json& node : pool.at("nodes"))
    std::printf("          NUMA node %d: %s of %s used\n", node.at("node").get<int>(),
                size_of(node, "used").c_str(), size_of(node, "capacity").c_str());
  std::printf("          %llu extents near their device, %llu on other nodes\n", count_of(pool, "local"),
              count_of(pool, "remote"));
}

// What would be there after this Manager's death, and what is wrong with that.
void print_kept(const json& status) {
  if (!status.contains("kept")) {
    std::printf("kept      nothing: what is in memory ends with this process (serve --keep)\n");
    return;
  }
  const json& kept = status.at("kept");
  const bool alive = kept.at("alive").get<bool>();
  const auto by = kept.at("by").get<std::string>();
  if (!alive) {
    std::printf(
        "kept      NOTHING: the %s has ended; restart orbitkv serve --keep when it suits, for what is in "
        "memory\n"
        "          ends with this process, and it cannot be upgraded\n",
        by.c_str());
    return;
  }
  const std::string pid = kept.contains("keeper") ? " (pid " + kept.at("keeper").dump() + ")" : "";
  std::printf("kept      by the %s%s: %llu blocks were taken over at the start\n", by.c_str(), pid.c_str(),
              count_of(kept, "blocks"));
  if (!kept.at("stored").get<bool>())
    std::printf("          NOT ALL: the %s did not take what a next Manager needs, which would start cold\n",
                by.c_str());
  if (const auto missing = count_of(kept, "not_kept"); missing > 0)
    std::printf("          %llu descriptors were not taken: is the limit of open files reached?\n", missing);
  if (const auto hung = kept.value("hung_starts", std::uint64_t{0}); hung > 0)
    std::printf("          %llu starts hung, and were ended by the keeper\n",
                static_cast<unsigned long long>(hung));
  if (kept.value("came", "") == "back")
    std::printf("          the last upgrade failed: %s\n", kept.at("why").get<std::string>().c_str());
}

void print_text(const json& status) {
  const json& pool = status.at("pool");
  std::printf("orbitkv %s at %s, incarnation %s, up %.0f s%s\n",
              status.at("version").get<std::string>().c_str(), status.at("socket").get<std::string>().c_str(),
              status.at("incarnation").get<std::string>().c_str(), status.at("uptime_s").get<double>(),
              status.at("draining").get<bool>() ? ", DRAINING" : "");
  std::printf(
      "pool      %s of %s used (%s configured), %s leased, %s quarantined, largest free %s, %s in huge "
      "pages\n",
      size_of(pool, "used").c_str(), size_of(pool, "capacity").c_str(), size_of(pool, "configured").c_str(),
      size_of(pool, "leased").c_str(), size_of(pool, "quarantined").c_str(),
      size_of(pool, "largest_free").c_str(), size_of(pool, "huge").c_str());
  if (pool.at("nodes").size() > 1) print_nodes(pool);
  const auto count = [&](const char* key) { return count_of(status, key); };
  std::printf("blocks    %llu resident, %llu being written, %llu leases, %llu evicted\n", count("blocks"),
              count("inflight_images"), count("leases"), count("evicted"));
  const json& eviction = status.at("eviction");
  const auto blocks_of = [&](const char* name) { return count_of(eviction.at(name), "blocks"); };
  std::printf(
      "          next to be evicted: %llu reclaimable, %llu probationary, %llu retained (%s may be)\n",
      blocks_of("reclaimable"), blocks_of("probationary"), blocks_of("retained"),
      size_of(eviction, "protected_bytes").c_str());
  std::printf("queries   %llu blocks hit, %llu missed\n", count("hits"), count("misses"));
  std::printf("publish   %llu blocks, %llu filtered, %llu dropped, %llu abandoned\n", count("published"),
              count("filtered"), count("dropped"), count("abandoned"));
  std::printf("restore   %llu blocks, %llu failed operations, %llu failed verifications\n", count("restored"),
              count("failed_restores"), count("failed_verifications"));
  if (status.contains("ssd")) print_ssd(status.at("ssd"));
  print_kept(status);
  for (const json& session : status.at("sessions"))
    std::printf("session   %2d %s, pid %d, %s, %d operations\n", session.at("id").get<int>(),
                session.at("name").get<std::string>().c_str(), session.at("pid").get<int>(),
                session.at("state").get<std::string>().c_str(), session.at("operations").get<int>());
  for (const json& instance : status.at("instances"))
    std::printf("instance  %s, %d of %d ranks, %d leases\n", instance.at("id").get<std::string>().c_str(),
                instance.at("ranks").get<int>(), instance.at("world_size").get<int>(),
                instance.at("leases").get<int>());
}
}  // namespace

int status(const StatusFlags& flags) {
  auto text = ask_status({flags.socket, "status", flags.timeout_ms});
  if (!text.ok()) {
    std::fprintf(stderr, "orbitkv status: %s\n", text.error().message().c_str());
    return 1;
  }
  if (flags.json)
    std::printf("%s\n", text->c_str());
  else
    print_text(json::parse(*text));
  return 0;
}

}  // namespace orbitkv::daemon::cli
