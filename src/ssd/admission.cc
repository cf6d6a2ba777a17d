#include "ssd/admission.h"

#include <algorithm>

#include "ssd/return_rates.h"
#include "ssd/save_history.h"
#include "ssd/write_budget.h"

namespace orbitkv::ssd {

namespace {

constexpr std::uint32_t kLeastHistory = 1024;
constexpr std::uint32_t kPlanEvery = 512;  // blocks that left DRAM
// Of the history: what has to come back before anything is left out, and the blocks asked
// for within which a loss that is off its allowance is to be made good.
constexpr std::uint32_t kLearntPart = 512, kCorrectionPart = 16;
constexpr double kKept = 7.0 / 8;  // of what was seen before the last plan
// Allowances at once: while less was lost than allowed, and while more was.
constexpr double kFastest = 3, kSlowest = 0.1;

std::uint8_t lot_of(AdmissionKey key) {
  return static_cast<std::uint8_t>(key.value * 0x9E3779B97F4A7C15u >> 56);
}

}  // namespace

struct Admission::Impl {
  explicit Impl(const AdmissionConfig& given)
      : config(given),
        blocks(std::max(given.history, kLeastHistory), given.seed),
        saves(given.policy == WritePolicy::kReuse ? kSavesRemembered : 1),
        budget(given.daily_budget) {
    config.history = std::max(given.history, kLeastHistory);
  }

  Verdict write(BlockMemory& block, ByteCount size, TimePoint now) {
    block.skipped = false;
    const bool paid = budget.take(size, now);
    end_as(block, paid ? BlockFate::kAdmitted : BlockFate::kOverBudget);
    return paid ? Verdict::kWrite : Verdict::kBudget;
  }
  Verdict skip(BlockMemory& block) {
    block.skipped = true;
    end_as(block, BlockFate::kUnlikely);
    return Verdict::kUnlikely;
  }
  // DRAM may ask again and again before it goes.
  void end_as(BlockMemory& block, BlockFate fate) {
    if (block.fate != BlockFate::kNone) --count_of(block.fate);
    block.fate = fate;
    ++count_of(fate);
  }
  std::uint64_t& count_of(BlockFate fate) {
    switch (fate) {
      case BlockFate::kUnlikely: return stats.unlikely;
      case BlockFate::kOverBudget: return stats.over_budget;
      case BlockFate::kRefused: return stats.refused;
      case BlockFate::kAdmitted:
      case BlockFate::kNone: break;
    }
    return stats.admitted;
  }

  void came_back(BlockMemory& block) {
    if (!block.left) return;
    block.left = false;
    block.fate = BlockFate::kNone;
    ++stats.returned;
    rates.came_back(block.kind);
  }
  BlockMemory& asked_or_not(AdmissionKey key);
  void found_known(BlockMemory& block, bool found);
  void meet_new(AdmissionKey key, BlockMemory& block, const BlockContext& context);
  void let_go(BlockMemory& block, ByteCount size, TimePoint now);
  void plan(TimePoint now);

  AdmissionConfig config;
  BlockHistory blocks;
  ReturnRates rates;
  SaveHistory saves;
  WriteBudget budget;
  AdmissionStats stats;

  // The query at hand.
  struct Query {
    std::uint32_t next = 0, known_run = 0;
    std::uint8_t branch_hits = 0, lot = 0;
    bool whole = true;  // all blocks so far were known
    bool hole = false;  // one of them is unwritten by choice, so nothing behind it is found
  } query;

