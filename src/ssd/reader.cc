#include "ssd/reader.h"

#include <algorithm>

#include "base/check.h"
#include "model/slot_image.h"

namespace orbitkv::ssd {

bool headers_right(const Space& space, const BlockHash& hash, std::span<const SlotMemory> slots) {
  std::vector<std::byte> header;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto bytes = slots[i].memory.first(space.layout.header_bytes);
    header.assign(bytes.begin(), bytes.end());
    const std::uint64_t seed =
        model::slot_seed({space.shape.digest, space.shape.group, hash, ShardId(static_cast<std::uint16_t>(i)),
                          slots[i].mark.revision});
    if (model::slot_header_digest(header, seed) != slots[i].mark.digest) return false;
  }
  return true;
}

Result<TransferId> Reader::read(StoredRef ref, std::span<SlotMemory> slots) {
  if (!state_.visible(ref)) return recompute("the block has left the SSD");
  if (state_.closing) return busy("the SSD store is closing");
  if (reads_.size() >= state_.config.reads) {
    return busy(std::to_string(state_.config.reads) + " blocks are being read from the SSD; try again later");
  }
  const IndexRecord record = state_.index.at(ref.id);
  ORBITKV_CHECK(slots.size() == record.shards, "a read with another number of images than shards");
  std::vector<ImageMark> marks(record.shards);
  state_.index.marks(ref.id, marks);
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i].mark = marks[i];
  state_.index.flags(ref.id) |= kHot;
  state_.used_now(ref.id);
  ++state_.segments.at(record.segment).readers;
  ++state_.spaces.at(record.space).holds;
  Reads one;
  one.push_back({state_.next_transfer(), ref, record, {slots.begin(), slots.end()}, 0, 0});
  reads_.splice(reads_.begin(), one);
  const TransferId transfer = reads_.front().transfer;
  send(reads_.begin());
  return transfer;
}

// One request an image; images without a gap between them go in one.
void Reader::send(Reads::iterator read) {
  const std::uint64_t image = std::uint64_t{read->record.image_pages} * kPageBytes;
  const FileIndex file = state_.path_of(read->record.segment).file;
  const std::uint64_t first = state_.offset_of(read->record.segment, read->record.first_page);
  std::vector<Dispatch::Request> requests;
  bool gap = true;
  for (std::size_t i = 0; i < read->slots.size(); ++i) {
    if (gap || requests.back().pieces.size() == kPieces) {
      requests.push_back({IoOp::kRead, file, first + i * image, {}});
    }
    requests.back().pieces.push_back(read->slots[i].memory);
    gap = read->slots[i].memory.size() < image;
  }
  read->left = static_cast<std::uint32_t>(requests.size());
  for (Dispatch::Request& request : requests) {
    state_.io.submit(std::move(request), [this, read](int error) {
      if (read->error == 0) read->error = error;
      if (--read->left == 0) ended(read);
    });
  }
}

void Reader::ended(Reads::iterator read) {
  --state_.segments.at(read->record.segment).readers;
  const Loss loss = judge(*read);
  if (loss == Loss::kNone) {
    ++state_.stats.reads;
    for (const SlotMemory& slot : read->slots) state_.stats.read += ByteCount(slot.memory.size());
  }
  state_.report({StoreEvent::Kind::kRead, read->transfer, loss == Loss::kNone, Refusal::kNone, loss});
  const StoredRef ref = read->ref;
  const SpaceIndex space = read->record.space;
  reads_.erase(read);
  if (loss == Loss::kDeviceError) device_failed(ref);
  if (loss == Loss::kCorrupt) judges_.suspect(ref);
  --state_.spaces.at(space).holds;
  state_.spaces.let_go(space);
}

Loss Reader::judge(const Read& read) const {
  const Space& space = state_.spaces.at(read.record.space);
  if (read.record.sequence <= space.killed) return Loss::kNamespace;
  if (read.error != 0) return Loss::kDeviceError;
  return headers_right(space, read.record.hash, read.slots) ? Loss::kNone : Loss::kCorrupt;
}

bool Reader::uses(std::span<const std::byte> memory) const {
  return std::any_of(reads_.begin(), reads_.end(),
                     [memory](const Read& read) { return any_overlaps(read.slots, memory); });
}

void Reader::device_failed(StoredRef ref) {
  if (!state_.visible(ref)) return;
  std::uint8_t& flags = state_.index.flags(ref.id);
  if ((flags & kFailedOnce) != 0) return judges_.condemn(ref);
  flags |= kFailedOnce;
}

}  // namespace orbitkv::ssd
