// A store on a MemoryDisk in virtual time, for its tests: writes images that verify, keeps
// their memory until the event, compares every byte that is read, restarts after a clean
// stop, a kill or a loss of power. Tests only; what happens follows from seeds.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ssd/dispatch.h"
#include "ssd/memory_io.h"
#include "ssd/store.h"
#include "ssd/written_store_suite.h"

namespace orbitkv::ssd::suite {

// Faults of requests that a test picks out, until it says otherwise.
class PickedFaults final : public IoFaults {
 public:
  using Pick = std::function<IoFault(const IoRequest&)>;
  IoFault next(const IoRequest& request) override { return pick ? pick(request) : IoFault{}; }
  Pick pick;
};

inline IoFault failing(int error) {
  IoFault out;
  out.kind = IoFault::Kind::kError;
  out.error = error;
  return out;
}
inline PickedFaults::Pick failing_op(IoOp op, int error) {
  return [=](const IoRequest& request) { return request.op == op ? failing(error) : IoFault{}; };
}

// A device that wants another alignment than the one below it, and is given it.
class AlignedIo final : public Io {
 public:
  AlignedIo(Io& below, std::uint32_t alignment, const bool& named)
      : below_(below), alignment_(alignment), named_(named) {}
  const char* name() const override { return below_.name(); }
  Result<Opened> open(const std::string& path, ByteCount bytes) override {
    auto opened = below_.open(path, bytes);
    if (opened.ok()) opened->alignment = {alignment_, alignment_};
    return opened;
  }
  Status grow(FileIndex file, ByteCount bytes) override { return below_.grow(file, bytes); }
  bool linked(FileIndex) const override { return named_; }
  ByteCount free_space(const std::string& path) const override { return below_.free_space(path); }
  void add_memory(std::span<std::byte> memory) override { below_.add_memory(memory); }
  void remove_memory(std::span<std::byte> memory) override { below_.remove_memory(memory); }
  std::size_t submit(std::span<const IoRequest> requests) override {
    for (const IoRequest& request : requests) {
      EXPECT_EQ(request.offset % alignment_, 0u);
      for (const auto& piece : request.pieces) {
        EXPECT_EQ(piece.size() % alignment_, 0u);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece.data()) % alignment_, 0u);
      }
    }
    return below_.submit(requests);
  }
  std::size_t reap(std::span<IoResult> results, Duration wait) override { return below_.reap(results, wait); }
  int completion_fd() const override { return below_.completion_fd(); }
  IoStats stats() const override { return below_.stats(); }

 private:
  Io& below_;
  const std::uint32_t alignment_;
  const bool& named_;
};

// Image bytes of one block, as a caller of the store holds them.
class BlockMemory {
 public:
  BlockMemory(const SpaceShape& shape, std::uint32_t unit) {
    const std::uint64_t bytes = (shape.slot_bytes + unit - 1) / unit * unit;
    for (std::uint16_t shard = 0; shard < shape.shards; ++shard) {
      images_.emplace_back(image_pages(shape) * kPageBytes);
      slots_.push_back({images_.back().first(bytes), {}});
    }
  }
  void fill(const SpaceShape& shape, const BlockHash& hash, AllocationId revision) {
    for (std::uint16_t shard = 0; shard < shape.shards; ++shard) {
      const WrittenImage image = written_image(shape, hash, ShardId(shard), revision);
      std::memcpy(slots_[shard].memory.data(), image.bytes.data(), shape.slot_bytes);
      slots_[shard].mark = image.mark;
    }
  }
  // Whether it is what fill() makes of the revision that its mark names.
  bool right(const SpaceShape& shape, const BlockHash& hash) const {
    for (std::uint16_t shard = 0; shard < shape.shards; ++shard) {
      const WrittenImage image = written_image(shape, hash, ShardId(shard), slots_[shard].mark.revision);
      if (image.mark.digest != slots_[shard].mark.digest) return false;
      if (std::memcmp(slots_[shard].memory.data(), image.bytes.data(), shape.slot_bytes) != 0) return false;
    }
    return true;
  }
  std::vector<SlotMemory>& slots() { return slots_; }
  std::uint64_t revision() const { return slots_[0].mark.revision.value; }

 private:
  std::vector<PageBuffer> images_;
  std::vector<SlotMemory> slots_;
};

class StoreBed {
 public:
  struct Options {
    ByteCount segment = 256 * kKiB;
    std::uint32_t segments = 16;
    std::vector<std::string> paths = {"ssd"};
    Duration flush = milliseconds(1000);
    std::uint64_t seed = 1;
    LatencyRange latency{microseconds(20), microseconds(400)};
  };
  StoreBed() : StoreBed(Options{}) {}
  explicit StoreBed(const Options& options) : options_(options) {
    config.segment = options.segment;
    config.flush = options.flush;
    for (const std::string& path : options.paths) {
      config.paths.push_back({path, kFirstSegment + options.segments * options.segment});
    }
  }
  ~StoreBed() { end(); }

