#include "mem/host_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/limits.h"
#include "mem/pool.h"

namespace orbitkv::mem {
namespace {

constexpr ByteCount kDefaultPoolMost = 30 * kGiB;

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The value behind "name" or "name:" in a file of such lines.
std::optional<std::uint64_t> named_number(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, name.size(), name) != 0) continue;
    const std::size_t digits = line.find_first_of("0123456789", name.size());
    if (line.find_first_not_of(": \t", name.size()) != digits || digits == std::string::npos) continue;
    return std::strtoull(line.c_str() + digits, nullptr, 10);
  }
  return std::nullopt;
}

// nullopt: no such file, or "max".
std::optional<std::uint64_t> read_number(const std::string& path) {
  const auto text = read_text(path);
  if (!text || text->empty() || (*text)[0] < '0' || (*text)[0] > '9') return std::nullopt;
  return std::strtoull(text->c_str(), nullptr, 10);
}

// One version's names for the same things.
struct CgroupFiles {
  const char* filesystem;           // as in mountinfo
  std::vector<const char*> limits;  // the smallest counts
  const char* usage;
  const char* reclaimable;  // in memory.stat: page cache that makes way
};
const CgroupFiles kV1{"cgroup", {"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file"};
const CgroupFiles kV2{"cgroup2", {"memory.max", "memory.high"}, "memory.current", "inactive_file"};

bool has_word(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

struct CgroupMount {
  std::string at;    // mount point
  std::string root;  // the cgroup that is mounted there
};

std::optional<CgroupMount> find_mount(const std::string& mountinfo, const CgroupFiles& files) {
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream left(line.substr(0, dash)), right(line.substr(dash + 3));
    std::string skip, type, source, options;
    CgroupMount mount;
    left >> skip >> skip >> skip >> mount.root >> mount.at;
    right >> type >> source >> options;
    if (type != files.filesystem) continue;
    if (type == "cgroup" && !has_word(options, "memory")) continue;
    return mount;
  }
  return std::nullopt;
}

// This process' cgroup in one hierarchy: "4:memory:/a/b" (v1) or "0::/a/b" (v2).
std::optional<std::string> find_cgroup(const std::string& cgroups, const CgroupFiles& files) {
  std::istringstream lines(cgroups);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty() && line.compare(0, first, "0") == 0;
    const bool wanted = &files == &kV2 ? v2 : has_word(controllers, "memory");
    if (wanted) return line.substr(second + 1);
  }
  return std::nullopt;
}

void bound(HostMemory& memory, ByteCount room, const std::string& by) {
  if (room >= memory.available) return;
  memory.available = room;
  memory.bound_by = by;
}

void bound_by_cgroup(HostMemory& memory, const std::string& directory, const CgroupFiles& files) {
  const std::uint64_t usage = read_number(directory + "/" + files.usage).value_or(0);
  const auto stat = read_text(directory + "/memory.stat");
  const std::uint64_t cache = stat ? named_number(*stat, files.reclaimable).value_or(0) : 0;
  const std::uint64_t held = usage - std::min(usage, cache);
  for (const char* name : files.limits) {
    const std::string path = directory + "/" + name;
    const auto limit = read_number(path);
    if (limit) bound(memory, ByteCount(*limit - std::min(*limit, held)), path);
  }
}

// Every cgroup from the process' own up to the mount; in a container the path may not
// be visible below the mount, and then the mount itself is the container's cgroup.
template <class Visit>
void each_cgroup(const std::string& root, const CgroupFiles& files, Visit visit) {
  const auto mounts = read_text(root + "/proc/self/mountinfo");
  const auto cgroups = read_text(root + "/proc/self/cgroup");
  if (!mounts || !cgroups) return;
  const auto mount = find_mount(*mounts, files);
  auto path = find_cgroup(*cgroups, files);
  if (!mount || !path) return;
  if (mount->root != "/" && path->compare(0, mount->root.size(), mount->root) == 0)
    path->erase(0, mount->root.size());
  while (!path->empty() && path->back() == '/') path->pop_back();
  for (;; path->erase(path->rfind('/'))) {
    visit(root + mount->at + *path);
    if (path->rfind('/') == std::string::npos) return;
  }
}

}  // namespace

HostMemory read_host_memory(const std::string& root) {
  HostMemory memory;
  const auto meminfo = read_text(root + "/proc/meminfo");
  memory.available = ByteCount(meminfo ? named_number(*meminfo, "MemAvailable").value_or(0) * 1024 : 0);
  memory.bound_by = "MemAvailable";
  for (const CgroupFiles* files : {&kV1, &kV2})
    each_cgroup(root, *files,
                [&](const std::string& directory) { bound_by_cgroup(memory, directory, *files); });
  const std::string huge = root + "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  const std::uint64_t free = read_number(huge + "free_hugepages").value_or(0);
  const std::uint64_t taken = read_number(huge + "resv_hugepages").value_or(0);
  memory.reserved_huge = (free - std::min(free, taken)) * limits::kHugePageBytes;
  return memory;
}

std::optional<std::uint64_t> read_memory_pressure(const std::string& root) {
  std::optional<std::uint64_t> sum;
  each_cgroup(root, kV2, [&](const std::string& directory) {
    const auto events = read_text(directory + "/memory.events");
    const auto high = events ? named_number(*events, "high") : std::nullopt;
    if (high) sum = sum.value_or(0) + *high;
  });
  return sum;
}

std::optional<std::uint64_t> read_oom_kills(const std::string& root) {
  std::optional<std::uint64_t> kills;
  each_cgroup(root, kV2, [&](const std::string& directory) {
    const auto events = kills ? std::nullopt : read_text(directory + "/memory.events");
    if (events) kills = named_number(*events, "oom_kill");
  });
  if (kills) return kills;
  const auto system = read_text(root + "/proc/vmstat");
  return system ? named_number(*system, "oom_kill") : std::nullopt;
}

ByteCount default_pool_bytes(const HostMemory& memory) {
  const std::uint64_t step = limits::kHugePageBytes.value;
  const std::uint64_t quarter = std::min(kDefaultPoolMost.value, memory.available.value / 4);
  return ByteCount(std::max(quarter / step, std::uint64_t{1}) * step);
}

ByteCount default_pool_bytes() {
  return default_pool_bytes(read_host_memory());
}

}  // namespace orbitkv::mem
