#include "ssd/write_budget.h"

#include <algorithm>

namespace orbitkv::ssd {

namespace {
constexpr double kDay = 24 * 3600, kSpend = 240;
}

WriteBudget::WriteBudget(ByteCount daily)
    : burst_(static_cast<double>(daily.value) / 8),
      per_second_(static_cast<double>(daily.value) / kDay * 7 / 8),
      left_(burst_) {}

void WriteBudget::fill(TimePoint now) {
  if (!started_) filled_ = now;
  started_ = true;
  if (now <= filled_) return;
  left_ = std::min(burst_, left_ + static_cast<double>((now - filled_).ns) / 1e9 * per_second_);
  filled_ = now;
}

void WriteBudget::charge(ByteCount bytes, TimePoint now) {
  if (!limited()) return;
  fill(now);
  left_ -= static_cast<double>(bytes.value);
}

bool WriteBudget::take(ByteCount bytes, TimePoint now) {
  if (!limited()) return true;
  fill(now);
  if (left_ < static_cast<double>(bytes.value)) return false;
  left_ -= static_cast<double>(bytes.value);
  return true;
}

void WriteBudget::give_back(ByteCount bytes) {
  left_ = std::min(burst_, left_ + static_cast<double>(bytes.value));
}

double WriteBudget::bytes_per_second() const {
  return std::max(0.0, per_second_ + left_ / kSpend);
}

}  // namespace orbitkv::ssd
