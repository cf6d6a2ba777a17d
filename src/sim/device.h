// The engines' devices: copies take virtual time, image by image, go on when their process
// has died, and may fail. The bytes are moved and summed by the production host copier.
// Each copy tells the ledger what it touches, and begins only on slabs that the Manager
// still lends from. Owned by the World; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/transfer.h"
#include "device/copier.h"
#include "device/device.h"
#include "mem/mapped_slab.h"
#include "sim/content.h"
#include "sim/ledger.h"

namespace orbitkv::sim {

class World;

// The slabs of one pool, those that have gone too, mapped by nobody's process: what a device
// reaches whatever becomes of Manager and processes.
struct PoolView {
  std::uint64_t pool = 0;
  std::map<SlabId, mem::MappedSlab> slabs;
  std::map<SlabId, std::uint64_t> inodes;
  std::uint32_t unit = 64;
  ByteCount rounded(std::uint64_t bytes) const { return ByteCount((bytes + unit - 1) / unit * unit); }
};

// One image of a copy.
struct CopyItem {
  const device::GroupGeometry* geometry = nullptr;
  std::size_t group = 0;  // place in SpacePlan::groups
  device::SlotCopy slot;  // image: in the view
  Place place;
  const std::byte* mapping = nullptr;  // of its process, that it goes through
};

struct CopyJob {
  std::uint64_t id = 0;
  std::uint32_t process = 0;
  device::Direction direction = device::Direction::kSave;
  std::shared_ptr<client::Entry> entry;  // geometry; outlives its process
  std::shared_ptr<RankMemory> memory;
  std::shared_ptr<PoolView> view;
  std::vector<CopyItem> items;
  Epoch session;           // that granted it
  std::uint32_t life = 0;  // of the Manager, then
  std::size_t next = 0;    // item
  bool ended = false;
  bool orphan = false;  // nobody asks for it any more
  bool stale = false;   // reads what no Manager holds for it any more: it may fail, but not lie
  std::optional<std::size_t> fails_at;
};

class Dma {
 public:
  explicit Dma(World& world);
  // Ends by itself; `done` is called then, unless it was orphaned.
  std::shared_ptr<CopyJob> start(CopyJob job, std::function<void()> done);
  // Its process has died. What runs goes on for a while.
  void orphan(std::uint32_t process);
  // The Manager has died: nothing holds what is read now. Restores that were under way.
  std::vector<std::shared_ptr<const CopyJob>> make_stale();
  std::size_t running() const { return jobs_.size(); }
  struct Where {
    std::uint64_t pool = 0;
    SlabId slab;
  };
  // Through that mapping: a slab may be mapped a second time before the first mapping has gone.
  bool running_on(std::uint32_t process, const std::byte* mapping) const;

  // Of the next copy that is started.
  void fail_next() { fail_next_ = true; }
  void slow_next(Duration time) { slow_next_ = time; }

 private:
  void begin(CopyJob& job);
  void step(const std::shared_ptr<CopyJob>& job);
  void copy(CopyJob& job, CopyItem& item);
  void end(const std::shared_ptr<CopyJob>& job);

  World& world_;
  std::unique_ptr<device::Copier> host_;
  std::map<std::uint64_t, std::pair<std::shared_ptr<CopyJob>, std::function<void()>>> jobs_;
  std::uint64_t last_ = 0;
  bool fail_next_ = false;
  std::optional<Duration> slow_next_;
};

// One process's device, with the copier of its one queue.
class SimDevice final : public device::Device {
 public:
  // What the copier must know of its process.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual std::uint32_t process() const = 0;
    virtual std::shared_ptr<client::Entry> entry() = 0;
    virtual std::shared_ptr<RankMemory> memory() = 0;
    virtual std::shared_ptr<PoolView> view() = 0;
    virtual Epoch epoch() const = 0;         // of its session
    virtual std::uint32_t life() const = 0;  // of the Manager that its session is of
    virtual void copy_ended() = 0;
    virtual bool doomed() const = 0;  // it has died: nothing that it starts now is started
  };
  SimDevice(World& world, Owner& owner) : world_(world), owner_(owner) {}

  std::string identity() const override { return "cpu:0"; }
  Status check_memory(std::span<const std::byte>) const override { return ok_status(); }
  // Name of the slab that may be mapped next.
  void expect(std::optional<SlabId> name) { expected_ = name; }
  void add_slab(std::span<std::byte> slab) override;
  void remove_slab(std::span<std::byte> slab) override;
  std::size_t reachable_slabs() const override { return slabs_.size(); }
  Result<device::Fence> fence(device::StreamHandle) override { return device::Fence(); }
  Result<std::unique_ptr<device::Copier>> new_copier(const device::CopierOptions& options) override;

  // One that the process has mapped.
  struct Mapping {
    SlabId name;
    std::shared_ptr<PoolView> view;
    std::span<std::byte> bytes;
  };
  const std::vector<Mapping>& slabs() const { return slabs_; }
  // Where an address of the process lies; nullptr: nowhere that it has mapped.
  const Mapping* find(const std::byte* address) const;

 private:
  World& world_;
  Owner& owner_;
  std::optional<SlabId> expected_;
  std::vector<Mapping> slabs_;
};

}  // namespace orbitkv::sim
