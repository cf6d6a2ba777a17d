// A mutator that knows what frames are made of: fields of 1, 2, 4 or 8 bytes at
// multiples of their size, and limits beside which bugs live. Half of the mutations are
// libFuzzer's own.
#include <cstdint>
#include <cstring>
#include <random>

#include "base/limits.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace {

using orbitkv::limits::kBlocksPerGrant;

constexpr std::uint64_t kEdges[] = {0,
                                    orbitkv::limits::kShards,
                                    orbitkv::limits::kLayers,
                                    orbitkv::limits::kFragmentsPerSlot,
                                    kBlocksPerGrant,
                                    orbitkv::limits::kDescriptorSlotBytes,
                                    orbitkv::limits::kMetadataPerOperation.value / 32,
                                    orbitkv::limits::kSlotImageBytes.value,
                                    orbitkv::limits::kSlabBytes.value,
                                    std::uint64_t{1} << 56,
                                    0x80,
                                    0x100};

std::uint64_t interesting(std::minstd_rand& random) {
  switch (random() % 3) {
    case 0: return random() % (random() % 2 == 0 ? 8 : 80);
    case 1: return std::uint64_t{0} - random() % 3;
    default: return kEdges[random() % std::size(kEdges)] + random() % 3 - 1;
  }
}

void set_field(std::uint8_t* data, std::size_t size, std::minstd_rand& random) {
  const std::size_t width = std::size_t{1} << random() % 4;
  if (size < width) return;
  const std::size_t at = random() % (size / width) * width;
  const std::uint64_t value = interesting(random);
  std::memcpy(data + at, &value, width);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned seed) {
  std::minstd_rand random(seed);
  if (random() % 2 == 0) return LLVMFuzzerMutate(data, size, most);
  for (std::uint64_t fields = 1 + random() % 3; fields > 0; --fields) set_field(data, size, random);
  return size;
}
