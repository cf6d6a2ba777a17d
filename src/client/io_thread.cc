#include "client/io_thread.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>

#include "base/bytes.h"
#include "base/log.h"
#include "base/time.h"

namespace orbitkv::client {
namespace {
constexpr int kFirstBackoffMs = 100;
constexpr int kSuccessorMs = 10;                   // where the next Manager is expected at once,
constexpr Duration kSuccessorWithin = seconds(2);  // and for so long
constexpr int kMaxBackoffMs = 2000;
constexpr int kBeatMs = 1000;  // the longest between two signs of life
// Slabs whose memory outlives their Manager are kept mapped for the next one; then until its
// offers, which come at once, have named them.
constexpr Duration kMappedWithout = seconds(30);
constexpr Duration kOffersWithin = seconds(5);
constexpr int kRetirePollMs = 20;  // copies end without a word to the I/O thread

// Every lifecycle reply starts its body with the request it answers.
std::uint64_t request_of(const wire::FrameView& frame) {
  return ByteReader(frame.body).u64();
}
}  // namespace

IoThread::IoThread(Attachment::Target target, Link& link, Executors& executors, Registry& registry)
    : target_(std::move(target)),
      link_(link),
      executors_(executors),
      registry_(registry),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

IoThread::~IoThread() {
  stop();
}

Status IoThread::start() {
  if (!wake_.valid()) return errno_error("eventfd");
  Status attached = attach();
  // Bad options stay bad; a Manager that is not there (or full) may come.
  if (!attached.ok() && attached.error().code() == Code::kReject) return attached;
  if (!attached.ok()) lost(attached.error().message());
  thread_ = std::thread([this] { run(); });
  return ok_status();
}

void IoThread::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
  std::lock_guard lock(mutex_);
  state_.connected = false;
  state_.message = "the client is closed";
}

bool IoThread::wait_connected(std::uint32_t timeout_ms) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
    return state_.connected || stop_;
  }) && state_.connected;
}

IoThread::State IoThread::state() {
  std::lock_guard lock(mutex_);
  return state_;
}

bool IoThread::sleep_ms(int ms) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, std::chrono::milliseconds(ms), [&] { return stop_; });
}

// ---- attach ----

Status IoThread::attach() {
  auto opened = Attachment::open(target_);
  if (!opened.ok()) {
    // It begins anew, and needs the memory that is mapped here.
    if (opened.error().code() == Code::kRecompute) slabs_.reset();
    return opened.error();
  }
  auto made = std::move(*opened);
  Attachment& link = *made;
  waiting_slabs_ = slabs_ != nullptr;
  if (slabs_) link.use_slabs(std::move(slabs_));
  attached_ = monotonic_now();
  link_.swap(std::move(made));
  // Whoever registers from here on sees either a session that is not ready, and this
  // loop takes the entry along, or one that is.
  std::unique_lock registry_lock(registry_.mutex);
  if (Status registered = register_all(link); !registered.ok()) {
    registry_lock.unlock();
    // What a Manager that refuses us has not offered by now, it will not.
    if (registered.error().code() != Code::kReconnect) link.slabs().drop_waiting();
    drop_session();
    return registered;
  }
  link.set_ready();
  std::lock_guard lock(mutex_);
  if (started_) ++state_.reconnects;
  started_ = true;
  state_.connected = true;
  state_.incarnation = link.incarnation().value;
  state_.message.clear();
  changed_.notify_all();
  return ok_status();
}

// Before anyone can use the new session every registration stands in it again. Under
// the registry's lock.
Status IoThread::register_all(Attachment& link) {
  for (auto& [handle, entry] : registry_.entries) {
    if (entry->closing) continue;
    wire::Buffer frame;
    wire::encode(wire::Register{handle, entry->rank}, frame);
    ORBITKV_ASSIGN_OR_RETURN(auto reply, call_now(link, handle, frame));
    ORBITKV_ASSIGN_OR_RETURN(auto made, wire::decode_register_reply(reply));
    entry->registration.store(made.registration.value);
  }
  return ok_status();
}

// A call on a session that no other thread knows yet; slab offers come in between.
Result<wire::Buffer> IoThread::call_now(Attachment& link, std::uint64_t request, const wire::Buffer& frame) {
  ORBITKV_RETURN_IF_ERROR(link.socket().send_within(frame, {}, static_cast<int>(target_.timeout_ms)));
  const TimePoint deadline = monotonic_now() + milliseconds(target_.timeout_ms);
  while (monotonic_now() < deadline) {
    link.channel().beat();
    ORBITKV_ASSIGN_OR_RETURN(auto message,
                             link.socket().receive_within(static_cast<int>(target_.timeout_ms)));
    ORBITKV_ASSIGN_OR_RETURN(auto view, wire::open_frame(message.frame));
    if (link.on_slabs(view, message)) continue;
    if (auto error = wire::decode_socket_error(message.frame); error.ok())
      return Error(error->code, error->text);
    if (request_of(view) == request) return std::move(message.frame);
  }
  return reconnect("the Manager did not answer a registration in time");
}

