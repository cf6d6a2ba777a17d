// The SSD store: a log of segments on each path, its index in memory, space, recovery
// and scrubbing. Owned by one thread (the Manager's core thread), which drives it by
// calls and poll(); all I/O goes through Io and none of the calls but open() and
// begin_open() waits for it. On-disk format: ssd/format.h and docs/ssd-format.md.
// Never reports a record that a reader could not verify, never reuses a segment with a
// read in flight or before what superseded its records is durable, never lets go of memory
// that the device may still write. Loads never wait for writes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/result.h"
#include "base/time.h"
#include "model/geometry.h"
#include "orbitkv/types.h"
#include "ssd/io.h"
#include "ssd/open_state.h"

namespace orbitkv::ssd {

// One group of one namespace: what a record's images look like. Written to every segment
// that holds records of it, so that a segment can be read without an engine.
struct SpaceShape {
  struct Fragment {
    std::uint32_t layer = 0;
    std::uint16_t component = 0, encoding = 0;
    std::uint64_t bytes = 0;
    friend auto operator<=>(const Fragment&, const Fragment&) = default;
  };
  model::NamespaceDigest digest;
  std::string text;  // the namespace, for lists; at most limits::kNamespaceBytes
  GroupId group;
  std::uint16_t shards = 1;
  std::uint64_t slot_bytes = 0;     // of one image, header included
  std::vector<Fragment> fragments;  // of one image, in layout order
};
using SpaceIndex = Id<struct SpaceIndexTag, std::uint32_t>;
using StoredId = Id<struct StoredIdTag, std::uint32_t>;  // a record of the index
inline constexpr StoredId kNotStored{0xFFFFFFFFu};

// Names one version of one record: the number of a record may serve another one later.
struct StoredRef {
  StoredId id = kNotStored;
  std::uint32_t generation = 0;
  explicit operator bool() const { return id != kNotStored; }
};

// What a record keeps of an image: its header's digest and the revision that it names.
struct ImageMark {
  std::uint64_t digest = 0;
  AllocationId revision;
};

// A block as it lies in memory: one image a shard. `memory` has slot_bytes rounded up to
// the store's unit(), and is aligned to it; what lies behind slot_bytes is written as it is.
struct SlotMemory {
  std::span<std::byte> memory;
  ImageMark mark;  // write: to be kept; read: filled in when the read is accepted
};

using TransferId = Id<struct TransferIdTag, std::uint64_t>;  // never 0, never reused

// Why a write did not become a record. Counted by reason.
enum class Refusal : std::uint8_t {
  kNone,
  kQueueFull,
  kNoSpace,  // no segment can be had: the rest are being read
  kIndexFull,
  kDeviceError,   // EIO and the like
  kWriteStopped,  // ENOSPC, EDQUOT, EROFS, a failed sync: that path takes no more writes
  kDropped,       // the block or its namespace was dropped meanwhile
  kOpening,       // what the store holds is still being read
  kCount,
};
// Why a record went, counted likewise; or why a read ended without bytes.
enum class Loss : std::uint8_t {
  kNone,
  kReclaimed,
  kCorrupt,
  kNamespace,
  kReplaced,
  kDeviceError,
  kUnused,
  kCount
};

struct StoreEvent {
  enum class Kind : std::uint8_t {
    kRead,     // ended: memory is the caller's again. ok: the headers are those of the record;
               // fragments are verified by whoever restores them
    kWritten,  // ended: memory is the caller's again. ok: the record can be found and read
    kFlushed,  // of flush(), drop_space(): ok: it survives power loss
  };
  Kind kind;
  TransferId transfer;
  bool ok = false;
  Refusal refusal = Refusal::kNone;  // kWritten, not ok
  Loss loss = Loss::kNone;           // kRead, not ok
};

struct PathConfig {
  std::string path;  // file (made if missing) or block device
  ByteCount bytes;   // 0: half of what is free on the file system; the whole device
};

class UnusedDrop;
enum class UnusedRun : std::uint8_t { kCount, kDrop };

struct StoreConfig {
  std::vector<PathConfig> paths;
  ByteCount segment = 64 * kMiB;
  std::uint32_t max_records = 0;        // 0: capacity / 64 KiB, within [2^16, 2^26]; never more than a
                                        // 64th of physical memory holds at 120 bytes each
  Duration flush = milliseconds(1000);  // written records are durable this much later
  std::uint32_t reinsert_percent = 25;  // most of a reclaimed segment that is kept, if hot
  ByteCount scrub_per_second;           // 0: off
  ByteCount write_queue = 256 * kMiB;   // accepted and not yet written; the daemon: at most 1/8 of the pool
  std::uint32_t tombstones = limits::kTombstones;  // ends of single records that are kept; tests: fewer
  // Records that one call of go_on() looks at, or ends; tests: fewer.
  std::uint32_t unused_looks = limits::kUnusedLooks, unused_ends = limits::kUnusedEnds;
  // Entries that a step of the opening takes; tests: fewer.
  std::uint32_t recovered_a_step = limits::kRecoveredAStep;
  int stop_fd = -1;  // readable: open() gives up
  // Records read at once; more are answered kBusy.
  std::uint32_t reads = limits::kStoreReads;
  std::function<void(const std::string&)> progress;  // lines for the log until it is ready
};

enum class PathState : std::uint8_t { kOk, kWriteStopped };
struct PathStatus {
  std::string path;
  PathState state = PathState::kOk;
  std::string why;   // of kWriteStopped, with the remedy
  std::string note;  // what else an operator should know: paths that are missing, a file without a name
  ByteCount capacity, used;
  std::uint64_t records = 0;
  std::uint32_t segments = 0, free_segments = 0;
};

struct StoreStats {
  std::uint64_t records = 0, recovered = 0, damaged_batches = 0;  // the last two: when it was opened
  ByteCount capacity, live, index;                                // index: bytes of memory
  std::uint64_t reads = 0, writes = 0;                            // records
  ByteCount read, written, reinserted, device_written;            // device_written / written: amplification
  std::uint64_t scrubbed = 0, scrub_errors = 0;
  std::array<std::uint64_t, static_cast<std::size_t>(Refusal::kCount)> refused{};
  std::array<std::uint64_t, static_cast<std::size_t>(Loss::kCount)> lost{};
  ByteCount queued;
  double recovery_seconds = 0;
};

struct SpaceStatus {
  model::NamespaceDigest digest;
  std::string text;
  std::uint64_t records = 0;
  ByteCount bytes;
  bool asked = false;  // an engine has interned it since the start
};

// How far it has been opened.
struct OpenProgress {
  OpenState state = OpenState::kReading;
  std::uint64_t segments = 0, segments_read = 0;  // of all paths
  std::uint64_t records = 0;                      // found until now
  double seconds_left = 0;                        // at the pace until now; 0: not known
};

class Store {
 public:
  // Locks, checks or makes every path. Errors name the path and the remedy: in use by another
  // Manager, another format version, not a store, too small, shrunk. Then poll() reads what is
  // there, a bounded step at a time, until it is ready(). Before that
  // - nothing is found, nothing is written but superblocks, write() is refused with kOpening;
  // - spaces can be interned and released; reopen() finds none; lists are of what was read;
  // - a namespace can be dropped: what is read of it later is gone as well;
  // - flush() ends when it is ready, begin_close() at once: what was read is left as it lies.
  // What the device does not read costs the blocks that it held; there is no other failure.
  static Result<std::unique_ptr<Store>> begin_open(const StoreConfig& config, Io& io);
  bool ready() const;
  OpenProgress opening() const;
  // The same, and waits until it is ready. kBusy: also where the stop came.
  static Result<std::unique_ptr<Store>> open(const StoreConfig& config, Io& io);
  // Takes no more; poll() goes on until closed(): everything that could be is durable and
  // every segment has its footer. The caller has the deadline; a process whose device does
  // not answer by then ends without unmapping anything.
  void begin_close();
  bool closed() const;
  // As after a kill: waits for the device only.
  ~Store();

