// One call of an entry point of the fake: its lock, what every entry has in common (faults,
// the current context, captures), and the code that it will answer. For the sources of the
// fake only.
#pragma once

#include <mutex>

#include "tests/cuda/fake_state.h"

namespace orbitkv::device::cuda::fake {

inline constexpr CuResult kCuInvalidDevice = 101;

enum class Needs { kNothing, kContext };

class Call {
 public:
  explicit Call(const char* entry, Needs needs = Needs::kNothing);

  const Gpu* gpu(CuDevice device) const;
  Context* current() const;  // null: none

  // Each sets `code` unless all is well; the pointers are good only then.
  Stream* look_at(CuStream stream);  // no part of a capture is touched
  Stream* work_on(CuStream stream);  // what enqueues; a complaint in a capture
  EventRef event(CuEvent event);
  // A capture in the way of work on this stream: invalid from now on.
  bool breaks_capture(Stream& stream);
  // True also if `code` was set before. Calls that no thread may make while another captures
  // in global mode, unless it has relaxed: the capture is invalid from now on.
  bool unsafe();
  // The legacy stream while a blocking one captures.
  bool implicit(const Stream& stream) const;

  // With the lock given up meanwhile; also returns when the context is lost.
  void wait(const std::function<bool()>& done, const Context& context);
  void wait_for_all(const Context& context);

  State& state;
  CuResult code = kCuSuccess;

 private:
  CuResult injected(const char* entry);

  std::unique_lock<std::mutex> lock_;
  Stream* looked_at_ = nullptr;
};

int& thread_capture_mode();
void add_queues(Driver& table);
void add_memory(Driver& table);
void add_copies(Driver& table);

}  // namespace orbitkv::device::cuda::fake
