// Bytes a day as a token bucket: an eighth of the day's bytes may come at once, the rest
// flows in evenly, so that no 24 hours see more than the budget. Owned by Admission, core
// thread. Time that goes backwards counts as no time.
#pragma once

#include "base/ids.h"
#include "base/time.h"

namespace orbitkv::ssd {

class WriteBudget {
 public:
  explicit WriteBudget(ByteCount daily);  // 0: no limit

  bool limited() const { return burst_ > 0; }
  // False, and nothing taken: not enough is left.
  bool take(ByteCount bytes, TimePoint now);
  void give_back(ByteCount bytes);
  // Whatever is left: what was not asked for first.
  void charge(ByteCount bytes, TimePoint now);
  // At the last take(); nothing while more was charged than there was.
  ByteCount left() const { return ByteCount(left_ > 0 ? static_cast<std::uint64_t>(left_) : 0); }
  // What may be written a second, so that what has been saved up goes within minutes.
  double bytes_per_second() const;

 private:
  void fill(TimePoint now);

  double burst_ = 0, per_second_ = 0;
  double left_ = 0;
  TimePoint filled_;
  bool started_ = false;
};

}  // namespace orbitkv::ssd
