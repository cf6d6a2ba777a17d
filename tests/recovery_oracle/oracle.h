// The recovery contract by brute force: sets of pages, looked at one page at a time. It
// follows the words of src/model/recovery.h and shares nothing with the code behind them.
// It can also answer with one planted fault, to see that the cases tell it from the truth.
// Pure, any thread.
#pragma once

#include "tests/recovery_oracle/answers.h"
#include "tests/recovery_oracle/case.h"

namespace orbitkv::recovery_oracle {

enum class Fault : std::uint8_t {
  kNone,
  kMinimumOfMaxima,  // the least of the shards' greatest boundaries passes for common
  kUnionOfShards,    // a boundary of one shard passes for common
  kLastShardIgnored,
  kWindowFloor,        // W / page rounded down
  kWindowOneMore,      // W / page + 1
  kWindowUncut,        // a window that reaches before the origin is never held
  kCheckpointAnyPage,  // any page before the boundary
  kCheckpointAllPages,
  kGroupZeroIgnored,
  kLaterPrefixIgnored,
  kHolesIgnored,       // a list reaches from its first range to its last
  kLastPageIgnored,    // the tail's end is no boundary
  kFirstPageIgnored,   // nor is its first page's end
  kLimitExcluded,      // < limit
  kTouchingRefused,    // a range that begins where the one before it ends
  kRefusalsForgotten,  // with the Wrong to forget
  kCount,
};

struct Planted {
  Fault fault = Fault::kNone;
  Wrong forgotten = Wrong::kCount;
};

Answers oracle(const Case& c, Planted planted = {});

}  // namespace orbitkv::recovery_oracle
