// The SSD store on a real file and the real I/O: a process that writes is killed at seeded
// moments; at every opening all that it had flushed is found, and no byte is wrong.
// ORBITKV_SSD_KILLS says how many times (scripts/test: 20).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>

#include "ssd/dispatch.h"
#include "ssd/store.h"
#include "ssd/written_store_suite.h"

namespace orbitkv::ssd::suite {
namespace {

constexpr std::uint64_t kBlocks = 100'000;
constexpr double kOpenSeconds = 5;

SpaceShape block_shape() {
  return shape_of({{0, 0, 0, 1536}});
}

// A store in a file, driven as the Manager does.
class Driven {
 public:
  Driven(const StoreConfig& config, IoKind kind) : shape_(block_shape()) {
    auto io = make_io(kind, {});
    EXPECT_TRUE(io.ok()) << io.error().message();
    io_ = std::move(*io);
    auto store = Store::open(config, *io_);
    EXPECT_TRUE(store.ok()) << store.error().message();
    store_ = std::move(*store);
    space_ = *store_->intern(shape_);
    for (std::size_t i = 0; i < kSlots; ++i) free_.push_back(i), memory_.emplace_back(kPageBytes);
  }
  ~Driven() {
    store_.reset();
    io_.reset();
  }
  Store& store() { return *store_; }

