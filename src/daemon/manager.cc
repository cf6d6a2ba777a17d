#include "daemon/manager.h"

#include <signal.h>
#include <sys/random.h>
#include <sys/signalfd.h>

#include <algorithm>

#include "base/log.h"
#include "base/text.h"

namespace orbitkv::daemon {
namespace {
constexpr std::uint32_t kCommandsPerTurn = 16;
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
  ORBITKV_RETURN_IF_ERROR(manager->start());
  return manager;
}

Manager::~Manager() = default;

Status Manager::start() {
  started_ = monotonic_now();
  incarnation_ = Incarnation(random_word());
  next_epoch_ = random_word();
  options_.core.seed = {random_word(), random_word()};
  ORBITKV_ASSIGN_OR_RETURN(loop_, rt::EventLoop::create());
  ORBITKV_RETURN_IF_ERROR(watch_signals());
  ORBITKV_ASSIGN_OR_RETURN(auto listener, shm::Listener::open(options_.socket));
  listener_ = std::make_unique<shm::Listener>(std::move(listener));
  ORBITKV_RETURN_IF_ERROR(open_ssd());
  options_.pool.stop_fd = signals_.get();  // Ctrl-C ends a long prefault
  ORBITKV_ASSIGN_OR_RETURN(pool_, mem::Pool::create(options_.pool));
  if (ssd_) ssd_->use_pool(*pool_);
  cache::Ports& ports = *this;
  core_ = std::make_unique<cache::Core>(options_.core, *pool_, ports, ssd_.get());
  control_ = std::make_unique<Control>(*core_, *pool_, ssd_.get());
  ORBITKV_RETURN_IF_ERROR(watch_ssd());
  commands_ = std::make_unique<CommandServer>(*core_);
  ORBITKV_RETURN_IF_ERROR(loop_->add(pool_->ready_fd(), rt::kReadable, [this](rt::Ready) { tick(); }));
  loop_->every(kTick, [this] { tick(); });
  tick();
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

int Manager::run() {
  loop_->run(*this, options_.spin);
  return exit_code_;
}

// ---- polling ----

bool Manager::poll() {
  bool busy = false;
  for (std::size_t i = 0; i < live_.size(); ++i) {
    Session& session = *sessions_[live_[i].value];
    if (session.life != Session::Life::kEnded && session.channel().rung())
      busy |= serve(session, false, monotonic_now());
  }
  if (ssd_ && ssd_->active()) busy |= poll_ssd(monotonic_now());
  if (busy) last_busy_ = monotonic_now();
  return busy;
}

// A session that was cut off may go on writing; nobody reads it, so it keeps nobody awake.
Duration Manager::prepare_sleep() {
  bool quiet = true;
  for (SessionId id : live_)
    if (!sessions_[id.value]->poisoned()) quiet &= sessions_[id.value]->channel().prepare_sleep();
  if (!quiet) return Duration{0};
  if (live_.empty()) return rt::kForever;
  return monotonic_now() - last_busy_ < kIdleAfter ? milliseconds(shm::kRecheckMs) : kIdleRecheck;
}

void Manager::cancel_sleep() {
  for (SessionId id : live_) sessions_[id.value]->channel().cancel_sleep();
}

// What came after the end is not answered, and must not keep the Manager awake.
void Manager::discard_commands(Session& session) {
  for (std::uint32_t i = 0; i < limits::kRingEntries && session.channel().pop_command(); ++i) {
  }
  if (session.channel().poisoned()) session.poison("the command ring's tail is impossible");
}

// Receipts before the commands that may have come after them: whoever was told that a
// save is done finds its blocks. What a receipt frees may let others go on.
bool Manager::take_receipts(Session& session, bool all_records, TimePoint now) {
  if (session.poisoned()) return false;
  receipts_.clear();
  session.follow(all_records, receipts_);
  for (const Session::Receipt& receipt : receipts_) {
    cache::DrainReport report;
    report.success = receipt.success;
    report.text = receipt.text;
    (receipt.kind == model::PlanKind::kSave ? report.digests : report.failed) = receipt.words;
    core_->drained(receipt.op, report, now);
  }
  if (session.take_bank_freed()) core_->bank_freed(session.id(), now);
  return !receipts_.empty();
}

bool Manager::serve(Session& session, bool all_records, TimePoint now) {
  if (session.poisoned()) {
    close_session(session, "it broke the protocol");  // perhaps seen while another was served
    return false;
  }
  bool busy = take_receipts(session, all_records, now);
  if (session.life == Session::Life::kOpen)
    busy |= serve_commands(session, now);
  else
    discard_commands(session);
  if (session.poisoned()) close_session(session, "it broke the protocol");
  return busy;
}

// A scheduler asks what a worker of another session has just published: every session's
// receipts count before a command is answered.
bool Manager::serve_commands(Session& session, TimePoint now) {
  std::uint32_t served = 0;
  for (; served < kCommandsPerTurn; ++served) {
    const auto bytes = commands_->pop(session);
    if (!bytes) break;
    for (SessionId id : live_) take_receipts(*sessions_[id.value], false, now);
    commands_->answer(session, *bytes, now);
  }
  if (served) session.channel().ring_client();
  return served > 0;
}

// ---- ports ----

Session& Manager::session_of(const cache::OperationKey& op) {
  auto& session = sessions_[op.session.value];
  ORBITKV_CHECK(session != nullptr, "operation of a session that does not exist");
  return *session;
}

cache::Ports::Grant Manager::grant(const cache::OperationKey& op, const model::Plan& plan) {
  Session& session = session_of(op);
  const Grant result = session.grant(op, plan);
  session.channel().ring_client();
  return result;
}

cache::Ports::Revoke Manager::revoke(const cache::OperationKey& op, const Error& why) {
  Session& session = session_of(op);
  const Revoke result = session.revoke(op, why);
  session.channel().ring_client();
  return result;
}

void Manager::fail(const cache::OperationKey& op, const Error& why) {
  session_of(op).fail(op, why);
  session_of(op).channel().ring_client();
}

// It may be another session's event that ended it, so its own client is told at once.
void Manager::reap(const cache::OperationKey& op) {
  session_of(op).reap(op);
  session_of(op).channel().ring_client();
}

// ---- sessions ----

void Manager::on_socket(SessionId id, rt::Ready ready) {
  auto& slot = sessions_[id.value];
  if (!slot || slot->life != Session::Life::kOpen) return;
  Session& session = *slot;
  if (ready.writable()) flush(session);
  // A few frames a turn: one chatty client must not starve the rest.
  for (int i = 0; i < 4 && session.life == Session::Life::kOpen; ++i) {
    auto message = session.socket().receive();
    if (!message.ok()) {
      const bool closed = message.error().code() == Code::kReconnect;
      return close_session(session, closed ? "it closed its socket" : message.error().message().c_str());
    }
    if (!message->has_value()) return;
    on_frame(session, **message);
  }
}

void Manager::on_frame(Session& session, const shm::Message& message) {
  auto frame = wire::open_frame(message.frame);
  if (!frame.ok()) return close_session(session, frame.error().message().c_str());
  switch (frame->type) {
    case wire::FrameType::kRegister: return on_register(session, message.frame);
    case wire::FrameType::kUnregister: return on_unregister(session, message.frame);
    case wire::FrameType::kBye: return close_session(session, "it said goodbye");
    case wire::FrameType::kStatusRequest: {
      auto in = wire::decode_status_request(message.frame);
      if (!in.ok()) return close_session(session, in.error().message().c_str());
      std::vector<std::byte> out;
      wire::encode(wire::StatusReply{in->request, status_json()}, out);
      return answer(session, std::move(out));
    }
    default: return close_session(session, "it sent a frame that only the Manager sends");
  }
}

void Manager::answer(Session& session, std::vector<std::byte> frame) {
  if (!session.send(std::move(frame))) return close_session(session, "it does not read its socket");
  flush(session);
}

void Manager::on_register(Session& session, std::span<const std::byte> frame) {
  auto in = wire::decode_register(frame);
  if (!in.ok()) return close_session(session, in.error().message().c_str());
  offer_slabs(session);
  auto made = core_->register_rank(session.id(), in->rank, monotonic_now());
  std::vector<std::byte> out;
  if (made.ok()) {
    ORBITKV_INFO("session %u registered rank %u of %u on %s: %u blocks, %zu groups", session.id().value,
                 in->rank.rank, in->rank.world_size, in->rank.device.c_str(), in->rank.num_blocks,
                 in->rank.groups.size());
    wire::encode(wire::RegisterReply{in->request, *made, pool_->id()}, out);
  } else {
    wire::encode(wire::SocketError{in->request, made.error().code(), made.error().message()}, out);
  }
  answer(session, std::move(out));
}

void Manager::on_unregister(Session& session, std::span<const std::byte> frame) {
  auto in = wire::decode_unregister(frame);
  if (!in.ok()) return close_session(session, in.error().message().c_str());
  serve(session, true, monotonic_now());  // receipts that are on their way count
  auto done = core_->unregister(session.id(), in->registration);
  std::vector<std::byte> out;
  if (done.ok())
    wire::encode(wire::UnregisterReply{in->request}, out);
  else
    wire::encode(wire::SocketError{in->request, done.error().code(), done.error().message()}, out);
  answer(session, std::move(out));
}

void Manager::flush(Session& session) {
  auto flushed = session.flush();
  if (!flushed.ok()) return close_session(session, flushed.error().message().c_str());
  const auto interest = session.unsent() ? rt::kReadWrite : rt::kReadable;
  Status watched = loop_->modify(session.socket().fd(), interest);
  ORBITKV_CHECK(watched.ok(), "the socket of an open session is watched");
}

void Manager::offer_slabs(Session& session) {
  while (session.slabs_offered < offered_.size() && session.life == Session::Life::kOpen) {
    wire::SlabOffer offer{pool_->id(), {}};
    std::vector<int> fds;
    std::uint32_t next = session.slabs_offered;
    for (; next < offered_.size() && fds.size() < limits::kFdsPerMessage; ++next) {
      const mem::SlabInfo& slab = offered_[next];
      offer.slabs.push_back({slab.id, slab.bytes, slab.huge == slab.bytes});
      fds.push_back(pool_->slab_fd(slab.id));
    }
    std::vector<std::byte> frame;
    wire::encode(offer, frame);
    if (!session.send(std::move(frame), std::move(fds))) return;  // the next tick goes on
    session.slabs_offered = next;
    flush(session);
  }
}

void Manager::close_session(Session& session, const char* why) {
  if (session.life != Session::Life::kOpen) return;
  ORBITKV_INFO("session %u (%s) closed: %s; %u operations open", session.id().value, session.name().c_str(),
               why, session.open_operations());
  session.life = Session::Life::kClosed;
  loop_->remove(session.socket().fd());
  session.socket().close();
  core_->close_session(session.id(), monotonic_now());
  session.channel().ring_client();
}

void Manager::on_process_ended(SessionId id) {
  Session& session = *sessions_[id.value];
  loop_->remove(session.peer().pidfd.get());
  close_session(session, "its process ended");
  // Every store of the process is visible now: take the receipts that it managed to
  // publish, then settle the rest.
  serve(session, true, monotonic_now());
  session.life = Session::Life::kEnded;
  core_->process_ended(id, monotonic_now());
  collect(session);
}

void Manager::collect(Session& session) {
  if (session.life == Session::Life::kOpen || !core_->session_gone(session.id())) return;
  const SessionId id = session.id();
  if (session.life == Session::Life::kClosed) loop_->remove(session.peer().pidfd.get());
  loop_->remove(session.channel().wake_fd());
  live_.erase(std::find(live_.begin(), live_.end(), id));
  sessions_[id.value].reset();
}

// ---- time ----

// The device may be asked to write into a slab as soon as the core can place a block there.
void Manager::take_slabs() {
  for (const mem::SlabInfo& slab : pool_->collect_offered()) {
    offered_.push_back(slab);
    if (!ssd_) continue;
    const Status added = ssd_->add_slab(slab);
    ORBITKV_CHECK(added.ok(), added.ok() ? "" : added.error().message().c_str());
  }
}

void Manager::tick() {
  const TimePoint now = monotonic_now();
  listen_again();
  take_slabs();
  const std::vector<SessionId> ids = live_;
  for (SessionId id : ids) {
    Session& session = *sessions_[id.value];
    offer_slabs(session);
    serve(session, true, now);  // recovers a lost wake, and the receipts of closed sessions
    collect(session);
  }
  std::vector<int> late;
  for (auto& visitor : visitors_)
    if (visitor->deadline < now) late.push_back(visitor->socket.fd());
  for (int fd : late) drop_visitor(fd);
  core_->tick(now);
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
  commands_->refuse_all();
  const std::vector<SessionId> ids = live_;
  for (SessionId id : ids) {
    close_session(*sessions_[id.value], "the Manager stops");
    collect(*sessions_[id.value]);
  }
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
  for (SessionId id : live_) {
    const Session& session = *sessions_[id.value];
    if (session.open_operations() == 0) continue;
    text += format_text("%ssession %u (%s, pid %d) has %u claimed operations", text.empty() ? "" : "; ",
                        id.value, session.name().c_str(), session.peer().pid, session.open_operations());
  }
  return text;
}

std::string Manager::pending_text() const {
  const std::string sessions = sessions_text();
  if (!sessions.empty() || !ssd_ || ssd_->store().closed()) return sessions;
  return "the SSD store is writing what it holds";
}

}  // namespace orbitkv::daemon
