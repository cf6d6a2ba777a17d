// A driver of NVIDIA GPUs that exists only in this process: a whole Driver table over host
// memory, so that the host side of device/cuda runs without a GPU and under sanitizers. It
// keeps the real one's rules (contexts, streams, captures, registered memory, sticky errors)
// and answers what breaks them with the real one's codes, or with a complaint where the real
// one would say nothing. Kernels are interpreted from the plan by plain C++ that shares no
// code with kernels.cu. One scheduler thread executes all streams, in an order drawn from
// the seed. The table has no state of its own: the FakeDriver made last is the one that it
// speaks to. Any thread. Tests only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "device/cuda/driver.h"

namespace orbitkv::device::cuda::fake {

struct Gpu {
  std::string name = "Fake sm_90";
  int major = 9;
  int minor = 0;
  int multiprocessors = 132;
  int shared_optin = 232448;
  unsigned char uuid = 0x90;  // every byte of it
  bool mig = false;           // an instance: its parent's UUID differs
  int bus = 0;                // on PCI
};
Gpu sm_80();

struct Config {
  std::vector<Gpu> gpus = {Gpu{}};
  std::uint64_t seed = 1;
  // The longest of the naps that the scheduler takes now and then, microseconds.
  std::uint32_t nap = 20;
  bool wait_values = true;  // false: the table lacks the entry
  bool batched = true;      // false: likewise
  // Registered memory has another address on the device than here. A real one's is the same.
  bool aliased = true;
};

// Which call of an entry a fault is for.
struct Fault {
  std::string entry;       // "cuLaunchKernel"
  std::uint32_t call = 1;  // 1: the next one
  CuResult code = 0;
  bool for_ever = false;  // that one and all after it
};

enum class CaptureMode { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

class State;

class FakeDriver {
 public:
  explicit FakeDriver(Config config = {});
  ~FakeDriver();  // what is still queued is dropped
  FakeDriver(const FakeDriver&) = delete;

  const Driver& driver() const;

  // Faults.
  void fail(Fault fault);
  void heal();  // no faults any more
  // Called (without a lock) before the entry does anything.
  void before(const std::string& entry, std::function<void()> hook);
  // The next `count` flags of layers are not raised.
  void drop_flags(std::uint32_t count);
  // Kernels stand still once so many more flags have been raised, until release().
  void stall_after_flags(std::uint32_t count);
  // What is enqueued by this entry from now on stands still, until release().
  void stall(const std::string& entry);
  void release();
  // The context of a GPU has a sticky error from now on.
  void lose(CuDevice device, CuResult code);
  // As after the driver's own exit handler.
  void deinitialise();
  void revive();  // so that a test can clean up after it

  // What an engine does. Streams and contexts made here are no leaks.
  CuStream new_stream(CuDevice device, unsigned flags = kStreamNonBlocking);
  CuContext new_context(CuDevice device);
  CuEvent new_event(CuDevice device);
  void destroy_stream(CuStream stream);
  void run_on(CuStream stream, std::function<void()> work);
  // Nothing behind it on the stream is executed before let_go().
  void hold(CuStream stream);
  void let_go(CuStream stream);
  void begin_capture(CuStream stream, CaptureMode mode);
  bool end_capture(CuStream stream);  // false: it was invalidated
  // Legal and unused from now on: cuPointerGetAttribute says that it is the context's.
  CuPtr device_memory(CuContext context, ByteCount bytes);

  // Observation.
  std::uint32_t calls(const std::string& entry) const;
  std::map<std::string, std::uint32_t> all_calls() const;  // by entry
  // Thread blocks of each launch, oldest first.
  std::vector<std::uint32_t> grids() const;
  std::uint32_t registrations() const;
  // What was executed, oldest first: "launch orbitkv_copy_16", "flag 3", "copy", "record",
  // "batch", "copy2d", "sum", "work", "register", "unregister".
  std::vector<std::string> history() const;
  // What is alive and was made through the table, but for what belongs to a lost context.
  // Empty: nothing.
  std::string leaks() const;
  // Rules that were broken, where the real driver might not have said so. Empty: none.
  std::string complaints() const;
  void settle();  // until no stream has anything left that can run

 private:
  std::unique_ptr<State> state_;
  FakeDriver* outer_ = nullptr;
  friend class Call;
};

}  // namespace orbitkv::device::cuda::fake
