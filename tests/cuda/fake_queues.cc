// Streams and events of the fake.
#include "tests/cuda/fake_call.h"

namespace orbitkv::device::cuda::fake {
namespace {

CuResult stream_create(CuStream* stream, unsigned flags, int) {
  Call call("cuStreamCreateWithPriority", Needs::kContext);
  if (call.code) return call.code;
  const std::uint64_t handle = call.state.new_handle();
  auto& made = call.state.streams[handle] = std::make_unique<Stream>();
  made->context = call.current();
  made->blocking = (flags & kStreamNonBlocking) == 0;
  *stream = reinterpret_cast<CuStream>(handle);
  return kCuSuccess;
}
CuResult stream_destroy(CuStream stream) {
  Call call("cuStreamDestroy");
  if (call.code) return call.code;
  auto found = call.state.streams.find(reinterpret_cast<std::uint64_t>(stream));
  if (found == call.state.streams.end() || found->second->dead) return kCuInvalidHandle;
  found->second->dead = true;
  return found->second->context->error;
}
CuResult stream_query(CuStream stream) {
  Call call("cuStreamQuery");
  Stream* on = call.look_at(stream);
  if (call.unsafe()) return call.code;
  return call.state.idle(*on) ? kCuSuccess : kCuNotReady;
}
CuResult stream_synchronize(CuStream stream) {
  Call call("cuStreamSynchronize");
  Stream* on = call.look_at(stream);
  if (call.unsafe()) return call.code;
  call.wait([&] { return call.state.idle(*on); }, *on->context);
  return on->context->error;
}
CuResult stream_wait_event(CuStream stream, CuEvent event, unsigned) {
  Call call("cuStreamWaitEvent");
  Stream* on = call.work_on(stream);
  EventRef waited = call.event(event);
  if (call.code) return call.code;
  if (waited->captured_by != nullptr && waited->captured_by != on)
    call.state.complain("cuStreamWaitEvent: the stream is drawn into a capture by a captured event");
  call.state.enqueue(*on,
                     {.entry = "cuStreamWaitEvent", .ready = [record = waited->record] { return *record; }});
  return kCuSuccess;
}
CuResult stream_wait_value(CuStream stream, CuPtr at, std::uint32_t value, unsigned flags) {
  Call call("cuStreamWaitValue32");
  Stream* on = call.work_on(stream);
  if (call.code) return call.code;
  if (at % 4 != 0 || flags > kWaitValueEqual) return kCuInvalidValue;
  const Reach word = call.state.reach(*on->context, {at, 4});
  if (word.bytes == nullptr) return kCuInvalidValue;
  const auto* of = reinterpret_cast<const std::uint32_t*>(word.bytes);
  call.state.enqueue(*on, {.entry = "cuStreamWaitValue32", .ready = [of, value, flags] {
                             const std::uint32_t now = __atomic_load_n(of, __ATOMIC_ACQUIRE);
                             return flags == kWaitValueEqual ? now == value
                                                             : static_cast<std::int32_t>(now - value) >= 0;
                           }});
  return kCuSuccess;
}
CuResult stream_is_capturing(CuStream stream, int* status) {
  Call call("cuStreamIsCapturing");
  Stream* on = call.look_at(stream);
  if (call.code) return call.code;
  if (call.implicit(*on)) return kCuCaptureImplicit;
  *status = static_cast<int>(on->capture);
  return kCuSuccess;
}
CuResult stream_context(CuStream stream, CuContext* context) {
  Call call("cuStreamGetCtx");
  Stream* on = call.look_at(stream);
  if (call.code) return call.code;
  *context = reinterpret_cast<CuContext>(on->context);
  return kCuSuccess;
}
CuResult exchange_mode(int* mode) {
  Call call("cuThreadExchangeStreamCaptureMode");
  if (call.code) return call.code;
  std::swap(*mode, thread_capture_mode());
  return kCuSuccess;
}

// ---- events ----

CuResult event_create(CuEvent* event, unsigned) {
  Call call("cuEventCreate", Needs::kContext);
  if (call.code) return call.code;
  const std::uint64_t handle = call.state.new_handle();
  call.state.events[handle] = std::make_shared<Event>(Event{.context = call.current()});
  *event = reinterpret_cast<CuEvent>(handle);
  return kCuSuccess;
}
CuResult event_destroy(CuEvent event) {
  Call call("cuEventDestroy");
  EventRef destroyed = call.event(event);
  if (call.code && call.code != kCuIllegalAddress) return call.code;
  call.state.events.erase(reinterpret_cast<std::uint64_t>(event));
  call.state.dead_events.insert(reinterpret_cast<std::uint64_t>(event));
  return destroyed ? destroyed->context->error : kCuSuccess;
}
CuResult event_record(CuEvent event, CuStream stream) {
  Call call("cuEventRecord");
  EventRef recorded = call.event(event);
  Stream* on = call.look_at(stream);
  if (call.code) return call.code;
  if (recorded->context != on->context) return kCuInvalidHandle;
  if (on->capture == Stream::Capture::kActive) {
    call.state.complain("cuEventRecord: an event is drawn into a capture");
    recorded->captured_by = on;
    return kCuSuccess;
  }
  if (call.breaks_capture(*on)) return call.code;
  recorded->captured_by = nullptr;
  recorded->record = std::make_shared<bool>(false);
  call.state.enqueue(*on, {.entry = "cuEventRecord", .run = [record = recorded->record, &state = call.state] {
                             state.note("record");
                             *record = true;
                             return Step::kDone;
                           }});
  return kCuSuccess;
}
CuResult event_query(CuEvent event) {
  Call call("cuEventQuery");
  EventRef queried = call.event(event);
  if (call.unsafe()) return call.code;
  if (queried->captured_by != nullptr) return kCuCaptureUnsupported;
  return *queried->record ? kCuSuccess : kCuNotReady;
}

}  // namespace

void add_queues(Driver& table) {
  table.cuStreamCreateWithPriority = stream_create;
  table.cuStreamDestroy = stream_destroy;
  table.cuStreamQuery = stream_query;
  table.cuStreamSynchronize = stream_synchronize;
  table.cuStreamWaitEvent = stream_wait_event;
  table.cuStreamWaitValue32 = stream_wait_value;
  table.cuStreamIsCapturing = stream_is_capturing;
  table.cuStreamGetCtx = stream_context;
  table.cuThreadExchangeStreamCaptureMode = exchange_mode;
  table.cuEventCreate = event_create;
  table.cuEventDestroy = event_destroy;
  table.cuEventRecord = event_record;
  table.cuEventQuery = event_query;
}

}  // namespace orbitkv::device::cuda::fake
