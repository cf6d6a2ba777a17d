// What of a pool outlives the Manager's process, in one sealed memfd: marks, the slabs, the
// namespaces, a record for each slot of a block image, lent or sealed, and how images are used.
// Written by the core thread as it goes, read by the next life of the Manager (kept_scan.h). A writer that is
// killed at any instruction leaves each record absent, or whole: its seal goes first and comes last. Order of
// the callers: a record is lent before anyone may copy into its extent, and free before the extent may be
// lent again. Never grows, never lies in an engine's reach; no payload.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "mem/slab.h"

namespace orbitkv::mem {

// What is written, and the oldest that is read: one of format 2 says nothing of how images are used.
inline constexpr std::uint32_t kKeptFormat = 3, kKeptFormatFrom = 2;

// Where a record stands: the slot of shard 0 by its image, the others by theirs, and extents
// that an earlier life had lent and whose end is not known.
enum class KeptRegion : std::uint8_t { kFirst, kFurther, kPending, kCount };
struct KeptAt {
  KeptRegion region = KeptRegion::kFirst;
  std::uint32_t index = 0;
};

struct KeptPlace {
  SlabId slab;
  std::uint64_t offset = 0;
  ByteCount bytes;  // multiples of 64, as offset is
};
// How an image is used, for the order of eviction. It stands beside the records: a change of it is one
// store that can make no block unreadable, and damage to it makes a wrong place in that order and nothing
// else. Many lie in a line, for a read changes those of a whole prefix.
enum class KeptClass : std::uint8_t {
  kUnknown,
  kReclaimable,
  kProbationary,  // new
  kRetained,
  kDemoted,  // probationary: read, and beyond the share
  kCount,
};
struct KeptUse {
  KeptClass eviction = KeptClass::kUnknown;
  std::uint16_t minute = 0;  // of CLOCK_MONOTONIC, in which it came to its class or was used last; wraps
};
struct KeptImage {
  std::array<std::byte, 32> hash{};
  NamespaceIndex name_space;
  GroupId group;
  ShardId shard;
  std::uint16_t shards = 1;
  KeptPlace place;
  std::uint64_t digest = 0;
  AllocationId revision;
  KeptUse use;  // of shard 0, as it was read; seal() begins without
};
// Who may copy into a lent extent; operation 0: a device of the Manager's.
struct KeptWriter {
  Epoch session;
  RecordIndex record;
  OperationId operation;
};
struct KeptLent {
  KeptPlace place;
  KeptWriter writer;
};

enum class KeptSlabState : std::uint8_t {
  kAbsent,
  kLive,
  kTainted,   // live, and holds extents that must never be lent again
  kRetiring,  // nothing on it counts any more; absent for the next life
};
struct KeptSlab {
  SlabId name;
  ByteCount bytes, huge;
  NodeId node = kAnyNode;
  KeptSlabState state = KeptSlabState::kAbsent;
};
// One that is gone, and that processes may map yet.
struct KeptRetired {
  SlabId name;
  ByteCount bytes;
};
struct KeptName {
  std::array<std::byte, 32> digest{};
  std::string text;  // empty: not known
};
// Which files the device reads and writes for the pool; 0: none.
using DeviceFiles = Id<struct DeviceFilesTag, std::uint64_t>;

class KeptTable {
 public:
  struct Shape {
    std::uint64_t pool = 0;
    std::uint32_t unit = 64;                            // of extents
    std::uint32_t first = 0, further = 0, pending = 0;  // records a region
  };
  // Fresh: nothing is in it, and it is not complete.
  static Result<KeptTable> create(const Shape& shape);
  // An earlier life's. kBusy: incomplete, so nothing was ever lent by it. kReject says why else
  // it cannot be used: no such memfd, another format, a head or a mark that does not verify.
  static Result<KeptTable> open(UniqueFd fd);
  KeptTable(KeptTable&& other) noexcept;
  KeptTable& operator=(KeptTable&& other) noexcept;
  ~KeptTable();

  const UniqueFd& memory() const { return fd_; }
  const Shape& shape() const { return shape_; }

  // ---- marks: each verifies for itself ----
  // All that was adopted stands here: from now on this table is the one.
  void set_complete();
  // Another table is the one from now on: this counts no more, wherever it is still stored.
  void set_superseded();
  // Names below it have been given.
  void name_given(SlabId next);
  std::uint32_t next_name() const;
  // Allocation ids up to `last` are about to be given; a store each kAllocationStride of them.
  void allocation_given(AllocationId last) {
    if (last.value > allocations_) reserve_allocations(last.value);
  }
  AllocationId allocations() const;  // no id above it was given
  void set_wanted(std::uint32_t slabs);
  std::uint32_t wanted() const;  // 0: not known
  void set_device_files(DeviceFiles files);
  DeviceFiles device_files() const;
  void set_session(SessionId session, Epoch epoch) { epochs_[session.value] = epoch; }
  Epoch session(SessionId session) const { return epochs_[session.value]; }

