#include "tests/native/kill_matrix/witness.h"

#include <unistd.h>

#include <atomic>
#include <string>

#include "base/time.h"

namespace orbitkv::test::kills {

Engine::Restored restore_loaded(Engine& engine, std::uint32_t block, std::uint64_t hash,
                                std::uint32_t count) {
  static std::atomic<std::uint64_t> number{0};
  const auto hashes = hashes_of(hash, count);
  const std::string id = "witness " + std::to_string(++number);
  const TimePoint deadline = monotonic_now() + milliseconds(kDoneWithinMs);
  Engine::Restored out;
  client::Ready ready;
  client::Outcome outcome;
  do {
    outcome = engine.client().query_prefetch(engine.instance(), hashes, id, 0, ready);
    if (outcome.ok() && ready.loading) ::usleep(1000);
  } while (outcome.ok() && ready.loading && monotonic_now() < deadline);
  if (!outcome.ok() || ready.loading) {
    out.status = {true, false, 0, ready.loading ? "a query does not end" : outcome.message};
    return out;
  }
  out.hits = ready.hit_blocks;
  if (out.hits == 0) return out;
  const auto blocks = blocks_of(block, out.hits);
  out.status = engine.restore_from(ready.lease, blocks);
  if (!out.status.success) return out;
  for (std::uint32_t i = 0; i < out.hits; ++i) out.wrong += engine.wrong_bytes(blocks[i], hashes[i]);
  return out;
}

}  // namespace orbitkv::test::kills