  // Memory of records: lengths and addresses are multiples of it.
  std::uint32_t unit() const;

  // ---- index; none of these does I/O ----
  // One use more by an engine. kBusy: limits::kStoredSpaces. kReject: a block of it does not
  // fit a segment (both sizes). Another shape than the recovered one: that one's records go.
  Result<SpaceIndex> intern(const SpaceShape& shape);
  // One use more by what was saved before this start: of the space that the store has found, if
  // there is one of this namespace, group, number of shards and slot_bytes, rounded up to unit().
  std::optional<SpaceIndex> reopen(const SpaceShape& like);
  void release(SpaceIndex space);  // one use less; a space without uses and records is forgotten
  StoredRef find(SpaceIndex space, const BlockHash& hash) const;
  // out[i] for hashes[i].
  void find_batch(SpaceIndex space, std::span<const BlockHash> hashes, std::span<StoredRef> out) const;
  // Counts as used: reclaim keeps it rather than others.
  void touch(StoredRef record);
  // A restore says that its bytes do not verify. Re-read and verified first (an engine may
  // be wrong); if they are bad it is gone, after a restart too. Fences writes under way of
  // the same mark. Nothing where it is gone.
  void suspect(SpaceIndex space, const BlockHash& hash, const ImageMark& first_shard);
  // Every record and write under way of the namespace. Ends in a kFlushed event, after which
  // no restart brings it back. kBusy: limits::kTombstones or kStoreFlushes are under way.
  struct Dropped {
    TransferId flushed;
    std::uint64_t records = 0;
  };
  Result<Dropped> drop_space(const model::NamespaceDigest& digest);
  // Records of these namespaces that have been neither read nor written for so long, those of an
  // earlier life since this one began; one is counted from the minute of its use on. They end as
  // those of drop_space() do, with the events of `UnusedDrop::take_flushes()`. Only when it is ready.
  UnusedDrop begin_unused(std::span<const model::NamespaceDigest> digests, Duration unused,
                          UnusedRun run) const;
  // Bounded work for it. True: it is over, and `told` says what it did.
  bool go_on(UnusedDrop& drop);
  std::vector<SpaceStatus> spaces() const;
  Result<TransferId> flush();

