#include "mem/placement.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "base/check.h"
#include "base/limits.h"

namespace orbitkv::mem {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "0-1,3" as numbers below limits::kNodeNumbers; what is no such list is an empty one.
std::vector<std::int32_t> numbers_of(const std::string& list) {
  std::vector<std::int32_t> numbers;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    std::istringstream range(part);
    std::uint32_t first = 0, last = 0;
    char dash = 0;
    if (!(range >> first)) return {};
    if (!(range >> dash >> last)) last = first;
    for (; first <= last && first < limits::kNodeNumbers; ++first)
      numbers.push_back(static_cast<std::int32_t>(first));
  }
  return numbers;
}

// nullopt: the kernel does not say, so every node may be used.
std::optional<std::vector<std::int32_t>> allowed_nodes(const std::string& root) {
  constexpr std::string_view kName = "Mems_allowed_list:";
  std::ifstream file(root + "/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(kName)) return numbers_of(line.substr(kName.size()));
  return std::nullopt;
}

// Free pages and file pages that make way. Lines are "Node 0 MemFree:  123 kB".
ByteCount free_bytes(const std::string& meminfo) {
  std::uint64_t sum = 0;
  std::ifstream file(meminfo);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string node, number, name;
    std::uint64_t kilobytes = 0;
    words >> node >> number >> name >> kilobytes;
    if (words && (name == "MemFree:" || name == "Inactive(file):")) sum += kilobytes;
  }
  return ByteCount(sum * 1024);
}

std::vector<std::uint32_t> distances(const std::string& path) {
  std::istringstream words(first_line(path));
  std::vector<std::uint32_t> out;
  for (std::uint32_t distance = 0; words >> distance;) out.push_back(distance);
  return out;
}

}  // namespace

Topology read_topology(const std::string& root) {
  const std::string directory = root + "/sys/devices/system/node/";
  const auto allowed = allowed_nodes(root);
  Topology topology;
  for (const std::int32_t number : numbers_of(first_line(directory + "online"))) {
    if (topology.nodes.size() == limits::kMemoryNodes) break;
    const std::string node = directory + "node" + std::to_string(number);
    const bool ours = !allowed || std::find(allowed->begin(), allowed->end(), number) != allowed->end();
    const ByteCount free = ours ? free_bytes(node + "/meminfo") : ByteCount(0);
    topology.nodes.push_back({NodeId(number), free, distances(node + "/distance")});
  }
  return topology;
}

NodePolicy::NodePolicy(const Topology& topology) {
  for (const Topology::Node& node : topology.nodes)
    if (node.free.value > 0) memory_.push_back({node.id, node.free, ByteCount(0)});
  if (!active()) return;
  for (const Topology::Node& node : topology.nodes) {
    std::map<NodeId, std::uint32_t> far;
    for (std::size_t i = 0; i < topology.nodes.size(); ++i)
      far[topology.nodes[i].id] = i < node.distances.size() ? node.distances[i] : UINT_MAX;
    far[node.id] = 0;
    Order order{node.id, {}};
    for (const Memory& memory : memory_) order.nodes.push_back(memory.id);
    std::stable_sort(order.nodes.begin(), order.nodes.end(),
                     [&](NodeId a, NodeId b) { return far[a] < far[b]; });
    orders_.push_back(std::move(order));
  }
}

NodePolicy::Memory* NodePolicy::find(NodeId id) {
  const auto it = std::find_if(memory_.begin(), memory_.end(), [&](const Memory& m) { return m.id == id; });
  return it == memory_.end() ? nullptr : &*it;
}

bool NodePolicy::better(const Memory& a, const Memory& b, ByteCount bytes) {
  const bool fits = a.room() >= bytes;
  if (fits != (b.room() >= bytes)) return fits;
  return fits ? a.given < b.given : a.room() > b.room();
}

NodeId NodePolicy::place(ByteCount bytes, std::span<const NodeId> devices) {
  if (!active()) return kAnyNode;
  std::vector<NodeId> near;
  for (const NodeId device : devices)
    if (const auto nodes = nearest(device); !nodes.empty()) near.push_back(nodes.front());
  Memory* best = nullptr;
  for (Memory& memory : memory_) {
    const bool asked = near.empty() || std::find(near.begin(), near.end(), memory.id) != near.end();
    if (asked && (!best || better(memory, *best, bytes))) best = &memory;
  }
  ORBITKV_CHECK(best != nullptr, "the nearest node is one that has memory");
  best->given += bytes;
  return best->id;
}

void NodePolicy::move(ByteCount bytes, NodeId from, NodeId to) {
  if (Memory* const memory = find(from)) memory->given -= std::min(bytes, memory->given);
  if (Memory* const memory = find(to)) memory->given += bytes;
}

std::span<const NodeId> NodePolicy::nearest(NodeId from) const {
  for (const Order& order : orders_)
    if (order.from == from) return order.nodes;
  return {};
}

// The kernel keeps the policy of a shared mapping with the file's pages, not with the mapping.
Status bind_memory(const UniqueFd& memory, ByteCount bytes, NodeId node) {
  constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, limits::kNodeNumbers / kWordBits> mask{};
  if (node.value < 0 || static_cast<std::uint32_t>(node.value) >= limits::kNodeNumbers)
    return reject("memory cannot be bound to a node that the kernel has no number for");
  mask[static_cast<std::size_t>(node.value) / kWordBits] =
      1ul << (static_cast<std::size_t>(node.value) % kWordBits);
  void* const base = ::mmap(nullptr, bytes.value, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (base == MAP_FAILED) return errno_error("cannot map a slab to bind its memory");
  // Preferred, not bound: a node that has run full must not bring the OOM killer.
  const long done =
      ::syscall(SYS_mbind, base, bytes.value, MPOL_PREFERRED, mask.data(), limits::kNodeNumbers + 1, 0);
  Status status = done == 0 ? ok_status() : Status(errno_error("cannot bind the memory of a slab (mbind)"));
  ::munmap(base, bytes.value);
  return status;
}

NodeId node_of_pages(std::span<const std::byte> pages) {
  constexpr std::size_t kAtOnce = 64;
  constexpr std::size_t kMostLooks = 1024;
  constexpr std::uintptr_t kPage = 4096;
  const auto begin = reinterpret_cast<std::uintptr_t>(pages.data());
  std::map<int, std::size_t> found;
  const std::size_t step = std::max<std::size_t>(limits::kHugePageBytes.value, pages.size() / kMostLooks);
  for (std::size_t offset = 0; offset < pages.size();) {
    std::array<const void*, kAtOnce> at{};
    std::array<int, kAtOnce> node{};
    unsigned long count = 0;
    for (; count < kAtOnce && offset < pages.size(); offset += step)
      at[count++] = reinterpret_cast<const void*>((begin + offset) / kPage * kPage);
    // Without target nodes it moves nothing and says where the pages are.
    if (::syscall(SYS_move_pages, 0, count, at.data(), nullptr, node.data(), 0) != 0) return kAnyNode;
    for (unsigned long i = 0; i < count; ++i)
      if (node[i] >= 0) ++found[node[i]];
  }
  const auto most = std::max_element(found.begin(), found.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == found.end() ? kAnyNode : NodeId(most->first);
}

}  // namespace orbitkv::mem
