// What of kept memory is no record: marks, slabs, namespaces. Each verifies for itself, and
// changes in one store.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "mem/kept_layout.h"

namespace orbitkv::mem {

using namespace kept;

namespace {

constexpr unsigned kStrideBits = 20;  // of an allocation bound's check; its strides are above
static_assert(KeptTable::kAllocationStride == std::uint64_t{1} << kStrideBits);

// Far from each other, and the check differs with them.
constexpr std::array<std::uint8_t, 4> kSlabTags{0, 0x69, 0x96, 0x0F};

KeptSlabState state_of(std::uint64_t seal) {
  const auto tag = static_cast<std::uint8_t>(seal >> kTagShift);
  const auto at = std::find(kSlabTags.begin() + 1, kSlabTags.end(), tag);
  return at == kSlabTags.end() ? KeptSlabState::kAbsent : static_cast<KeptSlabState>(at - kSlabTags.begin());
}

}  // namespace

KeptTable::Word* KeptTable::slab_words(SlabSlot slot) const {
  ORBITKV_CHECK(slot.value < limits::kSlabs, "slab slot above limits::kSlabs");
  return reinterpret_cast<Word*>(base_ + kSlabsAt) + slot.value * kSlabWords;
}

KeptTable::Word* KeptTable::retired_words(std::uint32_t place) const {
  return reinterpret_cast<Word*>(base_ + kRetiredAt) + place * kRetiredWords;
}

KeptTable::Word* KeptTable::name_words(NamespaceIndex index) const {
  ORBITKV_CHECK(index.value < limits::kNamespaces, "namespace above limits::kNamespaces");
  return reinterpret_cast<Word*>(base_ + kNamesAt) + index.value * kNameWords;
}

// ---- marks: value and check in one word ----

std::uint64_t KeptTable::complete_word(bool complete) const {
  return check_of(std::array<std::uint64_t, 1>{complete}, id_,
                  what(Kind::kMark, static_cast<std::uint64_t>(Mark::kComplete)));
}

std::uint64_t KeptTable::mark_word(Mark mark, std::uint32_t value) const {
  const std::uint64_t check =
      check_of(std::array<std::uint64_t, 1>{value}, id_, what(Kind::kMark, static_cast<std::uint64_t>(mark)));
  return std::uint64_t{value} << 32 | check >> 32;
}

std::optional<std::uint32_t> KeptTable::mark_value(Mark mark, std::uint64_t word) const {
  const auto value = static_cast<std::uint32_t>(word >> 32);
  if (word != mark_word(mark, value)) return std::nullopt;
  return value;
}

KeptTable::Mark KeptTable::high_water_mark(std::size_t region) {
  return static_cast<Mark>(static_cast<std::size_t>(Mark::kHighWater) + region);
}

// Written twice: a check of 20 bits alone says little.
std::uint64_t KeptTable::allocations_word(std::uint64_t strides, bool second) const {
  const std::uint64_t check = check_of(std::array<std::uint64_t, 2>{strides, second}, id_,
                                       what(Kind::kMark, static_cast<std::uint64_t>(Mark::kAllocations)));
  return strides << kStrideBits | check >> (64 - kStrideBits);
}

void KeptTable::begin_marks() {
  Header& header = this->header();
  header.next_name = mark_word(Mark::kName, 0);
  header.wanted = mark_word(Mark::kWanted, 0);
  for (std::size_t i = 0; i < header.allocations.size(); ++i)
    header.allocations[i] = allocations_word(0, i == 1);
  for (std::size_t r = 0; r < kRegions; ++r) header.high_water[r] = mark_word(high_water_mark(r), 0);
  header.complete.store(complete_word(false), std::memory_order_release);
}

// Of records that may have been lent none is passed over, and no name and no id is given twice.
bool KeptTable::read_marks() {
  const Header& header = this->header();
  for (std::size_t r = 0; r < kRegions; ++r) {
    const std::uint32_t most = std::array{shape_.first, shape_.further, shape_.pending}[r];
    high_water_[r] =
        std::min(mark_value(high_water_mark(r), header.high_water[r].load()).value_or(most), most);
  }
  for (std::size_t i = 0; i < header.allocations.size(); ++i) {
    const std::uint64_t word = header.allocations[i].load(), strides = word >> kStrideBits;
    if (word != allocations_word(strides, i == 1)) return false;
    allocations_ = std::max(allocations_, strides << kStrideBits);
  }
  return mark_value(Mark::kName, header.next_name.load()).has_value();
}

void KeptTable::set_complete() {
  header().complete.store(complete_word(true), std::memory_order_release);
}

void KeptTable::set_superseded() {
  header().complete.store(complete_word(false), std::memory_order_release);
}

void KeptTable::name_given(SlabId next) {
  header().next_name.store(mark_word(Mark::kName, next.value), std::memory_order_release);
}

std::uint32_t KeptTable::next_name() const {
  return mark_value(Mark::kName, header().next_name.load(std::memory_order_relaxed)).value_or(0);
}

void KeptTable::reserve_allocations(std::uint64_t last) {
  const std::uint64_t strides = (last >> kStrideBits) + 1;
  allocations_ = strides << kStrideBits;
  for (std::size_t i = 0; i < header().allocations.size(); ++i)
    header().allocations[i].store(allocations_word(strides, i == 1), std::memory_order_release);
}

AllocationId KeptTable::allocations() const {
  return AllocationId(allocations_);
}

void KeptTable::set_wanted(std::uint32_t slabs) {
  header().wanted.store(mark_word(Mark::kWanted, slabs), std::memory_order_release);
}

std::uint32_t KeptTable::wanted() const {
  return mark_value(Mark::kWanted, header().wanted.load(std::memory_order_relaxed)).value_or(0);
}

// The number is a check itself: of other files, or of none, it is another one.
void KeptTable::set_device_files(DeviceFiles files) {
  header().device_files.store(files.value, std::memory_order_release);
}

DeviceFiles KeptTable::device_files() const {
  return DeviceFiles(header().device_files.load(std::memory_order_relaxed));
}

// ---- slabs: the seal is over state and all words, and the only one that changes ----

std::uint64_t KeptTable::slab_seal(SlabSlot slot, KeptSlabState state) const {
  const Word* const w = slab_words(slot);
  const std::uint64_t tag = kSlabTags[static_cast<std::size_t>(state)];
  std::array<std::uint64_t, 5> words{tag};
  for (std::size_t i = 1; i < words.size(); ++i) words[i] = w[i].load(std::memory_order_relaxed);
  return tag << kTagShift | (check_of(words, id_, what(Kind::kSlab, slot.value)) & kCheckMask);
}

void KeptTable::put_slab(SlabSlot slot, const KeptSlab& slab) {
  Word* const w = slab_words(slot);
  w[0].store(0, std::memory_order_release);
  w[1].store(slab.name.value, std::memory_order_release);
  w[2].store(slab.bytes.value, std::memory_order_release);
  w[3].store(slab.huge.value, std::memory_order_release);
  w[4].store(static_cast<std::uint32_t>(slab.node.value), std::memory_order_release);
  w[0].store(slab_seal(slot, slab.state), std::memory_order_release);
}

void KeptTable::change_slab(SlabSlot slot, KeptSlabState state) {
  slab_words(slot)[0].store(slab_seal(slot, state), std::memory_order_release);
}

void KeptTable::taint_slab(SlabSlot slot) {
  if (slab(slot).state == KeptSlabState::kLive) change_slab(slot, KeptSlabState::kTainted);
}

void KeptTable::retire_slab(SlabSlot slot) {
  if (slab(slot).state != KeptSlabState::kAbsent) change_slab(slot, KeptSlabState::kRetiring);
}

void KeptTable::drop_slab(SlabSlot slot) {
  slab_words(slot)[0].store(0, std::memory_order_release);
}

KeptSlab KeptTable::slab(SlabSlot slot) const {
  const Word* const w = slab_words(slot);
  const std::uint64_t seal = w[0].load(std::memory_order_acquire);
  const KeptSlabState state = state_of(seal);
  if (state == KeptSlabState::kAbsent || seal != slab_seal(slot, state)) return {};
  return {SlabId(static_cast<std::uint32_t>(w[1].load(std::memory_order_relaxed))),
          ByteCount(w[2].load(std::memory_order_relaxed)), ByteCount(w[3].load(std::memory_order_relaxed)),
          NodeId(static_cast<std::int32_t>(w[4].load(std::memory_order_relaxed))), state};
}

std::uint64_t KeptTable::retired_seal(std::uint32_t place) const {
  const Word* const w = retired_words(place);
  const std::array<std::uint64_t, 2> words{w[1].load(std::memory_order_relaxed),
                                           w[2].load(std::memory_order_relaxed)};
  return check_of(words, id_, what(Kind::kRetired, place)) | 1;
}

void KeptTable::put_retired(const KeptRetired& slab) {
  for (std::uint32_t place = 0; place < limits::kKeptRetired; ++place) {
    Word* const w = retired_words(place);
    if (w[0].load(std::memory_order_relaxed) != 0) continue;
    w[1].store(slab.name.value, std::memory_order_release);
    w[2].store(slab.bytes.value, std::memory_order_release);
    w[0].store(retired_seal(place), std::memory_order_release);
    return;
  }
  ORBITKV_WARN("slab %u retires beyond the %u that are written down: the next Manager counts it as free",
               slab.name.value, static_cast<unsigned>(limits::kKeptRetired));
}

void KeptTable::drop_retired(SlabId name) {
  for (std::uint32_t place = 0; place < limits::kKeptRetired; ++place) {
    Word* const w = retired_words(place);
    if (w[0].load(std::memory_order_relaxed) != 0 && w[1].load(std::memory_order_relaxed) == name.value)
      w[0].store(0, std::memory_order_release);
  }
}

std::vector<KeptRetired> KeptTable::retired() const {
  std::vector<KeptRetired> out;
  for (std::uint32_t place = 0; place < limits::kKeptRetired; ++place) {
    const Word* const w = retired_words(place);
    const std::uint64_t seal = w[0].load(std::memory_order_acquire);
    if (seal != 0 && seal == retired_seal(place))
      out.push_back({SlabId(static_cast<std::uint32_t>(w[1].load(std::memory_order_relaxed))),
                     ByteCount(w[2].load(std::memory_order_relaxed))});
  }
  return out;
}

// ---- namespaces: the digest, and when it is known the text, which may come later ----

std::uint64_t KeptTable::name_seal(NamespaceIndex index) const {
  const Word* const w = name_words(index);
  std::array<std::uint64_t, 4> words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = w[1 + i].load(std::memory_order_relaxed);
  return check_of(words, id_, what(Kind::kName, index.value)) | 1;
}

std::uint64_t KeptTable::text_seal(NamespaceIndex index, std::string_view text) const {
  std::array<std::uint64_t, 2 + kTextWords> words{name_seal(index), text.size()};
  std::memcpy(&words[2], text.data(), text.size());
  return check_of(words, id_, what(Kind::kText, index.value)) | 1;
}

void KeptTable::put_name_space(NamespaceIndex index, std::span<const std::byte, 32> digest) {
  Word* const w = name_words(index);
  std::array<std::uint64_t, 4> words{};
  std::memcpy(words.data(), digest.data(), sizeof words);
  w[0].store(0, std::memory_order_release);
  w[5].store(0, std::memory_order_release);
  for (std::size_t i = 0; i < words.size(); ++i) w[1 + i].store(words[i], std::memory_order_release);
  w[0].store(name_seal(index), std::memory_order_release);
}

void KeptTable::put_name_text(NamespaceIndex index, std::string_view text) {
  if (text.empty() || text.size() > limits::kNamespaceBytes) return;
  Word* const w = name_words(index);
  std::array<std::uint64_t, kTextWords> words{};
  std::memcpy(words.data(), text.data(), text.size());
  w[5].store(0, std::memory_order_release);
  w[6].store(text.size(), std::memory_order_release);
  for (std::size_t i = 0; i < words.size(); ++i) w[7 + i].store(words[i], std::memory_order_release);
  w[5].store(text_seal(index, text), std::memory_order_release);
}

std::optional<KeptName> KeptTable::name_space(NamespaceIndex index) const {
  if (index.value >= limits::kNamespaces) return std::nullopt;
  const Word* const w = name_words(index);
  if (w[0].load(std::memory_order_acquire) != name_seal(index)) return std::nullopt;
  KeptName name;
  std::array<std::uint64_t, kTextWords> words{};
  for (std::size_t i = 0; i < 4; ++i) words[i] = w[1 + i].load(std::memory_order_relaxed);
  std::memcpy(name.digest.data(), words.data(), name.digest.size());
  const std::uint64_t seal = w[5].load(std::memory_order_acquire);
  const std::uint64_t bytes = w[6].load(std::memory_order_relaxed);
  if (seal == 0 || bytes > limits::kNamespaceBytes) return name;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = w[7 + i].load(std::memory_order_relaxed);
  const std::string_view text(reinterpret_cast<const char*>(words.data()), bytes);
  if (seal == text_seal(index, text)) name.text = text;
  return name;
}

}  // namespace orbitkv::mem
