// The segments of each path that are being opened, filled and sealed. A header is durable
// before a segment takes batches; footer and trailer are written when all of its batches
// have ended and are durable. Owned by the store; its thread only. Never opens a reserved
// segment for the writes of users, never appends to a segment of an earlier start.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "ssd/durability.h"
#include "ssd/format_builder.h"
#include "ssd/store_state.h"

namespace orbitkv::ssd {

// Who writes: users, or the store itself (tombstones, copies forward).
enum class Use : std::uint8_t { kUsers, kStore };

struct OpenSegment {
  SegmentIndex index;
  SegmentBuilder builder;
  std::uint32_t in_flight = 0;  // batches
  Use use = Use::kUsers;        // kStore: opened from the reserve
};

class OpenSegments {
 public:
  OpenSegments(StoreState& state, Durability& durability)
      : state_(state), durability_(durability), lanes_(state.paths.size()) {}

  // The one that takes batches of this use now; nullptr: there is none (yet).
  OpenSegment* current(PathIndex path, Use use);
  // Opens one ahead unless that is under way, or no free segment is for this use.
  void prepare(PathIndex path, Use use);
  bool may_prepare(PathIndex path, Use use) const;  // or it is under way
  bool may_serve_users(PathIndex path) const;       // now, or when that is done
  // The current one takes no more batches.
  void retire(PathIndex path);
  void retire_all();
  void batch_started(OpenSegment& segment) { ++segment.in_flight; }
  void batch_ended(PathIndex path, OpenSegment& segment);

  bool idle() const;  // none is being opened or sealed
  bool none_open() const;

 private:
  struct Opening {
    SegmentIndex index;
    SegmentLife life;
    PageBuffer header;
    Use use = Use::kUsers;
  };
  struct Lane {
    std::unique_ptr<OpenSegment> current, next;
    std::optional<Opening> opening;
    std::list<std::unique_ptr<OpenSegment>> sealing;
  };

  void header_written(PathIndex path, int error);
  void header_durable(PathIndex path, bool ok);
  void start_sealing(PathIndex path, OpenSegment& segment);
  void write_seal(PathIndex path, OpenSegment& segment);
  void sealed(PathIndex path, OpenSegment& segment);

  StoreState& state_;
  Durability& durability_;
  std::vector<Lane> lanes_;
};

}  // namespace orbitkv::ssd
