// Makes sealed segments free again, oldest first: drops their records, but copies those that
// were used since forward, up to a share of the segment, and every tombstone that is still
// needed. Owned by the store; its thread only. Never takes a segment that is being read, and
// frees none before all that superseded its records is durable.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ssd/reader.h"
#include "ssd/writer.h"

namespace orbitkv::ssd {

class Reclaim {
 public:
  Reclaim(StoreState& state, Durability& durability, Tombstones& tombstones, Writer& writer, Reader& reader)
      : state_(state),
        durability_(durability),
        tombstones_(tombstones),
        writer_(writer),
        reader_(reader),
        jobs_(state.paths.size()),
        awaiting_(state.paths.size()) {}

  void step();
  // Some segment is on its way to be free, or one could be taken.
  bool may_yield();
  bool idle() const;

 private:
  struct Job {
    SegmentIndex segment;
    std::vector<StoredRef> hot;  // not read yet
    std::uint32_t copying = 0;   // read or written now
    bool tombstones = false;     // some had to be copied
  };
  struct Copy;

  bool wanted(PathIndex path) const;
  std::optional<SegmentIndex> victim(PathIndex path);
  void start(PathIndex path, SegmentIndex segment);
  std::vector<StoredRef> records_in(SegmentIndex segment) const;
  std::vector<StoredRef> sort_out(SegmentIndex segment);
  void copy_some(PathIndex path);
  void copy_one(PathIndex path, StoredRef ref);
  void landed(PathIndex path, const std::shared_ptr<Copy>& copy, int error);
  void finish(PathIndex path);
  void release_waiting();

  StoreState& state_;
  Durability& durability_;
  Tombstones& tombstones_;
  Writer& writer_;
  Reader& reader_;
  std::vector<std::optional<Job>> jobs_;  // by path: at most one
  std::vector<std::uint32_t> awaiting_;   // segments of each path that wait for a sync
  std::vector<SegmentIndex> durable_;     // wait for their last reader
  ByteCount copied_;                      // in private memory now
};

}  // namespace orbitkv::ssd
