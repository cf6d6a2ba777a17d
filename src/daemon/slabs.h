// The slabs of the pool at run time: which clients are told of them, when one retires, and
// what takes its place. Owned by the host; its thread. One slab retires at a time: because
// it holds quarantined bytes, or because there are more slabs than wanted. Memory that old
// clients may still map counts as taken until they answer or end (docs/slabs.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "cache/core.h"
#include "daemon/mappers.h"
#include "daemon/session.h"
#include "daemon/ssd_tier.h"
#include "mem/pool.h"

namespace orbitkv::daemon {

class Keep;
struct KeptMappings;

// How frames reach the clients of open sessions.
class Frames {
 public:
  virtual ~Frames() = default;
  // One frame for the client, with the descriptors that go along, which stay the caller's.
  // kBusy: it has too many unsent frames, and this one is not among them. Any other error: the
  // client is lost.
  virtual Status send(SessionId session, std::vector<std::byte> frame, std::vector<int> fds) = 0;
  // Takes an offer of the slab back. False: it has been sent.
  virtual bool retract(SessionId, SlabId) { return false; }
};

class Slabs {
 public:
  struct Config {
    Duration retire_after = seconds(1);  // from the first quarantined byte: deaths touch several extents
    ByteCount least;                     // memory pressure makes the pool no smaller; 0: not at all
    ByteCount headroom;                  // beyond the pool's size, for slabs that go; 0: a slab or 1/16
    Keep* keep = nullptr;                // what outlives the process; nullptr: nothing
  };
  struct Parts {
    mem::Pool& pool;
    cache::Core& core;
    Frames& frames;
    SsdTier* tier;  // nullptr: none
  };
  Slabs(const Parts& parts, const Config& config);

  // ---- sessions ----
  void open(const Session& session, ProcessId process);
  // What it has not been told of. An error: the client is lost.
  Status offer(Session& session);
  // Its receipt. False: it breaks the protocol.
  bool released(const Session& session, SlabId slab);
  void close(SessionId session, Mappers::Parting parting) { mappers_.close(session, parting); }
  void process_ended(ProcessId process) { mappers_.end(process); }
  // What an earlier life of the Manager left mapped; before the first session.
  void inherit(const KeptMappings& mappings);

  // ---- turns ----
  // New slabs from the pool, then what is to retire or to be added next.
  void tick(TimePoint now);
  // The retirement under way. True: there is more to do at once.
  bool turn(TimePoint now);
  // No slab begins to retire any more.
  void stop() { stopped_ = true; }
  // Tells of slabs that retire; after tick() and turn(), for every open session.
  Status tell(Session& session);

  // The machine has too little memory: one slab less from now on, not too often.
  void on_pressure(TimePoint now);

  // ---- for the operator ----
  // So many bytes more or less, in whole slabs. Returns the slabs that are wanted from now on.
  Result<std::uint32_t> add(ByteCount bytes);
  Result<std::uint32_t> drain(ByteCount bytes);
  Result<std::uint32_t> drain(SlabId slab);
  struct Waiting {
    SlabId slab;
    ByteCount bytes;
    std::vector<int> processes;  // that may map it; none: the store of descriptors has it yet
  };
  std::vector<Waiting> abandoned() const;
  std::uint32_t wanted() const { return wanted_; }
  ByteCount wanted_bytes() const;
  std::uint32_t offered() const { return static_cast<std::uint32_t>(offered_.size()); }
  std::uint64_t retired() const { return retired_count_; }  // slabs ever
  ByteCount retired_bytes() const;                          // abandoned, and perhaps held by others
  ByteCount limit() const;

 private:
  struct Offered {
    std::uint32_t number = 0;  // rising
    mem::SlabInfo slab;
    bool kept = false;
  };
  struct Gone {
    SlabId name;
    ByteCount bytes;
    bool abandoned = false;
  };
  // The next slab to retire, as soon as what replaces it is there or does not come.
  struct Next {
    SlabSlot slot;
    TimePoint since;
  };
  struct Count {
    std::uint32_t offered = 0, building = 0;
  };

  void take();
  Result<SlabId> add_one();
  void settle_start();
  void note_quarantine(TimePoint now);
  void forget_released();
  void choose(TimePoint now);
  void choose_quarantined(TimePoint now);
  bool hold(TimePoint now);
  void choose_spare(TimePoint now);
  void replace(TimePoint now);
  void say_smaller();
  bool step(TimePoint now);
  void follow();
  bool may_add(ByteCount bytes) const;
  void note_wanted() const;
  Count count() const;

  Parts p_;
  Config config_;
  const ByteCount slab_bytes_;      // of a new one
  const std::uint32_t configured_;  // slabs of the pool's configured size
  std::uint32_t wanted_;
  std::vector<Offered> offered_;
  std::uint32_t last_number_ = 0;
  Mappers mappers_;
  std::vector<Gone> gone_;  // known to clients, and retired
  std::map<SlabSlot, TimePoint> quarantined_;
  std::optional<SlabId> drained_;  // that the operator named
  std::optional<Next> next_;
  std::optional<SlabSlot> told_;  // the retiring one, once clients may be told
  TimePoint retry_, shrunk_;
  std::uint64_t retired_count_ = 0;
  bool more_ = false;       // of the retirement, to do at once
  bool inherited_ = false;  // blocks that the tier may not know how to store yet
  TimePoint hold_until_;    // then their slabs retire nevertheless
  bool started_ = false, stopped_ = false, said_smaller_ = false, build_failed_ = false;
};

}  // namespace orbitkv::daemon
