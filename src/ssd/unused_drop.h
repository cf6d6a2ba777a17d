// A drop by age of what is stored: a walk over the index and then the ends of what it found, each a
// bounded number of records at a time. Owned by whoever asked for it, who goes on with it by
// Store::go_on(); the store's thread only. Changes nothing while it walks. Never ends a record that was
// used since it was looked at, nor a namespace as a whole of which one was.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "ssd/store.h"

namespace orbitkv::ssd {

class StoreState;

class UnusedDrop {
 public:
  struct Of {
    std::uint64_t records = 0;
    ByteCount bytes;
  };
  struct Told {
    std::vector<Of> of;               // by digest, as asked: found of a count, else ended
    std::vector<TransferId> flushes;  // with their events it is durably gone
    std::uint64_t left = 0;           // found, and a bound leaves them
    std::string why_left;
  };

  // Of the records that there are now.
  UnusedDrop(const StoreState& state, std::span<const model::NamespaceDigest> digests, Duration least,
             UnusedRun run);

  // `looks` more records. True: all have been looked at.
  bool look(StoreState& state, std::uint32_t looks);
  bool look_is_over() const { return next_ == end_; }
  std::size_t namespaces() const { return digests_.size(); }
  const model::NamespaceDigest& digest(std::size_t i) const { return digests_[i]; }
  UnusedRun run() const { return run_; }
  Duration least() const { return least_; }
  // Every record that there is of the namespace was found, none has come or been used since, and none
  // is being written.
  bool whole(const StoreState& state, std::size_t i) const;

  struct Found {
    Of all;
    std::uint64_t used = 0;       // looked at, and too young
    std::vector<StoredRef> ends;  // those that may end one by one, of a drop
    std::size_t next = 0;         // of them
  };
  Found& found(std::size_t i) { return found_[i]; }
  std::size_t ending = 0;  // the namespace whose turn it is
  bool buried = false;     // single records have ended
  Told told;

 private:
  struct Asked {
    SpaceIndex space;
    std::size_t of = 0;
  };

  std::vector<model::NamespaceDigest> digests_;
  Duration least_;
  UnusedRun run_;
  std::uint32_t next_ = 0, end_;  // records
  std::uint64_t uses_;            // of the store, when it began
  std::vector<Asked> asked_;
  std::vector<Found> found_;
};

}  // namespace orbitkv::ssd
