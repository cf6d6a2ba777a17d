// What the fake driver knows: contexts, streams with their queues, events, memory. All of
// it under one mutex. For the sources of the fake only.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tests/cuda/fake_driver.h"

namespace orbitkv::device::cuda::fake {

inline constexpr CuResult kCuNotInitialised = 3, kCuNotFound = 500;
inline constexpr CuResult kCuNotRegistered = 713, kCuCaptureImplicit = 906;
// Added to a host address by the device, if the memory is aliased.
inline constexpr std::uint64_t kAlias = std::uint64_t{1} << 52;

struct Context {
  CuDevice device = 0;
  bool primary = false;
  std::uint32_t retains = 0;
  bool alive = true;
  CuResult error = kCuSuccess;  // sticky
};

struct Stream;
struct Event {
  Context* context = nullptr;
  bool of_table = true;
  // Of the last record: whether it was executed. Each wait keeps the record of its time, for
  // records on several streams pass each other.
  std::shared_ptr<bool> record = std::make_shared<bool>(true);
  const Stream* captured_by = nullptr;
};
using EventRef = std::shared_ptr<Event>;

enum class Step { kDone, kMore, kFault };
struct Op {
  std::uint64_t number = 0;
  std::string entry;
  std::function<bool()> ready = nullptr;  // null: at once
  std::function<Step()> run = nullptr;    // null: nothing to do
  bool stalled = false;
};
// Commands that a real queue takes; then the driver holds the caller up until some are done.
inline constexpr std::size_t kQueueRoom = 1024;
struct Stream {
  Context* context = nullptr;
  bool of_table = true;
  bool dead = false;      // destroyed; what is queued goes on
  bool blocking = false;  // waits for the legacy stream, and the other way round
  bool legacy = false;
  std::deque<Op> queue;
  std::uint32_t holds = 0;
  enum class Capture { kNone, kActive, kInvalid } capture = Capture::kNone;
  CaptureMode mode = CaptureMode::kGlobal;
  std::thread::id capturer;
};

struct Allocation {
  std::unique_ptr<std::byte, void (*)(void*)> bytes{nullptr, nullptr};
  std::uint64_t size = 0;
  Context* context = nullptr;
  bool of_table = true;
};
struct HostRange {
  std::uint64_t size = 0;
  unsigned flags = 0;
  Context* context = nullptr;
  std::unique_ptr<std::byte, void (*)(void*)> bytes{nullptr, nullptr};  // cuMemHostAlloc
};
struct Function {
  std::string name;
  std::uint64_t dynamic_shared = 48 * 1024;
};
struct Module {
  Context* context = nullptr;
  std::vector<std::unique_ptr<Function>> functions;
};

// A range as the device may touch it.
struct Reach {
  std::byte* bytes = nullptr;  // null: it may not
  bool host = false;
};
struct Extent {
  std::uint64_t at = 0;
  std::uint64_t size = 0;
};

class State {
 public:
  explicit State(Config config);
  ~State();

  // What `context` reaches at a device address, over several adjacent registrations.
  Reach reach(const Context& context, Extent extent) const;
  // A host address for a DMA: all of it in one registration.
  Reach pinned(const Context& context, Extent extent) const;
  // For a DMA between addresses of any kind: a device address, an alias, a host address.
  Reach any(const Context& context, Extent extent) const;

  Stream* stream(CuStream handle, Context* current);  // null: no such stream
  EventRef event(CuEvent handle) const;
  Context* context(CuContext handle) const;
  CuContext primary(CuDevice device);
  std::vector<Stream*> all_streams() const;
  bool ready(const Stream& stream) const;  // something can be executed
  bool idle(const Stream& stream) const { return stream.queue.empty(); }
  void enqueue(Stream& stream, Op op);
  void lose(Context& context, CuResult code);
  void complain(const std::string& what);
  void note(const std::string& what) { history.push_back(what); }
  std::uint64_t draw(std::uint64_t below) { return random() % below; }
  std::uint64_t new_handle() { return next_handle += 16; }

  const Config config;
  mutable std::mutex mutex;
  std::condition_variable changed;
  Driver table;
  std::mt19937_64 random;
  std::uint64_t instance = 0;
  bool initialised = false, deinitialised = false, stopping = false;
  std::uint64_t next_handle = 0x10000, next_op = 1;

  std::vector<std::unique_ptr<Context>> contexts;  // first the primary ones, by ordinal
  std::map<std::uint64_t, std::unique_ptr<Stream>> streams;
  std::map<Context*, std::unique_ptr<Stream>> legacy;
  std::map<std::pair<Context*, std::thread::id>, std::unique_ptr<Stream>> per_thread;
  std::unordered_map<std::uint64_t, EventRef> events;
  std::set<std::uint64_t> dead_events;
  std::map<std::uint64_t, Allocation> memory;      // by device address
  std::map<std::uint64_t, HostRange> host_memory;  // by host address
  std::unordered_map<std::uint64_t, std::unique_ptr<Module>> modules;

  std::map<std::string, std::uint32_t> counts;
  std::vector<Fault> faults;
  std::map<std::string, std::function<void()>> hooks;
  std::set<std::string> stalls;
  std::uint32_t flags_to_drop = 0;
  static constexpr std::uint32_t kAllFlags = ~0u;
  std::uint32_t flags_until_stall = kAllFlags;
  std::vector<std::string> history, broken;
  std::vector<std::uint32_t> grids;  // of launches

 private:
  void schedule();
  bool behind(const Stream& stream, std::uint64_t number) const;
  void step(Stream& stream);

  std::thread scheduler_;
};

// cuLaunchKernel, up to the queue.
struct LaunchShape {
  std::uint32_t grid = 0;
  std::uint32_t block = 0;
  std::uint64_t shared = 0;
};
CuResult enqueue_kernel(State& state, const Function& function, const LaunchShape& shape, Stream& stream,
                        const void* parameters);

// The state that the table speaks to, and the calling thread's contexts of it.
State* current_state();
std::vector<Context*>& thread_contexts(const State& state);

const Driver& entries();

}  // namespace orbitkv::device::cuda::fake
