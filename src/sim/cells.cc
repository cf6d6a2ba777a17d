#include "sim/cells.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "base/text.h"
#include "client/seat_state.h"
#include "daemon/stall.h"
#include "mem/slab_passed.h"
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
constexpr std::array kLeaseStates = {"collecting", "waiting",   "taking", "loading",
                                     "ready",      "consuming", "missed", "retired"};
constexpr std::array kLeaseEvents = {"part",       "last_part", "last_loading", "last_empty",
                                     "last_waits", "takes",     "landed",       "landed_empty",
                                     "same_list",  "new_list",  "consume",      "consume_last",
                                     "release",    "cancel",    "expire",       "told"};
constexpr std::array kRestoreStates = {"submitted", "awaiting", "pinned", "granted",
                                       "claimed",   "orphaned", "ended"};
constexpr std::array kRestoreEvents = {"await",    "pin",  "give_up",  "nothing",    "bank_full", "grant",
                                       "verified", "fail", "withdraw", "claim_seen", "lost",      "detach"};
constexpr std::array kRecoveryStates = {"collecting", "waiting", "taking", "loading",
                                        "ready",      "missed",  "retired"};
constexpr std::array kRecoveryEvents = {"part", "in_memory", "loads",   "takes", "no_room", "landed",
                                        "fail", "same_list", "emptied", "told",  "cancel",  "expire"};
constexpr std::array kInterestStates = {"collecting", "acquiring", "acquired", "missed",
                                        "claimed",    "ended",     "closed"};
constexpr std::array kInterestEvents = {"part",  "loads",  "ready", "miss", "newer",
                                        "claim", "cancel", "lost",  "close"};
constexpr std::array kSeatStates = {"back",    "refused", "submitting", "asking",     "yielding",
                                    "loading", "waiting", "acquired",   "cancelling", "claiming",
                                    "claimed", "closing", "closed"};
constexpr std::array kSeatEvents = {"submit", "part",   "no_place",  "none_known", "loads",
                                    "waits",  "ready",  "forgotten", "yield",      "cancelled",
                                    "claim",  "leased", "close",     "gone"};
constexpr std::array kWarmStates = {"queued", "loading", "ended"};
constexpr std::array kWarmEvents = {"loads", "landed", "end"};
constexpr std::array kRetireStates = {"idle", "images", "grants", "claims", "device", "drained"};
constexpr std::array kRetireEvents = {"begin", "swept", "revoked", "detached", "quiet", "abandon"};
constexpr std::array kHealthStates = {"healthy", "stalled", "condemned"};
constexpr std::array kHealthEvents = {"sign", "silent", "condemn"};
constexpr std::array kSlabStates = {"raw", "touched", "collapsed", "offered", "retiring", "gone"};
constexpr std::array kDropped = {"nothing", "some_blocks", "all_blocks", "records"};
constexpr std::array kOpening = {"reading", "settling"};
constexpr std::array kMetOpening = {"death", "upgrade", "drop"};
constexpr std::array kKeptLenders = {"device", "unheard", "wrong", "later"};
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
static_assert(named<RecoveryState, RecoveryEvent>(kRecoveryStates, kRecoveryEvents));
static_assert(named<InterestState, InterestEvent>(kInterestStates, kInterestEvents));
static_assert(named<WarmState, WarmEvent>(kWarmStates, kWarmEvents));
static_assert(named<RetireState, RetireEvent>(kRetireStates, kRetireEvents));
static_assert(named<daemon::Health, daemon::HealthEvent>(kHealthStates, kHealthEvents));
static_assert(kSeatStates.size() == client::kSeatStates && kSeatEvents.size() == client::kSeatEvents);
static_assert(kSlabStates.size() == mem::detail::kSlabStates);
static_assert(kDropped.size() == static_cast<std::size_t>(Dropped::kCount));
static_assert(kMetOpening.size() == static_cast<std::size_t>(MetOpening::kCount));
static_assert(kKeptLenders.size() == static_cast<std::size_t>(KeptLender::kCount));
static_assert(kRecordStateNames.size() == shm::kRecordStates);

