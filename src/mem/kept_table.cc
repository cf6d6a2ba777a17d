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

namespace orbitkv::mem {
namespace {

constexpr std::uint64_t kMagic = 0x5450454B56424B4F;  // "OKBVKEPT"
constexpr int kSeals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
constexpr std::uint32_t kHighWaterStride = 4096;

// Far from each other, so that damage to a word makes neither of the other.
constexpr std::uint8_t kLentTag = 0x5A, kSealedTag = 0xA5;
constexpr unsigned kTagShift = 56;
constexpr std::uint64_t kCheckMask = (std::uint64_t{1} << kTagShift) - 1;

constexpr std::size_t kSlabWords = 6;  // state and name, bytes, huge, node, check, 0
constexpr std::size_t kNameWords = 5;  // seal, digest
constexpr std::uint64_t kUnit = 64;
constexpr std::uint64_t kHeaderBytes = 4096;
constexpr std::uint64_t kSlabsAt = kHeaderBytes;
constexpr std::uint64_t kNamesAt = kSlabsAt + std::uint64_t{limits::kSlabs} * kSlabWords * 8;
constexpr std::uint64_t kRecordsAt =
    (kNamesAt + std::uint64_t{limits::kNamespaces} * kNameWords * 8 + 4095) / 4096 * 4096;
constexpr std::uint64_t kRecordBytes = KeptTable::kRecordWords * 8;

std::uint64_t records_of(const KeptTable::Shape& shape) {
  return std::uint64_t{shape.first} + shape.further + shape.pending;
}
std::uint64_t bytes_of(const KeptTable::Shape& shape) {
  return (kRecordsAt + records_of(shape) * kRecordBytes + 4095) / 4096 * 4096;
}

std::uint64_t random_word() {
  std::uint64_t word = 0;
  ORBITKV_CHECK(::getrandom(&word, sizeof word, 0) == sizeof word, "getrandom failed");
  return word;
}

template <std::size_t n>
std::uint64_t check_of(const std::array<std::uint64_t, n>& words, std::uint64_t id, std::uint64_t what) {
  return checksum::check(checksum::raw(std::as_bytes(std::span(words))), id, what);
}

std::array<std::uint64_t, 4> words_of_bytes(std::span<const std::byte, 32> bytes) {
  std::array<std::uint64_t, 4> words{};
  std::memcpy(words.data(), bytes.data(), sizeof words);
  return words;
}

}  // namespace

// Of the head, everything is written once; the marks are words of their own.
struct KeptTable::Header {
  struct Head {
    std::uint64_t magic, format, id, pool, bytes;
    std::uint32_t unit, first, further, pending;
  } head;
  std::uint64_t head_check;
  alignas(64) Word complete, next_name, allocations, wanted;
  alignas(64) std::array<Word, kRegions> high_water;
};
static_assert(sizeof(std::atomic<std::uint64_t>) == 8);

namespace {
template <class Head>
std::uint64_t head_check(const Head& head) {
  return checksum::check(checksum::raw(std::as_bytes(std::span(&head, 1))), head.id, sizeof head);
}
}  // namespace

// ---- the memory ----

Result<KeptTable> KeptTable::create(const Shape& shape) {
  UniqueFd fd(::memfd_create("orbitkv-kept", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return errno_error("cannot make kept memory (memfd_create)");
  const std::uint64_t bytes = bytes_of(shape);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return errno_error("cannot size kept memory");
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return errno_error("cannot seal the size of kept memory");
  KeptTable table;
  ORBITKV_RETURN_IF_ERROR(table.map(std::move(fd), bytes));
  table.shape_ = shape;
  table.id_ = random_word();
  Header& header = table.header();
  header.head = {kMagic,     kKeptFormat, table.id_,     shape.pool,   bytes,
                 shape.unit, shape.first, shape.further, shape.pending};
  header.head_check = head_check(header.head);
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
  if (head.format != kKeptFormat)
    return reject(format_text("the kept memory has format %llu, this Manager reads format %u",
                              static_cast<unsigned long long>(head.format), kKeptFormat));
  table.shape_ = {head.pool, head.unit, head.first, head.further, head.pending};
  if (header.head_check != head_check(head) || head.bytes != bytes || bytes_of(table.shape_) != bytes)
    return reject("the head of the kept memory does not verify");
  if (header.complete.load(std::memory_order_acquire) != 1)
    return busy("the kept memory was not complete when its Manager ended");
  table.id_ = head.id;
  table.allocations_ = header.allocations.load(std::memory_order_relaxed);
  for (std::size_t r = 0; r < kRegions; ++r) {
    const std::uint32_t most = std::array{head.first, head.further, head.pending}[r];
    table.high_water_[r] =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(header.high_water[r].load(), most));
  }
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

KeptTable::Word* KeptTable::slab_words(SlabSlot slot) const {
  ORBITKV_CHECK(slot.value < limits::kSlabs, "slab slot above limits::kSlabs");
  return reinterpret_cast<Word*>(base_ + kSlabsAt) + slot.value * kSlabWords;
}

KeptTable::Word* KeptTable::name_words(NamespaceIndex index) const {
  ORBITKV_CHECK(index.value < limits::kNamespaces, "namespace above limits::kNamespaces");
  return reinterpret_cast<Word*>(base_ + kNamesAt) + index.value * kNameWords;
}

KeptTable::Word* KeptTable::words_of(KeptAt at) const {
  const std::array<std::uint64_t, kRegions> begin{0, shape_.first,
                                                  std::uint64_t{shape_.first} + shape_.further};
  const std::array<std::uint32_t, kRegions> most{shape_.first, shape_.further, shape_.pending};
  const auto region = static_cast<std::size_t>(at.region);
  ORBITKV_CHECK(region < kRegions && at.index < most[region], "no such record in kept memory");
  return reinterpret_cast<Word*>(base_ + kRecordsAt) + (begin[region] + at.index) * kRecordWords;
}

// ---- marks ----

void KeptTable::set_complete() {
  header().complete.store(1, std::memory_order_release);
}

void KeptTable::set_superseded() {
  header().complete.store(0, std::memory_order_release);
}

void KeptTable::name_given(SlabId next) {
  header().next_name.store(next.value, std::memory_order_release);
}

std::uint32_t KeptTable::next_name() const {
  return static_cast<std::uint32_t>(header().next_name.load(std::memory_order_relaxed));
}

void KeptTable::reserve_allocations(std::uint64_t last) {
  allocations_ = last + kAllocationStride;
  header().allocations.store(allocations_, std::memory_order_release);
}

AllocationId KeptTable::allocations() const {
  return AllocationId(allocations_);
}

void KeptTable::set_wanted(std::uint32_t slabs) {
  header().wanted.store(slabs, std::memory_order_release);
}

std::uint32_t KeptTable::wanted() const {
  return static_cast<std::uint32_t>(header().wanted.load(std::memory_order_relaxed));
}

// ---- slabs: the first word is state and name, and the only one that changes ----

void KeptTable::put_slab(SlabSlot slot, const KeptSlab& slab) {
  Word* const w = slab_words(slot);
  const std::array<std::uint64_t, 4> words{slab.name.value, slab.bytes.value, slab.huge.value,
                                           static_cast<std::uint32_t>(slab.node.value)};
  w[0].store(0, std::memory_order_release);
  for (std::size_t i = 1; i < words.size(); ++i) w[i].store(words[i], std::memory_order_release);
  w[4].store(check_of(words, id_, slot.value), std::memory_order_release);
  w[0].store(std::uint64_t{static_cast<std::uint8_t>(slab.state)} << 32 | slab.name.value,
             std::memory_order_release);
}

void KeptTable::taint_slab(SlabSlot slot) {
  Word* const w = slab_words(slot);
  const std::uint64_t word = w[0].load(std::memory_order_relaxed);
  if (word >> 32 != static_cast<std::uint64_t>(KeptSlabState::kLive)) return;
  w[0].store(std::uint64_t{static_cast<std::uint8_t>(KeptSlabState::kTainted)} << 32 | (word & 0xFFFFFFFF),
             std::memory_order_release);
}

void KeptTable::retire_slab(SlabSlot slot) {
  Word* const w = slab_words(slot);
  const std::uint64_t word = w[0].load(std::memory_order_relaxed);
  if (word >> 32 == 0) return;
  w[0].store(std::uint64_t{static_cast<std::uint8_t>(KeptSlabState::kRetiring)} << 32 | (word & 0xFFFFFFFF),
             std::memory_order_release);
}

void KeptTable::drop_slab(SlabSlot slot) {
  slab_words(slot)[0].store(0, std::memory_order_release);
}

KeptSlab KeptTable::slab(SlabSlot slot) const {
  const Word* const w = slab_words(slot);
  const std::uint64_t word = w[0].load(std::memory_order_acquire);
  std::array<std::uint64_t, 4> words{word & 0xFFFFFFFF};
  for (std::size_t i = 1; i < words.size(); ++i) words[i] = w[i].load(std::memory_order_relaxed);
  const std::uint64_t state = word >> 32;
  if (state == 0 || state > static_cast<std::uint64_t>(KeptSlabState::kRetiring) ||
      w[4].load(std::memory_order_relaxed) != check_of(words, id_, slot.value))
    return {};
  return {SlabId(static_cast<std::uint32_t>(words[0])), ByteCount(words[1]), ByteCount(words[2]),
          NodeId(static_cast<std::int32_t>(words[3])), static_cast<KeptSlabState>(state)};
}

// ---- namespaces ----

void KeptTable::put_name_space(NamespaceIndex index, std::span<const std::byte, 32> digest) {
  Word* const w = name_words(index);
  const auto words = words_of_bytes(digest);
  w[0].store(0, std::memory_order_release);
  for (std::size_t i = 0; i < words.size(); ++i) w[i + 1].store(words[i], std::memory_order_release);
  w[0].store(check_of(words, id_, index.value) | 1, std::memory_order_release);
}

std::optional<std::array<std::byte, 32>> KeptTable::name_space(NamespaceIndex index) const {
  if (index.value >= limits::kNamespaces) return std::nullopt;
  const Word* const w = name_words(index);
  std::array<std::uint64_t, 4> words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = w[i + 1].load(std::memory_order_relaxed);
  if (w[0].load(std::memory_order_acquire) != (check_of(words, id_, index.value) | 1)) return std::nullopt;
  std::array<std::byte, 32> digest{};
  std::memcpy(digest.data(), words.data(), sizeof words);
  return digest;
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
  header().high_water[region].store(high_water_[region], std::memory_order_release);
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
  write(at, words, kSealedTag);
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
  image.place = place;
  image.digest = words[8];
  image.revision = AllocationId(words[9]);
  return Found::kSealed;
}

std::uint32_t KeptTable::high_water(KeptRegion region) const {
  return high_water_[static_cast<std::size_t>(region)];
}

}  // namespace orbitkv::mem
