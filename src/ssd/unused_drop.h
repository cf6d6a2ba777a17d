// A drop by age of what is stored: a walk over the index and then the ends of what it found, each a
// bounded number of records at a time. Owned by whoever asked for it, who goes on with it by
// Store::go_on(); the store's thread only. Changes nothing while it walks. Never ends a record that was
// used since it was looked at, nor a namespace as a whole of which one was.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
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
    std::vector<Of> of;      // by digest, as asked: found of a count, else ended
    std::uint64_t left = 0;  // found, and a bound leaves them
    std::string why_left;
  };

  // What the store does for it.
  class Ends {
   public:
    virtual ~Ends() = default;
    // As Store's.
    virtual Result<Store::Dropped> drop_space(const model::NamespaceDigest& digest) = 0;
    virtual Result<TransferId> flush() = 0;
    // By a tombstone of its own. False: there is room for no more of them, and nothing has changed.
    virtual bool bury(StoredRef record) = 0;
  };

  // Of the records that there are now.
  UnusedDrop(const StoreState& state, std::span<const model::NamespaceDigest> digests, Duration least,
             UnusedRun run);

  // As many records more as the store's config says, looked at or ended. True: it is over.
  bool go_on(StoreState& state, Ends& ends);
  bool walks() const { return next_ < end_; }  // it looks at records yet
  bool over() const { return over_; }
  // What it has come to so far.
  const Told& told() const { return told_; }
  // Begun since the last call: with their events what has gone is durably so.
  std::vector<TransferId> take_flushes() { return std::exchange(flushes_, {}); }

 private:
  struct Asked {
    SpaceIndex space;
    std::size_t of = 0;
  };
  struct Found {
    Of all;
    std::uint64_t used = 0;       // looked at, and too young
    std::vector<StoredRef> ends;  // those that may end one by one, of a drop
    std::size_t next = 0;         // of them
  };
  static constexpr std::size_t kNobody = ~std::size_t{0};

  void renew_table(const StoreState& state);
  void look(StoreState& state);
  void look_at(StoreState& state, StoredId id);
  bool whole(const StoreState& state, std::size_t i) const;
  bool end_one(StoreState& state, Ends& ends, std::uint32_t& most);
  bool end_some(StoreState& state, Ends& ends, std::uint32_t& most);
  void finish(Ends& ends);

  std::vector<model::NamespaceDigest> digests_;
  Duration least_;
  UnusedRun run_;
  std::uint32_t next_ = 0, end_;  // records
  std::uint64_t uses_;            // of the store, when it began
  std::vector<Asked> asked_;
  std::vector<std::size_t> table_;  // by space: of which digest it is, or kNobody
  std::uint64_t table_of_ = 0;      // Spaces::ended() when it was filled
  std::vector<Found> found_;
  std::size_t ending_ = 0;  // the namespace whose turn it is
  bool buried_ = false;     // single records have ended
  bool over_ = false;
  std::vector<TransferId> flushes_;
  Told told_;
};

}  // namespace orbitkv::ssd