// Why no run can pass these. A test fails if one does.
struct Unreachable {
  const char *table, *row, *column, *why;
};
constexpr Unreachable kUnreachable[] = {
    {"session", "open", "process_ended", "the host closes a session before its process has ended"},
    {"session", "stalled", "process_ended", "the host closes a session before its process has ended"},
    {"session", "closing", "closed", "the host closes a session once"},
    {"session", "gone", "closed", "the host closes a session once"},
    {"publish", "claimed", "claim_seen", "what was seen to be claimed is not asked again"},
    {"restore", "claimed", "claim_seen", "what was seen to be claimed is not asked again"},
    {"lease", "loading", "expire", "a wait that is over ends with what has landed"},
    {"record", "reserved", "failed",
     "a request that is refused is answered; the client takes its record back"},
    {"slab", "raw", "gone", "pools of a run are sparse: nothing is built that could fail"},
    {"slab", "touched", "collapsed", "pools of a run are sparse: no huge page is looked for"},
    {"slab", "collapsed", "offered", "pools of a run are sparse: no huge page is looked for"},
    {"kept", "lent", "reserved", "a request is being prepared before anything is lent for it"},
    {"kept", "lent", "reaped", "what a receipt ends is not lent any more when its record is reaped"},
    {"kept", "lent", "wrong", "no fault damages the words of a record"},
    {"kept", "lent", "free", "clients take the words of a record from one operation to the next"},
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
struct Meetable {
  const char* machine;
  const char* state;
  std::uint32_t aims = 1;  // at it, in relation to the others: the rarer, the more
};
constexpr Meetable kMet[] = {
    {"session", "open"},
    {"session", "stalled", 8},
    {"session", "closing", 3},
    {"publish", "waiting"},
    {"publish", "reserved", 4},
    {"publish", "granted"},
    {"publish", "claimed"},
    {"publish", "orphaned", 4},
    {"restore", "awaiting", 8},
    {"restore", "pinned", 4},
    {"restore", "granted"},
    {"restore", "claimed", 3},
    {"restore", "orphaned", 7},
    {"image", "lent"},
    {"image", "sealed"},
    {"image", "dropped"},
    {"image", "loading"},
    {"image", "load_failed", 8},
    {"load", "queued", 4},
    {"load", "submitted"},
    {"lease", "collecting"},
    {"lease", "waiting"},
    {"lease", "taking", 8},
    {"lease", "loading"},
    {"lease", "ready"},
    {"lease", "consuming"},
    {"lease", "missed", 2},
    {"recovery", "collecting", 2},
    {"recovery", "waiting"},
    {"recovery", "taking", 3},
    {"recovery", "loading", 2},
    {"recovery", "ready"},
    {"recovery", "missed"},
    {"retire", "grants", 6},
    {"interest", "collecting", 6},
    {"interest", "acquiring", 6},
    {"interest", "acquired"},
    {"interest", "claimed"},
    {"retire", "claims", 3},
    {"retire", "device", 4},
    {"record", "reserved"},
    {"record", "preparing"},
    {"record", "granted"},
    {"record", "active"},
    {"record", "drained"},
    {"record", "reaped"},
    {"record", "failed"},
    {"record", "revoked", 8},
    {"record", "acknowledged"},
};
// What faults are aimed at, too, though no table counts what meets it: a store that is being read, and
// a restore that waits while what it or somebody else has pinned has not come.
constexpr Meetable kAimedAt[] = {
    {"opening", "reading", 2}, {"opening", "settling", 2}, {"restore", "deceived", 6}};
constexpr std::size_t kAllMet = std::size(kMet) + std::size(kAimedAt);
static_assert(kAllMet <= kMostMet);
constexpr const Meetable& met_at(std::size_t place) {
  return place < std::size(kMet) ? kMet[place] : kAimedAt[place - std::size(kMet)];
}
// Who meets a state: faults, by their kinds, and retirements, by their states.
constexpr std::size_t kMeeters = kActionKinds + kRetireStates.size();
std::array<std::array<bool, std::size(kMet)>, kMeeters> g_met{};

std::size_t place_of(const char* machine, const char* state) {
  std::size_t i = 0;
  while (i < kAllMet &&
         (std::strcmp(met_at(i).machine, machine) != 0 || std::strcmp(met_at(i).state, state) != 0))
    ++i;
  return i;
}

// The places of a machine's states; looked for once.
using Places = std::vector<std::size_t>;
template <class Names>
Places places_of(const char* machine, const Names& names) {
  Places places;
  for (const char* name : names) places.push_back(place_of(machine, name));
  return places;
}

template <class Counts>
void see_machine(Met& met, const Places& places, const Counts& counts) {
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (counts[i] != 0 && places[i] < kAllMet) met.set(places[i]);
}

void mark_met(std::size_t meeter, const Met& met) {
  for (std::size_t m = 0; m < std::size(kMet); ++m)
    if (met.test(m)) g_met[meeter][m] = true;
}

std::array<bool, kKeptLenders.size()> g_lenders{};
std::array<bool, shm::kRecordStates> g_lent_records{};
std::array<std::array<bool, kDropped.size()>, 2> g_dropped{};
std::array<std::array<bool, kMetOpening.size()>, kOpening.size()> g_opening{};

// Calls each(row, column, mark) for every legal cell of a table.
template <class State, class Event, class Rows, class Columns, class Each>
void each_cell(const Rows& rows, const Columns& columns, Each each) {
  using daemon::next;
  for (std::size_t s = 0; s < rows.size(); ++s) {
    for (std::size_t e = 0; e < columns.size(); ++e) {
      if (next(static_cast<State>(s), static_cast<Event>(e)) == State::kIllegal) continue;
      each(rows[s], columns[e], Passed<State, Event>::cells[s * columns.size() + e]);
    }
  }
}

template <class Each>
void each_kept(Each each) {
  for (std::size_t i = 0; i < kKeptLenders.size(); ++i) each("kept", "lent", kKeptLenders[i], g_lenders[i]);
  for (std::size_t i = 0; i < kRecordStateNames.size(); ++i)
    each("kept", "lent", kRecordStateNames[i], g_lent_records[i]);
}

template <class Each>
void each_drop(Each each) {
  for (std::size_t aged = 0; aged < g_dropped.size(); ++aged)
    for (std::size_t i = 0; i < kDropped.size(); ++i)
      each("drop", aged ? "of_an_age" : "of_any_age", kDropped[i], g_dropped[aged][i]);
}

template <class Each>
void each_seat_cell(Each each) {
  using client::SeatEvent, client::SeatState;
  for (std::size_t s = 0; s < kSeatStates.size(); ++s)
    for (std::size_t e = 0; e < kSeatEvents.size(); ++e)
      if (client::next(static_cast<SeatState>(s), static_cast<SeatEvent>(e)) != SeatState::kIllegal)
        each("coordinator", kSeatStates[s], kSeatEvents[e], client::passed_seat_cells()[s][e]);
}

template <class Each>
void each_opening(Each each) {
  for (std::size_t state = 0; state < kOpening.size(); ++state)
    for (std::size_t i = 0; i < kMetOpening.size(); ++i)
      each("opening", kOpening[state], kMetOpening[i], g_opening[state][i]);
}

template <class Each>
void each_slab_edge(Each each) {
  for (std::size_t from = 0; from < kSlabStates.size(); ++from)
    for (std::size_t to = 0; to < kSlabStates.size(); ++to)
      if (mem::detail::kSlabEdges[from][to] != mem::SlabEdge::kNone)
        each("slab", kSlabStates[from], kSlabStates[to], mem::passed_slab_edges()[from][to]);
}

template <class Each>
void each_cell_of_all(Each each) {
  const auto in = [&](const char* table) {
    return
        [&each, table](const char* row, const char* column, auto& mark) { each(table, row, column, mark); };
  };
  each_cell<SessionState, SessionEvent>(kSessionStates, kSessionEvents, in("session"));
  each_cell<PublishState, PublishEvent>(kPublishStates, kPublishEvents, in("publish"));
  each_cell<ImageState, ImageEvent>(kImageStates, kImageEvents, in("image"));
  each_cell<LoadState, LoadEvent>(kLoadStates, kLoadEvents, in("load"));
  each_cell<LeaseState, LeaseEvent>(kLeaseStates, kLeaseEvents, in("lease"));
  each_cell<RestoreState, RestoreEvent>(kRestoreStates, kRestoreEvents, in("restore"));
  each_cell<RecoveryState, RecoveryEvent>(kRecoveryStates, kRecoveryEvents, in("recovery"));
  each_cell<InterestState, InterestEvent>(kInterestStates, kInterestEvents, in("interest"));
  each_cell<WarmState, WarmEvent>(kWarmStates, kWarmEvents, in("warm"));
  each_cell<RetireState, RetireEvent>(kRetireStates, kRetireEvents, in("retire"));
  each_cell<daemon::Health, daemon::HealthEvent>(kHealthStates, kHealthEvents, in("stall"));
  each_seat_cell(each);
  each_slab_edge(each);
  each_kept(each);
  each_drop(each);
  each_opening(each);
  for (const shm::RecordEdge& edge : shm::kRecordEdges) {
    const auto from = static_cast<std::size_t>(edge.from), to = static_cast<std::size_t>(edge.to);
    each("record", kRecordStateNames[from], kRecordStateNames[to], shm::passed_edges()[from][to]);
  }
  const auto meets = [&](const char* table, const char* row, std::size_t meeter) {
    for (std::size_t m = 0; m < std::size(kMet); ++m) {
      const bool core =
          std::strcmp(kMet[m].machine, "record") != 0 && std::strcmp(kMet[m].machine, "retire") != 0;
      if (meeter >= kActionKinds && !core) continue;
      const std::string column = std::string(kMet[m].machine) + "." + kMet[m].state;
      each(table, row, column.c_str(), g_met[meeter][m]);
    }
  };
  for (std::size_t f = 0; f < kActionKinds; ++f) {
    const ActionInfo& info = info_of(static_cast<ActionKind>(f));
    if (info.fault) meets("fault", info.name, f);
  }
  for (std::size_t s = 1; s < kRetireStates.size(); ++s)
    meets("retirement", kRetireStates[s], kActionKinds + s);
}

}  // namespace

