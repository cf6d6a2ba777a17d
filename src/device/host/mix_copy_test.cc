// The kernels against the scalar reference of base/checksum.h, size by size.
#include "device/host/mix_copy.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "base/checksum.h"

namespace orbitkv::device {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::byte kGuard{0x5A};
constexpr Stores kAllStores[] = {Stores::kNone, Stores::kNormal, Stores::kStream};

std::vector<MixKernel> kernels() {
  std::vector<MixKernel> all;
  for (const Isa isa : kAllIsas) {
    if (isa_supported(isa)) all.push_back(mix_kernel(isa));
  }
  return all;
}

Bytes random_bytes(std::size_t size) {
  std::mt19937_64 random(size + 1);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Aligned, with room for guards around what a copy may write.
struct alignas(64) Target {
  std::byte before[64];
  std::byte bytes[70 * 1024];
  Target() { std::memset(this, static_cast<int>(kGuard), sizeof *this); }
  bool only_wrote(std::size_t from, std::size_t size) const {
    const auto* all = reinterpret_cast<const std::byte*>(this);
    const auto is_guard = [](std::byte byte) { return byte == kGuard; };
    return std::all_of(all, bytes + from, is_guard) &&
           std::all_of(bytes + from + size, all + sizeof *this, is_guard);
  }
};

TEST(MixCopy, GoldenSums) {
  for (const MixKernel& kernel : kernels()) {
    Bytes bytes(4096);
    const auto sum = [&](std::size_t size) {
      return kernel.mix({.from = bytes.data(), .row_bytes = size}, Stores::kNone);
    };
    EXPECT_EQ(sum(0), 0u) << kernel.name;
    EXPECT_EQ(sum(8), 0x41dec7be3ab3ffb9) << kernel.name;
    EXPECT_EQ(sum(4096), 0x558bcb0f265472d4) << kernel.name;
    for (std::size_t i = 0; i < 64; ++i) bytes[i] = static_cast<std::byte>(i);
    EXPECT_EQ(sum(64), 0x2f35703b379f7d8a) << kernel.name;
    bytes[0] = std::byte{'a'};
    EXPECT_EQ(sum(1), 0x8381b423a95ff215) << kernel.name;
  }
}

void expect_copy(const MixKernel& kernel, Stores stores, std::size_t size, std::size_t shift) {
  // Exactly as long as said: a sanitizer sees any read beyond.
  const Bytes source = random_bytes(size);
  auto target = std::make_unique<Target>();
  const std::size_t at = stores == Stores::kStream ? 0 : shift;
  const RowCopy copy{.to = target->bytes + at, .from = source.data(), .row_bytes = size};
  const std::uint64_t sum = kernel.mix(copy, stores);
  stream_fence();
  ASSERT_EQ(sum, checksum::raw(source)) << kernel.name << " " << size;
  const std::size_t written = stores == Stores::kNone ? 0 : size;
  ASSERT_TRUE(target->only_wrote(at, written)) << kernel.name << " " << size;
  ASSERT_TRUE(
      std::equal(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(written), target->bytes + at))
      << kernel.name << " " << size;
}

TEST(MixCopy, EverySizeToTwoSteps) {
  for (const MixKernel& kernel : kernels()) {
    for (const Stores stores : kAllStores) {
      for (std::size_t size = 1; size <= 200; ++size) expect_copy(kernel, stores, size, size % 9);
    }
  }
}

TEST(MixCopy, SizesAroundThePrefetchDistance) {
  for (const MixKernel& kernel : kernels()) {
    for (const Stores stores : kAllStores) {
      for (const std::size_t size : {2047, 2048, 2049, 2112, 4095, 4104, 65536, 65545})
        expect_copy(kernel, stores, size, 3);
    }
  }
}

TEST(MixCopy, RowsAreSummedAsOneRange) {
  struct Shape {
    std::uint64_t rows, row_bytes, gap;
  };
  for (const Shape shape :
       {Shape{5, 8, 8}, Shape{7, 24, 3}, Shape{3, 64, 64}, Shape{9, 72, 1}, Shape{4, 4160, 40}}) {
    const std::uint64_t stride = shape.row_bytes + shape.gap;
    const Bytes source = random_bytes((shape.rows - 1) * stride + shape.row_bytes);
    Bytes joined;
    for (std::uint64_t row = 0; row < shape.rows; ++row) {
      const auto begin = source.begin() + static_cast<std::ptrdiff_t>(row * stride);
      joined.insert(joined.end(), begin, begin + static_cast<std::ptrdiff_t>(shape.row_bytes));
    }
    for (const MixKernel& kernel : kernels()) {
      Bytes gathered(joined.size());
      const RowCopy gather{gathered.data(), source.data(),   shape.rows,
                           shape.row_bytes, shape.row_bytes, stride};
      EXPECT_EQ(kernel.mix(gather, Stores::kNormal), checksum::raw(joined)) << kernel.name;
      EXPECT_EQ(gathered, joined) << kernel.name;
      Bytes spread(source.size(), kGuard);
      const RowCopy scatter{spread.data(),   joined.data(), shape.rows,
                            shape.row_bytes, stride,        shape.row_bytes};
      EXPECT_EQ(kernel.mix(scatter, Stores::kNormal), checksum::raw(joined)) << kernel.name;
      for (std::uint64_t i = 0; i < spread.size(); ++i)
        ASSERT_EQ(spread[i], i % stride < shape.row_bytes ? source[i] : kGuard)
            << kernel.name << " byte " << i;
    }
  }
}

TEST(MixCopy, WordsThatCrossRowsCarryOver) {
  const Bytes source = random_bytes(3 * 4099 + 2 * 5);
  Bytes joined;
  for (int row = 0; row < 3; ++row)
    joined.insert(joined.end(), source.begin() + row * 4104, source.begin() + row * 4104 + 4099);
  Bytes gathered(joined.size());
  const RowCopy gather{gathered.data(), source.data(), 3, 4099, 4099, 4104};
  EXPECT_EQ(mix_rows_of_any_size(gather, Stores::kNormal), checksum::raw(joined));
  EXPECT_EQ(gathered, joined);
}

// Shared memory that another process writes without a pause while this object lives.
class RestlessSource {
 public:
  static constexpr std::size_t kBytes = 16 * 1024;
  RestlessSource() {
    void* at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(at, MAP_FAILED);
    words_ = static_cast<volatile std::uint64_t*>(at);
    const pid_t parent = ::getpid();
    writer_ = ::fork();
    if (writer_ == 0) write_until_orphaned(parent);
    EXPECT_GT(writer_, 0);
    while (words_[0] == 0) ::sched_yield();
  }
  RestlessSource(const RestlessSource&) = delete;
  ~RestlessSource() {
    ::kill(writer_, SIGKILL);
    ::waitpid(writer_, nullptr, 0);
    ::munmap(const_cast<std::uint64_t*>(words_), kBytes);
  }
  const std::byte* bytes() const {
    return reinterpret_cast<const std::byte*>(const_cast<const std::uint64_t*>(words_));
  }

 private:
  [[noreturn]] void write_until_orphaned(pid_t parent) {
    for (std::uint64_t value = 1; ::getppid() == parent;) {
      for (int sweep = 0; sweep < 1000; ++sweep, ++value)
        for (std::size_t i = 0; i < kBytes / 8; ++i) words_[i] = value * (i + 1);
    }
    ::_exit(0);
  }
  volatile std::uint64_t* words_ = nullptr;
  pid_t writer_ = -1;
};

// What is summed must be what was stored, or a verified restore could hold bytes that
// nobody verified.
TEST(MixCopy, SumIsOfTheStoredBytesWhileTheSourceChanges) {
  RestlessSource source;
  auto target = std::make_unique<Target>();
  for (const MixKernel& kernel : kernels()) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(60);
    for (std::uint64_t round = 0; std::chrono::steady_clock::now() < end; ++round) {
      const Stores stores = round % 2 == 0 ? Stores::kNormal : Stores::kStream;
      const std::uint64_t size = RestlessSource::kBytes - round % 64;
      const std::uint64_t sum =
          kernel.mix({.to = target->bytes, .from = source.bytes(), .row_bytes = size}, stores);
      stream_fence();
      ASSERT_EQ(sum, checksum::raw(std::span(target->bytes, size))) << kernel.name << " round " << round;
    }
  }
}

}  // namespace
}  // namespace orbitkv::device
