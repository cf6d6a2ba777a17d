// The Manager's side of what outlives its process: the start from what an earlier life left, and
// how it makes place for the next.
#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/fault.h"
#include "base/log.h"
#include "base/text.h"
#include "daemon/keeper_store.h"
#include "daemon/manager.h"
#include "daemon/systemd_store.h"
#include "mem/pool_size.h"

namespace orbitkv::daemon {
namespace {
// Loads that the SSD has begun would cost the slabs that they write to.
constexpr Duration kDeviceWithin = milliseconds(500);
// For the answer to whoever asked.
constexpr Duration kAnswerFirst = milliseconds(2);
constexpr Duration kKeeperAnswers = seconds(5);
// Engines let go of what an earlier Manager left when they are told; others may have died with it mapped.
constexpr Duration kMemoryWithin = seconds(60);
constexpr Duration kTurnedAway = milliseconds(100);
}  // namespace

void Manager::say(const char* what) {
  if (keep_) keep_->starting(what);
}

// First, so that the start can be followed.
Status Manager::open_store() {
  std::unique_ptr<FdStore> store;
  switch (options_.keeping) {
    case ServeOptions::Keeping::kNothing: return ok_status();
    case ServeOptions::Keeping::kKeeper:
      if (::fcntl(options_.keeper_fd, F_SETFD, FD_CLOEXEC) != 0) return errno_error("--keeper-fd");
      store = std::make_unique<KeeperStore>(UniqueFd(options_.keeper_fd));
      break;
    case ServeOptions::Keeping::kSystemd: {
      ORBITKV_ASSIGN_OR_RETURN(store, SystemdStore::open(SystemdStore::read_environment(), options_.silence));
      break;
    }
  }
  keep_ = std::make_unique<Keep>(std::move(store));
  keep_->starting("takes the socket");
  return ok_status();
}

Status Manager::listen() {
  new_paths_.note(shm::lock_of(options_.socket));
  const bool kept = options_.keeping == ServeOptions::Keeping::kKeeper;
  std::optional<int> keeper;
  if (kept) keeper = options_.keeper != 0 ? options_.keeper : shm::path_claimed_by(options_.socket);
  if (options_.keeping == ServeOptions::Keeping::kSystemd)
    ORBITKV_RETURN_IF_ERROR(keep_->claim(options_.socket));
  const UniqueFd none;
  const UniqueFd& claim = keep_ ? keep_->claimed() : none;
  ORBITKV_ASSIGN_OR_RETURN(auto listener, shm::Listener::open(options_.socket, keeper, claim));
  listener_ = std::make_unique<shm::Listener>(std::move(listener));
  return ok_status();
}

Status Manager::open_keep() {
  if (!keep_) return ok_status();
  keep_->watch_stalls(options_.stall);
  // The device's last word about an earlier life is the lock of its files.
  ORBITKV_CHECK(!options_.ssd || ssd_, "what is kept is looked at when the SSD store is open");
  (void)mem::allow_descriptors(limits::kKeptDescriptors).ok();  // as many as there may be: the rest is told
  const auto start = options_.start == LifeStart::kSuccessor ? Keep::Start::kSuccessor : Keep::Start::kAny;
  const mem::DeviceFiles locked = ssd_ ? ssd_->files() : mem::DeviceFiles();
  ORBITKV_ASSIGN_OR_RETURN(found_, keep_->find(options_.pool.unit, locked, start));
  options_.pool.kept = keep_->pool();
  options_.pool.goes_on = [this] { keep_->starting(); };
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
  control_->set_succeed([this](const FdStore::Successor& successor, Control::Answer answer) {
    succeed(successor, std::move(answer));
  });
  const bool found = keep_->pool() != nullptr;
  keep_->adopt(host_->core(), [this](const UniqueFd& pidfd) { return processes_.enter(pidfd); });
  host_->slabs().inherit(keep_->mappings());
  if (found)
    ORBITKV_INFO("it serves %lld ms after its start",
                 static_cast<long long>((monotonic_now() - started_).ns / 1'000'000));
  if (found && options_.start == LifeStart::kSmaller) {
    ByteCount slab;
    for (const mem::SlabInfo& each : pool_->slabs()) slab = std::max(slab, each.bytes);
    const auto wanted = host_->slabs().drain(slab);
    if (!wanted.ok()) ORBITKV_WARN("the pool stays as it is: %s", wanted.error().message().c_str());
  }
  if (keep_->fd() < 0) return ok_status();
  return loop_->add(keep_->fd(), rt::kReadable, [this](rt::Ready ready) {
    // A keeper that has gone stays readable.
    if (ready.hung_up()) loop_->remove(keep_->fd());
    poll_keep();
  });
}

// None of what is kept is there to serve from.
bool Manager::has_only_others_memory() const {
  if (found_ == Keep::Found::kLetGo) return true;
  return keep_ && keep_->pool() != nullptr && keep_->pool()->slabs.empty();
}

// The memory that such a start needs may still be mapped by engines of the Manager before.
Status Manager::make_pool() {
  const TimePoint deadline = monotonic_now() + kMemoryWithin;
  for (bool said = false;;) {
    auto made = fault_hit(FaultPoint::kManagerNoMemory)
                    ? Result<std::unique_ptr<mem::Pool>>(busy("no memory (ORBITKV_FAULT)"))
                    : mem::Pool::create(options_.pool);
    if (made.ok()) {
      pool_ = std::move(*made);
      return ok_status();
    }
    const bool waits = made.error().code() == Code::kBusy && has_only_others_memory();
    if (!waits || monotonic_now() > deadline) return made.error();
    if (!std::exchange(said, true))
      ORBITKV_WARN("%s: waiting until engines have let go of the memory of the Manager before",
                   made.error().message().c_str());
    say("waits until engines have let go of memory");
    if (!turn_away(kTurnedAway)) return reject("a stop came while it waited for memory");
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

// Whoever connects meanwhile is told that what it has mapped is nobody's any more. False: a stop came.
bool Manager::turn_away(Duration time) {
  const TimePoint end = monotonic_now() + time;
  for (TimePoint now = monotonic_now(); now < end; now = monotonic_now()) {
    const int ms = static_cast<int>((end - now).ns / 1'000'000) + 1;
    pollfd ready[] = {{listener_->fd(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    if (::poll(ready, 2, ms) <= 0) continue;
    if (ready[1].revents != 0) return false;
    turn_away_one(ms);
  }
  return true;
}

void Manager::turn_away_one(int ms) {
  auto accepted = listener_->accept();
  if (!accepted.ok() || !accepted->has_value()) return;
  shm::Socket socket = std::move(**accepted);
  if (!shm::authenticate_peer(socket).ok() || !socket.receive_within(ms).ok()) return;
  refuse(socket, recompute("this Manager waits for the memory of the one before, of which no block is left"));
}

void Manager::poll_keep() {
  keep_->poll();
  if (keep_->leave_asked())
    succeed({}, [](const Result<std::string>& answer) {
      if (!answer.ok()) ORBITKV_WARN("it stays: %s", answer.error().message().c_str());
    });
  tick();  // an answer to an upgrade, or a receipt that lets a slab go
}

// The keeper is asked, and nobody waits for it but who asked.
void Manager::succeed(const FdStore::Successor& successor, Control::Answer answer) {
  if (leaving_) return answer(reject("another upgrade is under way: the Manager makes place already"));
  if (draining_) return answer(reject("the Manager stops already"));
  if (succession_) return answer(busy("an upgrade is under way already; wait for its answer (5 s at most)"));
  if (const Status asked = keep_->succeed(successor); !asked.ok()) return answer(asked.error());
  succession_ = std::move(answer);
  succession_deadline_ = monotonic_now() + kKeeperAnswers;
}

void Manager::settle_succession(TimePoint now) {
  const auto answer = keep_->succeeded();
  if (!succession_) return;
  if (answer)
    answer_succession(*answer);
  else if (now > succession_deadline_)
    answer_succession(busy(keeper_named(options_.keeper) + " does not answer" +
                           keeper_remedy(options_.keeper) + ", and ask again; this Manager serves on"));
}

void Manager::answer_succession(const Status& status) {
  const Control::Answer answer = std::exchange(succession_, nullptr);
  if (!status.ok()) return answer(status.error());
  if (draining_) return answer(reject("the Manager stops already"));
  leave();
  answer(format_text(R"({"upgrading":true,"incarnation":"%016llx"})",
                     static_cast<unsigned long long>(incarnation_.value)));
}

// systemd's reload: nobody waits for an answer.
void Manager::on_reload() {
  const Status may = draining_ ? Status(reject("the Manager stops already")) : keep_->may_succeed();
  if (may.ok()) return leave();
  ORBITKV_WARN("it stays: %s", may.error().message().c_str());
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
  if (now < leave_from_ || (loads && now < leave_deadline_)) return;
  send_visitors_on();
  loop_->stop();
}

// kReconnect: nothing of it was done.
void Manager::send_visitors_on() {
  for (const auto& visitor : visitors_) {
    const Error why = visitor->asking
                          ? busy("the Manager made place before this was done; look, and ask again")
                          : reconnect("the Manager makes place for its successor; ask again");
    std::vector<std::byte> out;
    wire::encode(wire::SocketError{0, why.code(), why.message()}, out);
    if (!visitor->socket.send(out).ok()) ORBITKV_DEBUG("a visitor had already left");
  }
}

}  // namespace orbitkv::daemon
