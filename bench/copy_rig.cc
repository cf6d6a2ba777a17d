#include "bench/copy_rig.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "base/text.h"
#include "model/slot_image.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint64_t kSeed = 0x0123456789abcdef;
constexpr std::uint32_t kSpoiled = 0xEEEEEEEE;
constexpr Duration kRegistrationLimit = seconds(60);

std::uint64_t wrong_bytes(const std::byte* found, const std::byte* expected, std::size_t bytes) {
  if (std::memcmp(found, expected, bytes) == 0) return 0;
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < bytes; ++i) wrong += found[i] != expected[i];
  return wrong;
}

std::vector<std::byte> random_content(std::uint64_t bytes) {
  std::vector<std::byte> content(bytes);
  std::mt19937_64 random(kSeed);
  for (std::uint64_t i = 0; i + 8 <= bytes; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(content.data() + i, &word, 8);
  }
  return content;
}

}  // namespace

// ---- bed ----

Result<std::unique_ptr<CopyBed>> CopyBed::make(Gpu& gpu, SetBytes set) {
  std::unique_ptr<CopyBed> bed(new CopyBed(gpu, set));
  const std::uint64_t bytes = set.value.value;
  // Headers are less than a thirty-second of the images.
  ORBITKV_ASSIGN_OR_RETURN(bed->slab_, FileMemory::make(ByteCount(3 * bytes + bytes / 16)));
  ORBITKV_ASSIGN_OR_RETURN(bed->pages_, GpuMemory::make(gpu, ByteCount(2 * bytes)));
  ORBITKV_ASSIGN_OR_RETURN(bed->plain_, GpuMemory::make(gpu, set.value));
  bed->content_ = random_content(2 * bytes);
  bed->parts_ = std::make_shared<device::cuda::DeviceParts>();
  bed->parts_->context = gpu.context();
  bed->parts_->slabs =
      std::make_shared<device::cuda::SlabTable>(gpu.context(), device::cuda::SlabOptions{.in_pieces = false});
  bed->parts_->slabs->add(bed->slab_->bytes());
  const TimePoint limit = monotonic_now() + kRegistrationLimit;
  while (bed->parts_->slabs->registered() == 0) {
    if (monotonic_now() > limit) return bug("the driver has not registered the bench's slab");
    usleep(1000);
  }
  return bed;
}

CopyBed::~CopyBed() {
  if (parts_) parts_->slabs->remove(slab_->bytes());
}

// ---- rig ----

Result<std::unique_ptr<CopyRig>> CopyRig::make(CopyBed& bed, const CopyShape& shape) {
  if (shape.set_bytes() > bed.set_.value) return bug("the shape is larger than the copy bench's memory");
  std::unique_ptr<CopyRig> rig(new CopyRig(bed, shape));
  rig->group_.num_blocks = 2 * shape.blocks;
  for (std::uint16_t layer = 0; layer < shape.layers; ++layer) {
    for (std::uint16_t component = 0; component < shape.components; ++component) {
      const std::uint32_t number = std::uint32_t{layer} * shape.components + component;
      rig->group_.shape.fragments.push_back({layer, component, ByteCount(shape.fragment_bytes)});
      rig->group_.fragments.push_back({.layer = layer,
                                       .component = component,
                                       .turn = layer,
                                       .base = bed.pages_->data() + rig->page_offset(number, 0),
                                       .block_stride = shape.fragment_bytes,
                                       .row_bytes = shape.fragment_bytes});
    }
  }
  rig->layout_ = model::slot_layout(rig->group_.shape);
  ORBITKV_RETURN_IF_ERROR(device::validate(rig->group_));
  rig->place_slots();
  ORBITKV_RETURN_IF_ERROR(bed.pages_->write(0, std::span(bed.content_).first(2 * shape.set_bytes().value)));
  return rig;
}

