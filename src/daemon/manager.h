// The Manager: one core thread that owns the pool, the host with core and sessions, the
// listener and every connection. Sockets, pidfds and signals come through the event loop;
// commands and grant records through the sessions' shared memory, polled briefly and then
// slept on. It never touches a device; it maps slabs for the SSD's I/O only and copies no payload.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/result.h"
#include "base/time.h"
#include "cache/core.h"
#include "daemon/connection.h"
#include "daemon/control.h"
#include "daemon/host.h"
#include "daemon/keep.h"
#include "daemon/lives.h"
#include "daemon/new_paths.h"
#include "daemon/processes.h"
#include "daemon/ssd_tier.h"
#include "mem/pool.h"
#include "rt/event_loop.h"
#include "shm/bootstrap.h"
#include "wire/lifecycle.h"

namespace orbitkv::daemon {

struct ServeOptions {
  std::string socket;  // path of the bootstrap socket
  mem::PoolConfig pool;
  cache::CoreConfig core;
  std::optional<SsdTier::Options> ssd;
  Slabs::Config slabs;
  Duration spin = microseconds(50);  // polls this long after the last command
  Duration drain = seconds(30);      // how long a shutdown waits for claimed copies
  StallWatch::Options stall{seconds(30), false};
  // What outlives the process: nothing, what the keeper at keeper_fd holds, or what systemd does.
  enum class Keeping : std::uint8_t { kNothing, kKeeper, kSystemd } keeping = Keeping::kNothing;
  int keeper_fd = -1;
  int keeper = 0;                     // its process; 0: it is of another PID namespace
  LifeStart start = LifeStart::kAny;  // what the keeper says
  std::string came, why_came;         // likewise: how this life came to be, for the status
  std::uint64_t hung = 0;             // likewise: starts that were ended, for they hung
  Duration silence;                   // under systemd: of a start, until it may be ended; 0: as the unit says
};

class Manager final : private rt::Poller, private Host::Owner {
 public:
  // An error: the process ends, and by _exit() if its blocks outlive it.
  static Result<std::unique_ptr<Manager>> create(const ServeOptions& options);
  ~Manager() override;
  // Serves until a stop was asked for and drained. 0: everything ended; 1: it gave up
  // waiting for claimed copies and said which.
  int run();
  // After run(): the SSD holds memory of ours still. Whoever lets the Manager go waits for it.
  bool device_busy() const { return ssd_ && ssd_->active(); }
  // After run(): it has made place for its successor. The process ends without taking down what
  // is kept.
  bool left() const { return leaving_; }
  // From a signal: the first drains, the second says what is pending and ends. SIGHUP under systemd
  // makes place for the next.
  void on_stop_signal();
  std::string status_json() const override;
  ByteCount wanted_bytes() const { return host_->slabs().wanted_bytes(); }  // of the pool

 private:
  static constexpr Duration kTick = milliseconds(250);
  // A connection that has not said hello yet, or asks for status only.
  struct Visitor {
    shm::Socket socket;
    shm::Peer peer;
    TimePoint deadline;
    bool greeted = false;
    bool asking = false;       // a command that has no answer yet
    std::uint64_t number = 0;  // never reused, unlike descriptors
  };

  explicit Manager(ServeOptions options) : options_(std::move(options)) {}
  Status start();
  Status watch_signals();
  Status watch_reload();

  // rt::Poller
  bool poll() override;
  Duration prepare_sleep() override;
  void cancel_sleep() override;

  // Host::Owner
  Status send(SessionId session, std::vector<std::byte> frame, std::vector<int> fds) override;
  bool retract(SessionId session, SlabId slab) override;
  void on_closed(Session& session) override;
  void on_gone(Session& session) override;
  void end_process(Session& session) override;
  static void end_process(int pidfd);

  // Attach (attach.cc).
  void on_connection();
  void pause_listening(const Error& why);
  void listen_again();
  void renew_listener();
  void on_visitor(int fd);
  void drop_visitor(int fd);
  void on_question(Visitor& visitor, std::span<const std::byte> frame);
  void greet(Visitor& visitor, const wire::Hello& hello);
  Status make_session(Visitor& visitor, const wire::Hello& hello);
  void adopt(Session& session, Connection& connection);
  void refuse(shm::Socket& socket, const Error& why);

  // What outlives the process (manager_keep.cc).
  Status open_store();
  Status listen();
  void remove_new_paths();
  void say(const char* what);
  Status open_keep();
  Status make_kept_table();
  Status watch_keep();
  void poll_keep();
  void tick_keep();
  bool has_only_others_memory() const;
  Status make_pool();
  bool turn_away(Duration time);
  void turn_away_one(int ms);
  void succeed(const FdStore::Successor& successor, Control::Answer answer);
  void settle_succession(TimePoint now);
  void answer_succession(const Status& status);
  void on_reload();
  void leave();
  void check_left(TimePoint now);
  void send_visitors_on();

  // Sessions (manager.cc).
  Connection& connection_of(const Session& session) const { return *connections_[session.id().value]; }
  void on_socket(SessionId id, rt::Ready ready);
  void on_process_ended(SessionId id);
  Status flush(Connection& connection);
  void tick();
  void watch_memory(TimePoint now);
  void check_drained();

  // SSD (manager_ssd.cc).
  Status open_ssd();
  Status watch_ssd();
  bool poll_ssd(TimePoint now);
  void leave_memory();
  void on_control(std::uint64_t visitor, const wire::ControlRequest& request);
  std::string sessions_text() const;
  std::string pending_text() const;

  ServeOptions options_;
  std::unique_ptr<rt::EventLoop> loop_;
  std::unique_ptr<Keep> keep_;  // the pool and the core write to its table; nullptr: none
  std::unique_ptr<mem::Pool> pool_;
  std::unique_ptr<SsdTier> ssd_;  // maps the pool's slabs; nullptr: none
  std::unique_ptr<Host> host_;    // uses both
  std::unique_ptr<Control> control_;
  std::unique_ptr<shm::Listener> listener_;
  NewPaths new_paths_;
  std::array<std::unique_ptr<Connection>, limits::kSessions> connections_;  // of the host's sessions
  std::vector<std::unique_ptr<Visitor>> visitors_;
  Processes processes_;
  UniqueFd signals_, reload_;
  Incarnation incarnation_;
  std::uint64_t next_visitor_ = 1;
  TimePoint started_, drain_deadline_, last_busy_;
  std::uint32_t stop_signals_ = 0;
  bool draining_ = false, leaving_ = false;
  TimePoint leave_from_, leave_deadline_;
  Keep::Found found_ = Keep::Found::kNothing;
  Control::Answer succession_;  // who asked for a successor; empty: nobody waits
  TimePoint succession_deadline_;
  bool memory_left_ = false;
  bool listening_ = false;
  std::uint64_t pressure_ = 0;  // as it was last read
  TimePoint pressure_read_;
  bool said_accept_failure_ = false, said_gone_ = false;
  rt::TimerId ssd_timer_;
  TimePoint ssd_due_;  // as the store last said
  int exit_code_ = 0;
};

}  // namespace orbitkv::daemon
