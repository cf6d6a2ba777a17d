#include "ssd/open_paths.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <random>
#include <set>

#include "base/limits.h"
#include "base/log.h"
#include "ssd/scan.h"

namespace orbitkv::ssd {
namespace {

constexpr std::uint32_t kLeastRecords = 1u << 16, kMostRecords = 1u << 26;
constexpr ByteCount kCapacityPerRecord = 64 * kKiB;
constexpr std::uint64_t kIndexBytesPerRecord = 120;
constexpr std::uint64_t kMemoryPerIndex = 64;  // the index takes one part in so many, at most

constexpr const char* kForeign =
    "it is not empty and no OrbitKV store: give another path, or remove the file (wipe the device) if "
    "nothing on it "
    "is needed";

struct Candidate {
  PathConfig config;
  Io::Opened opened;
  std::optional<SuperblockFound> found;
};

Error about(const PathConfig& config, const Error& error) {
  return {error.code(), "SSD path " + config.path + ": " + error.message()};
}
Error wrong(const PathConfig& config, const std::string& text) {
  return about(config, reject(text));
}

std::string mib(std::uint64_t bytes) {
  if (bytes % kMiB.value != 0 && bytes < 4 * kMiB.value) return std::to_string(bytes / kKiB.value) + " KiB";
  return std::to_string(bytes / kMiB.value) + " MiB";
}

dev_t file_system_of(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 ? status.st_dev : 0;
}

// By whatever names.
bool same_file(const std::string& a, const std::string& b) {
  struct stat first{}, second{};
  if (a == b) return true;
  if (::stat(a.c_str(), &first) != 0 || ::stat(b.c_str(), &second) != 0) return false;
  if (S_ISBLK(first.st_mode) && S_ISBLK(second.st_mode)) return first.st_rdev == second.st_rdev;
  return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

// What lies between the superblocks and the first segment of an empty store is zeros: file
// systems that begin behind the first pages are not taken for nothing.
Status check_blank(Dispatch& device, const Candidate& candidate) {
  const std::uint64_t end = std::min(candidate.opened.bytes / kPageBytes * kPageBytes, kFirstSegment.value);
  const std::uint64_t begin = kSuperblockCopies * kPageBytes;
  if (candidate.opened.made || end <= begin) return ok_status();
  const PageBuffer buffer(end - begin);
  const int error = device.wait({IoOp::kRead, candidate.opened.file, begin, {buffer.span()}});
  if (error != 0) return wrong(candidate.config, std::string("cannot be read: ") + std::strerror(error));
  const auto bytes = buffer.span();
  if (std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; })) {
    return wrong(candidate.config, kForeign);
  }
  return ok_status();
}

class Opening {
 public:
  Opening(const StoreConfig& config, Io& io) : config_(config), io_(io), device_(io) {}

  Result<OpenedPaths> run() {
    const Status done = open();
    if (done.ok()) return std::move(out_);
    // What stands there says by now that those that were added are of its set.
    const bool counted = writes_ && !numbers_.empty();
    for (const Candidate& candidate : candidates_)
      if (candidate.opened.made && !counted) remove(candidate);
    return done.error();
  }

 private:
  Status open() {
    ORBITKV_RETURN_IF_ERROR(look());
    ORBITKV_RETURN_IF_ERROR(agree());
    for (const Candidate& candidate : candidates_) ORBITKV_RETURN_IF_ERROR(plan(candidate));
    writes_ = true;
    for (std::size_t i = 0; i < candidates_.size(); ++i) ORBITKV_RETURN_IF_ERROR(make(i));
    out_.all_made = std::all_of(candidates_.begin(), candidates_.end(),
                                [](const Candidate& candidate) { return candidate.opened.made; });
    out_.max_records = max_records();
    return ok_status();
  }

  // Its lock is held, so it is nobody else's meanwhile.
  void remove(const Candidate& candidate) const {
    const std::string& path = candidate.config.path;
    struct stat status{};
    if (::lstat(path.c_str(), &status) != 0) return;
    if (io_.identity(candidate.opened.file) == Io::FileIdentity{status.st_dev, status.st_ino})
      ::unlink(path.c_str());
  }

  Status look() {
    if (config_.paths.empty() || config_.paths.size() > limits::kStorePaths) {
      return reject("an SSD store has 1 to " + std::to_string(limits::kStorePaths) + " paths");
    }
    for (const PathConfig& path : config_.paths) {
      ORBITKV_RETURN_IF_ERROR(check_name(path));
      auto opened = io_.open(path.path, ByteCount());
      if (!opened.ok()) return opened.error();
      candidates_.push_back({path, *opened, std::nullopt});
      const std::uint32_t alignment = std::max(opened->alignment.memory, opened->alignment.offset);
      if (alignment > kPageBytes) {
        return wrong(path, "its device wants transfers of " + std::to_string(alignment) +
                               " bytes; the store writes pages of 4096: give another device");
      }
      out_.unit = std::max(out_.unit, alignment);
      if (opened->bytes == 0) continue;
      if (opened->bytes < kSuperblockCopies * kPageBytes) return wrong(path, kForeign);
      auto found = read_superblock(io_, opened->file);
      if (!found.ok()) return about(path, found.error());
      candidates_.back().found = *found;
      if (!*found) ORBITKV_RETURN_IF_ERROR(check_blank(device_, candidates_.back()));
    }
    return ok_status();
  }

