#include "device/cuda/host_memory.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <tuple>
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

SlabTable::SlabTable(std::shared_ptr<Context> context, SlabOptions options)
    : context_(std::move(context)), options_(std::move(options)), thread_([this] { run(); }) {}

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
  entries_.push_back({.number = next_number_++,
                      .slab = slab,
                      .state = options_.registers ? State::kWaiting : State::kUnreachable});
  changed_.notify_all();
}

SlabTable::Entry* SlabTable::entry(std::size_t number) {
  auto it =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.number == number; });
  return it == entries_.end() ? nullptr : &*it;
}

// One that copies asked for; of several the one that is nearest to its end, or copies all
// over the pool would spread the work so that no slab ever ends.
SlabTable::Entry* SlabTable::next_waiting() {
  const auto rank = [](const Entry& e) { return std::tuple(e.asked_for > 0, e.present, e.asked_for); };
  Entry* next = nullptr;
  for (Entry& e : entries_) {
    if (e.state != State::kWaiting || e.going) continue;
    if (next == nullptr || rank(e) > rank(*next)) next = &e;
  }
  return next;
}

// Chooses anew after every piece and every wait. The lock is held for neither work.
void SlabTable::run() {
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || next_waiting() != nullptr; });
    if (stop_) return;
    Entry& next = *next_waiting();
    const TimePoint now = monotonic_now();
    if (next.present < next.slab.size())
      populate_piece(lock, next);
    else if (const TimePoint from = registers_from(next); from > now)
      changed_.wait_for(lock, std::chrono::nanoseconds((from - now).ns));
    else
      register_slab(lock, next);
  }
}

void SlabTable::populate_piece(Lock& lock, Entry& next) {
  const std::size_t number = next.number, at = next.present;
  const auto piece =
      next.slab.subspan(at, std::min<std::size_t>(kPopulatePiece.value, next.slab.size() - at));
  next.state = State::kBusy;
  lock.unlock();
  const bool populated = options_.populate(piece);
  const TimePoint now = monotonic_now();
  lock.lock();
  Entry& done = *entry(number);
  done.state = State::kWaiting;
  // What cannot be had is the driver's to refuse.
  done.present = populated ? at + piece.size() : done.slab.size();
  if (done.present == done.slab.size()) done.present_at = now;
  changed_.notify_all();
}

TimePoint SlabTable::registers_from(const Entry& next) const {
  const TimePoint copies_end = uses_ > 0 ? next.present_at + options_.give_way : TimePoint{};
  return std::max(quiet_until_, copies_end);
}

void SlabTable::register_slab(Lock& lock, Entry& next) {
  constexpr Duration kLongestPause = seconds(1);
  const std::size_t number = next.number;
  const std::span<std::byte> slab = next.slab;
  next.state = State::kBusy;
  lock.unlock();
  CuPtr device = 0;
  const TimePoint begin = monotonic_now();
  const CuResult code = make_reachable(*context_, slab, device);
  const TimePoint end = monotonic_now();
  lock.lock();
  quiet_until_ = end + std::min(end - begin, kLongestPause);
  Entry& done = *entry(number);
  done.device = device;
  done.state = code == kCuSuccess ? State::kRegistered : State::kUnreachable;
  changed_.notify_all();
  if (code != kCuSuccess)
    ORBITKV_WARN("a slab of %zu MiB cannot be registered with the GPU and is copied through a buffer: %s",
                 slab.size() >> 20,
                 driver_error(context_->driver(), "cuMemHostRegister", code).message().c_str());
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
    return it->uses == 0 && it->state != State::kBusy;
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
    ++uses_;
    if (e.state == State::kWaiting || e.state == State::kBusy) {
      e.asked_for = ++asked_;
      changed_.notify_all();
    }
    return Found{Use(this, e.number), e.slab, e.state == State::kRegistered, e.device};
  }
  return bug("an image lies outside every slab of the device");
}

void SlabTable::release(std::size_t number) {
  std::lock_guard lock(mutex_);
  Entry* e = entry(number);
  if (e == nullptr) return;
  --uses_;
  if (--e->uses == 0) changed_.notify_all();
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
