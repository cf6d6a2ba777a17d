#include "device/cuda/host_memory.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "base/log.h"

namespace orbitkv::device::cuda {
namespace {

// Registrations of this process by address: the driver refuses a second one of the same
// memory, and the first one's end would take the memory from under another GPU's copies.
struct Registration {
  std::size_t bytes = 0;
  std::uint32_t holders = 0;
};
struct Registrations {
  std::mutex mutex;
  std::map<const std::byte*, Registration> known;
};
Registrations& registrations() {
  static auto* made = new Registrations;  // threads may outlive static destruction
  return *made;
}

// Reasons of ours, beside the driver's codes.
constexpr CuResult kOtherPieces = -1;  // another device of the process has registered the memory otherwise
constexpr CuResult kScattered = -2;    // pieces of a slab that do not follow one another on the device

std::string reason_of(const Driver& driver, CuResult code) {
  if (code == kOtherPieces) return "another GPU of this process has registered it in other pieces";
  if (code == kScattered) return "its pieces do not follow one another in the GPU's addresses";
  return driver_error(driver, "cuMemHostRegister", code).message();
}

CuResult register_memory(const Driver& driver, std::span<std::byte> slab) {
  std::lock_guard lock(registrations().mutex);
  auto it = registrations().known.find(slab.data());
  if (it == registrations().known.end()) {
    const CuResult code =
        driver.cuMemHostRegister(slab.data(), slab.size(), kHostRegisterPortable | kHostRegisterDeviceMap);
    if (code != kCuSuccess) return code;
    it = registrations().known.emplace(slab.data(), Registration{slab.size(), 0}).first;
  }
  if (it->second.bytes != slab.size()) return kOtherPieces;
  ++it->second.holders;
  return kCuSuccess;
}

std::uint64_t address_of(std::span<std::byte> bytes) {
  return reinterpret_cast<std::uint64_t>(bytes.data());
}
std::span<std::byte> first_piece(std::span<std::byte> bytes) {
  const std::uint64_t to_end = to_piece_end(address_of(bytes));
  return bytes.first(std::min<std::uint64_t>(bytes.size(), to_end));
}

CuResult unregister_memory(const Driver& driver, std::span<std::byte> slab) {
  std::lock_guard lock(registrations().mutex);
  auto it = registrations().known.find(slab.data());
  if (it == registrations().known.end() || --it->second.holders > 0) return kCuSuccess;
  registrations().known.erase(it);
  return driver.cuMemHostUnregister(slab.data());
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
                      .state = options_.registers ? State::kWaiting : State::kUnreachable,
                      .in_pieces = options_.in_pieces});
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
      register_piece(lock, next);
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

CuResult SlabTable::reach(std::span<std::byte> piece, CuPtr& device) {
  Scope scope(*context_);
  const Driver& driver = context_->driver();
  CuResult code = register_memory(driver, piece);
  if (code != kCuSuccess) return code;
  code = driver.cuMemHostGetDevicePointer(&device, piece.data(), 0);
  if (code != kCuSuccess) unregister_memory(driver, piece);
  return code;
}

CuResult SlabTable::let_go(std::span<std::byte> reached) {
  Scope scope(*context_);
  while (!reached.empty()) {
    const auto piece = first_piece(reached);
    const CuResult code = unregister_memory(context_->driver(), piece);
    if (code != kCuSuccess) return code;
    reached = reached.subspan(piece.size());
  }
  return kCuSuccess;
}

void SlabTable::register_piece(Lock& lock, Entry& next) {
  constexpr Duration kLongestPause = seconds(1);
  const std::size_t number = next.number, at = next.reached;
  const std::span<std::byte> slab = next.slab;
  const auto piece = next.in_pieces ? first_piece(slab.subspan(at)) : slab;
  const CuPtr first = next.device;
  next.state = State::kBusy;
  lock.unlock();
  const TimePoint begin = monotonic_now();
  CuPtr device = 0;
  CuResult code = reach(piece, device);
  const TimePoint end = monotonic_now();
  // To copies the slab is one, and its pieces end where a DMA call looks for it.
  const bool elsewhere = code == kCuSuccess && piece.size() < slab.size() &&
                         (at == 0 ? (device - address_of(slab)) % kRegisterPiece != 0 : device != first + at);
  CuResult undone = kCuSuccess;
  if (elsewhere || code != kCuSuccess) undone = let_go(slab.first(elsewhere ? at + piece.size() : at));
  if (elsewhere && at > 0) code = kScattered;
  lock.lock();
  quiet_until_ = end + std::min(end - begin, kLongestPause);
  Entry& done = *entry(number);
  if (at == 0) done.device = device;
  done.in_pieces = done.in_pieces && !elsewhere;
  done.reached = code == kCuSuccess && !elsewhere ? at + piece.size() : 0;
  done.state = code != kCuSuccess            ? State::kUnreachable
               : done.reached == slab.size() ? State::kRegistered
                                             : State::kWaiting;
  changed_.notify_all();
  if (undone != kCuSuccess && undone != kCuDeinitialized) end_process(undone);
  if (code != kCuSuccess)
    ORBITKV_WARN("a slab of %zu MiB cannot be registered with the GPU and is copied through a buffer: %s",
                 slab.size() >> 20, reason_of(context_->driver(), code).c_str());
}

// Unmapping pages that the driver still believes in would let a copy reach other memory.
void SlabTable::end_process(CuResult code) const {
  ORBITKV_ERROR("a slab cannot be taken back from the GPU; ending the process: %s",
                driver_error(context_->driver(), "cuMemHostUnregister", code).message().c_str());
  std::abort();
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
  const std::span<std::byte> reached = slab.first(it->reached);
  entries_.erase(it);
  lock.unlock();
  const CuResult code = let_go(reached);
  if (code != kCuSuccess && code != kCuDeinitialized) end_process(code);
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
