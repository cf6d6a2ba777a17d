#include "sim/session_memories.h"

#include <unistd.h>

#include <utility>
#include <vector>

#include "base/check.h"

namespace orbitkv::sim {
namespace {
using Stock = std::vector<std::unique_ptr<shm::SessionMemory>>;
constexpr std::size_t kMostInStock = 128;  // a run whose clients attach all the time leaves thousands

// A child has none of its parent's mappings: it begins with none, and unmaps nothing.
Stock& stock() {
  static thread_local Stock memories;
  static thread_local pid_t owner = ::getpid();
  if (owner != ::getpid()) {
    owner = ::getpid();
    for (auto& memory : memories) (void)memory.release();
    memories.clear();
  }
  return memories;
}
}  // namespace

std::shared_ptr<shm::SessionMemory> session_memory(SessionId session, Epoch epoch) {
  std::unique_ptr<shm::SessionMemory> memory;
  if (stock().empty()) {
    auto made = shm::SessionMemory::create(session, epoch);
    ORBITKV_CHECK(made.ok(), made.ok() ? "" : made.error().message().c_str());
    memory = std::make_unique<shm::SessionMemory>(std::move(*made));
  } else {
    memory = std::move(stock().back());
    stock().pop_back();
    memory->renew(session, epoch);
  }
  return {memory.release(), [](shm::SessionMemory* used) {
            std::unique_ptr<shm::SessionMemory> again(used);
            if (stock().size() < kMostInStock) stock().push_back(std::move(again));
          }};
}

std::span<std::byte> state_of(const shm::SessionMemory& memory) {
  return {reinterpret_cast<std::byte*>(&memory.header()), shm::SessionLayout::kSlots};
}

}  // namespace orbitkv::sim
