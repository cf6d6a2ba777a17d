#include "sim/plants.h"

#include <array>
#include <cstddef>

namespace orbitkv::sim {
namespace {
constexpr std::array<const char*, static_cast<std::size_t>(Plant::kCount)> kNames = {
    "none",
    "wrong_bytes",
    "early_pages",
    "stray_copy",
    "shared_extent",
    "leaked_extent",
    "unwritten_shard",
    "lost_reply",
    "lost_operation",
    "long_wait",
    "short_claim",
    "swallowed_close",
    "timeless_claim",
    "unheard_death",
    "hasty_unmap",
    "cut_reply",
    "deaf_disk",
    "dropped_extent",
    "forgotten_lent",
    "early_seal",
    "forgotten_block",
    "stale_block",
    "names_again",
    "lost_plans",
    "unheard_end",
    "held_name",
};
}  // namespace

const char* name_of(Plant plant) {
  return kNames[static_cast<std::size_t>(plant)];
}

}  // namespace orbitkv::sim
