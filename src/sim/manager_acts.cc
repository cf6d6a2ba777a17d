// What happens to the Manager: its operator, and faults.
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "base/text.h"
#include "sim/cells.h"
#include "sim/manager_node.h"
#include "sim/world.h"
#include "wire/command.h"

namespace orbitkv::sim {

void ManagerNode::ask(const std::string& question,
                      const std::function<void(const Result<std::string>&)>& answered) {
  if (!listens() || leaving_) return;
  control_->ask(question, world_.now(), answered);
  after_turn();
  schedule(microseconds(20));
}

void ManagerNode::evict(ByteCount bytes) {
  ask(R"({"command": "evict", "bytes": )" + std::to_string(bytes.value) + "}");
}

void ManagerNode::drop_space(std::uint32_t space) {
  if (!listens() || !tier_) return;
  const auto spaces = tier_->store().spaces();
  if (spaces.empty()) return;
  ask(R"({"command": "ssd_drop", "digest": ")" + hex_text(spaces[space % spaces.size()].digest.bytes) +
      "\"}");
}

// All namespaces or one, of any age or not; in memory, on SSD, or both; or only what it would be.
void ManagerNode::drop(std::uint64_t word) {
  if (!listens()) return;
  std::string question = R"({"command": "drop")";
  const auto spaces = host_->core().namespaces();
  if (word % 3 != 0 && !spaces.empty())
    question += R"(, "digests": [")" + hex_text(spaces[(word >> 4) % spaces.size()].digest.bytes) + "\"]";
  constexpr const char* kWhere[] = {"all", "memory", "ssd"};
  constexpr std::uint64_t kMinutes[] = {0, 1, 1, 2};
  const std::uint64_t minutes = kMinutes[(word >> 8) % std::size(kMinutes)];
  question += R"(, "unused_s": )" + std::to_string(60 * minutes) + R"(, "where": ")" +
              kWhere[(word >> 12) % std::size(kWhere)] + '"';
  if ((word >> 16) % 8 == 0) question += R"(, "dry_run": true)";
  mark_opening(MetOpening::kDrop);
  ask(question + "}", [this, aged = minutes > 0](const Result<std::string>& answer) {
    if (answer.ok() && alive()) note_drop(aged, *answer);
  });
}

// Top-level fields come after the list of names, but for the number of blocks, which comes first.
void ManagerNode::note_drop(bool aged, const std::string& answer) {
  const auto number = [&](std::size_t at, std::string_view field) {
    return at == std::string::npos ? 0 : std::strtoull(answer.c_str() + at + field.size(), nullptr, 10);
  };
  constexpr std::string_view kBlocks = "\"evicted\":", kRecords = "\"records\":";
  const std::uint64_t blocks = number(answer.find(kBlocks), kBlocks);
  const std::uint64_t records = number(answer.rfind(kRecords), kRecords);
  if (blocks + records == 0) mark_drop(aged, Dropped::kNothing);
  if (records > 0) mark_drop(aged, Dropped::kRecords);
  if (blocks > 0) mark_drop(aged, host_->core().stats().blocks > 0 ? Dropped::kSome : Dropped::kAll);
}

// No more than twice what it began with: programs are long.
void ManagerNode::add_slab() {
  if (!listens()) return;
  const std::uint64_t slab = world_.config().slab.value;
  const std::uint64_t most = 2 * ((world_.config().pool.value + slab - 1) / slab);
  if (host_->slabs().wanted() < most)
    ask(R"({"command": "pool_add", "bytes": )" + std::to_string(slab) + "}");
}

void ManagerNode::drain_slab(std::uint64_t word) {
  if (!listens()) return;
  const auto& slabs = pool_->slabs();
  std::string which = R"("bytes": )" + std::to_string(world_.config().slab.value);
  if (word % 2 != 0 && !slabs.empty())
    which = R"("slab": )" + std::to_string(slabs[(word >> 1) % slabs.size()].id.value);
  ask(R"({"command": "pool_drain", )" + which + "}");
  if ((word >> 32) % 4 == 0 || !listens()) return;
  tick_host();  // at times its next tick is due at once
  after_turn();
}

void ManagerNode::stop(Duration time) {
  stopped_until_ = std::max(stopped_until_, world_.now() + time);
  world_.delay(time);
}

bool ManagerNode::stopped() const {
  return world_.now() < stopped_until_;
}

void ManagerNode::press() {
  if (listens()) host_->slabs().on_pressure(world_.now());
}

void ManagerNode::flip_image(std::uint64_t word) {
  if (!alive()) return;
  const mem::MappedSlab& slab =
      std::next(view_->slabs.begin(), static_cast<std::ptrdiff_t>(word % view_->slabs.size()))->second;
  const std::uint64_t at = (word >> 8) % slab.bytes().value;
  // Not under a disk, which is checked for that.
  const Place place{view_->pool, slab.id(), at, ByteCount(1)};
  if (!world_.ledger().free(place)) return;
  slab.base()[at] ^= std::byte{2};
  world_.ledger().damage(place);
}

// ---- faults ----

// Another bit in an entry of a ring that has been written and not read.
void ManagerNode::garble_command(Epoch epoch, std::uint64_t word) {
  const Peer* peer = peer_of(epoch);
  if (!peer) return;
  const std::uint64_t tail = peer->memory->header().command_tail.load();
  std::byte* entry =
      peer->memory->ring(shm::Side::kClient) + (tail - 1) % limits::kRingEntries * wire::kCommandBytes;
  entry[word % wire::kCommandBytes] ^= std::byte{8};
}

void ManagerNode::garble_reply(Epoch epoch, std::uint64_t word) {
  const Peer* peer = peer_of(epoch);
  if (!peer) return;
  const std::uint64_t tail = peer->memory->header().reply_tail.load();
  if (tail == 0 || tail == peer->memory->header().reply_head.load()) return;
  std::byte* entry =
      peer->memory->ring(shm::Side::kManager) + (tail - 1) % limits::kRingEntries * wire::kCommandBytes;
  entry[word % wire::kCommandBytes] ^= std::byte{8};
}

}  // namespace orbitkv::sim
