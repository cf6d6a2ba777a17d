#include "sim/cells.h"

#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "base/text.h"
#include "shm/channel.h"

namespace orbitkv::sim {
namespace {
using namespace cache;

constexpr std::array kSessionStates = {"absent", "open", "stalled", "closing", "gone"};
constexpr std::array kSessionEvents = {"opened", "stalled", "revived", "closed", "process_ended", "emptied"};
constexpr std::array kPublishStates = {"submitted", "waiting",  "reserved", "granted",
                                       "claimed",   "orphaned", "ended"};
constexpr std::array kPublishEvents = {"wait", "reserve",  "nothing",    "bank_full", "grant", "commit",
                                       "fail", "withdraw", "claim_seen", "lost",      "detach"};
constexpr std::array kImageStates = {"free", "lent", "sealed", "dropped", "loading", "load_failed"};
constexpr std::array kImageEvents = {"lend",      "load", "seal",   "gone",  "landed",
                                     "load_fail", "drop", "unheld", "evict", "close"};
constexpr std::array kLoadStates = {"queued", "submitted", "ended"};
constexpr std::array kLoadEvents = {"accept", "gone", "abandon", "landed", "failed"};
constexpr std::array kLeaseStates = {"collecting", "loading", "ready", "consuming", "missed", "retired"};
constexpr std::array kLeaseEvents = {
    "part",     "last_part", "last_loading", "last_empty", "landed", "landed_empty", "same_list",
    "new_list", "consume",   "consume_last", "release",    "cancel", "expire",       "told"};
constexpr std::array kRestoreStates = {"submitted", "awaiting", "pinned", "granted",
                                       "claimed",   "orphaned", "ended"};
constexpr std::array kRestoreEvents = {"await",    "pin",  "give_up",  "nothing",    "bank_full", "grant",
                                       "verified", "fail", "withdraw", "claim_seen", "lost",      "detach"};
constexpr std::array kRecordStateNames = {"free",    "reserved", "preparing", "granted", "active",
                                          "drained", "reaped",   "failed",    "revoked", "acknowledged"};

// Names follow the tables: whoever changes one changes the other.
template <class State, class Event, class Rows, class Columns>
constexpr bool named(const Rows& rows, const Columns& columns) {
  return rows.size() == Passed<State, Event>::kStates && columns.size() == Passed<State, Event>::kEvents;
}
static_assert(named<SessionState, SessionEvent>(kSessionStates, kSessionEvents));
static_assert(named<PublishState, PublishEvent>(kPublishStates, kPublishEvents));
static_assert(named<ImageState, ImageEvent>(kImageStates, kImageEvents));
static_assert(named<LoadState, LoadEvent>(kLoadStates, kLoadEvents));
static_assert(named<LeaseState, LeaseEvent>(kLeaseStates, kLeaseEvents));
static_assert(named<RestoreState, RestoreEvent>(kRestoreStates, kRestoreEvents));
static_assert(kRecordStateNames.size() == shm::kRecordStates);

// Why no run can pass these. A test fails if one does.
struct Unreachable {
  const char *table, *row, *column, *why;
};
constexpr Unreachable kUnreachable[] = {
    {"session", "stalled", "*", "clients without a thread that beats are not watched for stalls"},
    {"session", "*", "stalled", "clients without a thread that beats are not watched for stalls"},
    {"session", "*", "revived", "clients without a thread that beats are not watched for stalls"},
    {"publish", "orphaned", "*", "no slab retires: the client lets go of one with a thread of its own"},
    {"publish", "*", "detach", "no slab retires: the client lets go of one with a thread of its own"},
    {"restore", "orphaned", "*", "no slab retires: the client lets go of one with a thread of its own"},
    {"restore", "*", "detach", "no slab retires: the client lets go of one with a thread of its own"},
    {"session", "open", "process_ended", "the host closes a session before its process has ended"},
    {"session", "closing", "closed", "the host closes a session once"},
    {"session", "gone", "closed", "the host closes a session once"},
    {"record", "reserved", "failed",
     "a request that is refused is answered; the client takes its record back"},
    {"record", "revoked", "acknowledged", "a grant is revoked with its session, which reserves nothing more"},
    {"load", "queued", "gone", "the store takes 4,096 reads at once, more than a run has"},
    {"load", "queued", "abandon", "the store takes 4,096 reads at once, more than a run has"},
    {"fault", "*", "load.queued", "the store takes 4,096 reads at once, more than a run has"},
};

const char* why_unreachable(const Cell& cell) {
  const auto matches = [](const char* pattern, const std::string& name) {
    return std::strcmp(pattern, "*") == 0 || name == pattern;
  };
  for (const Unreachable& u : kUnreachable)
    if (cell.table == u.table && matches(u.row, cell.row) && matches(u.column, cell.column)) return u.why;
  return nullptr;
}

// States in which a machine can be met between two events.
struct Met {
  const char* machine;
  const char* state;
};
constexpr Met kMet[] = {
    {"session", "open"},    {"session", "closing"},  {"publish", "waiting"},     {"publish", "reserved"},
    {"publish", "granted"}, {"publish", "claimed"},  {"restore", "awaiting"},    {"restore", "pinned"},
    {"restore", "granted"}, {"restore", "claimed"},  {"image", "lent"},          {"image", "sealed"},
    {"image", "dropped"},   {"image", "loading"},    {"image", "load_failed"},   {"load", "queued"},
    {"load", "submitted"},  {"lease", "collecting"}, {"lease", "loading"},       {"lease", "ready"},
    {"lease", "consuming"}, {"lease", "missed"},     {"record", "reserved"},     {"record", "preparing"},
    {"record", "granted"},  {"record", "active"},    {"record", "drained"},      {"record", "reaped"},
    {"record", "failed"},   {"record", "revoked"},   {"record", "acknowledged"},
};
std::array<std::array<bool, std::size(kMet)>, kActionKinds> g_met{};

std::size_t place_of(const char* machine, const char* state) {
  std::size_t i = 0;
  while (i < std::size(kMet) &&
         (std::strcmp(kMet[i].machine, machine) != 0 || std::strcmp(kMet[i].state, state) != 0))
    ++i;
  return i;
}

template <class Names, class Counts>
void mark_machine(ActionKind fault, const char* machine, const Names& names, const Counts& counts) {
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const std::size_t place = place_of(machine, names[i]);
    if (place < std::size(kMet)) g_met[static_cast<std::size_t>(fault)][place] = true;
  }
}

// Calls each(row, column, passed) for every legal cell of a table.
template <class State, class Event, class Rows, class Columns, class Each>
void each_cell(const Rows& rows, const Columns& columns, Each each) {
  for (std::size_t s = 0; s < rows.size(); ++s) {
    for (std::size_t e = 0; e < columns.size(); ++e) {
      if (next(static_cast<State>(s), static_cast<Event>(e)) == State::kIllegal) continue;
      each(rows[s], columns[e], Passed<State, Event>::cells[s * columns.size() + e].load());
    }
  }
}

template <class Each>
void each_cell_of_all(Each each) {
  const auto in = [&](const char* table) {
    return [&each, table](const char* row, const char* column, bool passed) {
      each(table, row, column, passed);
    };
  };
  each_cell<SessionState, SessionEvent>(kSessionStates, kSessionEvents, in("session"));
  each_cell<PublishState, PublishEvent>(kPublishStates, kPublishEvents, in("publish"));
  each_cell<ImageState, ImageEvent>(kImageStates, kImageEvents, in("image"));
  each_cell<LoadState, LoadEvent>(kLoadStates, kLoadEvents, in("load"));
  each_cell<LeaseState, LeaseEvent>(kLeaseStates, kLeaseEvents, in("lease"));
  each_cell<RestoreState, RestoreEvent>(kRestoreStates, kRestoreEvents, in("restore"));
  for (const shm::RecordEdge& edge : shm::kRecordEdges) {
    const auto from = static_cast<std::size_t>(edge.from), to = static_cast<std::size_t>(edge.to);
    each("record", kRecordStateNames[from], kRecordStateNames[to], shm::passed_edges()[from][to].load());
  }
  for (std::size_t f = 0; f < kActionKinds; ++f) {
    const ActionInfo& info = info_of(static_cast<ActionKind>(f));
    if (!info.fault) continue;
    for (std::size_t m = 0; m < std::size(kMet); ++m) {
      const std::string column = std::string(kMet[m].machine) + "." + kMet[m].state;
      each("fault", info.name, column.c_str(), g_met[f][m]);
    }
  }
}

}  // namespace

