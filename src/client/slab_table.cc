#include "client/slab_table.h"

#include <system_error>
#include <utility>

#include "base/log.h"

namespace orbitkv::client {
namespace {

std::span<std::byte> bytes_of(const mem::MappedSlab& slab) {
  return {slab.base(), slab.bytes().value};
}

}  // namespace

SlabTable::Use& SlabTable::Use::operator=(Use&& other) noexcept {
  if (this == &other) return *this;
  end();
  entry_ = std::exchange(other.entry_, nullptr);
  return *this;
}

void SlabTable::Use::end() {
  if (entry_ != nullptr) entry_->uses.fetch_sub(1, std::memory_order_release);
  entry_ = nullptr;
}

SlabTable::~SlabTable() {
  unmap_all();
}

// The count rises under the lock and only while the slab does not retire, so that it only
// falls afterwards.
SlabTable::Found SlabTable::use(SlabId name, Use& out) {
  const std::lock_guard lock(mutex_);
  const auto it = slabs_.find(name);
  if (it == slabs_.end() || it->second.waiting) return Found::kNotYet;
  if (it->second.retiring) return Found::kRetiring;
  it->second.uses.fetch_add(1, std::memory_order_relaxed);
  out = Use(it->second);
  return Found::kMapped;
}

bool SlabTable::has(SlabId name) const {
  const std::lock_guard lock(mutex_);
  const auto it = slabs_.find(name);
  return it != slabs_.end() && !it->second.waiting;
}

// The user knows of it before any grant can name it.
void SlabTable::add(mem::MappedSlab slab, const SlabOrigin& origin) {
  const std::lock_guard lock(mutex_);
  const SlabId name = slab.id();
  if (user_ != nullptr) user_->add_slab(bytes_of(slab));
  slabs_.try_emplace(name, std::move(slab), origin);
}

void SlabTable::retire(SlabId name) {
  const std::lock_guard lock(mutex_);
  const auto it = slabs_.find(name);
  if (it != slabs_.end()) {
    it->second.waiting = false;  // nobody offers it again
    if (std::exchange(it->second.retiring, true)) return;
    it->second.told_in = session_;
    ++retiring_;
    return;
  }
  for (Slabs::node_type& going : to_close_) {  // since an earlier session
    if (going.key() != name) continue;
    if (std::exchange(going.mapped().told_in, session_) != session_) ++retiring_;
    return;
  }
  released_.push_back(name);
}

bool SlabTable::retiring() const {
  const std::lock_guard lock(mutex_);
  return retiring_ > 0 || !released_.empty();
}

std::vector<SlabId> SlabTable::collect_released() {
  std::unique_lock lock(mutex_);
  for (auto it = slabs_.begin(); it != slabs_.end();) {
    const auto at = it++;
    if (at->second.retiring && at->second.uses.load(std::memory_order_acquire) == 0)
      to_close_.push_back(slabs_.extract(at));
  }
  if (!to_close_.empty()) start_closer();
  std::vector<SlabId> released;
  released.swap(released_);
  return released;
}

void SlabTable::start_closer() {
  if (closing_ == Closing::kStepped) return;
  work_.notify_all();
  if (closer_.joinable()) return;
  try {
    closer_ = std::thread([this] { close_loop(); });
  } catch (const std::system_error& error) {
    ORBITKV_WARN("a slab that the Manager retires stays mapped for now: %s", error.what());
  }
}

void SlabTable::close_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stop_ || !to_close_.empty(); });
    if (!close_next(lock)) return;
  }
}

bool SlabTable::close_one() {
  std::unique_lock lock(mutex_);
  return close_next(lock);
}

bool SlabTable::close_next(std::unique_lock<std::mutex>& lock) {
  if (to_close_.empty()) return false;
  Slabs::node_type slab = std::move(to_close_.back());
  to_close_.pop_back();
  const SlabId name = slab.key();
  const std::uint64_t told_in = slab.mapped().told_in;
  lock.unlock();
  close(std::move(slab));
  lock.lock();
  if (told_in != session_) return true;
  released_.push_back(name);
  --retiring_;
  return true;
}

void SlabTable::close(Slabs::node_type slab) {
  if (user_ != nullptr) user_->remove_slab(bytes_of(slab.mapped().slab));
}

// ---- from one session to the next ----

void SlabTable::let_go(Slabs::iterator at) {
  to_close_.push_back(slabs_.extract(at));
}

// What the last session's Manager was to be told concerns nobody any more.
bool SlabTable::suspend() {
  const std::lock_guard lock(mutex_);
  ++session_;
  retiring_ = 0;
  released_.clear();
  for (auto it = slabs_.begin(); it != slabs_.end();) {
    const auto at = it++;
    at->second.waiting = at->second.origin.kept && !at->second.retiring;
    if (!at->second.waiting) let_go(at);
  }
  if (!to_close_.empty()) start_closer();
  return !slabs_.empty();
}

bool SlabTable::resume(SlabId name, ByteCount bytes, const SlabOrigin& origin) {
  const std::lock_guard lock(mutex_);
  const auto it = slabs_.find(name);
  if (it == slabs_.end() || !it->second.waiting) return false;
  if (it->second.origin.same_memory(origin) && it->second.slab.bytes() == bytes) {
    it->second.waiting = false;
    it->second.origin = origin;
    return true;
  }
  let_go(it);
  start_closer();
  return false;
}

void SlabTable::drop_waiting() {
  const std::lock_guard lock(mutex_);
  for (auto it = slabs_.begin(); it != slabs_.end();) {
    const auto at = it++;
    if (at->second.waiting) let_go(at);
  }
  if (!to_close_.empty()) start_closer();
}

// Slabs that retired and are being closed, too: afterwards the client says that it maps none.
void SlabTable::unmap_all() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    work_.notify_all();
  }
  if (closer_.joinable()) closer_.join();
  const std::lock_guard lock(mutex_);
  for (Slabs::node_type& slab : to_close_) close(std::move(slab));
  to_close_.clear();
  while (!slabs_.empty()) {
    Slabs::node_type slab = slabs_.extract(slabs_.begin());
    if (slab.mapped().uses.load(std::memory_order_acquire) == 0) {
      close(std::move(slab));
      continue;
    }
    // A bug; the engine's memory is safer with the mapping than without.
    ORBITKV_ERROR("slab %u stays mapped: a copy uses it still", slab.key().value);
    new Slabs::node_type(std::move(slab));
  }
}

}  // namespace orbitkv::client