const std::vector<Cell>& all_cells() {
  static const std::vector<Cell> cells = [] {
    std::vector<Cell> made;
    each_cell_of_all([&](const char* table, const char* row, const char* column, const auto&) {
      made.push_back({table, row, column, nullptr});
      made.back().unreachable = why_unreachable(made.back());
    });
    return made;
  }();
  return cells;
}

void count_reached(std::uint32_t* counts) {
  each_cell_of_all([&](const char*, const char*, const char*, auto& mark) {
    if (mark) ++*counts;
    mark = false;
    ++counts;
  });
}

std::size_t state_to_meet(std::uint64_t word) {
  constexpr std::uint64_t kAims = [] {
    std::uint64_t sum = 0;
    for (std::size_t place = 0; place < kAllMet; ++place) sum += met_at(place).aims;
    return sum;
  }();
  std::uint64_t at = word % kAims;
  std::size_t place = 0;
  while (at >= met_at(place).aims) at -= met_at(place++).aims;
  return place;
}

std::string name_of_state(std::size_t state) {
  if (state >= kAllMet) return {};
  return std::string(met_at(state).machine) + "." + met_at(state).state;
}

void see(Met& met, const cache::Census& census) {
  static const Places sessions = places_of("session", kSessionStates);
  static const Places publishes = places_of("publish", kPublishStates);
  static const Places restores = places_of("restore", kRestoreStates);
  static const Places images = places_of("image", kImageStates), loads = places_of("load", kLoadStates);
  static const Places leases = places_of("lease", kLeaseStates);
  static const Places recoveries = places_of("recovery", kRecoveryStates);
  static const Places interests = places_of("interest", kInterestStates);
  static const Places retirements = places_of("retire", kRetireStates);
  see_machine(met, sessions, census.sessions);
  see_machine(met, publishes, census.publishes);
  see_machine(met, restores, census.restores);
  see_machine(met, images, census.images);
  see_machine(met, loads, census.loads);
  see_machine(met, leases, census.leases);
  see_machine(met, recoveries, census.recoveries);
  see_machine(met, interests, census.interests);
  const std::size_t retire = retirements[static_cast<std::size_t>(census.retire)];
  if (retire < kAllMet) met.set(retire);
  static const std::size_t deceived = place_of("restore", "deceived");
  const auto count = [](const auto& counts, auto state) { return counts[static_cast<std::size_t>(state)]; };
  if (count(census.restores, RestoreState::kAwaiting) > 0 &&
      count(census.images, ImageState::kLoadFailed) > 0)
    met.set(deceived);
}

