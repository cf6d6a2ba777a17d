#include "device/device.h"

#include <ctime>

#include "device/copier.h"

namespace orbitkv::device {
namespace {
// Between two looks at a batch that somebody waits for: short beside any copy, long beside
// a look.
constexpr long kPauseNs = 5'000;
}  // namespace

Fence& Fence::operator=(Fence&& other) noexcept {
  if (this == &other) return *this;
  if (pool_) pool_->give_back(event_);
  pool_ = std::exchange(other.pool_, nullptr);
  event_ = other.event_;
  return *this;
}

Fence::~Fence() {
  if (pool_) pool_->give_back(event_);
}

CopyEnd Copier::drain(CopyTicket ticket) {
  for (;;) {
    if (auto end = poll(ticket)) return *end;
    const timespec pause{0, kPauseNs};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace orbitkv::device
