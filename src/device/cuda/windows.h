// How much of a copy may be in flight, and by how many thread blocks: the smallest window
// that fills the link for a size of fragment. More does nothing for the copy and slows
// the compute beside it. Pure values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/copier.h"

namespace orbitkv::device::cuda {

struct Window {
  std::uint32_t ctas = 4;
  std::uint32_t stage_bytes = 16 * 1024;
  std::uint32_t loads = 2, stores = 2;  // stages, a CTA
  friend bool operator==(const Window&, const Window&) = default;
};

// Below it a stage holds several fragments, and finding them takes more blocks.
inline constexpr std::uint64_t kSmallFragment = 4096;
enum class SizeClass : std::uint8_t { kSmall, kLarge };
constexpr SizeClass size_class(std::uint64_t fragment_bytes) {
  return fragment_bytes < kSmallFragment ? SizeClass::kSmall : SizeClass::kLarge;
}

// At full pace rows, or fragments in one piece, of this size and more go by DMA: one call
// moves enough to hide what starting it costs. Never at gentle pace: DMA takes all of the
// link, and the pass that sums its bytes takes from the memory's bandwidth as well.
inline constexpr std::uint64_t kDirectFromFull = 8 * 1024 * 1024;
// The reads that a kernel sends over the link queue behind the writes of a save; DMA's do not.
inline constexpr std::uint64_t kDirectFromBesideSave = 64 * 1024;

// Up to here one pass of a kernel with the bytes in registers ends sooner than bulk copies
// that go through shared memory and several warps.
inline constexpr std::uint64_t kTinyBytes = 32 * 1024;
// What one launch of DMA copies: its sums run while the next one copies.
inline constexpr std::uint64_t kDirectBytes = 8 * 1024 * 1024;
// And how many copies. A queue takes about a thousand commands; then the driver holds the
// caller until the device has done some, which it may not begin before the engine's stream
// has come to the ready event. Eight launches stay well below.
inline constexpr std::uint64_t kDirectRuns = 64;
// Layers of restores on their way whose events the signal queue has been given, likewise: a
// wait and a record each.
inline constexpr std::size_t kSignalsInFlight = 256;
inline constexpr std::uint32_t kSumCtas = 32;  // of the kernel that sums them
// A call that takes many copies holds the context's lock while it works, and the engine's
// launches wait for it.
inline constexpr std::size_t kCopiesPerCall = 64;

// What one machine was found to need; the defaults come from an H200 on PCIe 5 x16.
struct Windows {
  // [direction][size class]
  std::array<std::array<Window, 2>, 2> full{{{Window{8, 8 * 1024, 2, 2}, Window{4, 16 * 1024, 2, 2}},
                                             {Window{8, 8 * 1024, 2, 2}, Window{4, 16 * 1024, 2, 2}}}};
  std::array<Window, 2> gentle{Window{2, 16 * 1024, 2, 1}, Window{1, 16 * 1024, 4, 2}};
  // Of the kernels without bulk copies, by pace; a block has 32 KiB in flight.
  std::array<std::uint32_t, 2> any_ctas{32, 3};

  std::uint32_t any_ctas_of(CopyPace pace) const { return any_ctas[static_cast<std::size_t>(pace)]; }
  const Window& of(Direction direction, CopyPace pace, std::uint64_t fragment_bytes) const {
    const auto d = static_cast<std::size_t>(direction);
    return pace == CopyPace::kGentle ? gentle[d]
                                     : full[d][static_cast<std::size_t>(size_class(fragment_bytes))];
  }
};

}  // namespace orbitkv::device::cuda
