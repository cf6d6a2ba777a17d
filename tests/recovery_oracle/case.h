// One question about recovery, in plain numbers: a contract, a tail, what every shard
// holds, and a limit; well formed or not. The oracle and the code under test answer it
// side by side. Pure values, any thread; nothing here comes from the code under test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace orbitkv::recovery_oracle {

inline constexpr std::size_t kMostGroups = 16;
inline constexpr std::size_t kMostShards = 64;

enum class Rule : std::uint8_t { kPrefix, kWindow, kCheckpoint, kUnknown };

struct Range {  // tokens, half-open
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

struct Group {
  std::uint16_t id = 0;
  Rule rule = Rule::kPrefix;
  std::uint32_t window = 0;  // tokens
  friend bool operator==(const Group&, const Group&) = default;
};

struct Covered {
  std::uint16_t group = 0;
  std::vector<Range> ranges;
  friend bool operator==(const Covered&, const Covered&) = default;
};

using Shard = std::vector<Covered>;

struct Case {
  std::string name_space = "a";  // of the contract
  std::string asked = "a";       // of the questions
  std::uint32_t page = 1;        // tokens
  std::vector<Group> groups;
  Range tail;
  std::vector<Shard> shards;
  std::uint64_t limit = 0;
  friend bool operator==(const Case&, const Case&) = default;
};

// Everything that the case is made of, a line for each part.
std::string print(const Case& c);
std::string print(const Range& range);

}  // namespace orbitkv::recovery_oracle
