#include "daemon/manager.h"

#include <signal.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/fault.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "mem/host_memory.h"

namespace orbitkv::daemon {
namespace {
// A lost wake costs at most a recheck: often while sessions are at work, seldom when idle.
constexpr Duration kIdleAfter = seconds(1);
constexpr Duration kIdleRecheck = milliseconds(50);

std::uint64_t random_word() {
  std::uint64_t word = 0;
  ORBITKV_CHECK(getrandom(&word, sizeof word, 0) == sizeof word, "getrandom");
  return word | 1;
}
}  // namespace

Result<std::unique_ptr<Manager>> Manager::create(const ServeOptions& options) {
  std::unique_ptr<Manager> manager(new Manager(options));
  const Status started = manager->start();
  if (started.ok()) return manager;
  if (manager->keep_) manager->keep_->fails(started.error());
  manager->remove_new_paths();
  // What is kept is in its table by now, and taking it down would empty that.
  if (manager->host_ && manager->keep_) (void)manager.release();
  return started.error();
}

// Of a start that failed: an engine has seen none of it. Files go while their locks are held; those of a
// store only where there was none.
void Manager::remove_new_paths() {
  if (ssd_ && ssd_->store().all_made()) {
    const auto ours = ssd_->store().files();
    for (const ssd::PathConfig& path : options_.ssd->store.paths) {
      struct stat status{};
      if (::lstat(path.path.c_str(), &status) != 0) continue;
      if (std::find(ours.begin(), ours.end(), ssd::Io::FileIdentity{status.st_dev, status.st_ino}) !=
          ours.end())
        (void)::unlink(path.path.c_str());
    }
  }
  if (listener_) {
    listener_->remove_socket();
    new_paths_.remove_file(shm::lock_of(options_.socket));
  }
  listener_.reset();
  new_paths_.remove_directories();
}

Manager::~Manager() {
  if (keep_) keep_->stop();
}

Status Manager::start() {
  started_ = monotonic_now();
  incarnation_ = Incarnation(random_word());
  options_.core.incarnation = incarnation_;
  const Epoch first_epoch(random_word());
  options_.core.seed = {random_word(), random_word()};
  ORBITKV_ASSIGN_OR_RETURN(loop_, rt::EventLoop::create());
  ORBITKV_RETURN_IF_ERROR(watch_signals());
  if (options_.keeping != ServeOptions::Keeping::kNothing) ORBITKV_RETURN_IF_ERROR(watch_reload());
  ORBITKV_RETURN_IF_ERROR(open_store());
  ORBITKV_RETURN_IF_ERROR(listen());
  say("opens the SSD store");
  ORBITKV_RETURN_IF_ERROR(open_ssd());
  options_.pool.stop_fd = signals_.get();  // Ctrl-C ends a long prefault
  ORBITKV_RETURN_IF_ERROR(open_keep());
  say("makes the pool");
  ORBITKV_RETURN_IF_ERROR(make_pool());
  say("makes the tables");
  if (ssd_) ssd_->use_pool(*pool_);
  ORBITKV_RETURN_IF_ERROR(make_kept_table());
  Host::Owner& owner = *this;
  host_ = std::make_unique<Host>(options_.core, *pool_, owner, ssd_.get(), first_epoch, options_.slabs);
  host_->watch_stalls(options_.stall);
  control_ = std::make_unique<Control>(host_->core(), *pool_, ssd_.get(), host_->slabs());
  ORBITKV_RETURN_IF_ERROR(watch_ssd());
  ORBITKV_RETURN_IF_ERROR(watch_keep());
  if (fault_hit(FaultPoint::kManagerNotReady)) return reject("it does not start (ORBITKV_FAULT)");
  ORBITKV_RETURN_IF_ERROR(loop_->add(pool_->ready_fd(), rt::kReadable, [this](rt::Ready) { tick(); }));
  loop_->every(kTick, [this] { tick(); });
  tick();
  if (keep_) keep_->ready();
  return ok_status();
}

Status Manager::watch_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  if (pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0) return errno_error("blocking SIGTERM and SIGINT");
  signals_ = UniqueFd(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signals_.valid()) return errno_error("signalfd");
  return loop_->add(signals_.get(), rt::kReadable, [this](rt::Ready) {
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof info) == sizeof info) on_stop_signal();
  });
}

// Apart from the stops: one that comes during the start waits for its end.
Status Manager::watch_reload() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGHUP);
  if (pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0) return errno_error("blocking SIGHUP");
  reload_ = UniqueFd(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!reload_.valid()) return errno_error("signalfd");
  return loop_->add(reload_.get(), rt::kReadable, [this](rt::Ready) {
    signalfd_siginfo info;
    while (read(reload_.get(), &info, sizeof info) == sizeof info) on_reload();
  });
}

int Manager::run() {
  loop_->run(*this, options_.spin);
  return exit_code_;
}

// ---- polling ----

bool Manager::poll() {
  if (leaving_) {
    check_left(monotonic_now());
    return true;
  }
  bool busy = false;
  for (std::size_t i = 0; i < host_->live().size(); ++i) {
    Session& session = host_->session(host_->live()[i]);
    if (Host::rung(session)) busy |= host_->serve(session, false, monotonic_now());
  }
  if (ssd_ && ssd_->active()) busy |= poll_ssd(monotonic_now());
  busy |= host_->turn(monotonic_now());
  busy |= control_->poll(monotonic_now());
  if (busy) last_busy_ = monotonic_now();
  return busy;
}

Duration Manager::prepare_sleep() {
  if (!host_->prepare_sleep()) return Duration{0};
  if (host_->live().empty()) return rt::kForever;
  return monotonic_now() - last_busy_ < kIdleAfter ? milliseconds(shm::kRecheckMs) : kIdleRecheck;
}

