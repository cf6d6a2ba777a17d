// The Manager's side of what outlives its process: the start from what an earlier life left, and
// how it makes place for the next.
#include <fcntl.h>

#include <utility>

#include "base/log.h"
#include "daemon/keeper_store.h"
#include "daemon/manager.h"
#include "daemon/systemd_store.h"

namespace orbitkv::daemon {
namespace {
// Loads that the SSD has begun would cost the slabs that they write to.
constexpr Duration kDeviceWithin = milliseconds(500);
// For the answer to whoever asked.
constexpr Duration kAnswerFirst = milliseconds(2);
}  // namespace

Status Manager::open_keep() {
  std::unique_ptr<FdStore> store;
  switch (options_.keeping) {
    case ServeOptions::Keeping::kNothing: return ok_status();
    case ServeOptions::Keeping::kKeeper:
      if (::fcntl(options_.keeper_fd, F_SETFD, FD_CLOEXEC) != 0) return errno_error("--keeper-fd");
      store = std::make_unique<KeeperStore>(UniqueFd(options_.keeper_fd));
      break;
    case ServeOptions::Keeping::kSystemd: {
      ORBITKV_ASSIGN_OR_RETURN(store, SystemdStore::open(SystemdStore::read_environment()));
      break;
    }
  }
  keep_ = std::make_unique<Keep>(std::move(store));
  keep_->watch_stalls(options_.stall);
  // The device's last word about an earlier life is the lock of its files.
  ORBITKV_CHECK(!options_.ssd || ssd_, "what is kept is looked at when the SSD store is open");
  ORBITKV_RETURN_IF_ERROR(keep_->find(options_.pool.unit, ssd_ ? ssd_->files() : mem::DeviceFiles()));
  options_.pool.kept = keep_->pool();
  options_.slabs.keep = keep_.get();
  return ok_status();
}

Status Manager::make_kept_table() {
  if (!keep_) return ok_status();
  ORBITKV_ASSIGN_OR_RETURN(options_.core.kept,
                           keep_->make_table(*pool_, options_.core.max_blocks, options_.pool.unit));
  return ok_status();
}

Status Manager::watch_keep() {
  if (!keep_) return ok_status();
  control_->set_succeed([this](const std::string& binary) { return succeed(binary); });
  const TimePoint start = monotonic_now();
  const bool found = keep_->pool() != nullptr;
  keep_->adopt(host_->core(), [this](const UniqueFd& pidfd) { return processes_.enter(pidfd); });
  host_->slabs().inherit(keep_->mappings());
  if (found)
    ORBITKV_INFO("taking it over took %lld ms",
                 static_cast<long long>((monotonic_now() - start).ns / 1'000'000));
  if (keep_->fd() < 0) return ok_status();
  return loop_->add(keep_->fd(), rt::kReadable, [this](rt::Ready ready) {
    // A keeper that has gone stays readable.
    if (ready.hung_up()) loop_->remove(keep_->fd());
    poll_keep();
  });
}

void Manager::poll_keep() {
  keep_->poll();
  if (keep_->leave_asked()) {
    const Status asked = succeed({});
    if (!asked.ok()) ORBITKV_WARN("it stays: %s", asked.error().message().c_str());
  }
}

void Manager::tick_keep() {
  keep_->tick();
  for (const OldGrants::Condemned& each : keep_->take_condemned()) {
    ORBITKV_WARN("pid %d stands still in copies that it began before this Manager: its process is ended",
                 each.pid);
    end_process(each.process);
  }
}

Status Manager::succeed(const std::string& binary) {
  if (draining_) return reject("the Manager stops already");
  ORBITKV_RETURN_IF_ERROR(keep_->succeed(binary));
  leave();
  return ok_status();
}

// Nothing is taken down: engines see their Manager go, and attach to the next one with what they
// have mapped. What they have claimed is asked for there.
void Manager::leave() {
  if (std::exchange(leaving_, true)) return;
  ORBITKV_INFO("making place for the next Manager");
  if (ssd_) ssd_->stop_loads();
  leave_from_ = monotonic_now() + kAnswerFirst;
  leave_deadline_ = monotonic_now() + kDeviceWithin;
  loop_->after(kAnswerFirst, [this] { check_left(monotonic_now()); });
}

void Manager::check_left(TimePoint now) {
  if (ssd_ && ssd_->active()) poll_ssd(now);
  const bool loads = host_->core().stats().loading > 0 && ssd_ && ssd_->active();
  if (now >= leave_from_ && (!loads || now >= leave_deadline_)) loop_->stop();
}

}  // namespace orbitkv::daemon
