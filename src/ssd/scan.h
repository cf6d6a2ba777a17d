// Reads paths of the store at open(): which segments hold what. Sealed ones by their footer;
// the others batch by batch, their images verified, page by page over what is damaged. Runs
// on the thread of the caller, who owns the Io and has nothing else in flight on it. Never
// writes; memory is bounded whatever the files hold.
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/result.h"
#include "ssd/format_entries.h"
#include "ssd/io.h"

namespace orbitkv::ssd {

// nullopt: empty, may be formatted (decode_superblock). kReject as there, or the file cannot
// be read; the text does not name the path.
Result<std::optional<SuperblockFound>> read_superblock(Io& io, FileIndex file);

struct ScanPath {
  FileIndex file;
  Superblock superblock;  // of this open or of an earlier one
};

enum class SegmentCondition : std::uint8_t {
  kFree,      // no header of this store: nothing is in it
  kSealed,    // its footer says what it holds, also where its header is damaged; images are not looked at
  kUnsealed,  // batches were found one by one; images of what is listed are right
  kBad,       // its header could not be read from the device
};

struct SegmentFound {
  std::uint32_t path = 0;  // in the order given to scan()
  SegmentNumber number;
  SegmentCondition condition = SegmentCondition::kFree;
  SegmentRead segment;        // of kSealed and kUnsealed
  std::uint64_t created = 0;  // unix seconds, of those
  std::uint32_t end = 0;      // of those: the first page behind the last batch or record
  // Batches and records given up, a footer, a header that is none, stretches not read.
  std::uint64_t damaged = 0;
};

class ScanSink {
 public:
  virtual ~ScanSink() = default;
  // Once a segment, in any order. `entries` is empty but for kSealed and kUnsealed; the sink
  // may take things out of it.
  virtual void found(const SegmentFound& segment, EntryList& entries) = 0;
};

struct ScanOptions {
  int stop_fd = -1;          // readable: give up
  std::uint32_t depth = 64;  // reads on their way
};
struct ScanTotals {
  std::uint64_t segments = 0, sealed = 0, unsealed = 0, bad = 0;
  std::uint64_t records = 0, damaged = 0;
  ByteCount read;
};
// kBusy: stop_fd became readable. What a device does not read is kBad, not an error.
Result<ScanTotals> scan(Io& io, std::span<const ScanPath> paths, ScanSink& sink, const ScanOptions& options);

}  // namespace orbitkv::ssd
