// Which blocks are worth writing to the SSD: bounded memory of what came back, and an
// endurance budget in bytes a day. Pure and single-threaded; time comes in. Keys are 64-bit
// keyed hashes, so a collision costs a wrong guess and nothing else.
// Never decides about correctness: a block that is not written is a miss later.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/ids.h"
#include "base/time.h"

namespace orbitkv::ssd {

using AdmissionKey = Id<struct AdmissionKeyTag, std::uint64_t>;

// kAll: at the seal. kReuse: returned to a foreground query, or saved again within the
// history. kAuto: at DRAM eviction, if the ghost history expects it back and the budget allows.
enum class WritePolicy : std::uint8_t { kAll, kReuse, kAuto };

enum class Verdict : std::uint8_t {
  kWrite,
  kWait,          // not now; ask again when DRAM wants to let it go
  kUnlikely,      // not expected back
  kBudget,        // today's bytes are spent
};

// Where a block stood in the request that saved or asked for it.
struct BlockContext {
  std::uint32_t position = 0;  // in the request's chain, from 0
  std::uint32_t hit_run = 0;   // blocks of the chain that were found before it
  std::uint32_t length = 0;    // blocks of the chain, as far as known; 0: not
};

struct AdmissionConfig {
  WritePolicy policy = WritePolicy::kAuto;
  ByteCount daily_budget;          // 0: none
  std::uint32_t history = 1 << 20;  // keys remembered after they left DRAM
  std::uint64_t seed = 0;
};

struct AdmissionStats {
  std::uint64_t written = 0, unlikely = 0, over_budget = 0, ghost_hits = 0;
  ByteCount budget_left, memory;
};

class Admission {
 public:
  explicit Admission(const AdmissionConfig& config);
  ~Admission();

  // A query looked for it. `found`: in DRAM or on SSD.
  enum class Found : std::uint8_t { kNo, kMemory, kStored };
  void asked(AdmissionKey key, const BlockContext& context, Found found, TimePoint now);
  // It was published (again, where it had been evicted).
  Verdict saved(AdmissionKey key, const BlockContext& context, ByteCount bytes, TimePoint now);
  // DRAM is about to let it go and no SSD copy exists.
  Verdict leaving(AdmissionKey key, ByteCount bytes, TimePoint now);
  // It was written; charges the budget.
  void wrote(AdmissionKey key, ByteCount bytes, TimePoint now);

  AdmissionStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace orbitkv::ssd