  // ---- lives of the store ----
  Status try_start() { return try_start(Store::open); }
  Status try_start(Result<std::unique_ptr<Store>> (*open)(const StoreConfig&, Io&)) {
    IoOptions io_options;
    io_options.faults = &faults;
    io_options.depth = 1000;  // so that reads that a test holds up hold up nothing else
    io_ = std::make_unique<MemoryIo>(disk, io_options, seeded_latency(++options_.seed, options_.latency));
    aligned_ = std::make_unique<AlignedIo>(*io_, alignment, named);
    auto opened = open(config, *aligned_);
    if (!opened.ok()) {
      io_.reset();
      return opened.error();
    }
    store_ = std::move(*opened);
    return ok_status();
  }
  void start() {
    const Status started = try_start();
    ASSERT_TRUE(started.ok()) << started.error().message();
  }
  // It opens in the turns that follow.
  void begin_start() {
    const Status started = try_start(Store::begin_open);
    ASSERT_TRUE(started.ok()) << started.error().message();
  }
  void finish_start() {
    for (int i = 0; i < 200'000 && !store_->ready(); ++i) turn();
    ASSERT_TRUE(store_->ready());
  }
  void close() {
    store_->begin_close();
    for (int i = 0; i < 200'000 && !store_->closed(); ++i) turn();
    EXPECT_TRUE(store_->closed());
    end();
  }
  // As by SIGKILL: what was reaped is on the disk.
  void kill() { crash({.killed_only = true}); }
  void crash(const CrashRules& rules) {
    MemoryDisk after = disk.after_crash(rules);
    end();
    disk = std::move(after);
  }
  void end() {
    store_.reset();
    io_.reset();
    writes_.clear();
    reads_.clear();
    ended.clear();
    accepted_ = 0;
  }
  Store& store() { return *store_; }
  MemoryIo& io() { return *io_; }
  bool running() const { return store_ != nullptr; }

  // ---- time ----
  void turn() {
    std::vector<StoreEvent> events;
    store_->poll(io_->now(), events);
    for (const StoreEvent& event : events) take(event);
    const Duration until_due = store_->due() - io_->now();
    const bool waits = io_->stats().in_flight > 0 || until_due <= Duration{};
    io_->advance(waits ? microseconds(20) : std::min(until_due, milliseconds(100)));
  }
  void settle() {
    for (int i = 0; i < 200'000 && store_->active(); ++i) turn();
    EXPECT_FALSE(store_->active());
  }
  void pass(Duration time) {
    const TimePoint end = io_->now() + time;
    while (io_->now() < end) turn();
  }

  // ---- blocks: hash by number, every write another revision ----
  SpaceIndex space(const SpaceShape& shape) {
    auto index = store_->intern(shape);
    EXPECT_TRUE(index.ok()) << index.error().message();
    return *index;
  }
  struct Written {
    std::uint64_t number = 0, revision = 0;
    SpaceIndex space;
    std::unique_ptr<BlockMemory> memory;
  };
  Result<TransferId> write(SpaceIndex space, const SpaceShape& shape, std::uint64_t number) {
    auto memory = std::make_unique<BlockMemory>(shape, store_->unit());
    memory->fill(shape, numbered(number), AllocationId(++revision_));
    auto transfer = store_->write(space, numbered(number), memory->slots());
    if (transfer.ok()) writes_[transfer->value] = {number, revision_, space, std::move(memory)};
    accepted_ += transfer.ok() ? 1 : 0;
    return transfer;
  }
  struct Reading {
    std::uint64_t number = 0;
    SpaceShape shape;
    std::unique_ptr<BlockMemory> memory;
  };
  Result<TransferId> read(SpaceIndex space, const SpaceShape& shape, std::uint64_t number) {
    const StoredRef ref = store_->find(space, numbered(number));
    if (!ref) return recompute("not found");
    auto memory = std::make_unique<BlockMemory>(shape, store_->unit());
    auto transfer = store_->read(ref, memory->slots());
    if (transfer.ok()) {
      last_read_revision = memory->revision();
      reads_[transfer->value] = {number, shape, std::move(memory)};
    }
    accepted_ += transfer.ok() ? 1 : 0;
    return transfer;
  }
  // Waits for it. The revision that was read; 0: a miss or a failure, `last` says which.
  std::uint64_t read_now(SpaceIndex space, const SpaceShape& shape, std::uint64_t number) {
    const auto transfer = read(space, shape, number);
    if (!transfer.ok()) return 0;
    const StoreEvent event = await(*transfer);
    EXPECT_TRUE(event.ok || event.loss != Loss::kNone);
    return event.ok ? last_revision : 0;
  }
  StoreEvent write_now(SpaceIndex space, const SpaceShape& shape, std::uint64_t number) {
    const auto transfer = write(space, shape, number);
    EXPECT_TRUE(transfer.ok()) << transfer.error().message();
    return transfer.ok() ? await(*transfer) : StoreEvent{};
  }
  // Numbers from `first` on, all of them written.
  void write_blocks(SpaceIndex space, const SpaceShape& shape, std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t n = first; n < first + count; ++n) {
      const auto transfer = write(space, shape, n);
      ASSERT_TRUE(transfer.ok()) << transfer.error().message();
    }
    for (int i = 0; i < 200'000 && under_way() > 0; ++i) turn();
    ASSERT_EQ(under_way(), 0u);
  }
  // How many of these numbers are found and read.
  std::uint64_t readable(SpaceIndex space, const SpaceShape& shape, std::uint64_t first,
                         std::uint64_t count) {
    std::uint64_t out = 0;
    for (std::uint64_t n = first; n < first + count; ++n) out += read_now(space, shape, n) != 0 ? 1 : 0;
    return out;
  }
  StoreEvent await(TransferId transfer) {
    for (int i = 0; i < 200'000 && ended.count(transfer.value) == 0; ++i) turn();
    EXPECT_EQ(ended.count(transfer.value), 1u);
    return ended.count(transfer.value) == 1 ? ended.at(transfer.value) : StoreEvent{};
  }
  bool flush_now() {
    const auto transfer = store_->flush();
    EXPECT_TRUE(transfer.ok());
    return transfer.ok() && await(*transfer).ok;
  }
  std::size_t under_way() const { return writes_.size() + reads_.size(); }
  std::uint64_t last_written() const { return revision_; }
  std::uint64_t accepted() const { return accepted_; }  // transfers of this life

  MemoryDisk disk;
  StoreConfig config;
  PickedFaults faults;
  std::uint32_t alignment = 512;              // of the device, from the next start on
  bool named = true;                          // the files have names
  std::map<std::uint64_t, StoreEvent> ended;  // by transfer
  std::uint64_t last_revision = 0;            // of the last read that was ok
  std::uint64_t last_read_revision = 0;       // that the last accepted read was to give
  std::function<void(const Written&, const StoreEvent&)> on_written;
  std::uint64_t corrupt = 0;  // reads of records that could not be verified

 private:
  void take(const StoreEvent& event) {
    EXPECT_TRUE(ended.emplace(event.transfer.value, event).second) << "two events of one transfer";
    if (event.kind == StoreEvent::Kind::kRead) {
      const auto read = reads_.find(event.transfer.value);
      ASSERT_NE(read, reads_.end());
      if (event.ok) {
        EXPECT_TRUE(read->second.memory->right(read->second.shape, numbered(read->second.number)))
            << "wrong bytes";
        last_revision = read->second.memory->revision();
      }
      corrupt += event.loss == Loss::kCorrupt ? 1 : 0;
      reads_.erase(read);
    }
    if (event.kind == StoreEvent::Kind::kWritten) {
      const auto written = writes_.find(event.transfer.value);
      ASSERT_NE(written, writes_.end());
      // Unless a sync failed since, before the caller was told of either.
      if (event.ok && !sync_failed()) {
        EXPECT_TRUE(store_->find(written->second.space, numbered(written->second.number)));
      }
      if (on_written) on_written(written->second, event);
      writes_.erase(written);
    }
  }

  bool sync_failed() const { return store_->stats().lost[static_cast<std::size_t>(Loss::kDeviceError)] > 0; }

  Options options_;
  std::unique_ptr<MemoryIo> io_;
  std::unique_ptr<AlignedIo> aligned_;
  std::unique_ptr<Store> store_;
  std::map<std::uint64_t, Written> writes_;
  std::map<std::uint64_t, Reading> reads_;
  std::uint64_t revision_ = 0, accepted_ = 0;
};

// One image a block, of one page; two images of three pages.
inline SpaceShape small_shape(std::uint8_t name = 0x21) {
  SpaceShape shape = shape_of({{0, 0, 0, 2048}}, 1);
  shape.digest = digest(name);
  return shape;
}
inline SpaceShape sharded_shape(std::uint8_t name = 0x22) {
  SpaceShape shape = shape_of({{0, 0, 0, 4096}, {0, 1, 0, 4096}, {3, 0, 0, 8}}, 2);
  shape.digest = digest(name);
  return shape;
}
// Sixteen of them nearly fill a segment of 256 KiB.
inline SpaceShape large_shape(std::uint8_t name = 0x23) {
  SpaceShape shape = shape_of({{0, 0, 0, 12 * 1024}}, 1);
  shape.digest = digest(name);
  return shape;
}

}  // namespace orbitkv::ssd::suite
