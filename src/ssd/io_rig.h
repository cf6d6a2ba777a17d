// What tests of the I/O seam stand on: a place for files for each implementation, memory,
// requests that keep their pieces, faults that a test scripts. Tests only.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "ssd/io.h"
#include "ssd/memory_io.h"

namespace orbitkv::ssd::suite {

// Where the files of an implementation lie.
class Bed {
 public:
  virtual ~Bed() = default;
  // Why this machine cannot run it; empty: it can.
  virtual std::string missing() { return ""; }
  virtual std::unique_ptr<Io> make(const IoOptions& options) = 0;
  virtual std::string path(const std::string& name) const = 0;
  virtual void resize(const std::string& path, ByteCount bytes) = 0;
  virtual bool has_threads() const = 0;  // asks faults from threads of its own
  virtual bool real_time() const { return true; }
  virtual bool registers() const { return false; }
};

class RealBed final : public Bed {
 public:
  explicit RealBed(IoKind kind) : kind_(kind) {
    const char* temporary = ::getenv("TMPDIR");
    std::string pattern = std::string(temporary != nullptr ? temporary : ".") + "/orbitkv_io_XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr) << pattern << ": " << std::strerror(errno);
    directory_ = pattern;
  }
  ~RealBed() override {
    for (const std::string& path : made_) ::unlink(path.c_str());
    ::rmdir(directory_.c_str());
  }
  std::string missing() override {
    const auto io = make_io(kind_, {});
    return io.ok() ? "" : io.error().message();
  }
  std::unique_ptr<Io> make(const IoOptions& options) override {
    auto io = make_io(kind_, options);
    EXPECT_TRUE(io.ok()) << io.error().message();
    return io.ok() ? std::move(*io) : nullptr;
  }
  std::string path(const std::string& name) const override {
    made_.push_back(directory_ + "/" + name);
    return made_.back();
  }
  void resize(const std::string& path, ByteCount bytes) override {
    EXPECT_EQ(::truncate(path.c_str(), static_cast<off_t>(bytes.value)), 0) << std::strerror(errno);
  }
  bool has_threads() const override { return kind_ == IoKind::kThreads; }
  bool registers() const override { return kind_ == IoKind::kUring; }

 private:
  const IoKind kind_;
  std::string directory_;
  mutable std::vector<std::string> made_;
};

class MemoryBed final : public Bed {
 public:
  explicit MemoryBed(LatencyRange latency) : latency_(latency) {}
  std::unique_ptr<Io> make(const IoOptions& options) override {
    return std::make_unique<MemoryIo>(disk_, options, seeded_latency(++seed_, latency_));
  }
  std::string path(const std::string& name) const override { return name; }
  void resize(const std::string& path, ByteCount bytes) override { disk_.resize(path, bytes); }
  bool has_threads() const override { return false; }
  bool real_time() const override { return false; }

 private:
  const LatencyRange latency_;
  std::uint64_t seed_ = 0;
  MemoryDisk disk_;
};

struct Implementation {
  std::string name;
  std::function<std::unique_ptr<Bed>()> make;
};

// Memory that every file system takes for O_DIRECT.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(at, MAP_FAILED);
    base_ = static_cast<std::byte*>(at);
  }
  Memory(const Memory&) = delete;
  ~Memory() { ::munmap(base_, bytes_); }
  std::span<std::byte> all() const { return {base_, bytes_}; }
  std::span<std::byte> at(std::size_t offset, std::size_t bytes) const {
    return all().subspan(offset, bytes);
  }
  // Other frames at the same address.
  void renew() {
    void* at = ::mmap(base_, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    EXPECT_EQ(at, base_);
  }

 private:
  std::byte* base_ = nullptr;
  std::size_t bytes_;
};

inline void fill(std::span<std::byte> memory, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
}
inline bool holds(std::span<const std::byte> memory, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (const std::byte byte : memory)
    if (byte != static_cast<std::byte>(random())) return false;
  return true;
}

