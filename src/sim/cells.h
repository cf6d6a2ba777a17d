// Which cells of the state machines' tables a run has passed, and in which states faults
// have met them. Marks are the production code's own (cache::Passed, shm::passed_edges) and
// those of World. Cells that cannot be reached are listed in cells.cc, each with its reason.
// Process-wide; one thread.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cache/census.h"
#include "shm/record_state.h"
#include "sim/actions.h"
#include "ssd/open_state.h"

namespace orbitkv::sim {

struct Cell {
  std::string table, row, column;
  const char* unreachable = nullptr;  // why
};

// All cells, in a fixed order.
const std::vector<Cell>& all_cells();
// One more for each cell that this process has reached since it was last asked. `counts` has
// all_cells().size() elements.
void count_reached(std::uint32_t* counts);

// Which states of machines there are, of those that can be met between two events, and what else
// faults are aimed at.
inline constexpr std::size_t kMostMet = 64;
using Met = std::bitset<kMostMet>;
// One of them, drawn by the word: the rarer ones more often.
std::size_t state_to_meet(std::uint64_t word);
std::string name_of_state(std::size_t state);  // "machine.state"; empty: there are no more
void see(Met& met, const cache::Census& census);
void see(Met& met, shm::RecordState state);
void see(Met& met, ssd::OpenState state);
// A fault meets whatever there is now.
void mark_fault(ActionKind fault, const Met& met);
// What those were who had been lent something when a Manager found it: the state of their record,
// or why there is none.
enum class KeptLender : std::uint8_t { kDevice, kUnheard, kWrong, kLater, kCount };
void mark_kept(KeptLender lender);
void mark_kept(shm::RecordState state);
// What a drop took, of an age or of any: nothing, blocks and left others, all blocks; records on SSD.
enum class Dropped : std::uint8_t { kNothing, kSome, kAll, kRecords, kCount };
void mark_drop(bool aged, Dropped what);
// What came while the store was being opened.
enum class MetOpening : std::uint8_t { kDeath, kUpgrade, kDrop, kCount };
void mark_opening(ssd::OpenState state, MetOpening what);
// So does a slab that retires, as long as it stands in a state.
void mark_retirement(cache::RetireState state, const cache::Census& census);

struct Coverage {
  struct Reached {
    std::uint32_t runs = 0;
    std::string cell;
  };
  std::size_t cells = 0;                // that can be reached
  std::vector<Reached> reached;         // of them, the rarest first
  std::vector<std::string> missing;     // of them
  std::vector<std::string> impossible;  // reached though listed as unreachable
};
// `counts`: runs that have reached each.
Coverage coverage_of(const std::uint32_t* counts);
// The tables, one line a row.
std::string table_text(const std::uint32_t* counts);

}  // namespace orbitkv::sim
