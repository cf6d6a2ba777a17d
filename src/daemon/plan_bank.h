// Space of one session's plan bank: first fit over 64-byte units, offsets only. The
// Manager is its only owner; nothing is kept in the shared memory itself. Core thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/limits.h"

namespace orbitkv::daemon {

class PlanBank {
 public:
  struct Range {
    std::uint32_t offset = 0;
    std::uint32_t bytes = 0;
  };
  // Fewer bytes than the memory has: simulation fills them.
  explicit PlanBank(std::uint32_t bytes = limits::kPlanBankBytes);
  // Rounded up to 64 bytes; nullopt: no run of that size is free.
  std::optional<Range> allocate(std::uint32_t bytes);
  void release(Range range);
  std::uint32_t used() const { return used_; }

 private:
  std::map<std::uint32_t, std::uint32_t> free_;  // offset → bytes, coalesced; <= kRecords + 1 runs
  std::uint32_t used_ = 0;
};

}  // namespace orbitkv::daemon