// Faults by tag, each used once a submission, in order; notes the order of submissions.
class Script final : public IoFaults {
 public:
  IoFault next(const IoRequest& request) override {
    std::unique_lock lock(mutex_);
    order_.push_back(request.tag.value);
    open_.wait(lock, [this] { return !shut_; });
    auto& faults = faults_[request.tag.value];
    if (faults.empty()) return always_;
    const IoFault fault = faults.front();
    faults.pop_front();
    return fault;
  }
  void add(std::uint64_t tag, const IoFault& fault) {
    const std::lock_guard lock(mutex_);
    faults_[tag].push_back(fault);
  }
  void always(const IoFault& fault) { always_ = fault; }
  // While shut, what reaches the device stays there.
  void shut() {
    const std::lock_guard lock(mutex_);
    shut_ = true;
  }
  void open() {
    {
      const std::lock_guard lock(mutex_);
      shut_ = false;
    }
    open_.notify_all();
  }
  std::vector<std::uint64_t> order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable open_;
  std::map<std::uint64_t, std::deque<IoFault>> faults_;
  IoFault always_;
  bool shut_ = false;
  std::vector<std::uint64_t> order_;
};

inline IoFault short_fault(std::uint64_t bytes) {
  return {IoFault::Kind::kShort, bytes, 0, {}};
}
inline IoFault error_fault(int error, std::uint64_t bytes = 0) {
  return {IoFault::Kind::kError, bytes, error, {}};
}
inline IoFault delay_fault(Duration delay) {
  return {IoFault::Kind::kDelay, 0, 0, delay};
}

using Pieces = std::vector<std::span<std::byte>>;

// An Io with one file; keeps pieces until it ends.
class Rig {
 public:
  static constexpr Duration kPatience = seconds(60);

  Rig(Bed& bed, const IoOptions& options, ByteCount bytes, const std::string& name = "file")
      : bed_(bed), path_(bed.path(name)), io_(bed.make(options)) {
    const auto opened = io_->open(path_, bytes);
    EXPECT_TRUE(opened.ok()) << opened.error().message();
    if (opened.ok()) file_ = opened->file;
  }
  Io& io() { return *io_; }
  FileIndex file() const { return file_; }
  const std::string& path() const { return path_; }
  void end() { io_.reset(); }

  IoRequest request(IoOp op, std::uint64_t tag, std::uint64_t offset, Pieces pieces) {
    kept_.push_back(std::move(pieces));
    return {IoTag(tag), op, file_, offset, kept_.back()};
  }
  IoRequest sync(std::uint64_t tag) { return request(IoOp::kSync, tag, 0, {}); }

  // Results by tag of the next `count`.
  std::map<std::uint64_t, IoResult> reap(std::size_t count) {
    std::map<std::uint64_t, IoResult> out;
    std::vector<IoResult> results(16);
    while (out.size() < count) {
      const std::size_t got = io_->reap(results, kPatience);
      EXPECT_GT(got, 0u) << "no result came";
      if (got == 0) break;
      for (std::size_t i = 0; i < got; ++i) {
        EXPECT_FALSE(out.contains(results[i].tag.value)) << "a result came twice";
        out[results[i].tag.value] = results[i];
      }
    }
    return out;
  }
  // One request from submission to result: its error.
  int run(const IoRequest& request) {
    EXPECT_EQ(io_->submit({&request, 1}), 1u);
    const auto results = reap(1);
    return results.empty() ? -1 : results.begin()->second.error;
  }
  int write(std::uint64_t offset, std::span<std::byte> memory) {
    return run(request(IoOp::kWrite, 900, offset, {memory}));
  }
  int read(std::uint64_t offset, std::span<std::byte> memory) {
    return run(request(IoOp::kRead, 901, offset, {memory}));
  }

 private:
  Bed& bed_;
  std::string path_;
  std::deque<Pieces> kept_;
  std::unique_ptr<Io> io_;
  FileIndex file_;
};

}  // namespace orbitkv::ssd::suite
