#include "tests/cuda/fake_call.h"

namespace orbitkv::device::cuda::fake {

int& thread_capture_mode() {
  thread_local int mode = 0;
  return mode;
}

Call::Call(const char* entry, Needs needs) : state(*current_state()) {
  std::function<void()> hook;
  {
    std::lock_guard lock(state.mutex);
    auto found = state.hooks.find(entry);
    if (found != state.hooks.end()) hook = found->second;
  }
  if (hook) hook();
  lock_ = std::unique_lock(state.mutex);
  ++state.counts[entry];
  code = injected(entry);
  if (code != kCuSuccess) return;
  if (state.deinitialised)
    code = kCuDeinitialized;
  else if (!state.initialised)
    code = kCuNotInitialised;
  else if (needs == Needs::kContext)
    code = current() == nullptr ? kCuInvalidContext : current()->error;
}

CuResult Call::injected(const char* entry) {
  for (Fault& fault : state.faults) {
    if (fault.entry != entry || fault.call == 0) continue;
    if (--fault.call > 0) continue;
    if (fault.for_ever) fault.call = 1;
    return fault.code;
  }
  return kCuSuccess;
}

const Gpu* Call::gpu(CuDevice device) const {
  if (device < 0 || device >= static_cast<CuDevice>(state.config.gpus.size())) return nullptr;
  return &state.config.gpus[static_cast<std::size_t>(device)];
}

Context* Call::current() const {
  auto& stack = thread_contexts(state);
  return stack.empty() ? nullptr : stack.back();
}

Stream* Call::look_at(CuStream stream) {
  if (code != kCuSuccess) return nullptr;
  Stream* found = state.stream(stream, current());
  if (found == nullptr)
    code = reinterpret_cast<std::uint64_t>(stream) <= 2 ? kCuInvalidContext : kCuInvalidHandle;
  else
    code = found->context->error;
  looked_at_ = found;
  return found;
}

Stream* Call::work_on(CuStream stream) {
  Stream* found = look_at(stream);
  if (code != kCuSuccess) return nullptr;
  if (found->capture == Stream::Capture::kActive)
    state.complain("work of ours is drawn into a capture of the engine");
  breaks_capture(*found);
  return found;
}

EventRef Call::event(CuEvent event) {
  if (code != kCuSuccess) return nullptr;
  EventRef found = state.event(event);
  if (found == nullptr) {
    code = kCuInvalidHandle;
    if (state.dead_events.contains(reinterpret_cast<std::uint64_t>(event)))
      state.complain("an event is used after it was destroyed");
  } else if (found->context->error != kCuSuccess) {
    code = found->context->error;
  }
  return found;
}

bool Call::implicit(const Stream& stream) const {
  if (!stream.legacy) return false;
  for (const Stream* other : state.all_streams()) {
    if (other->blocking && other->context == stream.context && other->capture == Stream::Capture::kActive)
      return true;
  }
  return false;
}

bool Call::breaks_capture(Stream& stream) {
  if (!implicit(stream)) return false;
  for (Stream* other : state.all_streams()) {
    if (other->blocking && other->context == stream.context && other->capture == Stream::Capture::kActive)
      other->capture = Stream::Capture::kInvalid;
  }
  code = kCuCaptureImplicit;
  return true;
}

bool Call::unsafe() {
  if (code != kCuSuccess) return true;
  const bool relaxed = thread_capture_mode() == static_cast<int>(CaptureMode::kRelaxed);
  for (Stream* stream : state.all_streams()) {
    if (stream->capture != Stream::Capture::kActive) continue;
    const bool here = stream->capturer == std::this_thread::get_id();
    const bool global = stream->mode == CaptureMode::kGlobal &&
                        thread_capture_mode() == static_cast<int>(CaptureMode::kGlobal);
    const bool mine = stream->mode != CaptureMode::kRelaxed && here && !relaxed;
    if (stream != looked_at_ && !global && !mine) continue;
    stream->capture = Stream::Capture::kInvalid;
    code = kCuCaptureUnsupported;
  }
  return code != kCuSuccess;
}

void Call::wait(const std::function<bool()>& done, const Context& context) {
  while (!done() && context.error == kCuSuccess) state.changed.wait(lock_);
}

void Call::wait_for_all(const Context& context) {
  std::vector<std::pair<Stream*, std::uint64_t>> last;
  for (Stream* stream : state.all_streams()) {
    if (stream->context == &context && !stream->queue.empty())
      last.push_back({stream, stream->queue.back().number});
  }
  wait(
      [&] {
        for (const auto& [stream, number] : last) {
          if (!stream->queue.empty() && stream->queue.front().number <= number) return false;
        }
        return true;
      },
      context);
}

}  // namespace orbitkv::device::cuda::fake
