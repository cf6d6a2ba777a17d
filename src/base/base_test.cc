// The small values and helpers of base/: results, readers, descriptors, logs, time.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>
#include <unordered_set>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/result.h"
#include "base/text.h"
#include "base/time.h"
#include "base/unique_fd.h"

namespace orbitkv {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return reject("odd");
  return n / 2;
}
Result<int> quarter(int n) {
  ORBITKV_ASSIGN_OR_RETURN(const int h, half(n));
  ORBITKV_RETURN_IF_ERROR(half(h));
  return h / 2;
}

TEST(Text, HexHasTwoDigitsAByte) {
  EXPECT_EQ(hex_text({}), "");
  const std::byte bytes[] = {std::byte(0x00), std::byte(0x9a), std::byte(0xff)};
  EXPECT_EQ(hex_text(bytes), "009aff");
}

TEST(ResultOf, CarriesAValueOrAnError) {
  EXPECT_EQ(*quarter(12), 3);
  EXPECT_EQ(quarter(10).error().code(), Code::kReject);
  EXPECT_EQ(quarter(7).error().to_string(), "rejected: odd");
  EXPECT_DEATH(quarter(7).value(), "odd");
  EXPECT_DEATH(quarter(12).error(), "holds a value");
  EXPECT_DEATH(Error(Code::kOk, "fine"), "failing code");
}

TEST(ResultOf, MovesWhatCannotBeCopied) {
  Result<std::unique_ptr<int>> made = std::make_unique<int>(4);
  const std::unique_ptr<int> taken = *std::move(made);
  EXPECT_EQ(*taken, 4);
}

TEST(ResultOf, CodesKeepTheirNumbers) {
  constexpr std::string_view kNames[] = {"ok", "busy", "recompute", "reconnect", "rejected", "bug"};
  for (std::uint8_t i = 0; i < 6; ++i) EXPECT_EQ(code_name(static_cast<Code>(i)), kNames[i]);
  EXPECT_EQ(code_name(static_cast<Code>(6)), "unknown");
  errno = ENOENT;
  EXPECT_EQ(errno_error("open /x").message(), "open /x: No such file or directory");
}

TEST(Bytes, ReaderStopsAtItsEnd) {
  std::vector<std::byte> buffer;
  ByteWriter out(buffer);
  out.u8(1);
  out.u16(0x0203);
  out.u32(0x04050607);
  out.u64(0x08090A0B0C0D0E0F);
  out.text("end");
  EXPECT_EQ(buffer[1], std::byte{0x03}) << "little-endian";
  ByteReader in(buffer);
  EXPECT_EQ(in.u8(), 1);
  EXPECT_EQ(in.u16(), 0x0203);
  EXPECT_EQ(in.u32(), 0x04050607u);
  EXPECT_EQ(in.u64(), 0x08090A0B0C0D0E0Fu);
  EXPECT_EQ(in.left(), 3u);
  EXPECT_FALSE(in.finished());
  EXPECT_EQ(in.text(3), "end");
  EXPECT_TRUE(in.finished());
  EXPECT_EQ(in.u8(), 0);
  EXPECT_TRUE(in.failed());
  EXPECT_FALSE(in.finished());
}

TEST(Bytes, AShortReadFailsAllThatFollow) {
  const std::vector<std::byte> three(3, std::byte{9});
  ByteReader in(three);
  EXPECT_EQ(in.u32(), 0u);
  EXPECT_TRUE(in.failed());
  EXPECT_EQ(in.u8(), 0) << "though one byte is there";
  EXPECT_TRUE(in.take(1).empty());
}

TEST(Ids, CompareAndHash) {
  EXPECT_LT(SlabId(1), SlabId(2));
  EXPECT_EQ((std::unordered_set<SlabId>{SlabId(1), SlabId(2), SlabId(1)}.size()), 2u);
  ByteCount bytes = 3 * kMiB - kKiB;
  bytes += kKiB;
  EXPECT_EQ(bytes, 3 * kMiB);
}

TEST(UniqueFdOf, ClosesOnceAndMoves) {
  UniqueFd first(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = first.get();
  UniqueFd second(std::move(first));
  EXPECT_FALSE(first.valid());
  EXPECT_EQ(second.get(), number);
  second = UniqueFd();
  EXPECT_EQ(fcntl(number, F_GETFD), -1) << "closed by the assignment";
  UniqueFd kept(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int raw = kept.release();
  kept.reset();
  EXPECT_NE(fcntl(raw, F_GETFD), -1);
  close(raw);
}

std::string g_logged;
void capture(LogLevel level, const char* line) {
  g_logged += std::to_string(static_cast<int>(level)) + line;
}

TEST(Log, GoesToTheSinkFromTheLevelOn) {
  g_logged.clear();
  set_log_sink(capture);
  set_log_level(LogLevel::kWarning);
  ORBITKV_INFO("quiet");
  ORBITKV_WARN("slab %d", 3);
  set_log_level(LogLevel::kOff);
  ORBITKV_ERROR("silent");
  set_log_level(LogLevel::kInfo);
  set_log_sink(nullptr);
  EXPECT_EQ(g_logged, "2slab 3");
}

TEST(Log, ALongLineIsCut) {
  g_logged.clear();
  set_log_sink(capture);
  ORBITKV_ERROR("%s", std::string(5000, 'x').c_str());
  set_log_sink(nullptr);
  EXPECT_EQ(g_logged.size(), 1 + 1023u);
}

TEST(Time, AddsAndRises) {
  EXPECT_EQ(TimePoint{5} + microseconds(2), TimePoint{2005});
  EXPECT_EQ(TimePoint{2'000'000'000} - TimePoint{0}, seconds(2));
  EXPECT_LT(milliseconds(1), seconds(1));
  const TimePoint before = monotonic_now();
  EXPECT_GE(monotonic_now(), before);
}

TEST(Time, AThreadMayHaveAClockOfItsOwn) {
  TimePoint now{7};
  set_virtual_clock(&now);
  EXPECT_EQ(monotonic_now(), TimePoint{7});
  now = now + seconds(3);
  EXPECT_EQ(monotonic_now(), TimePoint{3'000'000'007});
  set_virtual_clock(nullptr);
  EXPECT_NE(monotonic_now(), TimePoint{3'000'000'007});
}

TEST(Text, FormatsAndCuts) {
  EXPECT_EQ(format_text("%d of %s", 3, "four"), "3 of four");
  EXPECT_EQ(format_text("%s", std::string(5000, 'x').c_str()).size(), 1023u);
}

}  // namespace
}  // namespace orbitkv
