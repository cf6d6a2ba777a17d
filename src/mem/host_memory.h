// How much memory a pool may take: what the kernel calls available, every cgroup
// limit (v1 and v2) from this process up to the root, and the 2 MiB pages that the
// administrator has reserved. Read at start; never cached. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/ids.h"

namespace orbitkv::mem {

struct HostMemory {
  ByteCount available;      // of ordinary pages, without swapping, cgroups counted
  std::string bound_by;     // what sets it: "MemAvailable" or the file of a cgroup limit
  ByteCount reserved_huge;  // reserved 2 MiB pages that nobody has taken
};

// `root` is put before every path ("/proc/meminfo", ...); tests make a tree of their own.
HostMemory read_host_memory(const std::string& root = "");

// How often a cgroup of this process, up to the root, has gone over its memory.high.
// nullopt: nothing here counts that (cgroup v1, or none).
std::optional<std::uint64_t> read_memory_pressure(const std::string& root = "");

// How often the kernel has killed a process of this cgroup for want of memory, or, where that is not
// counted, any process. nullopt: nothing counts it.
std::optional<std::uint64_t> read_oom_kills(const std::string& root = "");

// min(30 GiB, a quarter of the available memory) in whole 2 MiB, at least 2 MiB.
ByteCount default_pool_bytes(const HostMemory& memory);

}  // namespace orbitkv::mem
