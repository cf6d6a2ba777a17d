#include "daemon/plan_bank.h"

#include "base/check.h"

namespace orbitkv::daemon {
namespace {
constexpr std::uint32_t kUnit = 64;
}

PlanBank::PlanBank(std::uint32_t bytes) {
  ORBITKV_CHECK(bytes > 0 && bytes <= limits::kPlanBankBytes, "a plan bank lies in the session's memory");
  free_.emplace(0, bytes);
}

std::optional<PlanBank::Range> PlanBank::allocate(std::uint32_t bytes) {
  if (bytes == 0 || bytes > limits::kPlanBankBytes) return std::nullopt;
  const std::uint32_t need = (bytes + kUnit - 1) / kUnit * kUnit;
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, size] = *it;
    if (size < need) continue;
    free_.erase(it);
    if (size > need) free_.emplace(offset + need, size - need);
    used_ += need;
    return Range{offset, need};
  }
  return std::nullopt;
}

void PlanBank::release(Range range) {
  ORBITKV_CHECK(range.bytes > 0 && used_ >= range.bytes, "plan bank range released twice");
  used_ -= range.bytes;
  auto [it, fresh] = free_.emplace(range.offset, range.bytes);
  ORBITKV_CHECK(fresh, "plan bank range released twice");
  if (auto next = std::next(it); next != free_.end() && it->first + it->second == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it != free_.begin()) {
    auto before = std::prev(it);
    ORBITKV_CHECK(before->first + before->second <= it->first, "plan bank ranges overlap");
    if (before->first + before->second == it->first) {
      before->second += it->second;
      free_.erase(it);
    }
  }
}

}  // namespace orbitkv::daemon
