#include "sim/kept_memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "base/check.h"
#include "device/host/host_copier.h"
#include "model/slot_image.h"
#include "sim/random.h"
#include "sim/session_memories.h"

namespace orbitkv::sim {
namespace {

// Each: begin and end, in a file that is empty elsewhere.
std::vector<std::pair<off_t, off_t>> pieces_of(int fd) {
  std::vector<std::pair<off_t, off_t>> out;
  for (off_t at = 0;;) {
    const off_t begin = ::lseek(fd, at, SEEK_DATA);
    if (begin < 0) return out;
    at = ::lseek(fd, begin, SEEK_HOLE);
    ORBITKV_CHECK(at > begin, "where a memory file has data it ends");
    out.emplace_back(begin, at);
  }
}

}  // namespace

// ---- as it was ----

Frozen::Frozen(const std::vector<int>& files) {
  for (const int fd : files) {
    File& file = files_.emplace_back();
    file.fd = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    for (const auto& [begin, end] : pieces_of(fd)) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(end - begin));
      const bool read = ::pread(fd, bytes.data(), bytes.size(), begin) == end - begin;
      ORBITKV_CHECK(read, "a memory file can be read");
      file.pieces.emplace_back(begin, std::move(bytes));
    }
  }
}

void Frozen::thaw() const {
  for (const File& file : files_) {
    struct stat status{};
    ORBITKV_CHECK(::fstat(file.fd.get(), &status) == 0, "a memory file has a size");
    const bool emptied =
        ::fallocate(file.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, status.st_size) == 0;
    ORBITKV_CHECK(emptied, "a memory file can be emptied");
    for (const auto& [at, bytes] : file.pieces) {
      const auto written = ::pwrite(file.fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
      ORBITKV_CHECK(written == static_cast<ssize_t>(bytes.size()), "a memory file can be written");
    }
  }
}

FrozenSession::FrozenSession(const shm::SessionMemory& memory) : memory_(&memory) {
  const auto state = state_of(memory);
  state_.assign(state.begin(), state.end());
}

void FrozenSession::thaw() const {
  std::memcpy(state_of(*memory_).data(), state_.data(), state_.size());
}

// Where nothing was written, nothing is read. By words: tables have ids that are drawn for each, and
// which of their bytes are zero no run can repeat.
void damage_tables(const std::vector<int>& tables, std::uint64_t word) {
  if (tables.empty()) return;
  const int fd = tables[word % tables.size()];
  std::vector<std::pair<off_t, std::uint64_t>> written;
  for (const auto& [begin, end] : pieces_of(fd)) {
    std::vector<std::uint64_t> words(static_cast<std::size_t>(end - begin) / sizeof(std::uint64_t));
    const auto bytes = static_cast<ssize_t>(words.size() * sizeof(std::uint64_t));
    if (::pread(fd, words.data(), static_cast<std::size_t>(bytes), begin) != bytes) return;
    for (std::size_t i = 0; i < words.size(); ++i)
      if (words[i] != 0) written.emplace_back(begin + static_cast<off_t>(i * sizeof words[i]), words[i]);
  }
  if (written.empty()) return;
  auto [at, bits] = written[mix(word) % written.size()];
  bits ^= std::uint64_t{1} << (word >> 32) % 64;
  ORBITKV_CHECK(::pwrite(fd, &bits, sizeof bits, at) == sizeof bits, "a memory file can be written");
}

// ---- blocks ----

void KeptAudit::prepare() {
  static const std::unique_ptr<device::Device> device = device::make_host_device();
  for (const SpacePlan& space : config_.spaces) {
    for (std::uint16_t rank = 0; rank < space.world; ++rank) {
      Reader& reader = readers_.emplace_back();
      reader.space = space.index;
      reader.memory = std::make_shared<RankMemory>(space, rank, 1);
      auto entry = client::make_entry(registration_of(space, rank, *reader.memory), 1, *device);
      ORBITKV_CHECK(entry.ok(), entry.ok() ? "" : entry.error().message().c_str());
      reader.entry = std::move(*entry);
    }
  }
  for (std::uint32_t chain = 0; chain < config_.chains; ++chain) {
    for (std::uint32_t i = 0; i < config_.chain_blocks; ++i) {
      const BlockNumber block = block_at(chain, i);
      blocks_.emplace(hash_of(block).bytes, block);
    }
  }
}

bool KeptAudit::verifies(const mem::KeptImage& kept, const std::array<std::byte, 32>& name_space,
                         std::byte* image) {
  if (readers_.empty()) prepare();
  static const std::unique_ptr<device::Copier> copier = device::make_host_copier();
  const auto block = blocks_.find(kept.hash);
  if (block == blocks_.end()) return false;
  for (const Reader& reader : readers_) {
    if (model::namespace_digest(reader.entry->rank).bytes != name_space) continue;
    for (std::size_t g = 0; g < reader.entry->groups.size(); ++g) {
      const model::GroupShape& shape = reader.entry->groups[g].geometry.shape;
      if (shape.group != kept.group || shape.shard != kept.shard) continue;
      const model::SlotKey key{{name_space}, kept.group, BlockHash{kept.hash}, kept.shard, kept.revision};
      device::SlotCopy slot{image, 0, kept.revision, model::slot_seed(key), kept.digest, false};
      const device::GroupCopy one{&reader.entry->groups[g].geometry, {&slot, 1}};
      const auto ticket = copier->submit({device::Direction::kRestore, {one}, {}, {}});
      ORBITKV_CHECK(ticket.ok() && copier->poll(*ticket), "the host copier copies at once");
      const Content content = content_of({reader.space, kept.group, block->second, kept.shard});
      return slot.verified && reader.memory->holds(g, 0, content);
    }
  }
  return false;
}

}  // namespace orbitkv::sim