const std::vector<Cell>& all_cells() {
  static const std::vector<Cell> cells = [] {
    std::vector<Cell> made;
    each_cell_of_all([&](const char* table, const char* row, const char* column, bool) {
      made.push_back({table, row, column, nullptr});
      made.back().unreachable = why_unreachable(made.back());
    });
    return made;
  }();
  return cells;
}

void add_reached(std::uint8_t* out) {
  each_cell_of_all([&](const char*, const char*, const char*, bool passed) { *out++ |= passed ? 1 : 0; });
}

void mark_fault(ActionKind fault, const cache::Census& census) {
  mark_machine(fault, "session", kSessionStates, census.sessions);
  mark_machine(fault, "publish", kPublishStates, census.publishes);
  mark_machine(fault, "restore", kRestoreStates, census.restores);
  mark_machine(fault, "image", kImageStates, census.images);
  mark_machine(fault, "load", kLoadStates, census.loads);
  mark_machine(fault, "lease", kLeaseStates, census.leases);
}

void mark_fault(ActionKind fault, shm::RecordState state) {
  const std::size_t place = place_of("record", kRecordStateNames[static_cast<std::size_t>(state)]);
  if (place < std::size(kMet)) g_met[static_cast<std::size_t>(fault)][place] = true;
}

Coverage coverage_of(const std::uint8_t* reached) {
  Coverage out;
  for (std::size_t i = 0; i < all_cells().size(); ++i) {
    const Cell& cell = all_cells()[i];
    const std::string name = cell.table + " " + cell.row + " x " + cell.column;
    if (cell.unreachable) {
      if (reached[i]) out.impossible.push_back(name);
      continue;
    }
    ++out.cells;
    out.reached += reached[i];
    if (!reached[i]) out.missing.push_back(name);
  }
  return out;
}

std::string table_text(const std::uint8_t* reached) {
  std::string text, row;
  for (std::size_t i = 0; i < all_cells().size(); ++i) {
    const Cell& cell = all_cells()[i];
    const std::string name = cell.table + " " + cell.row;
    if (name != row) text += (row.empty() ? "" : "\n") + name + ":";
    row = name;
    text += " " + cell.column + (cell.unreachable ? "(never)" : reached[i] ? "" : "(-)");
  }
  return text + "\n";
}

}  // namespace orbitkv::sim