void see(Met& met, shm::RecordState state) {
  static const Places records = places_of("record", kRecordStateNames);
  const std::size_t place = records[static_cast<std::size_t>(state)];
  if (place < kAllMet) met.set(place);
}

void see(Met& met, ssd::OpenState state) {
  static const Places openings = places_of("opening", kOpening);
  if (const auto row = static_cast<std::size_t>(state); row < openings.size()) met.set(openings[row]);
}

void mark_fault(ActionKind fault, const Met& met) {
  mark_met(static_cast<std::size_t>(fault), met);
}

void mark_kept(KeptLender lender) {
  g_lenders[static_cast<std::size_t>(lender)] = true;
}

void mark_kept(shm::RecordState state) {
  g_lent_records[static_cast<std::size_t>(state)] = true;
}

void mark_drop(bool aged, Dropped what) {
  g_dropped[aged ? 1 : 0][static_cast<std::size_t>(what)] = true;
}

void mark_opening(ssd::OpenState state, MetOpening what) {
  if (const auto row = static_cast<std::size_t>(state); row < g_opening.size())
    g_opening[row][static_cast<std::size_t>(what)] = true;
}

void mark_retirement(cache::RetireState state, const cache::Census& census) {
  Met met;
  see(met, census);
  mark_met(kActionKinds + static_cast<std::size_t>(state), met);
}

Coverage coverage_of(const std::uint32_t* counts) {
  Coverage out;
  for (std::size_t i = 0; i < all_cells().size(); ++i) {
    const Cell& cell = all_cells()[i];
    const std::string name = cell.table + " " + cell.row + " x " + cell.column;
    if (cell.unreachable) {
      if (counts[i] > 0) out.impossible.push_back(name);
      continue;
    }
    ++out.cells;
    if (counts[i] == 0)
      out.missing.push_back(name);
    else
      out.reached.push_back({counts[i], name});
  }
  std::stable_sort(out.reached.begin(), out.reached.end(),
                   [](const auto& a, const auto& b) { return a.runs < b.runs; });
  return out;
}

std::string table_text(const std::uint32_t* counts) {
  std::string text, row;
  for (std::size_t i = 0; i < all_cells().size(); ++i) {
    const Cell& cell = all_cells()[i];
    const std::string name = cell.table + " " + cell.row;
    if (name != row) text += (row.empty() ? "" : "\n") + name + ":";
    row = name;
    text += " " + cell.column + (cell.unreachable ? "(never)" : counts[i] > 0 ? "" : "(-)");
  }
  return text + "\n";
}

}  // namespace orbitkv::sim
