#include "cache/transitions.h"

#include <gtest/gtest.h>

#include <string_view>

namespace orbitkv::cache {
namespace {

// Every cell by hand. Rows are states, columns events, in the order of the enums.
// "-" is illegal.

template <class State, class Event, std::size_t S, std::size_t E>
void expect_cells(const char (&letters)[S + 1], const std::string_view (&rows)[S]) {
  static_assert(S == static_cast<std::size_t>(State::kIllegal));
  static_assert(E == static_cast<std::size_t>(Event::kCount));
  const std::string_view names(letters);
  for (std::size_t s = 0; s < S; ++s) {
    ASSERT_EQ(rows[s].size(), E);
    for (std::size_t e = 0; e < E; ++e) {
      const std::size_t at = names.find(rows[s][e]);
      const State expected = at == std::string_view::npos ? State::kIllegal : static_cast<State>(at);
      EXPECT_EQ(next(static_cast<State>(s), static_cast<Event>(e)), expected)
          << "state " << s << " event " << e;
    }
  }
}

TEST(Transitions, Session) {
  // events: opened stalled revived closed process-ended emptied
  // states: A absent, O open, S stalled, C closing, G gone
  expect_cells<SessionState, SessionEvent, 5, 6>("AOSCG", {"O-----",    // absent
                                                           "-S-CC-",    // open
                                                           "--OCC-",    // stalled
                                                           "---CCG",    // closing
                                                           "O--GG-"});  // gone
}

TEST(Transitions, Publish) {
  // events: wait reserve nothing bank-full grant commit fail withdraw claim-seen lost detach
  // states: S submitted, W waiting, R reserved, G granted, C claimed, O orphaned, E ended
  expect_cells<PublishState, PublishEvent, 7, 11>("SWRGCOE", {"WRE--------",    // submitted
                                                              "WRE----E---",    // waiting
                                                              "---RG--E---",    // reserved
                                                              "-----EEEC--",    // granted
                                                              "-----EE-CEO",    // claimed
                                                              "-----EE-OE-",    // orphaned
                                                              "-----------"});  // ended
}

TEST(Transitions, image_state_table_every_cell) {
  // events: lend load seal gone landed load-fail drop unheld evict close
  // states: F free, L lent, S sealed, D dropped, T loading from the tier, X load failed
  expect_cells<ImageState, ImageEvent, 6, 10>("FLSDTX", {"LT--------",    // free
                                                         "--SF-----F",    // lent
                                                         "------D-FF",    // sealed
                                                         "-------F-F",    // dropped
                                                         "---FSX---F",    // loading
                                                         "-------F-F"});  // load failed
}

TEST(Transitions, Load) {
  // events: accept gone abandon landed failed
  // states: Q queued, S submitted, E ended
  expect_cells<LoadState, LoadEvent, 3, 5>("QSE", {"SEE--",    // queued
                                                   "---EE",    // submitted
                                                   "-----"});  // ended
}

TEST(Transitions, Lease) {
  // events: part last-part last-loading last-empty last-waits takes landed landed-empty same-list
  //         new-list consume consume-last release cancel expire told
  // states: P collecting parts, W waiting, T taking, L loading, R ready, C consuming, M missed, E retired
  expect_cells<LeaseState, LeaseEvent, 8, 16>("PWTLRCME", {"PRLEWT---P---EE-",    // collecting
                                                           "-RL--T-MWP---E--",    // waiting
                                                           "-RL----MTP---E--",    // taking
                                                           "------RMLP---EE-",    // loading
                                                           "--------RPCEEEE-",    // ready
                                                           "---------PCEEEE-",    // consuming
                                                           "---------P---EEE",    // missed
                                                           "----------------"});  // retired
}

TEST(Transitions, Recovery) {
  // events: part in-memory loads takes no-room landed fail same-list emptied told cancel expire
  // states: C collecting, W waiting, T taking, L loading, R ready, M missed, E retired
  expect_cells<RecoveryState, RecoveryEvent, 7, 12>("CWTLRME", {"CRLTW-M---EE",    // collecting
                                                                "-RLTW-MW--E-",    // waiting
                                                                "-RL-W-MT--E-",    // taking
                                                                "-----RML--E-",    // loading
                                                                "-------RE-EE",    // ready
                                                                "---------EEE",    // missed
                                                                "------------"});  // retired
}

TEST(Transitions, Interest) {
  // events: part loads ready miss newer claim cancel lost close
  // states: P collecting, L acquiring, A acquired, M missed, C claimed, E ended, X closed
  expect_cells<InterestState, InterestEvent, 7, 9>("PLAMCEX", {"PLAMP-EEX",    // collecting
                                                               "--AMP-EEX",    // acquiring
                                                               "----PCEEX",    // acquired
                                                               "----P-E-X",    // missed
                                                               "-----CEEX",    // claimed
                                                               "----P-E-X",    // ended
                                                               "---------"});  // closed
}

TEST(Transitions, Warm) {
  // events: loads landed end
  // states: Q queued, L loading, E ended
  expect_cells<WarmState, WarmEvent, 3, 3>("QLE", {"L-E", "-QE", "---"});
}

TEST(Transitions, Restore) {
  // events: await pin give-up nothing bank-full grant verified fail withdraw claim-seen lost detach
  // states: S submitted, A awaiting, P pinned, G granted, C claimed, O orphaned, E ended
  expect_cells<RestoreState, RestoreEvent, 7, 12>("SAPGCOE", {"AP-E--------",    // submitted
                                                              "-PE-----E---",    // awaiting
                                                              "----PG--E---",    // pinned
                                                              "------EEEC--",    // granted
                                                              "------EE-CEO",    // claimed
                                                              "------EE-OE-",    // orphaned
                                                              "------------"});  // ended
}

TEST(Transitions, Retire) {
  // events: begin swept revoked detached quiet abandon
  // states: I idle, M images, G grants, C claims, D device, R drained
  expect_cells<RetireState, RetireEvent, 6, 6>("IMGCDR", {"M-----",    // idle
                                                          "-G----",    // images
                                                          "--C---",    // grants
                                                          "---D--",    // claims
                                                          "----R-",    // device
                                                          "-----I"});  // drained
}

TEST(Transitions, what_a_retirement_does_with_each_state) {
  const auto actions = [](auto last, std::string_view expected) {
    using State = decltype(last);
    // n nothing, b take back, d drop, s strip, x doom, w withdraw, c detach
    constexpr std::string_view kLetters = "nbdsxwc";
    for (std::size_t s = 0; s <= static_cast<std::size_t>(last); ++s)
      EXPECT_EQ(kLetters[static_cast<std::size_t>(retire_action(static_cast<State>(s)))], expected.at(s))
          << s;
  };
  actions(ImageState::kIllegal, "nbdsxnn");     // free lent sealed dropped loading load-failed
  actions(PublishState::kIllegal, "nnwwcnnn");  // submitted waiting reserved granted claimed orphaned ended
  actions(RestoreState::kIllegal, "nwwwcnnn");  // submitted awaiting pinned granted claimed orphaned ended
}

TEST(Transitions, NothingLeavesIllegal) {
  EXPECT_EQ(next(PublishState::kIllegal, PublishEvent::kGrant), PublishState::kIllegal);
  EXPECT_EQ(next(PublishState::kReserved, PublishEvent::kCount), PublishState::kIllegal);
}

TEST(TransitionsDeathTest, StepStopsOnAnIllegalEvent) {
  PublishState state = PublishState::kWaiting;
  EXPECT_DEATH(step(state, PublishEvent::kCommit), "event not allowed");
}

}  // namespace
}  // namespace orbitkv::cache
