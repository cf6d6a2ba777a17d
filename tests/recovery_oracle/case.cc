#include "tests/recovery_oracle/case.h"

#include <sstream>

namespace orbitkv::recovery_oracle {
namespace {

void print_group(std::ostream& out, const Group& group) {
  static constexpr const char* kNames[] = {"prefix", "window", "checkpoint", "unknown rule"};
  out << "group " << group.id << ": " << kNames[static_cast<std::size_t>(group.rule)];
  if (group.rule == Rule::kWindow || group.window != 0) out << ", window " << group.window;
  out << "\n";
}

void print_shard(std::ostream& out, const Shard& shard) {
  if (shard.empty()) out << " holds no lists";
  for (const Covered& list : shard) {
    out << " group " << list.group << " {";
    for (const Range& range : list.ranges) out << print(range);
    out << "}";
  }
  out << "\n";
}

}  // namespace

std::string print(const Range& range) {
  return "[" + std::to_string(range.begin) + ", " + std::to_string(range.end) + ")";
}

std::string print(const Case& c) {
  std::ostringstream out;
  out << "contract of \"" << c.name_space << "\", asked for \"" << c.asked << "\"; page " << c.page
      << ", tail " << print(c.tail) << ", limit " << c.limit << "\n";
  for (const Group& group : c.groups) print_group(out, group);
  for (std::size_t i = 0; i < c.shards.size(); ++i) {
    out << "shard " << i << ":";
    print_shard(out, c.shards[i]);
  }
  if (c.shards.empty()) out << "no shards\n";
  return out.str();
}

}  // namespace orbitkv::recovery_oracle
