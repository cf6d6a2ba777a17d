// Which blocks are worth writing to the SSD: bounded memory of what came back, and an
// endurance budget in bytes a day (docs/ssd-admission.md). Owned by the store's user, core
// thread; pure, time comes in. Keys are 64-bit keyed hashes, so a collision costs a wrong
// guess and nothing else.
// Never decides about correctness: a block that is not written is a miss later.
#pragma once

#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "base/time.h"
#include "ssd/block_history.h"

namespace orbitkv::ssd {

// kAll: at the seal. kReuse: at DRAM eviction if it was returned to a query, at the seal if
// it was saved before within the last kSavesRemembered saves. kAuto: at DRAM eviction, if
// blocks like it come back often enough and the budget allows.
enum class WritePolicy : std::uint8_t { kAll, kReuse, kAuto };
inline constexpr std::uint32_t kSavesRemembered = 16'384;

enum class Verdict : std::uint8_t {
  kWrite,     // charged to the budget
  kWait,      // not now; ask again when DRAM wants to let it go
  kUnlikely,  // not expected back, or less than others where the budget is short
  kBudget,    // the bytes are spent for now
};

// Where a block stood in the request that asked for it.
struct BlockContext {
  std::uint32_t position = 0;  // in the request's chain, from 0
  std::uint32_t length = 0;    // blocks of the chain that was asked for; 0: not known
};

struct AdmissionConfig {
  WritePolicy policy = WritePolicy::kAuto;
  ByteCount daily_budget;             // 0: none; at least eight of the largest block
  std::uint32_t history = 1 << 20;    // blocks remembered, 16 bytes each, those in DRAM counted
  std::uint32_t loss_per_mille = 27;  // of all blocks asked for: misses that kAuto may cause
  std::uint64_t seed = 0;
};

struct AdmissionStats {
  // Blocks, once for each time that they were in DRAM, by the last word on them. `refused`: a
  // verdict kWrite that the store did not take, or not carry out.
  std::uint64_t admitted = 0, unlikely = 0, over_budget = 0, refused = 0;
  std::uint64_t returned = 0;         // blocks that had left DRAM and were asked for or saved again
  std::uint64_t asked = 0, lost = 0;  // lost: would have been found, had kAuto written them
  ByteCount budget_left;              // as of the last verdict
  ByteCount memory;
};

class Admission {
 public:
  explicit Admission(const AdmissionConfig& config);
  ~Admission();

  // A query looked for it. One call for each block of a request's chain, in its order and
  // beyond the first miss; once a request, not once a poll. `found`: in DRAM or on SSD.
  void asked(AdmissionKey key, const BlockContext& context, bool found);
  // It was published (again, where it had been evicted). No SSD copy exists.
  Verdict saved(AdmissionKey key, ByteCount bytes, TimePoint now);
  // DRAM is about to let it go and no SSD copy exists.
  Verdict leaving(AdmissionKey key, ByteCount bytes, TimePoint now);
  // A verdict kWrite that did not become a record.
  void refused(AdmissionKey key, ByteCount bytes);
  // Written without being asked about: what is charged to the budget goes below nothing, and
  // what comes next waits until that has flowed in.
  void copied(ByteCount bytes, TimePoint now);

  AdmissionStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace orbitkv::ssd
