#include "client/seat_state.h"

#include <gtest/gtest.h>

#include <string_view>

namespace orbitkv::client {
namespace {

// Every cell by hand; "-" is illegal.
TEST(SeatState, every_cell) {
  // events: submit part no-place none-known loads waits ready forgotten yield cancelled claim leased close
  // gone states: B back, R refused, S submitting, A asking, Y yielding, L loading, W waiting, Q acquired,
  //         C cancelling, M claiming, H claimed, X closing, E closed
  constexpr std::string_view kNames = "BRSAYLWQCMHXE";
  constexpr std::string_view kRows[] = {"S-----------X-",   // back
                                        "S-----------X-",   // refused
                                        "-SRALWQBY---X-",   // submitting
                                        "-S-RLWQR----X-",   // asking
                                        "-CR-CCCB----X-",   // yielding
                                        "----LWQ-C---X-",   // loading
                                        "----LWQ-C---X-",   // waiting
                                        "--------C-M-X-",   // acquired
                                        "---------B--X-",   // cancelling
                                        "-----------HX-",   // claiming
                                        "------------X-",   // claimed
                                        "-------------E",   // closing
                                        "--------------"};  // closed
  static_assert(kNames.size() == kSeatStates && std::size(kRows) == kSeatStates);
  for (std::size_t s = 0; s < kSeatStates; ++s) {
    ASSERT_EQ(kRows[s].size(), kSeatEvents);
    for (std::size_t e = 0; e < kSeatEvents; ++e) {
      const std::size_t at = kNames.find(kRows[s][e]);
      const SeatState to = at == std::string_view::npos ? SeatState::kIllegal : static_cast<SeatState>(at);
      EXPECT_EQ(next(static_cast<SeatState>(s), static_cast<SeatEvent>(e)), to) << s << ", " << e;
    }
  }
  EXPECT_EQ(next(SeatState::kIllegal, SeatEvent::kClose), SeatState::kIllegal);
  EXPECT_EQ(next(SeatState::kBack, SeatEvent::kCount), SeatState::kIllegal);
}

TEST(SeatStateDeathTest, an_illegal_step_stops) {
  SeatState state = SeatState::kClosed;
  EXPECT_DEATH(step(state, SeatEvent::kSubmit), "event that its state does not allow");
}

}  // namespace
}  // namespace orbitkv::client
