#include "tests/native/kill_matrix/tally.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace orbitkv::test::kills {
namespace {
using nlohmann::json;

constexpr std::uint64_t kSaid = 20;  // failures that are told one by one
constexpr int kPollUs = 5000;

double seconds_of(Duration time) {
  return static_cast<double>(time.ns) / 1e9;
}

// By inode: what is mapped and open counts once.
void add_slabs(pid_t pid, std::map<ino_t, std::uint64_t>& slabs) {
  const std::string base = "/proc/" + std::to_string(pid);
  std::error_code gone;
  for (const auto& each : std::filesystem::directory_iterator(base + "/fd", gone)) {
    struct stat status{};
    const std::string target = std::filesystem::read_symlink(each.path(), gone).string();
    if (target.find("orbitkv-slab") == target.npos || ::stat(each.path().c_str(), &status) != 0) continue;
    slabs[status.st_ino] = static_cast<std::uint64_t>(status.st_blocks) * 512;
  }
  std::ifstream maps(base + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("orbitkv-slab") == line.npos) continue;
    unsigned long long first = 0, last = 0, inode = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx %*s %*s %*s %llu", &first, &last, &inode) == 3)
      slabs.emplace(static_cast<ino_t>(inode), last - first);
  }
}
}  // namespace

ByteCount slab_memory(const std::vector<pid_t>& processes) {
  std::map<ino_t, std::uint64_t> slabs;
  for (const pid_t pid : processes) add_slabs(pid, slabs);
  std::uint64_t sum = 0;
  for (const auto& [inode, bytes] : slabs) sum += bytes;
  return ByteCount(sum);
}

// ---- Tally ----

void Tally::say(std::string_view row, const std::string& what) {
  if (++said_ <= kSaid) std::fprintf(stderr, "%s: %s\n", std::string(row).c_str(), what.c_str());
}

void Tally::kill(std::string_view row, std::uint32_t count) {
  rows_[std::string(row)] += count;
  kills_ += count;
  say_progress();
}

void Tally::wrong(std::string_view row, std::uint64_t bytes) {
  wrong_ += bytes;
  if (bytes > 0) say(row, std::to_string(bytes) + " wrong bytes");
}

void Tally::other_failed(std::string_view row, const std::string& why) {
  ++others_;
  say(row, "another engine: " + why);
}

void Tally::whole_after(std::string_view row, Duration time) {
  rows_.try_emplace(std::string(row), 0);
  slowest_ = std::max(slowest_, time);
}

void Tally::late(std::string_view row, const std::string& why) {
  ++late_;
  say(row, "capacity is not back: " + why);
}

void Tally::memory(ByteCount slabs, ByteCount pool, ByteCount headroom) {
  headroom_ = std::max(headroom_, headroom.value);
  const std::uint64_t over = slabs > pool ? slabs.value - pool.value : 0;
  peak_over_ = std::max(peak_over_, over);
  if (over > headroom.value) ++over_;
}

void Tally::say_progress() {
  const TimePoint now = monotonic_now();
  if (now - progress_ < seconds(1)) return;
  progress_ = now;
  std::printf("progress %s %u %u\n", party_.c_str(), kills_, wanted_);
  std::fflush(stdout);
}

std::string Tally::json() const {
  nlohmann::json rows = nlohmann::json::object();
  for (const auto& [row, kills] : rows_) rows[row] = kills;
  return nlohmann::json({{"party", party_},
                         {"kills", kills_},
                         {"rows", rows},
                         {"reports", reports_},
                         {"wrong_bytes", wrong_},
                         {"slowest_s", seconds_of(slowest_)},
                         {"not_back", late_},
                         {"peak_over_pool", peak_over_},
                         {"headroom", headroom_},
                         {"over_headroom", over_},
                         {"others_failed", others_},
                         {"seconds", seconds_of(monotonic_now() - started_)}})
      .dump();
}

// ---- standing ----

Standing standing_of(const Manager& manager, std::uint64_t sessions) {
  Standing out;
  const auto text = manager.try_status(2000);
  if (!text.ok()) {
    out.missing = "the Manager does not answer: " + text.error().message();
    return out;
  }
  const auto status = nlohmann::json::parse(*text);
  out.answers = true;
  out.pid = status.at("pid").get<pid_t>();
  const auto& pool = status.at("pool");
  out.pool = ByteCount(pool.at("configured").get<std::uint64_t>());
  std::stringstream missing;
  const auto expect = [&](const char* what, std::uint64_t is, std::uint64_t should) {
    if (is != should) missing << what << " " << is << " instead of " << should << "; ";
  };
  expect("sessions", status.at("sessions").size(), sessions);
  expect("capacity", pool.at("capacity").get<std::uint64_t>(), out.pool.value);
  for (const char* name : {"quarantined", "retiring", "retired", "building", "leased"})
    expect(name, pool.at(name).get<std::uint64_t>(), 0);
  for (const char* name : {"operations", "leases"}) expect(name, status.at(name).get<std::uint64_t>(), 0);
  for (const char* name : {"used", "prepared", "draining", "waiting"})
    expect(name, status.at("budgets").at(name).get<std::uint64_t>(), 0);
  if (status.contains("kept"))
    expect("old grants", status.at("kept").at("old_grants").get<std::uint64_t>(), 0);
  out.missing = missing.str();
  out.whole = out.missing.empty();
  return out;
}

bool wait_whole(const Watched& watched, const Limits& limits, std::string_view row, TimePoint since,
                Tally& tally) {
  for (;;) {
    const Standing now = standing_of(watched.manager, watched.sessions);
    std::vector<pid_t> all = watched.processes;
    if (now.pid > 0) all.push_back(now.pid);
    if (now.answers) tally.memory(slab_memory(all), now.pool, limits.headroom);
    const Duration passed = monotonic_now() - since;
    if (now.whole) {
      tally.whole_after(row, passed);
      return true;
    }
    if (passed > limits.within) {
      tally.late(row, now.missing);
      return false;
    }
    tally.say_progress();
    ::usleep(kPollUs);
  }
}

}  // namespace orbitkv::test::kills
