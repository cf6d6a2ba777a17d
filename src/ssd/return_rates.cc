#include "ssd/return_rates.h"

#include <algorithm>
#include <bit>

namespace orbitkv::ssd {

namespace {

constexpr double kWeight = 100;  // blocks that a coarser kind counts for in a finer one
constexpr double kFirstRate = 0.5, kFirstWeight = 2;
constexpr std::uint8_t kShared = kMostHits, kForked = 2;  // hits of a prefix that many, or some, go on from

// Two buckets an octave.
std::uint32_t half_octave(std::uint32_t n) {
  if (n == 0) return 0;
  const auto octave = static_cast<std::uint32_t>(std::bit_width(n)) - 1;
  return 1 + 2 * octave + (octave > 0 ? n >> (octave - 1) & 1 : 0);
}

double blend(double came_back, double left, std::pair<double, double> prior) {
  return (came_back + prior.first * prior.second) / (left + prior.second);
}

}  // namespace

ReturnRates::ReturnRates() {
  order_.reserve(kClasses);
}

BlockClass ReturnRates::of(const NewBlock& block) {
  std::uint32_t origin = 0;
  if (block.known_run > 0) origin = block.branch_hits >= kShared ? 1 : block.branch_hits >= kForked ? 2 : 3;
  // Size 0 and end 0: the length is not known, or wrong.
  std::uint32_t size = 0, end = 0;
  if (block.position < block.length && block.known_run < block.length) {
    size = std::min(half_octave(block.length - block.known_run), kSizes - 1);
    end = std::min(static_cast<std::uint32_t>(std::bit_width(block.length - block.position)), kEnds - 1);
  }
  return BlockClass(static_cast<std::uint16_t>((origin * kSizes + size) * kEnds + end));
}

BlockClass ReturnRates::of_unasked() {
  return BlockClass(kPlaces);
}

BlockClass ReturnRates::of_returned(std::uint8_t hits) {
  return BlockClass(static_cast<std::uint16_t>(kPlaces + std::min<std::uint32_t>(hits, kOthers - 1)));
}

ReturnRates::Path ReturnRates::path_of(BlockClass kind) {
  const std::uint32_t place = kind.value, last = place % kEnds == 1 ? 1 : 0;
  const std::uint32_t origin = place / (kSizes * kEnds) * 2 + last;
  return {origin, origin * kSizes + place / kEnds % kSizes};
}

void ReturnRates::left(BlockClass kind) {
  ++cells_[kind.value].left;
  if (kind.value >= kPlaces) return;
  const Path path = path_of(kind);
  ++origins_[path.origin].left;
  ++sizes_[path.size].left;
}

void ReturnRates::came_back(BlockClass kind) {
  ++cells_[kind.value].came_back;
  if (kind.value >= kPlaces) return;
  const Path path = path_of(kind);
  ++origins_[path.origin].came_back;
  ++sizes_[path.size].came_back;
}

double ReturnRates::rate(BlockClass kind) const {
  const Cell& cell = cells_[kind.value];
  if (kind.value >= kPlaces) return blend(cell.came_back, cell.left, {kFirstRate, kFirstWeight});
  const Path path = path_of(kind);
  const Cell &origin = origins_[path.origin], &size = sizes_[path.size];
  const double coarse = blend(origin.came_back, origin.left, {kFirstRate, kFirstWeight});
  const double finer = blend(size.came_back, size.left, {coarse, kWeight});
  return blend(cell.came_back, cell.left, {finer, kWeight});
}

void ReturnRates::halve() {
  const auto half = [](auto& cells) {
    for (Cell& cell : cells) cell = {cell.left / 2, cell.came_back / 2};
  };
  half(origins_);
  half(sizes_);
  half(cells_);
}

void ReturnRates::plan(const Limits& limits) {
  double total = 0;
  order_.clear();
  for (std::uint32_t i = 0; i < kClasses; ++i) {
    unwritten_[i] = 0;
    if (cells_[i].left == 0) continue;
    total += cells_[i].left;
    order_.emplace_back(rate(BlockClass(static_cast<std::uint16_t>(i))), i);
  }
  std::sort(order_.begin(), order_.end());
  double lost = limits.returns_lost, too_many = 1 - limits.affordable;
  for (const auto& [rate, i] : order_) {
    const double share = cells_[i].left / total;
    const double part = std::clamp(std::max(lost / (rate * share), too_many / share), 0.0, 1.0);
    if (part == 0) break;
    unwritten_[i] = static_cast<std::uint16_t>(256 * part);
    lost = std::max(0.0, lost - rate * share * part);
    too_many -= share * part;
  }
}

}  // namespace orbitkv::ssd
