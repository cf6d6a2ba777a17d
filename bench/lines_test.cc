#include "bench/lines.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "bench/endurance_replay.h"
#include "bench/trace_line.h"

namespace orbitkv::bench {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  char path[] = "/tmp/okv-lines-XXXXXX";
  const int fd = ::mkstemp(path);
  EXPECT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(fd);
  auto lines = Lines::open(path);
  EXPECT_TRUE(lines.ok());
  std::vector<std::string> out;
  std::string line;
  while (*lines->next(line)) out.push_back(line);
  EXPECT_EQ(lines->number(), static_cast<int>(out.size()) + 1);
  ::unlink(path);
  return out;
}

TEST(Lines, AreThoseOfTheFileWhateverTheirLength) {
  for (const std::size_t length : {0u, 1u, 4094u, 4095u, 4096u, 4097u, 8190u, 100'000u}) {
    const std::string line(length, 'x');
    std::string text = line;
    text.append("\n\n").append(line).append("\n");
    EXPECT_EQ(lines_of(text), (std::vector<std::string>{line, "", line})) << length;
    if (length == 0) continue;
    EXPECT_EQ(lines_of("a\n" + line), (std::vector<std::string>{"a", line})) << length << ", without an end";
  }
  EXPECT_TRUE(lines_of("").empty());
}

TEST(Lines, OneWithoutAnEndIsRefusedWithItsNumberAndTheLimit) {
  const std::string says = "/dev/zero, line 1 is longer than 64 MiB";
  const auto requests = read_requests("/dev/zero");
  ASSERT_FALSE(requests.ok());
  EXPECT_NE(requests.error().message().find(says), std::string::npos) << requests.error().message();
  const auto transfers = read_trace("/dev/zero");
  ASSERT_FALSE(transfers.ok());
  EXPECT_NE(transfers.error().message().find(says), std::string::npos) << transfers.error().message();
}

}  // namespace
}  // namespace orbitkv::bench