  // ---- slabs ----
  void put_slab(SlabSlot slot, const KeptSlab& slab);
  // Live or tainted; else nothing.
  void taint_slab(SlabSlot slot);
  void retire_slab(SlabSlot slot);
  void drop_slab(SlabSlot slot);
  KeptSlab slab(SlabSlot slot) const;  // kAbsent: none, or it does not verify
  // Not more than limits::kKeptRetired: the next life counts the others as free.
  void put_retired(const KeptRetired& slab);
  void drop_retired(SlabId name);
  std::vector<KeptRetired> retired() const;

  // ---- namespaces ----
  void put_name_space(NamespaceIndex index, std::span<const std::byte, 32> digest);
  // Of the namespace that stands there; at most limits::kNamespaceBytes, else nothing.
  void put_name_text(NamespaceIndex index, std::string_view text);
  std::optional<KeptName> name_space(NamespaceIndex index) const;

  // ---- records ----
  void lend(KeptAt at, const KeptLent& lent);
  void seal(KeptAt at, const KeptImage& image);
  // Of a sealed image, by its record of kFirst.
  void note_use(std::uint32_t image, KeptUse use) {
    ORBITKV_CHECK(uses_ != nullptr && image < shape_.first, "no such image in kept memory");
    uses_[image].store(
        std::uint32_t{static_cast<std::uint8_t>(use.eviction)} | std::uint32_t{use.minute} << kUseMinute,
        std::memory_order_relaxed);
  }
  void free(KeptAt at);

  enum class Found : std::uint8_t { kFree, kLent, kSealed, kWrongSealed, kWrong };
  // kLent fills `lent`, kSealed `image`. kWrong*: it does not verify; kWrong may have been lent.
  Found read(KeptAt at, KeptLent& lent, KeptImage& image) const;
  // Records ever used are below it.
  std::uint32_t high_water(KeptRegion region) const;

  static constexpr std::uint64_t kAllocationStride = std::uint64_t{1} << 20;
  static constexpr std::size_t kRecordWords = 10;

 private:
  static constexpr std::size_t kRegions = static_cast<std::size_t>(KeptRegion::kCount);
  enum class Mark : std::uint8_t { kComplete, kName, kWanted, kAllocations, kHighWater };
  using Words = std::array<std::uint64_t, kRecordWords>;
  using Word = std::atomic<std::uint64_t>;
  using UseWord = std::atomic<std::uint32_t>;  // class, and minute above it
  static constexpr std::uint32_t kUseClass = 0xFFFF, kUseMinute = 16;
  struct Header;
  KeptTable() = default;
  Status map(UniqueFd fd, std::uint64_t bytes);
  Header& header() const;
  Word* words_of(KeptAt at) const;
  Word* slab_words(SlabSlot slot) const;
  Word* retired_words(std::uint32_t place) const;
  Word* name_words(NamespaceIndex index) const;
  std::uint64_t complete_word(bool complete) const;
  std::uint64_t mark_word(Mark mark, std::uint32_t value) const;
  std::optional<std::uint32_t> mark_value(Mark mark, std::uint64_t word) const;
  std::uint64_t allocations_word(std::uint64_t strides, bool second) const;
  static Mark high_water_mark(std::size_t region);
  void begin_marks();
  bool read_marks();
  std::uint64_t slab_seal(SlabSlot slot, KeptSlabState state) const;
  void change_slab(SlabSlot slot, KeptSlabState state);
  std::uint64_t retired_seal(std::uint32_t place) const;
  std::uint64_t name_seal(NamespaceIndex index) const;
  std::uint64_t text_seal(NamespaceIndex index, std::string_view text) const;
  void reserve_allocations(std::uint64_t last);
  void raise_high_water(KeptAt at);
  void write(KeptAt at, const Words& words, std::uint8_t tag);
  std::uint64_t sealed_word(KeptAt at, const Words& words, std::uint8_t tag) const;
  KeptUse use_of(KeptAt at) const;

  UniqueFd fd_;
  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
  Shape shape_;
  UseWord* uses_ = nullptr;  // nullptr: of a format that has none
  std::uint64_t id_ = 0;     // of this table: a record of another never verifies
  std::uint64_t allocations_ = 0;
  std::array<std::uint32_t, kRegions> high_water_{};
  std::array<Epoch, limits::kSessions> epochs_{};
};

}  // namespace orbitkv::mem