  // ---- transfers; each accepted one ends in exactly one event ----
  // One SlotMemory a shard; marks are filled in at once, `slots` is copied. kRecompute: the record is gone (a
  // miss). kBusy: too many reads.
  Result<TransferId> read(StoredRef record, std::span<SlotMemory> slots);
  // The key may be stored already: then the newer record replaces it. kBusy: refused, counted.
  Result<TransferId> write(SpaceIndex space, const BlockHash& hash, std::span<const SlotMemory> slots);

  // Takes the results that are there, goes on with what waits (a bounded piece of work, so
  // that sessions are served in between) and reports. At every Io::completion_fd() event and
  // when it is due(), which a call of any other function may bring forward.
  void poll(TimePoint now, std::vector<StoreEvent>& events);
  TimePoint due() const;  // far away where nothing waits for time to pass
  bool active() const;    // something is in flight, waits, or is not durable yet
  // No transfer names this memory (before a slab goes).
  bool uses(std::span<const std::byte> memory) const;

  StoreStats stats() const;
  ByteCount reinserted() const;  // as in stats()
  std::vector<PathStatus> paths() const;
  std::vector<Io::FileIdentity> files() const;  // all that it has locked
  // begin_open() made all of them: there was no store.
  bool all_made() const;

 private:
  struct Impl;
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace orbitkv::ssd
