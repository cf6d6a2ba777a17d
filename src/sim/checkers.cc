#include "sim/checkers.h"

#include <numeric>

#include "base/limits.h"
#include "cache/overtaken.h"

namespace orbitkv::sim {
namespace {

template <class Counts>
std::uint64_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}
template <class State, class Counts>
std::uint64_t at(const Counts& counts, State state) {
  return counts[static_cast<std::size_t>(state)];
}
Wrong differs(const char* what, std::uint64_t counted, std::uint64_t said) {
  return {"conservation", std::string(what) + ": " + std::to_string(counted) + " by recount, " +
                              std::to_string(said) + " by the running counters"};
}

}  // namespace

std::optional<Wrong> recount(const cache::Core& core, const mem::Pool& pool, const Known& known) {
  using cache::ImageState;
  const cache::Census census = core.census();
  const cache::CoreStats stats = core.stats();
  const mem::PoolStats used = pool.stats();
  const ByteCount counted = census.held + used.quarantined + known.old;
  if (used.used != counted) return differs("bytes of the pool in use", counted.value, used.used.value);
  if (census.pins != census.pinned) return differs("pins of records", census.pinned, census.pins);
  const std::uint64_t operations = sum(census.publishes) + sum(census.restores);
  if (operations != stats.operations) return differs("open operations", operations, stats.operations);
  if (at(census.images, ImageState::kSealed) != stats.blocks)
    return differs("sealed images", at(census.images, ImageState::kSealed), stats.blocks);
  if (at(census.images, ImageState::kLent) != stats.inflight_images)
    return differs("images in flight", at(census.images, ImageState::kLent), stats.inflight_images);
  if (census.charged != stats.budgets.used)
    return differs("bytes charged to queries", census.charged.value, stats.budgets.used.value);
  // Reads that drain may be charged beside the restore that waits for them.
  const ByteCount charges = stats.budgets.used - stats.budgets.draining;
  if (charges > stats.budgets.limit)
    return differs("budget of queries, and what is charged", stats.budgets.limit.value, charges.value);
  if (census.tickets != stats.tickets) return differs("unfinished tickets", census.tickets, stats.tickets);
  // One that has ended by itself may not be known to have.
  if (census.owned > census.owners)
    return differs("queries of interests, and those that have one", census.owned, census.owners);
  if (sum(census.loads) != stats.loading) return differs("loads", sum(census.loads), stats.loading);
  if (at(census.images, ImageState::kLoading) != stats.loading)
    return differs("loading images", at(census.images, ImageState::kLoading), stats.loading);
  return starves(cache::most_overtaken(), known.instances);
}

// As cache/waiting.h promises it, for so many instances.
std::optional<Wrong> starves(std::uint32_t overtaken, std::uint32_t instances) {
  const std::uint32_t most = 2 * limits::kPasses + 2 * instances;
  if (overtaken > most)
    return Wrong{"starves", "while one was the first of its instance " + std::to_string(overtaken) +
                                " later ones were admitted before it, at most " + std::to_string(most) +
                                " may"};
  return std::nullopt;
}

}  // namespace orbitkv::sim