  Status check_name(const PathConfig& path) const {
    if (path.path.empty()) return reject("an SSD path is empty: name a file or a block device");
    for (const Candidate& other : candidates_) {
      if (same_file(other.config.path, path.path)) {
        return wrong(path, "it is the same file as " + other.config.path + ": give each only once");
      }
    }
    return ok_status();
  }

  // All paths that hold something belong to one set.
  Status agree() {
    const Candidate* first = nullptr;
    for (const Candidate& candidate : candidates_) {
      if (!candidate.found) continue;
      const Superblock& superblock = candidate.found->superblock;
      if (first == nullptr) first = &candidate;
      const Superblock& other = first->found->superblock;
      if (superblock.uuid != other.uuid || superblock.segment != other.segment) {
        return wrong(candidate.config, "it belongs to another store than " + first->config.path +
                                           ": start with the paths of one store, or remove the file");
      }
      if (!numbers_.insert(superblock.path.value).second) {
        return wrong(candidate.config, "it is a copy of another path of this store: remove one of the two");
      }
      if (superblock.epoch > out_.epoch) last_paths_ = superblock.paths;
      out_.epoch = std::max(out_.epoch, superblock.epoch);
      next_number_ = std::max({next_number_, superblock.numbers, superblock.path.value + 1});
      merge(superblock.drops);
    }
    if (out_.drops.size() > limits::kSpaceDrops) {
      return reject("the paths of the SSD store were used apart and have dropped " +
                    std::to_string(out_.drops.size()) + " namespaces, " +
                    std::to_string(limits::kSpaceDrops) +
                    " can be kept: start without one of them, or remove its file");
    }
    if (out_.epoch.value >= kMaxEpoch)
      return reject("the SSD store has been opened too often; remove its files");
    out_.epoch = StoreEpoch(out_.epoch.value + 1);
    if (first != nullptr) {
      out_.uuid = first->found->superblock.uuid;
      out_.segment = first->found->superblock.segment;
    } else {
      ORBITKV_RETURN_IF_ERROR(begin_set());
    }
    const auto found = static_cast<std::uint32_t>(numbers_.size());
    // Those that are away stay counted, so that what was dropped meanwhile is not forgotten.
    const auto added = static_cast<std::uint32_t>(candidates_.size()) - found;
    set_paths_ = std::min(std::max(last_paths_, found) + added, limits::kStorePaths);
    if (found < last_paths_) {
      out_.missing = "the store has " + std::to_string(last_paths_) + " paths, " + std::to_string(found) +
                     " of which are there: what lies on the others is not found until they are given again";
      ORBITKV_WARN("SSD store: %s", out_.missing.c_str());
    }
    return ok_status();
  }

  Status begin_set() {
    out_.segment = config_.segment;
    ORBITKV_RETURN_IF_ERROR(check_segment_size(out_.segment));
    std::random_device random;
    for (std::byte& byte : out_.uuid) byte = static_cast<std::byte>(random());
    return ok_status();
  }

  void merge(const std::vector<SpaceDrop>& drops) {
    for (const SpaceDrop& drop : drops) {
      const auto same = std::find_if(out_.drops.begin(), out_.drops.end(),
                                     [&drop](const SpaceDrop& known) { return known.digest == drop.digest; });
      if (same == out_.drops.end()) {
        out_.drops.push_back(drop);
      } else {
        same->sequence = std::max(same->sequence, drop.sequence);
      }
    }
  }

  // Half of what is free, for all paths of that file system together that say no size.
  std::uint64_t share_of_free(const std::string& path) const {
    std::uint64_t sharing = 0;
    for (const Candidate& other : candidates_) {
      const bool takes = other.config.bytes.value == 0 && !other.found && other.opened.bytes == 0;
      sharing += takes && file_system_of(other.config.path) == file_system_of(path) ? 1 : 0;
    }
    return io_.free_space(path).value / 2 / std::max<std::uint64_t>(sharing, 1);
  }

  std::uint64_t was_bytes(const Candidate& candidate) const {
    const Superblock& was = candidate.found->superblock;
    return was.first_segment.value + was.segments * out_.segment.value;
  }

