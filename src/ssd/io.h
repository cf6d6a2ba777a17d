// Asynchronous reads and writes of the store's files: the seam under ssd/store.h.
// Implementations: io_uring (uring_io.h), a pool of pread/pwrite threads (pool_io.h), a
// file in memory (memory_io.h); io_suite.h holds what all of them keep. One thread
// submits and reaps; threads of an implementation are its own. A result comes once for
// every accepted request, whatever happened; until then its memory belongs to the
// device. Never blocks but in open() and in reap() with a wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "base/unique_fd.h"

namespace orbitkv::ssd {

using FileIndex = Id<struct FileIndexTag, std::uint32_t>;
using IoTag = Id<struct IoTagTag, std::uint64_t>;  // the caller's

enum class IoOp : std::uint8_t {
  kRead,
  kWrite,
  kSync,  // fdatasync: what had been reported as written before it was submitted is durable
};

// Addresses, lengths and the offset are multiples of the file's IoAlignment. The pieces
// follow each other in the file. `pieces` and the memory live until the result.
struct IoRequest {
  IoTag tag;
  IoOp op = IoOp::kRead;
  FileIndex file;
  std::uint64_t offset = 0;
  std::span<const std::span<std::byte>> pieces;  // empty for kSync; at most kPieces
};

// Short transfers are continued inside; an end of file in the middle of a read is EIO.
struct IoResult {
  IoTag tag;
  int error = 0;  // 0: all bytes; else errno, and what was transferred is not known
  Duration took;  // from the device's point of view: submission to completion
};

struct IoAlignment {
  std::uint32_t memory = 512;  // statx STATX_DIOALIGN; 4096 where the kernel does not say
  std::uint32_t offset = 512;
};

// Counts are of results that were reaped; failed ones are in `errors` only.
struct IoStats {
  std::uint64_t reads = 0, writes = 0, syncs = 0, errors = 0, continued = 0;
  ByteCount read, written;
  std::uint32_t in_flight = 0, depth = 0;  // requests on the device now, and at most
  ByteCount window;                        // bytes on the device at most, as tuned
  ByteCount registered;                    // memory that the kernel has pinned for us
};

inline constexpr std::size_t kPieces = 64;
inline constexpr std::size_t kIoFiles = 64;

class Io {
 public:
  virtual ~Io() = default;  // waits for what was accepted

  virtual const char* name() const = 0;  // "io_uring" or "threads", for status and log
  // Opens or makes the file, or opens the block device, and locks it for this process, with
  // O_DIRECT where the file system has it, then grow(). A missing file is made empty.
  // Errors name path and remedy: in use by another process, no permission, no space.
  struct Opened {
    FileIndex file;
    std::uint64_t bytes = 0;
    IoAlignment alignment;
    bool made = false;  // by this call: all zeros
  };
  virtual Result<Opened> open(const std::string& path, ByteCount bytes) = 0;
  // At least so long, reserved where the file system can and sparse where it cannot; what
  // it holds stays. kReject: no space, or a block device that is smaller.
  virtual Status grow(FileIndex file, ByteCount bytes) = 0;
  // Which file it is on this machine: of no other one the same. 0: nobody else can open it.
  struct FileIdentity {
    std::uint64_t device = 0, inode = 0;
    friend auto operator<=>(const FileIdentity&, const FileIdentity&) = default;
  };
  virtual FileIdentity identity(FileIndex) const { return {}; }
  // It still has a name. Never blocks.
  virtual bool linked(FileIndex) const { return true; }
  // Of the file system in which the path lies or would be made.
  virtual ByteCount free_space(const std::string& path) const = 0;
  // Memory that requests will name often (slabs, buffers of the store). Not necessary for
  // use; failure (memlock limit) costs speed only and is logged once. In order with submit();
  // large memory is added in steps within reap() that completion_fd() asks for, and
  // stats().registered says what is pinned. remove_memory(): at once, as it was added, and no
  // request with it is in flight.
  virtual void add_memory(std::span<std::byte> memory) = 0;
  virtual void remove_memory(std::span<std::byte> memory) = 0;

  // Takes a prefix of the requests: as many as the bounds allow now, which reads do not
  // share with writes and syncs. Reads overtake writes that wait; writes and syncs get at
  // least a quarter of the turns. A request that breaks the rules of IoRequest is taken
  // too and ends in EINVAL.
  virtual std::size_t submit(std::span<const IoRequest> requests) = 0;
  // Results that are there, or the first that comes within `wait`.
  virtual std::size_t reap(std::span<IoResult> results, Duration wait) = 0;
  // Readable while results wait to be reaped (edge-triggered watchers reap to empty).
  virtual int completion_fd() const = 0;
  virtual IoStats stats() const = 0;
};

// What tests do to a request on its way to the device; implementations ask it for every
// submission of a request, continued ones included. Called from their threads.
struct IoFault {
  enum class Kind : std::uint8_t { kNone, kShort, kError, kDelay } kind = Kind::kNone;
  // kShort: passes no more than these, a multiple of the alignment; 0: EAGAIN.
  std::uint64_t bytes = 0;
  int error = 0;   // kError: ends so, `bytes` of it transferred before
  Duration delay;  // kDelay
};
class IoFaults {
 public:
  virtual ~IoFaults() = default;
  virtual IoFault next(const IoRequest& request) = 0;
};

struct IoOptions {
  std::uint32_t depth = 64;    // most requests on the device; less where latency says so
  bool tune_depth = true;      // bytes on the device at once: more only while that is faster
  std::uint32_t threads = 0;   // of the thread pool; 0 = 16
  std::uint32_t queue = 1024;  // reads accepted and not reaped; as many writes and syncs
  IoFaults* faults = nullptr;  // outlives the Io
};

enum class IoKind : std::uint8_t { kAuto, kUring, kThreads };
// kAuto: io_uring, or threads with one log line that says why not. kReject: kUring was asked
// for and cannot be had; says what forbids it and the remedy.
Result<std::unique_ptr<Io>> make_io(IoKind kind, const IoOptions& options);

}  // namespace orbitkv::ssd