void IoThread::lost(const std::string& why) {
  std::lock_guard lock(mutex_);
  const bool news = state_.connected || state_.message.empty();
  state_.connected = false;
  state_.message = why;
  for (auto& [request, reply] : replies_) reply.reset();
  changed_.notify_all();
  if (news)
    ORBITKV_WARN("no Manager at %s: %s; retrying in the background", target_.path.c_str(), why.c_str());
}

bool IoThread::attach_again() {
  const auto expected = [&] { return slabs_ && monotonic_now() - lost_at_ < kSuccessorWithin; };
  for (int backoff = kFirstBackoffMs; sleep_ms(expected() ? kSuccessorMs : backoff);) {
    if (!expected()) backoff = std::min(2 * backoff, kMaxBackoffMs);
    Status attached = attach();
    if (attached.ok()) {
      ORBITKV_INFO("attached to the Manager at %s", target_.path.c_str());
      return true;
    }
    lost(attached.error().message());
    if (slabs_ && monotonic_now() - lost_at_ > kMappedWithout) slabs_.reset();
  }
  return false;
}

// ---- service ----

void IoThread::run() {
  for (;;) {
    if (!link_.mine() && !attach_again()) return;
    Attachment& link = *link_.mine();
    serve_session(link);
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
    }
    lost("the Manager went away");
    lost_at_ = monotonic_now();
    if (!drop_session()) return;
  }
}

// Claimed copies finish on the old mappings, the rest fails; then the session goes. False:
// the client is closed while copies run, and the session stays for them.
bool IoThread::drop_session() {
  link_.mine()->lose();
  // A Manager that is still there sees an end; this one or the next, which asks what became of the
  // copies, sees by the beat that we live.
  link_.mine()->hang_up();
  auto emptied = Executor::Emptied::kNotYet;
  while (emptied == Executor::Emptied::kNotYet) {
    link_.mine()->channel().beat();
    emptied = executors_.wait_empty_for(milliseconds(kBeatMs));
  }
  if (emptied == Executor::Emptied::kBounded) return false;
  {
    std::lock_guard lock(registry_.mutex);
    for (auto& [handle, entry] : registry_.entries) entry->registration.store(0);
  }
  slabs_ = link_.swap(nullptr)->leave_slabs();
  return true;
}

void IoThread::serve_session(Attachment& link) {
  pollfd fds[] = {
      {link.socket().fd(), POLLIN, 0}, {link.peer().pidfd.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  for (;;) {
    if (link.lost()) return;
    link.channel().beat();
    if (poll(fds, 3, link.owes_slabs() ? kRetirePollMs : kBeatMs) < 0 && errno != EINTR) return;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
    }
    if (fds[2].revents) {
      eventfd_t count = 0;
      eventfd_read(wake_.get(), &count);
    }
    for (;;) {
      auto message = link.socket().receive();
      if (!message.ok()) return;
      if (!message->has_value()) break;
      on_message(link, **message);
    }
    link.send_released([&](const wire::Buffer& frame) { return link.socket().send(frame).ok(); });
    if (waiting_slabs_ && monotonic_now() - attached_ > kOffersWithin) {
      link.slabs().drop_waiting();
      waiting_slabs_ = false;
    }
    if (fds[1].revents) return;
  }
}

void IoThread::on_message(Attachment& link, const shm::Message& message) {
  auto view = wire::open_frame(message.frame);
  if (!view.ok()) return link.lose();
  if (link.on_slabs(*view, message)) return;
  std::lock_guard lock(mutex_);
  auto waiting = replies_.find(request_of(*view));
  if (waiting == replies_.end()) return;
  waiting->second = shm::Message{message.frame, {}};
  changed_.notify_all();
}

Result<wire::Buffer> IoThread::call(const Encode& encode, std::uint32_t timeout_ms) {
  wire::Buffer frame;
  std::uint64_t request = 0;
  {
    std::lock_guard lock(mutex_);
    request = next_request_++ | std::uint64_t{1} << 63;
    replies_.emplace(request, std::nullopt);
  }
  encode(request, frame);
  Status sent = reconnect("no Manager is attached");
  if (auto link = link_.use()) sent = link->socket().send_within(frame, {}, static_cast<int>(timeout_ms));
  std::unique_lock lock(mutex_);
  if (sent.ok())
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                      [&] { return replies_[request].has_value() || !state_.connected || stop_; });
  auto reply = std::move(replies_[request]);
  replies_.erase(request);
  if (!sent.ok()) return sent.error();
  if (!reply) return reconnect("the Manager did not answer in time");
  if (auto error = wire::decode_socket_error(reply->frame); error.ok())
    return Error(error->code, error->text);
  return std::move(reply->frame);
}

Status IoThread::register_entry(Entry& entry, std::uint32_t timeout_ms) {
  auto frame = call([&](std::uint64_t request,
                        wire::Buffer& out) { wire::encode(wire::Register{request, entry.rank}, out); },
                    timeout_ms);
  if (!frame.ok() && frame.error().code() == Code::kReconnect) {
    // Nobody knows whether it stands: only a new session says so again.
    if (auto link = link_.use()) link->lose();
    eventfd_write(wake_.get(), 1);
  }
  if (!frame.ok()) return frame.error();
  ORBITKV_ASSIGN_OR_RETURN(auto made, wire::decode_register_reply(*frame));
  entry.registration.store(made.registration.value);
  return ok_status();
}

}  // namespace orbitkv::client