  // What the path will be; nothing is written yet.
  Status plan(const Candidate& candidate) {
    const PathConfig& config = candidate.config;
    Path path;
    path.name = config.path;
    path.file = candidate.opened.file;
    path.linked = path.named = io_.linked(path.file);
    Superblock& superblock = path.superblock;
    if (candidate.found) {
      superblock = candidate.found->superblock;
      path.write_first = candidate.found->write_first;
    } else {
      if (next_number_ >= limits::kPathNumbers)
        return wrong(config, "too many paths were added to this store");
      superblock.path = PathNumber(next_number_++);
      superblock.created = static_cast<std::uint64_t>(::time(nullptr));
    }
    std::uint64_t bytes = config.bytes.value;
    if (bytes == 0 && !candidate.found) {
      bytes = candidate.opened.bytes > 0 ? candidate.opened.bytes : share_of_free(config.path);
    }
    const std::uint64_t first = superblock.first_segment.value;
    const std::uint64_t room = bytes > first ? bytes - first : 0;
    const std::uint64_t segments = std::min<std::uint64_t>(room / out_.segment.value, limits::kPathSegments);
    if (bytes > 0 || !candidate.found) {
      const std::uint64_t least = first + limits::kPathSegmentsLeast * out_.segment.value;
      if (segments < limits::kPathSegmentsLeast) {
        return wrong(config, mib(bytes) + " are too small: at least " + mib(least) + " for segments of " +
                                 mib(out_.segment.value) +
                                 "; give more with --ssd-size, or smaller segments");
      }
      if (segments < superblock.segments) {
        const std::uint64_t has = first + superblock.segments * out_.segment.value;
        return wrong(
            config, mib(bytes) + " are less than the " + mib(has) +
                        " that the store has; a store cannot shrink: start with at least that --ssd-size, or "
                        "remove the file");
      }
      superblock.segments = static_cast<std::uint32_t>(segments);
    }
    superblock.uuid = out_.uuid;
    superblock.epoch = out_.epoch;
    superblock.segment = out_.segment;
    superblock.drops = out_.drops;
    ++superblock.update;
    out_.paths.push_back(std::move(path));
    return ok_status();
  }

  Status make(std::size_t i) {
    const Candidate& candidate = candidates_[i];
    Path& path = out_.paths[i];
    path.superblock.paths = set_paths_;
    path.superblock.numbers = next_number_;
    const std::uint64_t bytes =
        path.superblock.first_segment.value + path.superblock.segments * out_.segment.value;
    if (candidate.found && candidate.opened.bytes < was_bytes(candidate)) {
      ORBITKV_WARN("SSD path %s is shorter than its store was; what is missing is lost", path.name.c_str());
    }
    if (candidate.opened.bytes < bytes) {
      const Status grown = io_.grow(path.file, ByteCount(bytes));
      if (!grown.ok()) return about(candidate.config, grown.error());
    }
    const PageBuffer page(kPageBytes);
    for (std::uint32_t nth = 0; nth < kSuperblockCopies; ++nth) {
      const std::uint32_t copy = (path.write_first + nth) % kSuperblockCopies;
      encode_superblock(path.superblock, copy, page.span());
      int error = device_.wait({IoOp::kWrite, path.file, copy * kPageBytes, {page.span()}});
      if (error == 0) error = device_.wait({IoOp::kSync, path.file, 0, {}});
      if (error != 0) {
        return wrong(candidate.config, std::string("its superblock cannot be written: ") +
                                           std::strerror(error) +
                                           "; check space, permissions and the device");
      }
    }
    return ok_status();
  }

  std::uint32_t max_records() const {
    std::uint64_t capacity = 0;
    for (const Path& path : out_.paths) capacity += path.superblock.segments * out_.segment.value;
    std::uint64_t records =
        std::clamp<std::uint64_t>(capacity / kCapacityPerRecord.value, kLeastRecords, kMostRecords);
    if (config_.max_records != 0) records = std::min(config_.max_records, kMostRecords);
    const std::uint64_t memory = static_cast<std::uint64_t>(std::max(::sysconf(_SC_PHYS_PAGES), 0L)) *
                                 static_cast<std::uint64_t>(std::max(::sysconf(_SC_PAGE_SIZE), 0L));
    const std::uint64_t most = memory / kMemoryPerIndex / kIndexBytesPerRecord;
    return static_cast<std::uint32_t>(most == 0 ? records : std::min(records, most));
  }

  const StoreConfig& config_;
  Io& io_;
  Dispatch device_;
  std::vector<Candidate> candidates_;
  std::set<std::uint32_t> numbers_;  // of the paths that hold something
  bool writes_ = false;              // superblocks
  std::uint32_t next_number_ = 0;    // never given
  std::uint32_t last_paths_ = 0;     // of the set at the last start
  std::uint32_t set_paths_ = 0;      // now
  OpenedPaths out_;
};

}  // namespace

Status check_segment_size(ByteCount segment) {
  const bool whole = segment.value % kPageBytes == 0;
  if (whole && segment >= limits::kSegmentBytesLeast && segment <= limits::kSegmentBytesMost)
    return ok_status();
  return reject("SSD segments are whole pages of 4096 bytes, from " + mib(limits::kSegmentBytesLeast.value) +
                " to " + mib(limits::kSegmentBytesMost.value));
}

Result<OpenedPaths> open_paths(const StoreConfig& config, Io& io) {
  return Opening(config, io).run();
}

}  // namespace orbitkv::ssd