void Manager::cancel_sleep() {
  host_->cancel_sleep();
}

// ---- sessions ----

void Manager::on_socket(SessionId id, rt::Ready ready) {
  Session* session = host_->find(id);
  if (session == nullptr || session->life != Session::Life::kOpen) return;
  Connection& connection = connection_of(*session);
  if (ready.writable()) {
    const Status flushed = flush(connection);
    if (!flushed.ok()) return host_->close(*session, flushed.error().message().c_str(), monotonic_now());
  }
  // A few frames a turn: one chatty client must not starve the rest.
  for (std::uint32_t i = 0; i < limits::kFramesPerTurn && session->life == Session::Life::kOpen; ++i) {
    auto message = connection.socket().receive();
    if (!message.ok()) {
      const bool closed = message.error().code() == Code::kReconnect;
      const std::string why = closed ? "it closed its socket" : message.error().message();
      return host_->close(*session, why.c_str(), monotonic_now());
    }
    if (!message->has_value()) return;
    host_->on_frame(*session, (**message).frame, monotonic_now());
  }
}

Status Manager::send(SessionId session, std::vector<std::byte> frame, std::vector<int> fds) {
  Connection& connection = *connections_[session.value];
  if (!connection.queue(std::move(frame), std::move(fds))) return busy("too many frames are unsent");
  return flush(connection);
}

bool Manager::retract(SessionId session, SlabId slab) {
  return connections_[session.value]->retract(slab);
}

Status Manager::flush(Connection& connection) {
  ORBITKV_RETURN_IF_ERROR(connection.flush());
  const auto interest = connection.unsent() ? rt::kReadWrite : rt::kReadable;
  const Status watched = loop_->modify(connection.socket().fd(), interest);
  ORBITKV_CHECK(watched.ok(), "the socket of an open session is watched");
  return ok_status();
}

void Manager::on_closed(Session& session) {
  connection_of(session).drop_unsent();
  shm::Socket& socket = connection_of(session).socket();
  loop_->remove(socket.fd());
  socket.close();
}

void Manager::on_gone(Session& session) {
  if (keep_) keep_->close_session(session.epoch());
  // The other way on_process_ended() has removed it.
  if (session.life == Session::Life::kClosed) loop_->remove(connection_of(session).peer().pidfd.get());
  loop_->remove(session.channel().wake_fd());
  connections_[session.id().value].reset();
}

// SIGKILL passes a stopped process, not one in uninterruptible sleep or a frozen cgroup; the
// pidfd cannot name another one. What it held is settled when it has ended.
void Manager::end_process(Session& session) {
  end_process(connection_of(session).peer().pidfd.get());
}

void Manager::end_process(int pidfd) {
  if (::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0) != 0)
    ORBITKV_WARN("%s", errno_error("the process of a stalled engine cannot be ended").message().c_str());
}

void Manager::on_process_ended(SessionId id) {
  Session& session = host_->session(id);
  loop_->remove(connection_of(session).peer().pidfd.get());
  host_->on_process_ended(session, monotonic_now());
}

// ---- time ----

// What went before the start does not count.
void Manager::watch_memory(TimePoint now) {
  if (options_.slabs.least.value == 0 || now - pressure_read_ < seconds(1)) return;
  const bool first = pressure_read_.ns == 0;
  pressure_read_ = now;
  const std::uint64_t pressure = mem::read_memory_pressure().value_or(0);
  if (pressure > pressure_ && !first) host_->slabs().on_pressure(now);
  pressure_ = pressure;
}

void Manager::tick() {
  if (leaving_) return;
  const TimePoint now = monotonic_now();
  if (keep_) tick_keep();
  if (keep_) settle_succession(now);
  if (leaving_) return;
  renew_listener();
  listen_again();
  for (const ProcessId process : processes_.take_ended()) host_->on_process_ended(process);
  watch_memory(now);
  host_->tick(now);
  std::vector<int> late;
  for (auto& visitor : visitors_)
    if (visitor->deadline < now) late.push_back(visitor->socket.fd());
  for (int fd : late) drop_visitor(fd);
  if (ssd_) poll_ssd(now);
  if (draining_) check_drained();
}

void Manager::on_stop_signal() {
  if (++stop_signals_ > 1) {
    const std::string pending = pending_text();
    ORBITKV_WARN("second stop signal: %s", pending.empty() ? "nothing is pending" : pending.c_str());
    exit_code_ = pending.empty() ? 0 : 1;
    return loop_->stop();
  }
  ORBITKV_INFO("stopping: no new work; waiting for claimed copies to end");
  draining_ = true;
  drain_deadline_ = monotonic_now() + options_.drain;
  host_->drain(monotonic_now());
  check_drained();
}

void Manager::check_drained() {
  if (ssd_ && sessions_text().empty()) leave_memory();
  const std::string pending = pending_text();
  if (!pending.empty() && monotonic_now() < drain_deadline_) return;
  if (!pending.empty()) ORBITKV_WARN("gave up waiting: %s", pending.c_str());
  exit_code_ = pending.empty() ? 0 : 1;
  loop_->stop();
}

std::string Manager::sessions_text() const {
  std::string text;
  for (SessionId id : host_->live()) {
    const Session& session = host_->session(id);
    if (session.open_operations() == 0) continue;
    text += format_text("%ssession %u (%s, pid %d) has %u claimed operations", text.empty() ? "" : "; ",
                        id.value, session.name().c_str(), session.pid(), session.open_operations());
  }
  return text;
}

std::string Manager::pending_text() const {
  const std::string sessions = sessions_text();
  if (!sessions.empty() || !ssd_ || ssd_->store().closed()) return sessions;
  return "the SSD store is writing what it holds";
}

}  // namespace orbitkv::daemon
