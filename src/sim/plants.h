// Bugs that a test plants, so that checkers are seen to catch them (docs/simulator.md).
// They are wrong clients, devices and wires around the production code, which has none.
#pragma once

#include <cstdint>

namespace orbitkv::sim {

enum class Plant : std::uint8_t {
  kNone,
  kWrongBytes,      // a restore writes another bit into a page and calls it verified
  kEarlyPages,      // an engine fills pages while their copies run
  kStrayCopy,       // a copy goes on after its receipt
  kSharedExtent,    // a device writes into an extent that nobody granted it
  kLeakedExtent,    // the Manager forgets an extent
  kUnwrittenShard,  // a device says that it has copied an image, and has not
  kLostReply,       // a call never ends, and its client has no clock
  kLostOperation,   // likewise a save or restore
  kLongWait,        // the Manager lets queries wait longer than it was told to
  kShortClaim,      // a carrier claims one block less, and says that all were claimed
  kSwallowedClose,  // a carrier answers a close itself
  kTimelessClaim,   // a claim's engine has no clock
  kUnheardDeath,    // the Manager is not told that a process has ended
  kHastyUnmap,      // a client lets go of a slab that its copies use
  kCutReply,        // replies lose their last byte
  kDeafDisk,        // no Manager but the first can read the disk
  kDroppedExtent,   // an extent of the pool dies open
  // Of what outlives the Manager:
  kForgottenLent,   // an extent that somebody writes does not stand there
  kEarlySeal,       // it stands there as a block
  kForgottenBlock,  // a block does not stand there
  kStaleBlock,      // a bit of a block flips while no Manager is there, and nobody knows
  kNamesAgain,      // names of slabs are given anew
  kLostPlans,       // plans of the sessions of a dead Manager cannot be read
  kUnheardEnd,      // no pidfd tells that its process has ended
  kHeldName,        // the store keeps what it was told to let go of
  kCount,
};
const char* name_of(Plant plant);

}  // namespace orbitkv::sim
