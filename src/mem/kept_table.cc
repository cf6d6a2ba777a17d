#include "mem/kept_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/fault.h"
#include "base/text.h"
#include "mem/kept_layout.h"

namespace orbitkv::mem {
namespace {

using namespace kept;

constexpr std::uint64_t kMagic = 0x5450454B56424B4F;  // "OKBVKEPT"
constexpr int kSeals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
constexpr std::uint32_t kHighWaterStride = 4096;

// Far from each other, so that damage to a word makes neither of the other.
constexpr std::uint8_t kLentTag = 0x5A, kSealedTag = 0xA5;

std::uint64_t records_of(const KeptTable::Shape& shape) {
  return std::uint64_t{shape.first} + shape.further + shape.pending;
}
std::uint64_t uses_at(const KeptTable::Shape& shape) {
  return (kRecordsAt + records_of(shape) * kRecordBytes + 63) / 64 * 64;
}
bool has_uses(std::uint64_t format) {
  return format >= 3;
}
std::uint64_t bytes_of(const KeptTable::Shape& shape, std::uint64_t format) {
  const std::uint64_t uses = has_uses(format) ? std::uint64_t{shape.first} * kUseBytes : 0;
  return (uses_at(shape) + uses + 4095) / 4096 * 4096;
}

std::uint64_t random_word() {
  std::uint64_t word = 0;
  ORBITKV_CHECK(::getrandom(&word, sizeof word, 0) == sizeof word, "getrandom failed");
  return word;
}

std::array<std::uint64_t, 4> words_of_bytes(std::span<const std::byte, 32> bytes) {
  std::array<std::uint64_t, 4> words{};
  std::memcpy(words.data(), bytes.data(), sizeof words);
  return words;
}

template <class Head>
std::uint64_t head_check(const Head& head) {
  return checksum::check(checksum::raw(std::as_bytes(std::span(&head, 1))), head.id, sizeof head);
}
}  // namespace

// ---- the memory ----

Result<KeptTable> KeptTable::create(const Shape& shape) {
  UniqueFd fd(::memfd_create("orbitkv-kept", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return errno_error("cannot make kept memory (memfd_create)");
  const std::uint64_t bytes = bytes_of(shape, kKeptFormat);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return errno_error("cannot size kept memory");
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return errno_error("cannot seal the size of kept memory");
  KeptTable table;
  ORBITKV_RETURN_IF_ERROR(table.map(std::move(fd), bytes));
  table.shape_ = shape;
  table.uses_ = reinterpret_cast<UseWord*>(table.base_ + uses_at(shape));
  table.id_ = random_word();
  Header& header = table.header();
  header.head = {kMagic,     kKeptFormat, table.id_,     shape.pool,   bytes,
                 shape.unit, shape.first, shape.further, shape.pending};
  header.head_check = head_check(header.head);
  table.begin_marks();
  return table;
}

Result<KeptTable> KeptTable::open(UniqueFd fd) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  struct stat status{};
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(fd.get(), &status) != 0)
    return reject("the kept memory is no memfd of a fixed size");
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  if (bytes < kRecordsAt) return reject("the kept memory is shorter than its head");
  KeptTable table;
  ORBITKV_RETURN_IF_ERROR(table.map(std::move(fd), bytes));
  const Header& header = table.header();
  const Header::Head head = header.head;
  if (head.magic != kMagic) return reject("the kept memory is of something else");
  if (head.format < kKeptFormatFrom || head.format > kKeptFormat)
    return reject(format_text("the kept memory has format %llu, this Manager reads formats %u to %u",
                              static_cast<unsigned long long>(head.format), kKeptFormatFrom, kKeptFormat));
  table.shape_ = {head.pool, head.unit, head.first, head.further, head.pending};
  if (header.head_check != head_check(head) || head.bytes != bytes ||
      bytes_of(table.shape_, head.format) != bytes)
    return reject("the head of the kept memory does not verify");
  if (has_uses(head.format)) table.uses_ = reinterpret_cast<UseWord*>(table.base_ + uses_at(table.shape_));
  table.id_ = head.id;
  const std::uint64_t complete = header.complete.load(std::memory_order_acquire);
  if (complete == table.complete_word(false))
    return busy("the kept memory was not complete when its Manager ended");
  if (complete != table.complete_word(true) || !table.read_marks())
    return reject("a mark of the kept memory does not verify");
  return table;
}

Status KeptTable::map(UniqueFd fd, std::uint64_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (at == MAP_FAILED) return errno_error("cannot map kept memory");
  base_ = static_cast<std::byte*>(at);
  bytes_ = bytes;
  fd_ = std::move(fd);
  if (::madvise(at, bytes, MADV_DONTFORK) != 0) return errno_error("cannot keep kept memory from children");
  return ok_status();
}

KeptTable::KeptTable(KeptTable&& other) noexcept {
  *this = std::move(other);
}

KeptTable& KeptTable::operator=(KeptTable&& other) noexcept {
  if (this == &other) return *this;
  if (base_ != nullptr) ::munmap(base_, bytes_);
  fd_ = std::move(other.fd_);
  base_ = std::exchange(other.base_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  shape_ = other.shape_;
  uses_ = std::exchange(other.uses_, nullptr);
  id_ = other.id_;
  allocations_ = other.allocations_;
  high_water_ = other.high_water_;
  epochs_ = other.epochs_;
  return *this;
}

KeptTable::~KeptTable() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

KeptTable::Header& KeptTable::header() const {
  return *reinterpret_cast<Header*>(base_);
}

KeptTable::Word* KeptTable::words_of(KeptAt at) const {
  const std::array<std::uint64_t, kRegions> begin{0, shape_.first,
                                                  std::uint64_t{shape_.first} + shape_.further};
  const std::array<std::uint32_t, kRegions> most{shape_.first, shape_.further, shape_.pending};
  const auto region = static_cast<std::size_t>(at.region);
  ORBITKV_CHECK(region < kRegions && at.index < most[region], "no such record in kept memory");
  return reinterpret_cast<Word*>(base_ + kRecordsAt) + (begin[region] + at.index) * kRecordWords;
}

// ---- records ----
// 0 seal | 1..4 hash; of a lent one: session, operation, record, 0 | 5 namespace, group, shard |
// 6 slab, shards | 7 units, offset in units | 8 digest | 9 revision

std::uint64_t KeptTable::sealed_word(KeptAt at, const Words& words, std::uint8_t tag) const {
  const std::uint64_t what =
      std::uint64_t{tag} << 40 | std::uint64_t{static_cast<std::uint8_t>(at.region)} << 32 | at.index;
  return std::uint64_t{tag} << kTagShift | (check_of(words, id_, what) & kCheckMask);
}

void KeptTable::raise_high_water(KeptAt at) {
  const auto region = static_cast<std::size_t>(at.region);
  if (at.index < high_water_[region]) return;
  const std::uint64_t most = std::array{shape_.first, shape_.further, shape_.pending}[region];
  const std::uint64_t next = (std::uint64_t{at.index} / kHighWaterStride + 1) * kHighWaterStride;
  high_water_[region] = static_cast<std::uint32_t>(std::min(next, most));
  header().high_water[region].store(mark_word(high_water_mark(region), high_water_[region]),
                                    std::memory_order_release);
}

void KeptTable::write(KeptAt at, const Words& words, std::uint8_t tag) {
  raise_high_water(at);
  Word* const w = words_of(at);
  w[0].store(0, std::memory_order_release);
  for (std::size_t i = 1; i < kRecordWords; ++i) w[i].store(words[i], std::memory_order_release);
  fault_hit(FaultPoint::kManagerKeptOpen);
  w[0].store(sealed_word(at, words, tag), std::memory_order_release);
}

void KeptTable::lend(KeptAt at, const KeptLent& lent) {
  Words words{};
  words[1] = lent.writer.session.value;
  words[2] = lent.writer.operation.value;
  words[3] = lent.writer.record.value;
  words[6] = lent.place.slab.value;
  words[7] = lent.place.bytes.value / kUnit | lent.place.offset / kUnit << 32;
  write(at, words, kLentTag);
}

void KeptTable::seal(KeptAt at, const KeptImage& image) {
  Words words{};
  const auto hash = words_of_bytes(image.hash);
  std::copy(hash.begin(), hash.end(), words.begin() + 1);
  words[5] = image.name_space.value | std::uint64_t{image.group.value} << 32 |
             std::uint64_t{image.shard.value} << 48;
  words[6] = image.place.slab.value | std::uint64_t{image.shards} << 32;
  words[7] = image.place.bytes.value / kUnit | image.place.offset / kUnit << 32;
  words[8] = image.digest;
  words[9] = image.revision.value;
  if (at.region == KeptRegion::kFirst) note_use(at.index, {});
  write(at, words, kSealedTag);
}

KeptUse KeptTable::use_of(KeptAt at) const {
  if (uses_ == nullptr || at.region != KeptRegion::kFirst) return {};
  const std::uint32_t word = uses_[at.index].load(std::memory_order_relaxed);
  const bool known = (word & kUseClass) < static_cast<std::uint32_t>(KeptClass::kCount);
  return {known ? static_cast<KeptClass>(word & kUseClass) : KeptClass::kUnknown,
          static_cast<std::uint16_t>(word >> kUseMinute)};
}

void KeptTable::free(KeptAt at) {
  words_of(at)[0].store(0, std::memory_order_release);
}

KeptTable::Found KeptTable::read(KeptAt at, KeptLent& lent, KeptImage& image) const {
  const Word* const w = words_of(at);
  const std::uint64_t seal = w[0].load(std::memory_order_acquire);
  if (seal == 0) return Found::kFree;
  Words words{};
  for (std::size_t i = 1; i < kRecordWords; ++i) words[i] = w[i].load(std::memory_order_relaxed);
  const auto tag = static_cast<std::uint8_t>(seal >> kTagShift);
  if ((tag != kLentTag && tag != kSealedTag) || seal != sealed_word(at, words, tag))
    return tag == kSealedTag ? Found::kWrongSealed : Found::kWrong;
  const KeptPlace place{SlabId(static_cast<std::uint32_t>(words[6])), (words[7] >> 32) * kUnit,
                        ByteCount((words[7] & 0xFFFFFFFF) * kUnit)};
  if (tag == kLentTag) {
    lent = {place,
            {Epoch(words[1]), RecordIndex(static_cast<std::uint32_t>(words[3])), OperationId(words[2])}};
    return Found::kLent;
  }
  std::memcpy(image.hash.data(), &words[1], sizeof image.hash);
  image.name_space = NamespaceIndex(static_cast<std::uint32_t>(words[5]));
  image.group = GroupId(static_cast<std::uint16_t>(words[5] >> 32));
  image.shard = ShardId(static_cast<std::uint16_t>(words[5] >> 48));
  image.shards = static_cast<std::uint16_t>(words[6] >> 32);
  image.use = use_of(at);
  image.place = place;
  image.digest = words[8];
  image.revision = AllocationId(words[9]);
  return Found::kSealed;
}

std::uint32_t KeptTable::high_water(KeptRegion region) const {
  return high_water_[static_cast<std::size_t>(region)];
}

}  // namespace orbitkv::mem
