#include "device/cuda/host_memory.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "base/log.h"

namespace orbitkv::device::cuda {
namespace {

// Registrations of this process by address: the driver refuses a second one of the same
// memory, and the first one's end would take the memory from under another GPU's copies.
struct Registrations {
  std::mutex mutex;
  std::map<const std::byte*, std::uint32_t> holders;
};
Registrations& registrations() {
  static auto* made = new Registrations;  // threads may outlive static destruction
  return *made;
}

CuResult register_memory(const Driver& driver, std::span<std::byte> slab) {
  std::lock_guard lock(registrations().mutex);
  std::uint32_t& holders = registrations().holders[slab.data()];
  if (holders == 0) {
    const CuResult code =
        driver.cuMemHostRegister(slab.data(), slab.size(), kHostRegisterPortable | kHostRegisterDeviceMap);
    if (code != kCuSuccess) {
      registrations().holders.erase(slab.data());
      return code;
    }
  }
  ++holders;
  return kCuSuccess;
}

CuResult unregister_memory(const Driver& driver, std::span<std::byte> slab) {
  std::lock_guard lock(registrations().mutex);
  auto it = registrations().holders.find(slab.data());
  if (it == registrations().holders.end() || --it->second > 0) return kCuSuccess;
  registrations().holders.erase(it);
  return driver.cuMemHostUnregister(slab.data());
}

CuResult make_reachable(const Context& context, std::span<std::byte> slab, CuPtr& device) {
  Scope scope(context);
  const Driver& driver = context.driver();
  CuResult code = register_memory(driver, slab);
  if (code != kCuSuccess) return code;
  code = driver.cuMemHostGetDevicePointer(&device, slab.data(), 0);
  if (code != kCuSuccess) unregister_memory(driver, slab);
  return code;
}

}  // namespace

SlabTable::SlabTable(std::shared_ptr<Context> context, bool registers)
    : context_(std::move(context)), registers_(registers), thread_([this] { run(); }) {}

SlabTable::~SlabTable() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
  std::vector<std::span<std::byte>> left;
  for (const Entry& entry : entries_) left.push_back(entry.slab);
  for (const auto slab : left) remove(slab);
}

void SlabTable::add(std::span<std::byte> slab) {
  std::lock_guard lock(mutex_);
  entries_.push_back({next_number_++, slab, registers_ ? State::kWaiting : State::kUnreachable, 0, 0, false});
  changed_.notify_all();
}

SlabTable::Entry* SlabTable::entry(std::size_t number) {
  auto it =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.number == number; });
  return it == entries_.end() ? nullptr : &*it;
}

SlabTable::Entry* SlabTable::next_waiting() {
  auto it = std::find_if(entries_.begin(), entries_.end(),
                         [](const Entry& e) { return e.state == State::kWaiting && !e.going; });
  return it == entries_.end() ? nullptr : &*it;
}

// A registration takes some 40 ms a GiB; the lock is not held meanwhile.
void SlabTable::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || next_waiting() != nullptr; });
    if (stop_) return;
    Entry* waiting = next_waiting();
    waiting->state = State::kRegistering;
    const std::size_t number = waiting->number;
    const std::span<std::byte> slab = waiting->slab;
    lock.unlock();
    CuPtr device = 0;
    const CuResult code = make_reachable(*context_, slab, device);
    lock.lock();
    entry(number)->device = device;
    entry(number)->state = code == kCuSuccess ? State::kRegistered : State::kUnreachable;
    changed_.notify_all();
    if (code != kCuSuccess)
      ORBITKV_WARN("a slab of %zu MiB cannot be registered with the GPU and is copied through a buffer: %s",
                   slab.size() >> 20,
                   driver_error(context_->driver(), "cuMemHostRegister", code).message().c_str());
  }
}

void SlabTable::remove(std::span<std::byte> slab) {
  std::unique_lock lock(mutex_);
  const auto find = [&] {
    return std::find_if(entries_.begin(), entries_.end(),
                        [&](const Entry& e) { return e.slab.data() == slab.data(); });
  };
  auto it = find();
  if (it == entries_.end()) return;
  it->going = true;
  changed_.wait(lock, [&] {
    it = find();
    return it->uses == 0 && it->state != State::kRegistering;
  });
  const bool registered = it->state == State::kRegistered;
  entries_.erase(it);
  lock.unlock();
  if (!registered) return;
  Scope scope(*context_);
  const CuResult code = unregister_memory(context_->driver(), slab);
  if (code == kCuSuccess || code == kCuDeinitialized) return;
  // Unmapping pages that the driver still believes in would let a copy reach other memory.
  ORBITKV_ERROR("a slab cannot be taken back from the GPU; ending the process: %s",
                driver_error(context_->driver(), "cuMemHostUnregister", code).message().c_str());
  std::abort();
}

std::size_t SlabTable::registered() const {
  std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(
      entries_.begin(), entries_.end(), [](const Entry& e) { return e.state == State::kRegistered; }));
}

Result<SlabTable::Found> SlabTable::find(const std::byte* at, ByteCount bytes) {
  std::lock_guard lock(mutex_);
  for (Entry& e : entries_) {
    const std::byte* base = e.slab.data();
    if (at < base || at - base > static_cast<std::ptrdiff_t>(e.slab.size()) ||
        bytes.value > e.slab.size() - static_cast<std::size_t>(at - base))
      continue;
    if (e.going) return recompute("the slab of the image is being taken away");
    ++e.uses;
    return Found{Use(this, e.number), e.slab, e.state == State::kRegistered, e.device};
  }
  return bug("an image lies outside every slab of the device");
}

void SlabTable::release(std::size_t number) {
  std::lock_guard lock(mutex_);
  if (Entry* e = entry(number); e != nullptr && --e->uses == 0) changed_.notify_all();
}

SlabTable::Use& SlabTable::Use::operator=(Use&& other) noexcept {
  std::swap(table_, other.table_);
  std::swap(slab_, other.slab_);
  return *this;
}

SlabTable::Use::~Use() {
  if (table_ != nullptr) table_->release(slab_);
}

}  // namespace orbitkv::device::cuda
