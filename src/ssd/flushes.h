// flush() of the store: everything that was accepted before it, then a sync of what is not
// durable. Owned by the store; its thread only.
#pragma once

#include <list>

#include "ssd/writer.h"

namespace orbitkv::ssd {

class Flushes {
 public:
  Flushes(StoreState& state, Durability& durability, Tombstones& tombstones, Writer& writer)
      : state_(state), durability_(durability), tombstones_(tombstones), writer_(writer) {}

  Result<TransferId> begin();
  void step();
  bool idle() const { return tickets_.empty(); }

 private:
  struct Ticket {
    TransferId transfer;
    RecordSequence last;  // of what was accepted before it
    bool syncing = false;
  };
  bool written(const Ticket& ticket) const;

  StoreState& state_;
  Durability& durability_;
  Tombstones& tombstones_;
  Writer& writer_;
  std::list<Ticket> tickets_;
};

}  // namespace orbitkv::ssd
