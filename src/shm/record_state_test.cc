#include "shm/record_state.h"

#include <gtest/gtest.h>

#include <array>
#include <string_view>

namespace orbitkv::shm {
namespace {

// One row a state, one column a target, in the order of the enum:
// F(ree) R(eserved) P(reparing) G(ranted) A(ctive) D(rained) r(eaped) f(ailed) v(revoked) k(acknowledged).
// c: the client's edge, m: the Manager's, '.': nobody's.
constexpr std::array<std::string_view, kRecordStates> kExpected = {
    //   F R P G A D r f v k
    /*F*/ ". c . . . . . . . .",
    /*R*/ ". . m . . . . m . c",
    /*P*/ ". . . m . . m m . .",
    /*G*/ ". . . . c . . . m .",
    /*A*/ ". . . . . c . . . .",
    /*D*/ ". . . . . . m . . .",
    /*r*/ ". . . . . . . . . c",
    /*f*/ ". . . . . . . . . c",
    /*v*/ ". . . . . . . . . c",
    /*k*/ ". c . . . . . . . .",
};

TEST(RecordState, EveryCellOfTheEdgeTable) {
  for (std::size_t from = 0; from < kRecordStates; ++from) {
    for (std::size_t to = 0; to < kRecordStates; ++to) {
      const char owner = kExpected[from][2 * to];
      const auto a = static_cast<RecordState>(from);
      const auto b = static_cast<RecordState>(to);
      EXPECT_EQ(may_move(a, b, Side::kClient), owner == 'c') << from << " to " << to;
      EXPECT_EQ(may_move(a, b, Side::kManager), owner == 'm') << from << " to " << to;
    }
  }
}

TEST(RecordState, OnlyANewReservationTakesAHigherOperation) {
  const RecordWord ended{OperationId(7), RecordState::kAcknowledged};
  EXPECT_TRUE(may_move(ended, {OperationId(8), RecordState::kReserved}, Side::kClient));
  EXPECT_FALSE(may_move(ended, {OperationId(7), RecordState::kReserved}, Side::kClient));
  EXPECT_FALSE(may_move(ended, {OperationId(6), RecordState::kReserved}, Side::kClient));
  const RecordWord granted{OperationId(7), RecordState::kGranted};
  EXPECT_TRUE(may_move(granted, {OperationId(7), RecordState::kActive}, Side::kClient));
  EXPECT_FALSE(may_move(granted, {OperationId(8), RecordState::kActive}, Side::kClient));
}

TEST(RecordState, FreshMemoryIsAFreeRecord) {
  EXPECT_EQ(unpack(0), (RecordWord{OperationId(0), RecordState::kFree}));
}

TEST(RecordState, PackKeepsTheWholeRangeOfOperations) {
  for (const std::uint64_t operation :
       {std::uint64_t{1}, std::uint64_t{0x0102030405060708} >> 8, kMaxOperationId.value}) {
    for (std::size_t state = 0; state < kRecordStates; ++state) {
      const RecordWord word{OperationId(operation), static_cast<RecordState>(state)};
      EXPECT_EQ(unpack(pack(word)), word);
    }
  }
  EXPECT_EQ(pack({OperationId(0x0A0B), RecordState::kDrained}), 0x0A0B05u);
}

TEST(RecordState, AStateThatDoesNotExistIsRefused) {
  for (std::uint64_t state = kRecordStates; state < 256; ++state) {
    EXPECT_FALSE(unpack(std::uint64_t{5} << 8 | state)) << state;
  }
}

TEST(RecordStateDeathTest, AnOperationIdOverItsRangeStopsTheProcess) {
  EXPECT_DEATH(pack({OperationId(kMaxOperationId.value + 1), RecordState::kReserved}), "used up");
}

}  // namespace
}  // namespace orbitkv::shm
