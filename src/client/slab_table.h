// The slabs that a client has mapped, how many parts of transfers use each, and how one that
// the Manager retires is let go of: no new use, and when the last has ended its devices and then
// its mapping go, in a thread of its own, because a device may take its time; or, for simulation,
// when the caller says so. Slabs whose memory outlives the Manager wait for the next session, where
// the same memory is the same slab: mapping and devices stay. Owned by the Attachment, and between
// two of them by the I/O thread. Never unmaps under a use.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "mem/mapped_slab.h"

namespace orbitkv::client {

// Told of every slab when it has been mapped, and before it is unmapped.
class SlabUser {
 public:
  virtual ~SlabUser() = default;
  virtual void add_slab(std::span<std::byte> slab) = 0;
  virtual void remove_slab(std::span<std::byte> slab) = 0;
};

// Whose memory a slab is. Without a pool: nobody's who would offer it again.
struct SlabOrigin {
  std::uint64_t pool = 0, device = 0, inode = 0;
  bool kept = false;  // it outlives the Manager
  bool same_memory(const SlabOrigin& other) const {
    return pool == other.pool && device == other.device && inode == other.inode;
  }
};

class SlabTable {
  struct Entry {
    Entry(mem::MappedSlab mapped, const SlabOrigin& from) : slab(std::move(mapped)), origin(from) {}
    mem::MappedSlab slab;
    SlabOrigin origin;
    std::atomic<std::uint32_t> uses{0};
    bool retiring = false;      // under mutex_, as the rest
    bool waiting = false;       // of an earlier session, not offered in this one
    std::uint64_t told_in = 0;  // the session whose Manager waits to hear that it is gone
  };

 public:
  // Who closes what is let go of.
  enum class Closing : bool { kThread, kStepped };
  // user: may be null.
  explicit SlabTable(SlabUser* user, Closing closing = Closing::kThread) : user_(user), closing_(closing) {}
  ~SlabTable();  // no use is left

  // Holds the mapping of one slab. Goes in any thread.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept : entry_(std::exchange(other.entry_, nullptr)) {}
    Use& operator=(Use&& other) noexcept;
    ~Use() { end(); }
    const mem::MappedSlab& operator*() const { return entry_->slab; }
    const mem::MappedSlab* operator->() const { return &entry_->slab; }

   private:
    friend class SlabTable;
    explicit Use(Entry& entry) : entry_(&entry) {}
    void end();
    Entry* entry_ = nullptr;
  };
  enum class Found : std::uint8_t { kMapped, kNotYet, kRetiring };
  // Any thread. kMapped fills `out`.
  Found use(SlabId name, Use& out);

  // ---- I/O thread ----
  bool has(SlabId name) const;
  void add(mem::MappedSlab slab, const SlabOrigin& origin = {});
  // The Manager retires it. One that is not here counts as let go of.
  void retire(SlabId name);
  // Whether collect_released() has, or will have, something to do.
  bool retiring() const;
  // Lets go of what nobody uses any more, in the background; names what has been unmapped
  // since the last call.
  std::vector<SlabId> collect_released();
  // kStepped: closes one that collect_released() let go of. False: there is none.
  bool close_one();
  // The session has ended, and no use is left: lets go, in the background, of what nobody can
  // offer again. False: that is all of it.
  bool suspend();
  // A slab of an earlier session that is offered again, the same memory: it is this session's.
  // Another one of its name goes.
  bool resume(SlabId name, ByteCount bytes, const SlabOrigin& origin);
  // What no offer has named since goes.
  void drop_waiting();
  // All of them, here and now. No use is left.
  void unmap_all();

 private:
  using Slabs = std::map<SlabId, Entry>;
  void close_loop();
  void start_closer();
  bool close_next(std::unique_lock<std::mutex>& lock);
  void close(Slabs::node_type slab);
  void let_go(Slabs::iterator at);

  SlabUser* const user_;
  const Closing closing_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  Slabs slabs_;
  std::uint32_t retiring_ = 0;              // of slabs_, to_close_ and the one being closed
  std::vector<Slabs::node_type> to_close_;  // for the closer
  std::vector<SlabId> released_;
  std::uint64_t session_ = 1;
  bool stop_ = false;
  std::thread closer_;
};

}  // namespace orbitkv::client
