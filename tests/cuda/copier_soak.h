// Random rounds of save and restore through every path of the copier, on any driver table:
// random geometry, blocks, places, methods, fences, layer events, damaged images and calls
// of the driver that fail. After each restore the whole destination and what lies around
// every image is compared with what it should be. Says every few seconds on stdout how far
// it is, and ends the process where a round does not end. Tests only.
#pragma once

#include <cstdint>
#include <string>

#include "tests/cuda/driver_bed.h"

namespace orbitkv::device::cuda {

struct SoakOptions {
  std::uint32_t rounds = 200;
  std::uint64_t seed = 1;
};

struct SoakReport {
  std::uint64_t rounds = 0, images = 0, bytes = 0;
  std::uint64_t damaged = 0;         // images that were, and had to be refused
  std::uint64_t failed_calls = 0;    // calls of the driver that were made to fail
  std::uint64_t failed_batches = 0;  // that ended with an error because of it
  // What must stay 0.
  std::uint64_t wrong_bytes = 0;     // in pages, images and guards
  std::uint64_t wrong_verdicts = 0;  // of images
  std::uint64_t wrong_ends = 0;      // of batches: an error without a reason, or none with one
  std::uint64_t late_layers = 0;     // events that came before one of an earlier layer, or never
  std::string line() const;
  bool right() const { return wrong_bytes + wrong_verdicts + wrong_ends + late_layers == 0; }
};

SoakReport run_soak(const Bed& bed, const SoakOptions& options);

}  // namespace orbitkv::device::cuda
