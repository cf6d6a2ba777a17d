#include "ssd/open_segments.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace orbitkv::ssd {

OpenSegment* OpenSegments::current(PathIndex path, Use use) {
  Lane& lane = lanes_[path.value];
  if (lane.current == nullptr) lane.current = std::move(lane.next);
  if (lane.current == nullptr) return nullptr;
  if (lane.current->use == Use::kStore && state_.above_reserve(path)) lane.current->use = Use::kUsers;
  if (use == Use::kUsers && lane.current->use == Use::kStore) return nullptr;
  return lane.current.get();
}

bool OpenSegments::may_prepare(PathIndex path, Use use) const {
  const Lane& lane = lanes_[path.value];
  if (!state_.paths[path.value].writable()) return false;
  const auto serves = [use](Use other) { return use == Use::kStore || other == Use::kUsers; };
  if (lane.next != nullptr) return serves(lane.next->use);
  if (lane.opening) return serves(lane.opening->use);
  return use == Use::kUsers ? state_.above_reserve(path) : state_.segments.oldest_free(path).has_value();
}

bool OpenSegments::may_serve_users(PathIndex path) const {
  const Lane& lane = lanes_[path.value];
  if (lane.current != nullptr && (lane.current->use == Use::kUsers || state_.above_reserve(path)))
    return true;
  return may_prepare(path, Use::kUsers);
}

void OpenSegments::prepare(PathIndex path, Use use) {
  Lane& lane = lanes_[path.value];
  if (lane.next != nullptr || lane.opening || !may_prepare(path, use)) return;
  const Use for_whom = state_.above_reserve(path) ? Use::kUsers : Use::kStore;
  const SegmentIndex segment = *state_.segments.oldest_free(path);
  state_.segments.step(segment, SegmentEvent::kOpen);
  lane.opening.emplace(Opening{segment, state_.next_life(segment), PageBuffer(kPageBytes), for_whom});
  const Opening& opening = *lane.opening;
  const SegmentHeader header{opening.life, state_.segment_pages(),
                             static_cast<std::uint64_t>(::time(nullptr))};
  encode_segment_header(header, opening.header.span());
  state_.stats.device_written += ByteCount(kPageBytes);
  state_.io.submit(
      {IoOp::kWrite, state_.paths[path.value].file, state_.offset_of(segment, 0), {opening.header.span()}},
      [this, path](int error) { header_written(path, error); });
}

void OpenSegments::header_written(PathIndex path, int error) {
  Lane& lane = lanes_[path.value];
  if (error == 0) {
    durability_.sync(path, [this, path](bool ok) { header_durable(path, ok); });
    return;
  }
  state_.write_failed(path, error);
  const bool stopped = !state_.paths[path.value].writable();
  state_.segments.step(lane.opening->index, stopped ? SegmentEvent::kPutBack : SegmentEvent::kOpenFailed);
  lane.opening.reset();
}

void OpenSegments::header_durable(PathIndex path, bool ok) {
  Lane& lane = lanes_[path.value];
  const Opening opening = *std::exchange(lane.opening, std::nullopt);
  if (!ok) {
    state_.segments.step(opening.index, SegmentEvent::kPutBack);
    return;
  }
  state_.write_went_well(path);
  state_.segments.step(opening.index, SegmentEvent::kOpened);
  state_.segments.set_content(opening.index, opening.life.sequence);
  const SegmentRead read{opening.life, state_.segment_pages()};
  lane.next = std::make_unique<OpenSegment>(OpenSegment{opening.index, SegmentBuilder(read), 0, opening.use});
}

void OpenSegments::retire(PathIndex path) {
  Lane& lane = lanes_[path.value];
  ORBITKV_CHECK(lane.current != nullptr, "no segment to retire");
  OpenSegment& segment = *lane.current;
  lane.sealing.push_back(std::move(lane.current));
  state_.segments.step(segment.index, SegmentEvent::kSeal);
  if (segment.in_flight == 0) start_sealing(path, segment);
}

void OpenSegments::retire_all() {
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    while (current(PathIndex(i), Use::kStore) != nullptr) retire(PathIndex(i));
  }
}

void OpenSegments::batch_ended(PathIndex path, OpenSegment& segment) {
  --segment.in_flight;
  if (segment.in_flight > 0 || lanes_[path.value].current.get() == &segment) return;
  start_sealing(path, segment);
}

// The batches first: a durable footer says that they are right.
void OpenSegments::start_sealing(PathIndex path, OpenSegment& segment) {
  durability_.sync(path, [this, path, &segment](bool ok) {
    if (!ok) return sealed(path, segment);
    write_seal(path, segment);
  });
}

void OpenSegments::write_seal(PathIndex path, OpenSegment& segment) {
  const auto buffer = std::make_shared<PageBuffer>(std::size_t{segment.builder.seal_pages()} * kPageBytes);
  segment.builder.encode_seal(buffer->span());
  const std::uint64_t offset = state_.offset_of(segment.index, segment.builder.seal_place().first);
  state_.stats.device_written += ByteCount(buffer->size());
  state_.io.submit({IoOp::kWrite, state_.paths[path.value].file, offset, {buffer->span()}},
                   [this, path, buffer, &segment](int error) {
                     if (error == 0)
                       return durability_.sync(path, [this, path, &segment](bool) { sealed(path, segment); });
                     // Found batch by batch at the next start.
                     state_.write_failed(path, error);
                     sealed(path, segment);
                   });
}

void OpenSegments::sealed(PathIndex path, OpenSegment& segment) {
  state_.segments.step(segment.index, SegmentEvent::kSealed);
  auto& sealing = lanes_[path.value].sealing;
  std::erase_if(sealing, [&segment](const auto& each) { return each.get() == &segment; });
}

bool OpenSegments::idle() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return !lane.opening && lane.sealing.empty(); });
}

bool OpenSegments::none_open() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return lane.current == nullptr && lane.next == nullptr; });
}

}  // namespace orbitkv::ssd