// Any block may be in any set, and any image at any place of the slab.
void CopyRig::place_slots() {
  std::vector<std::uint32_t> blocks(group_.num_blocks), places(group_.num_blocks);
  std::iota(blocks.begin(), blocks.end(), 0u);
  std::iota(places.begin(), places.end(), 0u);
  std::mt19937 random(7);
  std::shuffle(blocks.begin(), blocks.end(), random);
  std::shuffle(places.begin(), places.end(), random);
  std::byte* images = bed_.slab_->bytes().data() + bed_.set_bytes();
  for (std::uint32_t i = 0; i < group_.num_blocks; ++i) {
    sets_[i / shape_.blocks].push_back({.image = images + places[i] * layout_.slot_bytes,
                                        .block = blocks[i],
                                        .allocation = AllocationId(i + 1),
                                        .seed = kSeed + i});
  }
}

device::CopyBatch CopyRig::batch(device::Direction direction, std::span<device::SlotCopy> slots) const {
  device::CopyBatch made;
  made.direction = direction;
  made.groups.push_back({&group_, slots});
  return made;
}

std::vector<Piece> CopyRig::pieces(Set set) const {
  std::vector<Piece> out;
  for (std::uint32_t f = 0; f < shape_.fragments(); ++f)
    for (const device::SlotCopy& slot : sets_[static_cast<std::size_t>(set)])
      out.push_back(
          {bed_.pages_->at() + page_offset(f, slot.block), slot.image + layout_.fragment_offsets[f]});
  return out;
}

Status CopyRig::spoil_pages() {
  return bed_.pages_->fill(kSpoiled);
}

void CopyRig::spoil_images(Set set) {
  for (const device::SlotCopy& slot : slots(set))
    std::memset(slot.image, kSpoiled & 0xFF, layout_.slot_bytes);
}

// Read through the slab's plain part, which the driver knows: pageable memory is slower.
Result<std::uint64_t> CopyRig::wrong_page_bytes() const {
  const std::uint64_t all = 2 * shape_.set_bytes().value;
  std::uint64_t wrong = 0;
  for (std::uint64_t at = 0; at < all;) {
    const std::uint64_t bytes = std::min(all - at, bed_.set_bytes());
    ORBITKV_RETURN_IF_ERROR(bed_.pages_->read({bed_.plain_host(), bytes}, at));
    wrong += wrong_bytes(bed_.plain_host(), bed_.content_.data() + at, bytes);
    at += bytes;
  }
  return wrong;
}

std::uint64_t CopyRig::wrong_image_bytes(Set set) const {
  return wrong_image_bytes(pieces(set));
}

Result<std::uint64_t> CopyRig::wrong_page_bytes(std::span<const Piece> pieces) const {
  std::uint64_t wrong = 0;
  for (const Piece& piece : pieces) {
    const std::uint64_t at = piece.page - bed_.pages_->at();
    ORBITKV_RETURN_IF_ERROR(bed_.pages_->read({bed_.plain_host(), shape_.fragment_bytes}, at));
    wrong += wrong_bytes(bed_.plain_host(), bed_.content_.data() + at, shape_.fragment_bytes);
  }
  return wrong;
}

std::uint64_t CopyRig::wrong_image_bytes(std::span<const Piece> pieces) const {
  std::uint64_t wrong = 0;
  for (const Piece& piece : pieces) {
    const std::byte* expected = bed_.content_.data() + (piece.page - bed_.pages_->at());
    wrong += wrong_bytes(piece.image, expected, shape_.fragment_bytes);
  }
  return wrong;
}

// ---- operations ----

Status check_end(const device::CopyEnd& end) {
  ORBITKV_RETURN_IF_ERROR(end.status);
  if (end.stats.bounced) return bug("a copy went through the bounce buffer although its slab is registered");
  return ok_status();
}

Result<Copied> copy_once(device::Copier& copier, device::CopyBatch batch) {
  const bool restores = batch.direction == device::Direction::kRestore;
  const std::vector<device::GroupCopy> groups = batch.groups;
  const TimePoint start = monotonic_now();
  ORBITKV_ASSIGN_OR_RETURN(const device::CopyTicket ticket, copier.submit(std::move(batch)));
  for (;;) {
    const auto end = copier.poll(ticket);
    if (!end) continue;
    const Duration took = monotonic_now() - start;
    ORBITKV_RETURN_IF_ERROR(check_end(*end));
    for (const device::GroupCopy& group : groups)
      for (const device::SlotCopy& slot : group.slots)
        if (restores && !slot.verified) return bug("a restored block was found wrong by its checksum");
    return Copied{took, end->stats};
  }
}

}  // namespace orbitkv::bench
