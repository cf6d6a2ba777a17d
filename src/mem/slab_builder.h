// Places the pages of slabs in the background: first touch by a few threads, huge
// pages where they are to be had. Owned by Pool, which calls it from the core thread;
// its own threads take 16 MiB at a time, slab after slab, so that the first slab is
// ready early. It never touches a slab that has been handed out: collapse is over
// before, since one pinned page blocks its 2 MiB.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "mem/mapped_slab.h"
#include "mem/slab.h"

namespace orbitkv::mem {

class SlabBuilder {
 public:
  struct Slab {
    SlabSlot slot;
    SlabId id;
    ByteCount bytes;
    const UniqueFd* memory = nullptr;  // outlives the builder
    PageSource source = PageSource::kShared;
  };
  struct Built {
    SlabSlot slot;
    SlabState reached = SlabState::kTouched;  // or kCollapsed: all of it that could be
    ByteCount huge;
    NodeId node = kAnyNode;  // where most of its pages have come to lie
  };

  // `ready`: an eventfd to ring, else one of its own.
  SlabBuilder(const std::vector<Slab>& slabs, HugePages huge_pages, std::uint32_t threads,
              UniqueFd ready = {});
  ~SlabBuilder();  // stops within 2 MiB per thread and joins
  SlabBuilder(const SlabBuilder&) = delete;
  SlabBuilder& operator=(const SlabBuilder&) = delete;

  std::vector<Built> take_built();
  // Every slab is built, or one failed and with it the rest.
  bool finished() const;
  std::optional<Error> failure() const;
  int ready_fd() const { return ready_.get(); }  // readable: built slabs or a failure
  // Waits for finished(); gives up as soon as stop_fd is readable (-1: none).
  // `goes_on` is called as chunks are begun, once a second at most.
  Status wait(int stop_fd, const std::function<void()>& goes_on = {}) const;
  void join();  // after finished(): no thread and no mapping is left on any slab

 private:
  static constexpr std::uint64_t kChunkBytes = 16 * kMiB.value;
  static constexpr std::uint64_t kChunksPerSlab = limits::kSlabBytes.value / kChunkBytes;

  struct Job {
    Slab slab;
    std::optional<MappedSlab> mapping;  // while it is worked on; under mutex_
    std::atomic<std::uint64_t> chunks_left{0};
    std::atomic<std::uint64_t> huge{0};
  };
  struct Piece {
    std::byte* at;
    ByteCount bytes;  // 2 MiB, or less at the end of a slab
    std::uint64_t offset;
  };

  void work();
  Result<std::byte*> mapping_of(Job& job);
  Status build_chunk(Job& job, std::uint64_t first);
  Status build_piece(Job& job, const Piece& piece);
  Status build_huge(Job& job, const Piece& piece);
  Status finish(Job& job);
  void fail(Error error);
  void note_refusal(int error);
  void ring() const;

  const HugePages huge_pages_;
  const std::size_t count_;
  std::unique_ptr<Job[]> jobs_;
  UniqueFd ready_;
  std::atomic<std::uint64_t> next_chunk_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> collapse_refused_{false};
  mutable std::mutex mutex_;
  std::vector<Built> built_;
  std::size_t built_count_ = 0;
  std::optional<Error> failure_;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace orbitkv::mem