  // Halved with the rates.
  double asked = 0, lost = 0, left = 0;
  // Since the last plan, and over the last plans.
  std::uint32_t left_since_plan = 0;
  ByteCount bytes_since_plan;
  TimePoint planned;
  double bytes = 0, seconds = 0;
};

BlockMemory& Admission::Impl::asked_or_not(AdmissionKey key) {
  const bool known = blocks.find(key) != nullptr;
  BlockMemory& block = blocks.remember(key);
  if (known) return block;
  block.kind = ReturnRates::of_unasked();
  block.lot = lot_of(key);
  return block;
}

void Admission::Impl::found_known(BlockMemory& block, bool found) {
  query.branch_hits = block.hits;
  ++query.known_run;
  if (!found && block.skipped) query.hole = true;
  if (query.hole) {
    ++lost;
    ++stats.lost;
  }
  if (block.hits < kMostHits) ++block.hits;
  came_back(block);
}

void Admission::Impl::meet_new(AdmissionKey key, BlockMemory& block, const BlockContext& context) {
  if (query.whole) query.lot = lot_of(key);
  query.whole = false;
  block.lot = query.lot;
  if (!block.saved)
    block.kind = ReturnRates::of({context.position, query.known_run, context.length, query.branch_hits});
}

Admission::Admission(const AdmissionConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Admission::~Admission() = default;

void Admission::asked(AdmissionKey key, const BlockContext& context, bool found) {
  Impl::Query& query = impl_->query;
  if (context.position == 0 || context.position != query.next) query = {.known_run = context.position};
  query.next = context.position + 1;
  ++impl_->stats.asked;
  ++impl_->asked;
  BlockMemory& block = impl_->blocks.remember(key);
  if (found) block.saved = block.returned = true;
  // A known block behind an unknown one could not have been found.
  if (query.whole && block.saved)
    impl_->found_known(block, found);
  else
    impl_->meet_new(key, block, context);
}

Verdict Admission::saved(AdmissionKey key, ByteCount bytes, TimePoint now) {
  Impl& in = *impl_;
  BlockMemory& block = in.asked_or_not(key);
  in.came_back(block);
  block.saved = true;
  block.fate = BlockFate::kNone;
  switch (in.config.policy) {
    case WritePolicy::kAll: return in.write(block, bytes, now);
    case WritePolicy::kReuse: return in.saves.save(key) ? in.write(block, bytes, now) : Verdict::kWait;
    case WritePolicy::kAuto: break;
  }
  return Verdict::kWait;
}

// Counted once for each time that it leaves.
void Admission::Impl::let_go(BlockMemory& block, ByteCount size, TimePoint now) {
  if (block.left) return;
  if (left == 0) planned = now;
  block.left = block.saved = true;
  if (block.hits > 0) block.kind = ReturnRates::of_returned(block.hits);
  rates.left(block.kind);
  ++left;
  bytes_since_plan += size;
  if (++left_since_plan >= kPlanEvery) plan(now);
}

void Admission::Impl::plan(TimePoint now) {
  // What leaves in one turn of the loop leaves at one time, so time is summed as bytes are.
  seconds = kKept * seconds + static_cast<double>((now - planned).ns) / 1e9;
  bytes = kKept * bytes + static_cast<double>(bytes_since_plan.value);
  planned = std::max(planned, now);
  left_since_plan = 0;
  bytes_since_plan = {};
  ReturnRates::Limits limits;
  if (stats.returned >= config.history / kLearntPart) {
    const double allowance = config.loss_per_mille / 1000.0;
    const std::uint32_t horizon = config.history / kCorrectionPart;
    const double off = (allowance * asked - lost) / horizon;
    limits.returns_lost =
        std::clamp(allowance + off, kSlowest * allowance, kFastest * allowance) * asked / left;
  }
  if (budget.limited()) limits.affordable = std::min(1.0, budget.bytes_per_second() * seconds / bytes);
  rates.plan(limits);
  if (left < config.history) return;
  rates.halve();
  for (double* count : {&asked, &lost, &left}) *count /= 2;
}

Verdict Admission::leaving(AdmissionKey key, ByteCount bytes, TimePoint now) {
  Impl& in = *impl_;
  BlockMemory& block = in.asked_or_not(key);
  in.let_go(block, bytes, now);
  if (in.config.policy == WritePolicy::kReuse && !block.returned) return in.skip(block);
  if (in.config.policy == WritePolicy::kAuto && !in.rates.writes(block.kind, block.lot))
    return in.skip(block);
  return in.write(block, bytes, now);
}

void Admission::refused(AdmissionKey key, ByteCount bytes) {
  impl_->budget.give_back(bytes);
  if (BlockMemory* block = impl_->blocks.find(key)) impl_->end_as(*block, BlockFate::kRefused);
}

void Admission::copied(ByteCount bytes, TimePoint now) {
  impl_->budget.charge(bytes, now);
}

AdmissionStats Admission::stats() const {
  AdmissionStats stats = impl_->stats;
  stats.budget_left = impl_->budget.left();
  stats.memory = impl_->blocks.memory() + ByteCount(sizeof(Impl));
  return stats;
}

}  // namespace orbitkv::ssd
