// The Manager without sockets, processes, clocks and event loop: the core, the sessions
// with their channels and grant records, the commands, the receipts. Its owner brings time,
// frames and the ends of connections and processes, and is told what is to be sent and who
// is gone. One thread. Touches no device, no payload and no descriptor but the slabs'.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/result.h"
#include "base/time.h"
#include "cache/core.h"
#include "daemon/commands.h"
#include "daemon/session.h"
#include "daemon/slabs.h"
#include "daemon/ssd_tier.h"
#include "daemon/stall.h"
#include "mem/pool.h"

namespace orbitkv::daemon {

class Host final : private cache::Ports {
 public:
  // Called from inside Host's calls; must not call back but for const members.
  class Owner : public Frames {
   public:
    // No more frames go either way. Claimed work may be outstanding.
    virtual void on_closed(Session& session) = 0;
    // Holds nothing any more: the object goes and the id may be given again.
    virtual void on_gone(Session& session) = 0;
    virtual std::string status_json() const = 0;
    // Its process stands still and holds claims: the operator wants it ended (stall.h).
    virtual void end_process(Session& session) { (void)session; }
  };

  // All outlive the host; tier: nullptr without an SSD. `epoch`: of the first session.
  Host(const cache::CoreConfig& config, mem::Pool& pool, Owner& owner, SsdTier* tier, Epoch epoch,
       const Slabs::Config& slabs = {});
  // From now on; before the first session. Without it nobody is judged.
  void watch_stalls(const StallWatch::Options& options) { stalls_ = StallWatch(options); }

  // ---- sessions, as their owner sees them ----

  struct Place {
    SessionId id;
    Epoch epoch;  // never given again
  };
  // kBusy: all are taken. kReconnect: after drain().
  Result<Place> place();
  // The session of a place. Its slabs are offered by offer_slabs() or the next tick.
  Session& open(Session::Parts parts, TimePoint now);
  void offer_slabs(Session& session, TimePoint now);
  // A frame that the client sent. An open session only.
  void on_frame(Session& session, std::span<const std::byte> frame, TimePoint now);
  // Its connection ended, or broke; nothing if it is closed already.
  void close(Session& session, const char* why, TimePoint now);
  // Every thread of its process has ended: the receipts that it left count, then the rest
  // is settled. The session may be gone afterwards.
  void on_process_ended(Session& session, TimePoint now);
  // A process has ended that may have no session any more.
  void on_process_ended(ProcessId process) { slabs_.process_ended(process); }

  // ---- turns of the loop ----

  // True if the client rang: serve() is due.
  static bool rung(Session& session);
  // Receipts, then commands, both bounded. `all_records`: whether they are marked or not.
  // False: there were none.
  bool serve(Session& session, bool all_records, TimePoint now);
  // The retirement of a slab, drops, the ends of long leases, in bounded steps. False: nothing to do now.
  bool turn(TimePoint now);
  // New slabs, lost wakes, sessions that are gone, expiry. At least every 250 ms.
  void tick(TimePoint now);
  // True: every client is quiet and rings when it is not; cancel_sleep() follows.
  bool prepare_sleep();
  void cancel_sleep();
  // Closes every session and takes no new one; pings alone are answered.
  void drain(TimePoint now);

  cache::Core& core() { return core_; }
  const cache::Core& core() const { return core_; }
  const StallWatch& stalls() const { return stalls_; }
  const std::vector<SessionId>& live() const { return live_; }
  Session& session(SessionId id) const;  // one of live()
  Session* find(SessionId id) const;     // nullptr: there is none
  Slabs& slabs() { return slabs_; }
  const Slabs& slabs() const { return slabs_; }

 private:
  // cache::Ports
  Grant grant(const cache::OperationKey& op, const model::Plan& plan) override;
  Revoke revoke(const cache::OperationKey& op, const Error& why) override;
  void fail(const cache::OperationKey& op, const Error& why) override;
  void reap(const cache::OperationKey& op) override;
  void drop(const cache::OperationKey& op, const Dropped& dropped) override;

  void on_register(Session& session, std::span<const std::byte> frame, TimePoint now);
  void on_unregister(Session& session, std::span<const std::byte> frame, TimePoint now);
  void on_status_request(Session& session, std::span<const std::byte> frame, TimePoint now);
  void answer(Session& session, std::vector<std::byte> frame, TimePoint now);
  bool serve_commands(Session& session, TimePoint now);
  bool take_receipts(Session& session, bool all_records, TimePoint now);
  static void discard_commands(Session& session);
  void collect(Session& session);  // removes a session that holds nothing any more
  void collect_all();
  void look_for_stall(Session& session, TimePoint now);
  void on_slab_released(Session& session, std::span<const std::byte> frame, TimePoint now);
  void tell_slabs(TimePoint now);

  mem::Pool& pool_;
  Owner& owner_;
  cache::Core core_;
  CommandServer commands_;
  Slabs slabs_;
  std::array<std::unique_ptr<Session>, limits::kSessions> sessions_;
  std::vector<SessionId> live_;  // ids of sessions_, for the hot loop
  std::vector<Session::Receipt> receipts_;
  StallWatch stalls_{{}};
  std::uint64_t next_epoch_;
  bool draining_ = false;
};

}  // namespace orbitkv::daemon
