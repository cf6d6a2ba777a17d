// What happens to the Manager: its operator, and faults.
#include <iterator>

#include "sim/manager_node.h"
#include "sim/world.h"
#include "wire/command.h"

namespace orbitkv::sim {

void ManagerNode::ask(const std::string& question) {
  if (!alive() || doomed_) return;
  control_->ask(question, world_.now(), [](const Result<std::string>&) {});
  after_turn();
  schedule(microseconds(20));
}

void ManagerNode::evict(ByteCount bytes) {
  ask(R"({"command": "evict", "bytes": )" + std::to_string(bytes.value) + "}");
}

void ManagerNode::drop_space(std::uint32_t space) {
  if (!alive() || !tier_) return;
  const auto spaces = tier_->store().spaces();
  if (spaces.empty()) return;
  std::string digest;
  constexpr char kHex[] = "0123456789abcdef";
  for (const std::byte b : spaces[space % spaces.size()].digest.bytes) {
    digest += kHex[std::to_integer<unsigned>(b) >> 4];
    digest += kHex[std::to_integer<unsigned>(b) & 15];
  }
  ask(R"({"command": "ssd_drop", "digest": ")" + digest + "\"}");
}

// No more than twice what it began with: programs are long.
void ManagerNode::add_slab() {
  if (!alive() || doomed_) return;
  const std::uint64_t slab = world_.config().slab.value;
  const std::uint64_t most = 2 * ((world_.config().pool.value + slab - 1) / slab);
  if (host_->slabs().wanted() < most)
    ask(R"({"command": "pool_add", "bytes": )" + std::to_string(slab) + "}");
}

void ManagerNode::drain_slab(std::uint64_t word) {
  if (!alive() || doomed_) return;
  if (word % 2 == 0)
    return ask(R"({"command": "pool_drain", "bytes": )" + std::to_string(world_.config().slab.value) + "}");
  const auto& slabs = pool_->slabs();
  ask(R"({"command": "pool_drain", "slab": )" + std::to_string(slabs[(word >> 1) % slabs.size()].id.value) +
      "}");
}

void ManagerNode::press() {
  if (alive() && !doomed_) host_->slabs().on_pressure(world_.now());
}

void ManagerNode::flip_image(std::uint64_t word) {
  if (!alive()) return;
  const mem::MappedSlab& slab =
      std::next(view_->slabs.begin(), static_cast<std::ptrdiff_t>(word % view_->slabs.size()))->second;
  const std::uint64_t at = (word >> 8) % slab.bytes().value;
  // Not under a disk, which is checked for that.
  if (world_.ledger().free({life_, slab.id(), at, ByteCount(1)})) slab.base()[at] ^= std::byte{2};
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
