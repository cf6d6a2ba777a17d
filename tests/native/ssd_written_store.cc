// ssd_written_store DIRECTORY SEED: writes a store of two paths, every second one damaged,
// and prints what our own scan finds in it: JSON, one entry a line. What the reader that
// was written from docs/ssd-format.md finds is compared with it.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "ssd/scan.h"
#include "ssd/written_store_suite.h"

namespace orbitkv::ssd::suite {
namespace {

constexpr std::uint32_t kSegments = 6;

std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte b : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", std::to_integer<unsigned>(b));
    out += two;
  }
  return out;
}

class PathOnDisk {
 public:
  PathOnDisk(const std::string& name, const Superblock& superblock) : superblock_(superblock) {
    fd_ = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    size_ = segment_offset(superblock, superblock.segments);
    if (fd_ < 0 || ::ftruncate(fd_, static_cast<off_t>(size_)) != 0) std::exit(1);
    write(0, both_superblocks(superblock));
  }
  ~PathOnDisk() { ::close(fd_); }
  PathOnDisk(const PathOnDisk&) = delete;
  PathOnDisk& operator=(const PathOnDisk&) = delete;

  void write(std::uint64_t offset, std::span<const std::byte> bytes) const {
    if (::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset)) !=
        static_cast<ssize_t>(bytes.size()))
      std::exit(1);
  }
  WriteBytes writer() const {
    return [this](std::uint64_t offset, std::span<const std::byte> bytes) { write(offset, bytes); };
  }
  // One bit of a segment, more often where lists are.
  void flip(std::mt19937_64& random) const {
    const std::uint64_t pages = (size_ - superblock_.first_segment.value) / kPageBytes / kSegments;
    const std::uint64_t wheres[] = {random() % pages, random() % 8, pages - 1 - random() % 2};
    const std::uint64_t page = random() % kSegments * pages + wheres[random() % 3];
    const auto at = static_cast<off_t>(superblock_.first_segment.value + page * kPageBytes + random() % 512);
    std::byte b;
    if (::pread(fd_, &b, 1, at) != 1) std::exit(1);
    b ^= static_cast<std::byte>(1u << random() % 8);
    if (::pwrite(fd_, &b, 1, at) != 1) std::exit(1);
  }
  const Superblock& superblock() const { return superblock_; }

 private:
  Superblock superblock_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

class Filler {
 public:
  explicit Filler(std::uint64_t seed) : random_(seed) {
    shapes_ = {sample_shape(), shape_of({{0, 0, 0, 2048}, {7, 2, 0, 24}}), shape_of({{1, 0, 0, 72}}, 5)};
    shapes_[1].group = GroupId(9);
    shapes_[2].digest = digest(0x50);
    shapes_[2].text.clear();
  }

  void fill(const PathOnDisk& path, std::uint32_t number) {
    const std::uint64_t kind = random_() % 6;
    if (kind == 0) return;  // free
    if (kind == 1) life(path, number, true);
    life(path, number, kind > 2);
  }

 private:
  void life(const PathOnDisk& path, std::uint32_t number, bool sealed) {
    WrittenSegment segment = open_segment(path.writer(), path.superblock(), number, ++lives_);
    for (std::uint64_t batches = random_() % 4; batches > 0; --batches) batch(segment);
    if (sealed) segment.seal();
  }
  void batch(WrittenSegment& segment) {
    for (std::uint64_t entries = 1 + random_() % 4; entries > 0; --entries) {
      const auto space = static_cast<std::uint32_t>(random_() % shapes_.size());
      const SpaceShape& shape = shapes_[space];
      const BlockHash key = numbered(random_() % 30);
      ++sequence_;
      const Fit fit = random_() % 5 == 0 ? segment.drop({shape.digest, shape.group, key, sequence(sequence_)})
                                         : segment.add(SpaceIndex(space), shape, key, sequence(sequence_));
      if (fit != Fit::kYes) break;
    }
    if (segment.builder().batch_empty()) return;
    segment.close(random_() % 5 == 0 ? WrittenSegment::Write::kDescriptorOnly : WrittenSegment::Write::kAll);
  }

  std::mt19937_64 random_;
  std::vector<SpaceShape> shapes_;
  std::uint64_t lives_ = 0, sequence_ = 0;
};

class Print final : public ScanSink {
 public:
  void found(const SegmentFound& segment, EntryList& list) override {
    for (const RecordEntry& record : list.records) {
      const SpaceShape& shape = list.space(record.space)->shape;
      start(segment, "record", {shape.digest, shape.group, record.hash, record.sequence});
      std::printf(", \"page\": %u, \"text\": \"%s\", \"marks\": [", record.first_page, shape.text.c_str());
      const char* comma = "";
      for (const ImageMark& mark : list.marks_of(record)) {
        std::printf("%s[%llu, %llu]", comma, static_cast<unsigned long long>(mark.digest),
                    static_cast<unsigned long long>(mark.revision.value));
        comma = ", ";
      }
      std::printf("]}\n");
    }
    for (const Tombstone& tombstone : list.tombstones) {
      start(segment, "tombstone", tombstone);
      std::printf("}\n");
    }
  }

 private:
  static void start(const SegmentFound& segment, const char* kind, const Tombstone& key) {
    std::printf("{\"path\": %u, \"segment\": %u, \"kind\": \"%s\", \"digest\": \"%s\", \"group\": %u, ",
                segment.path, segment.number.value, kind, hex(key.digest.bytes).c_str(), key.group.value);
    std::printf("\"hash\": \"%s\", \"sequence\": %llu", hex(key.hash.bytes).c_str(),
                static_cast<unsigned long long>(key.sequence.value));
  }
};

int run(const std::string& directory, std::uint64_t seed) {
  Filler filler(seed);
  std::mt19937_64 random(seed);
  auto io = make_io(IoKind::kThreads, {});
  if (!io.ok()) return 1;
  std::vector<ScanPath> paths;
  for (const std::uint32_t number : {0u, 1u}) {
    const std::string name = directory + "/" + std::to_string(number);
    Superblock superblock = sample_superblock();
    superblock.path = PathNumber(number);
    superblock.segments = kSegments;
    superblock.drops = {{digest(0x50), sequence(6 + number)}};
    const PathOnDisk path(name, superblock);
    for (std::uint32_t segment = 0; segment < kSegments; ++segment) filler.fill(path, segment);
    for (std::uint64_t flips = seed % 2 == 0 ? 0 : 12; flips > 0; --flips) path.flip(random);
    const auto file = (*io)->open(name, ByteCount());
    if (!file.ok()) return 1;
    const auto found = read_superblock(**io, file->file);
    if (!found.ok() || !*found) return 1;
    paths.push_back({file->file, (*found)->superblock});
  }
  Print print;
  return scan(**io, paths, print, {}).ok() ? 0 : 1;
}

}  // namespace
}  // namespace orbitkv::ssd::suite

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: ssd_written_store DIRECTORY SEED\n");
    return 2;
  }
  return orbitkv::ssd::suite::run(arguments[1], std::strtoull(arguments[2], nullptr, 10));
}
