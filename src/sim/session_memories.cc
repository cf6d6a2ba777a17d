#include "sim/session_memories.h"

#include <pthread.h>

#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "wire/frame.h"

namespace orbitkv::sim {
namespace {
using Stock = std::vector<std::unique_ptr<shm::SessionMemory>>;
constexpr std::size_t kMostInStock = 512;  // a run whose clients attach all the time leaves thousands

Stock& stock() {
  static Stock memories;
  return memories;
}

// A child has none of its parent's mappings: it begins with none, and unmaps nothing.
void forget_stock() {
  for (auto& memory : stock()) (void)memory.release();
  stock().clear();
}
[[maybe_unused]] const int kChildrenForget = ::pthread_atfork(nullptr, nullptr, forget_stock);
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
    renew(*memory, session, epoch);
  }
  return {memory.release(), [](shm::SessionMemory* used) {
            std::unique_ptr<shm::SessionMemory> again(used);
            if (stock().size() < kMostInStock) stock().push_back(std::move(again));
          }};
}

std::span<std::byte> state_of(const shm::SessionMemory& memory) {
  std::uint32_t taken = 0;
  while (taken < limits::kRecords &&
         memory.record(RecordIndex(taken)).word.load(std::memory_order_relaxed) != 0)
    ++taken;
  return {reinterpret_cast<std::byte*>(&memory.header()),
          shm::SessionLayout::kRecords + sizeof(shm::RecordLayout) * taken};
}

void renew(const shm::SessionMemory& memory, SessionId session, Epoch epoch) {
  const std::span<std::byte> state = state_of(memory);
  std::memset(state.data(), 0, state.size());
  memory.header().identity = {shm::kSessionMagic, wire::kAbiVersion, shm::kRecordLayout,
                              session.value,      epoch.value,       shm::SessionLayout::kBytes};
}

}  // namespace orbitkv::sim
