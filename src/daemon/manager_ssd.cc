// The Manager's side of the SSD: when its store is driven, and the operator's commands.

#include <algorithm>

#include "base/log.h"
#include "base/readable.h"
#include "daemon/manager.h"

namespace orbitkv::daemon {
namespace {
constexpr Duration kAnsweredStays = seconds(5);
constexpr Duration kStoreWithin = seconds(30);
}  // namespace

Status Manager::open_ssd() {
  if (!options_.ssd) return ok_status();
  options_.ssd->store.stop_fd = signals_.get();
  options_.ssd->store.progress = [this](const std::string& line) {
    ORBITKV_INFO("%s", line.c_str());
    say(line.c_str());
  };
  options_.ssd->admission.seed = options_.core.seed[0];
  // The Manager before may have writes under way: the kernel has its lock until they have ended.
  const TimePoint deadline = monotonic_now() + kStoreWithin;
  auto tier = SsdTier::open(*options_.ssd);
  while (!tier.ok() && tier.error().code() == Code::kBusy && monotonic_now() < deadline &&
         options_.keeping != ServeOptions::Keeping::kNothing && !is_readable(signals_.get())) {
    ORBITKV_WARN("%s; waiting for it", tier.error().message().c_str());
    say("waits for the SSD store, which is in use");
    tier = SsdTier::open(*options_.ssd);
  }
  if (!tier.ok()) return tier.error();
  ssd_ = std::move(*tier);
  ORBITKV_INFO("%s", ssd_->opened_text().c_str());
  options_.pool.unit = ssd_->unit();
  return ok_status();
}

Status Manager::watch_ssd() {
  if (!ssd_) return ok_status();
  return loop_->add(ssd_->completion_fd(), rt::kReadable, [this](rt::Ready) { poll_ssd(monotonic_now()); });
}

// Results of the device wake the loop; a timer stands for what only time brings.
bool Manager::poll_ssd(TimePoint now) {
  const bool busy = ssd_->poll(host_->core(), now);
  control_->poll(now);
  if (draining_ && busy && !loop_->stopped()) check_drained();
  const TimePoint due = ssd_->due();
  if (due == ssd_due_) return busy;
  loop_->cancel(ssd_timer_);
  ssd_due_ = due;
  if (due - now > kTick) return busy;  // tick() comes first
  ssd_timer_ = loop_->after(std::max(due - now, Duration{0}), [this] {
    ssd_due_ = {};
    poll_ssd(monotonic_now());
  });
  return busy;
}

// Before the end: what is worth keeping and only in memory is written, as much at a time as
// the store takes; then the store closes.
void Manager::leave_memory() {
  if (memory_left_ || host_->core().stats().spilling > 0) return;
  const cache::EvictReport report = host_->core().evict(ByteCount(~std::uint64_t{0}), monotonic_now());
  memory_left_ = report.being_written == 0;
  if (!memory_left_) return;
  // The store took none of them although it had nothing to do.
  if (report.kept > 0)
    ORBITKV_WARN("%llu blocks are worth keeping and are given up: %s",
                 static_cast<unsigned long long>(report.kept),
                 ssd_->ready() ? "the SSD takes no writes now" : "what is on the SSD was still being read");
  ssd_->store().begin_close();
}

// The visitor may have left before its answer comes.
void Manager::on_control(std::uint64_t visitor, const wire::ControlRequest& request) {
  const std::uint64_t number = request.request;
  control_->ask(request.json, monotonic_now(), [this, visitor, number](const Result<std::string>& answer) {
    const auto it =
        std::find_if(visitors_.begin(), visitors_.end(), [=](auto& v) { return v->number == visitor; });
    if (it == visitors_.end()) return;
    (*it)->deadline = monotonic_now() + kAnsweredStays;
    (*it)->asking = false;
    std::vector<std::byte> out;
    if (answer.ok())
      wire::encode(wire::StatusReply{number, *answer}, out);
    else
      wire::encode(wire::SocketError{number, answer.error().code(), answer.error().message()}, out);
    if (!(*it)->socket.send(out).ok()) ORBITKV_DEBUG("the operator left before the answer");
  });
}

}  // namespace orbitkv::daemon
