// Cases by number: the same seed and number give the same case on every machine. Most
// are well formed and built to have some boundaries and lack others; the rest carry one
// or two faults of input. Any thread.
#pragma once

#include <cstdint>

#include "tests/recovery_oracle/case.h"

namespace orbitkv::recovery_oracle {

struct CaseId {
  std::uint64_t seed = 0;
  std::uint64_t number = 0;
};

struct Universe {  // the most of each
  std::uint64_t pages = 0;
  std::uint16_t groups = 0;
  std::uint8_t shards = 0;
};

inline constexpr Universe kSmall{12, 4, 3};
inline constexpr Universe kLarge{300, kMostGroups, 6};

Case generate(const Universe& universe, CaseId id);

// What follows from a case number and nothing else.
class Draw {
 public:
  explicit Draw(CaseId id) : state_(id.seed * 0x9e3779b97f4a7c15u ^ (id.number + 1) * 0xd1342543de82ef95u) {}
  std::uint64_t next() {  // SplitMix64
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

// Spoils one thing of a case: its contract, its question, or what a shard holds. Now and
// then there is nothing to spoil, and the case stays well formed.
void spoil_contract(Draw& draw, Case& c);
void spoil_question(Draw& draw, Case& c);
void spoil_shard(Draw& draw, Case& c);

}  // namespace orbitkv::recovery_oracle
