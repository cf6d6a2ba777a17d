// The rows of the kill matrix: who is killed where, while it does what. The drivers
// (engines.cc, managers.cc) go through them in rotation; rows_test.cc holds them against
// base/fault.h, so that each fault point is in a row or left out with its reason.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace orbitkv::test::kills {

// An empty fault: killed from outside, at any moment.
enum class Deed : std::uint8_t {
  kSave,
  kRestore,
  kLease,    // holds a lease that it never restores
  kPrepare,  // has prepared what it never asks for
  kQuery,    // asks for blocks that come from SSD, as others do at that time
  kStopped,  // stands still in a save while others wait for its blocks
  kGarble,   // breaks the protocol and rewrites what is shared
  kGpu,      // saves and restores on a GPU
};
enum class Blocks : std::uint8_t { kInMemory, kOnSsd };

struct EngineRow {
  std::string_view name;
  std::string_view fault;
  Deed deed = Deed::kSave;
  Blocks blocks = Blocks::kInMemory;
};

inline constexpr std::array<EngineRow, 22> kEngineRows{{
    {"save, client_submitted", "client_submitted", Deed::kSave},
    {"save, client_granted", "client_granted", Deed::kSave},
    {"save, client_claimed", "client_claimed", Deed::kSave},
    {"save, client_mid_copy", "client_mid_copy", Deed::kSave},
    {"save, client_digest", "client_digest", Deed::kSave},
    {"save, client_before_drained", "client_before_drained", Deed::kSave},
    {"save, client_after_drained", "client_after_drained", Deed::kSave},
    {"save, any moment", "", Deed::kSave},
    {"restore, client_submitted", "client_submitted", Deed::kRestore},
    {"restore, client_granted", "client_granted", Deed::kRestore},
    {"restore, client_claimed", "client_claimed", Deed::kRestore},
    {"restore, client_mid_copy", "client_mid_copy", Deed::kRestore},
    {"restore, client_before_drained", "client_before_drained", Deed::kRestore},
    {"restore, client_after_drained", "client_after_drained", Deed::kRestore},
    {"restore, any moment", "", Deed::kRestore},
    {"with a lease", "", Deed::kLease},
    {"stopped in a save that others wait for", "client_claimed", Deed::kStopped},
    {"garbling what is shared", "", Deed::kGarble},
    {"GPU, client_claimed", "client_claimed", Deed::kGpu},
    {"GPU, any moment", "", Deed::kGpu},
    {"with a preparation, from SSD", "", Deed::kPrepare, Blocks::kOnSsd},
    {"in a shared read, from SSD", "", Deed::kQuery, Blocks::kOnSsd},
}};

enum class Life : std::uint8_t {
  kKept,               // serve --keep: the keeper starts the next life
  kKeptOnSsd,          // the same, with blocks that go to SSD and come back
  kKeptBesideStopped,  // serve --keep, beside an engine that stands still and maps a slab that retired
  kBare,               // started again by hand, on the same socket: its engines are stale
  kKeeperDies,         // the keeper is killed, and its Manager goes on
};

struct ManagerRow {
  std::string_view name;
  std::string_view fault;
  Life life = Life::kKept;
  std::uint32_t hit = 1;  // the pass that strikes
};

inline constexpr std::array<ManagerRow, 15> kManagerRows{{
    {"kept, manager_lent", "manager_lent", Life::kKept, 70},
    {"kept, manager_before_grant", "manager_before_grant", Life::kKept, 5},
    {"kept, manager_kept_open", "manager_kept_open", Life::kKept, 70},
    {"kept, manager_sealed", "manager_sealed", Life::kKept, 70},
    {"kept, manager_before_reap", "manager_before_reap", Life::kKept, 7},
    {"kept, manager_unsealed", "manager_unsealed", Life::kKept, 20},
    {"kept, manager_retire_marked", "manager_retire_marked", Life::kKept, 1},
    {"kept, manager_adopted", "manager_adopted", Life::kKept, 1},
    {"kept, any moment", "", Life::kKept},
    {"kept, any moment, with an SSD", "", Life::kKeptOnSsd},
    {"kept, any moment, beside a stopped engine", "", Life::kKeptBesideStopped},
    {"not kept, manager_before_grant", "manager_before_grant", Life::kBare, 3},
    {"not kept, manager_before_reap", "manager_before_reap", Life::kBare, 3},
    {"not kept, any moment", "", Life::kBare},
    {"its keeper", "", Life::kKeeperDies},
}};

struct LeftOut {
  std::string_view fault, why;
};
inline constexpr std::array<LeftOut, 4> kLeftOut{{
    {"manager_kept_format",
     "says that a table is of another format and is no place to die at: native_keep_test"},
    {"manager_not_ready", "says that a start fails and is no place to die at: native_upgrade_test"},
    {"manager_no_memory", "says that there is no memory and is no place to die at: native_upgrade_test"},
    {"manager_opening", "holds up what is read of the SSD: native_ssd_kill_test kills at any moment of that"},
}};

}  // namespace orbitkv::test::kills
