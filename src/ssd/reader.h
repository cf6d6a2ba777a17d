// Reads of records into the caller's memory: straight from the device, a pin on the segment
// meanwhile, and at the end the digest of each image's header, of a private copy, against
// the record. Owned by the store; its thread only. Never waits for writes; never verifies
// fragments (whoever restores them does).
#pragma once

#include <functional>
#include <list>
#include <span>
#include <vector>

#include "ssd/store_state.h"

namespace orbitkv::ssd {

// Whether each image begins with the header that its mark names. Of private copies: others
// may write the memory meanwhile.
bool headers_right(const Space& space, const BlockHash& hash, std::span<const SlotMemory> slots);

class Reader {
 public:
  // `suspect`: a record whose header came out wrong; `condemn`: one that the device does not
  // read.
  using Tell = std::function<void(StoredRef)>;
  struct Judges {
    Tell suspect, condemn;
  };
  Reader(StoreState& state, Judges judges) : state_(state), judges_(std::move(judges)) {}

  Result<TransferId> read(StoredRef record, std::span<SlotMemory> slots);
  // The device did not read it: noted, and condemned the second time.
  void device_failed(StoredRef record);
  bool uses(std::span<const std::byte> memory) const;
  bool idle() const { return reads_.empty(); }

 private:
  struct Read {
    TransferId transfer;
    StoredRef ref;
    IndexRecord record;
    std::vector<SlotMemory> slots;
    std::uint32_t left = 0;
    int error = 0;
  };
  using Reads = std::list<Read>;
  void send(Reads::iterator read);
  void ended(Reads::iterator read);
  Loss judge(const Read& read) const;

  StoreState& state_;
  Judges judges_;
  Reads reads_;
};

}  // namespace orbitkv::ssd