  // Waits for something to happen and takes it.
  void turn() {
    const TimePoint now = monotonic_now();
    const Duration wait = store_->due() - now;
    pollfd done{io_->completion_fd(), POLLIN, 0};
    const auto ms = std::clamp<std::int64_t>((wait.ns + 999'999) / 1'000'000, 0, 100);
    ::poll(&done, 1, static_cast<int>(ms));
    std::vector<StoreEvent> events;
    store_->poll(monotonic_now(), events);
    for (const StoreEvent& event : events) take(event);
  }
  void write(std::uint64_t number) {
    const std::size_t slot = take_slot();
    const WrittenImage image = written_image(shape_, numbered(number), ShardId(0), AllocationId(number + 1));
    std::memcpy(memory_[slot].span().data(), image.bytes.data(), kPageBytes);
    SlotMemory images{memory_[slot].first(bytes()), image.mark};
    auto transfer = store_->write(space_, numbered(number), {&images, 1});
    while (!transfer.ok()) turn(), transfer = store_->write(space_, numbered(number), {&images, 1});
    busy_[transfer->value] = {slot, number};
  }
  // False: it is not found. Its bytes are compared when it has been read.
  bool read(std::uint64_t number) {
    const StoredRef ref = store_->find(space_, numbered(number));
    if (!ref) return false;
    const std::size_t slot = take_slot();
    SlotMemory images{memory_[slot].first(bytes()), {}};
    const auto transfer = store_->read(ref, {&images, 1});
    EXPECT_TRUE(transfer.ok());
    busy_[transfer->value] = {slot, number};
    return true;
  }
  void drain() {
    while (!busy_.empty()) turn();
  }
  void close() {
    store_->begin_close();
    while (!store_->closed()) turn();
  }
  std::map<std::uint64_t, std::uint64_t> flushes;  // transfer -> written before it
  std::uint64_t flushed = 0, read_right = 0, written = 0;

 private:
  static constexpr std::size_t kSlots = 512;
  struct Busy {
    std::size_t slot = 0;
    std::uint64_t number = 0;
  };
  std::size_t bytes() const {
    return (shape_.slot_bytes + store_->unit() - 1) / store_->unit() * store_->unit();
  }
  std::size_t take_slot() {
    while (free_.empty()) turn();
    const std::size_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void take(const StoreEvent& event) {
    EXPECT_TRUE(event.ok);
    if (event.kind == StoreEvent::Kind::kFlushed) {
      flushed = std::max(flushed, flushes.at(event.transfer.value));
      return;
    }
    const Busy busy = busy_.at(event.transfer.value);
    busy_.erase(event.transfer.value);
    free_.push_back(busy.slot);
    if (event.kind == StoreEvent::Kind::kWritten) {
      ++written;
      return;
    }
    const WrittenImage image =
        written_image(shape_, numbered(busy.number), ShardId(0), AllocationId(busy.number + 1));
    const bool right =
        std::memcmp(memory_[busy.slot].span().data(), image.bytes.data(), shape_.slot_bytes) == 0;
    EXPECT_TRUE(right) << "wrong bytes of block " << busy.number;
    read_right += right ? 1 : 0;
  }

  const SpaceShape shape_;
  std::unique_ptr<Io> io_;
  std::unique_ptr<Store> store_;
  SpaceIndex space_;
  std::vector<PageBuffer> memory_;
  std::vector<std::size_t> free_;
  std::map<std::uint64_t, Busy> busy_;
};

class SsdFile {
 public:
  SsdFile() {
    const char* temporary = ::getenv("TMPDIR");
    std::string pattern = std::string(temporary != nullptr ? temporary : ".") + "/orbitkv_ssd_XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  ~SsdFile() {
    ::unlink(path().c_str());
    ::rmdir(directory_.c_str());
  }
  std::string path() const { return directory_ + "/store"; }
  StoreConfig config(ByteCount bytes, ByteCount segment) const {
    StoreConfig out;
    out.paths.push_back({path(), bytes});
    out.segment = segment;
    out.flush = milliseconds(50);
    out.max_records = 4 * kBlocks;
    return out;
  }

 private:
  std::string directory_;
};

// In a process of its own: writes blocks from `first` on until it is killed, and says after
// each flush up to which one all are durable.
[[noreturn]] void write_until_killed(const StoreConfig& config, IoKind kind, std::uint64_t first, int out) {
  Driven driven(config, kind);
  std::uint64_t said = 0;
  for (std::uint64_t n = first; n < first + kBlocks; ++n) {
    driven.write(n);
    if (n % 256 == 0) {
      if (const auto flush = driven.store().flush(); flush.ok()) driven.flushes[flush->value] = n;
    }
    if (driven.flushed == said) continue;
    said = driven.flushed;
    if (::write(out, &said, sizeof said) != sizeof said) ::_exit(1);
  }
  ::_exit(2);
}

struct Life {
  std::uint64_t first = 0, target = 0;  // it is killed some time after this block is durable
  Duration then;
};

// Last block that is known to be durable.
std::uint64_t live_and_die(const StoreConfig& config, IoKind kind, const Life& life) {
  std::array<int, 2> ends;
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    write_until_killed(config, kind, life.first, ends[1]);
  }
  ::close(ends[1]);
  std::uint64_t durable = life.first - 1, said = 0;
  while (durable < life.target && ::read(ends[0], &said, sizeof said) == sizeof said) durable = said;
  ::usleep(static_cast<useconds_t>(life.then.ns / 1000));
  ::kill(child, SIGKILL);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << status;
  while (::read(ends[0], &said, sizeof said) == sizeof said) durable = said;
  ::close(ends[0]);
  EXPECT_GE(durable, life.target);
  return durable;
}

void kill_and_open(std::uint64_t kills, IoKind kind, std::uint64_t seed) {
  const SsdFile file;
  // Every kill leaves up to two segments that are hardly filled.
  const StoreConfig config = file.config(kGiB, kMiB);
  std::mt19937_64 random(seed);
  std::uint64_t durable = 0, read = 0;
  for (std::uint64_t i = 1; i <= kills && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("kill " + std::to_string(i) + " of seed " + std::to_string(seed));
    const Life life{durable + 1, kBlocks * i / kills,
                    microseconds(static_cast<std::int64_t>(random() % 20'000))};
    durable = std::max(durable, live_and_die(config, kind, life));
    const TimePoint begin = monotonic_now();
    Driven again(config, kind);
    EXPECT_LE(static_cast<double>((monotonic_now() - begin).ns) * 1e-9, kOpenSeconds);
    EXPECT_GE(again.store().stats().recovered, durable);
    std::uint64_t asked = 0, missing = 0;
    const auto look = [&](std::uint64_t number) {
      ++asked;
      missing += again.read(number) ? 0 : 1;
    };
    if (i == kills) {
      for (std::uint64_t n = 1; n <= durable; ++n) look(n);
    } else {
      for (std::uint64_t n = durable - std::min<std::uint64_t>(durable, 500) + 1; n <= durable; ++n) look(n);
      for (int n = 0; n < 500; ++n) look(1 + random() % durable);
    }
    EXPECT_EQ(missing, 0u);
    // Behind what was flushed some may be there: with right bytes.
    for (std::uint64_t n = durable + 1; n < durable + 500; ++n) asked += again.read(n) ? 1 : 0;
    again.drain();
    EXPECT_EQ(again.read_right, asked);
    read += again.read_right;
  }
  EXPECT_GE(durable, kBlocks);
  EXPECT_GE(read, kBlocks);
}

std::uint64_t wanted_kills() {
  const char* wanted = std::getenv("ORBITKV_SSD_KILLS");
  return wanted != nullptr ? std::max(1, std::atoi(wanted)) : 20;
}

TEST(SsdKillTest, as_many_kills_as_are_wanted) {
  kill_and_open(wanted_kills(), IoKind::kAuto, 1);
}

// Opens the store in turns, and is killed in one of that state, or when it is past it.
[[noreturn]] void open_and_die(const StoreConfig& config, IoKind kind, OpenState in, std::uint64_t turns,
                               std::atomic<std::uint32_t>& met) {
  auto io = make_io(kind, {});
  if (!io.ok()) ::_exit(1);
  auto store = Store::begin_open(config, **io);
  if (!store.ok()) ::_exit(1);
  std::vector<StoreEvent> events;
  for (OpenState state{}; (state = (*store)->opening().state) <= in;
       (*store)->poll(monotonic_now(), events)) {
    if (state == in && turns-- == 0) {
      met |= 1u << static_cast<unsigned>(state);
      break;
    }
  }
  ::kill(::getpid(), SIGKILL);
  ::_exit(1);
}

// Whatever it has read by then, and whatever footers it has written.
TEST(SsdKillTest, killed_at_any_moment_while_it_opens) {
  const SsdFile file;
  const StoreConfig config = file.config(kGiB, kMiB);
  void* const shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& met = *new (shared) std::atomic<std::uint32_t>(0);
  std::mt19937_64 random(3);
  std::uint64_t durable = 0;
  for (std::uint64_t life = 1; life <= 2 && !testing::Test::HasFailure(); ++life) {
    durable = live_and_die(config, IoKind::kAuto, {durable + 1, 1'500 * life, microseconds(0)});
    for (int kill = 0; kill < 20; ++kill) {
      const auto in = kill % 4 < 2 ? OpenState::kReading : OpenState::kSettling;
      const std::uint64_t turns = kill < 4 ? 0 : random() % 40;
      const pid_t child = ::fork();
      if (child == 0) open_and_die(config, kill % 2 == 0 ? IoKind::kAuto : IoKind::kThreads, in, turns, met);
      int status = 0;
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFSIGNALED(status)) << status;
    }
    Driven again(config, IoKind::kAuto);
    EXPECT_GE(again.store().stats().recovered, durable);
    std::uint64_t found = 0;
    for (std::uint64_t n = 1; n <= durable; ++n) found += again.read(n) ? 1 : 0;
    again.drain();
    EXPECT_EQ(found, durable);
    EXPECT_EQ(again.read_right, found);
  }
  EXPECT_EQ(met, 1u << static_cast<unsigned>(OpenState::kReading) |
                     1u << static_cast<unsigned>(OpenState::kSettling));
  ::munmap(shared, 4096);
}

TEST(SsdKillTest, three_kills_with_threads) {
  kill_and_open(3, IoKind::kThreads, 2);
}

// Twice round a small file, closed and opened again.
TEST(SsdKillTest, round_and_round) {
  for (const IoKind kind : {IoKind::kAuto, IoKind::kThreads}) {
    const SsdFile file;
    const StoreConfig config = file.config(16 * kMiB, kMiB);
    std::uint64_t kept = 0;
    {
      Driven store(config, kind);
      for (std::uint64_t n = 1; n <= 10'000; ++n) store.write(n);
      store.drain();
      for (std::uint64_t n = 1; n <= 10'000; ++n) kept += store.read(n) ? 1 : 0;
      store.drain();
      EXPECT_EQ(store.read_right, kept);
      EXPECT_GT(kept, 1500u);
      EXPECT_LT(kept, 4000u);
      store.close();
    }
    Driven again(config, kind);
    std::uint64_t found = 0;
    for (std::uint64_t n = 1; n <= 10'000; ++n) found += again.read(n) ? 1 : 0;
    again.drain();
    EXPECT_EQ(again.read_right, found);
    EXPECT_GE(found, kept);
  }
}

}  // namespace
}  // namespace orbitkv::ssd::suite
