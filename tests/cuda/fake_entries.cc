// The entry points of the fake, as far as the queue of a stream; those that copy stand in
// fake_copies.cc.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/cuda/fake_call.h"

namespace orbitkv::device::cuda::fake {
namespace {

// New memory holds no zeros, at least not at its beginning.
constexpr std::size_t kDirty = 64 * 1024;

CuResult init(unsigned) {
  Call call("cuInit");
  if (call.code == kCuNotInitialised) call.code = kCuSuccess;
  if (call.code) return call.code;
  if (call.state.config.gpus.empty()) return kCuNoDevice;
  call.state.initialised = true;
  return kCuSuccess;
}

CuResult driver_version(int* version) {
  Call call("cuDriverGetVersion");
  *version = 13000;
  return call.code;
}

CuResult error_name(CuResult code, const char** name) {
  static const std::map<CuResult, const char*> names = {{kCuOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                        {kCuDeinitialized, "CUDA_ERROR_DEINITIALIZED"},
                                                        {kCuInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
                                                        {kCuInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
                                                        {kCuIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
  auto found = names.find(code);
  *name = found == names.end() ? "CUDA_ERROR_OF_THE_FAKE" : found->second;
  return kCuSuccess;
}
CuResult error_string(CuResult, const char** text) {
  *text = "as the fake driver says";
  return kCuSuccess;
}

// ---- devices and contexts ----

CuResult device_count(int* count) {
  Call call("cuDeviceGetCount");
  *count = static_cast<int>(call.state.config.gpus.size());
  return call.code;
}
CuResult device_get(CuDevice* device, int ordinal) {
  Call call("cuDeviceGet");
  if (call.code) return call.code;
  *device = ordinal;
  return call.gpu(ordinal) != nullptr ? kCuSuccess : kCuInvalidDevice;
}
CuResult device_uuid(CuUuid* uuid, CuDevice device) {
  Call call("cuDeviceGetUuid");
  if (call.code) return call.code;
  const Gpu* gpu = call.gpu(device);
  if (gpu == nullptr) return kCuInvalidDevice;
  std::memset(uuid->bytes, gpu->uuid, sizeof uuid->bytes);
  return kCuSuccess;
}
CuResult parent_uuid(CuUuid* uuid, CuDevice device) {
  Call call("cuDeviceGetUuidOfParent");
  if (call.code) return call.code;
  const Gpu* gpu = call.gpu(device);
  if (gpu == nullptr) return kCuInvalidDevice;
  std::memset(uuid->bytes, gpu->mig ? gpu->uuid + 1 : gpu->uuid, sizeof uuid->bytes);
  return kCuSuccess;
}
CuResult device_name(char* name, int bytes, CuDevice device) {
  Call call("cuDeviceGetName");
  if (call.code) return call.code;
  const Gpu* gpu = call.gpu(device);
  if (gpu == nullptr) return kCuInvalidDevice;
  std::strncpy(name, gpu->name.c_str(), static_cast<std::size_t>(bytes) - 1);
  name[bytes - 1] = 0;
  return kCuSuccess;
}
CuResult device_attribute(int* value, int attribute, CuDevice device) {
  Call call("cuDeviceGetAttribute");
  if (call.code) return call.code;
  const Gpu* gpu = call.gpu(device);
  if (gpu == nullptr) return kCuInvalidDevice;
  switch (attribute) {
    case kAttributeMaxPitch: *value = 0x7FFFFFFF; break;
    case kAttributeMultiprocessors: *value = gpu->multiprocessors; break;
    case kAttributeMajor: *value = gpu->major; break;
    case kAttributeMinor: *value = gpu->minor; break;
    case kAttributeSharedOptin: *value = gpu->shared_optin; break;
    default: *value = 0;
  }
  return kCuSuccess;
}
CuResult primary_retain(CuContext* context, CuDevice device) {
  Call call("cuDevicePrimaryCtxRetain");
  if (call.code) return call.code;
  if (call.gpu(device) == nullptr) return kCuInvalidDevice;
  *context = call.state.primary(device);
  Context* primary = call.state.context(*context);
  primary->alive = true;
  ++primary->retains;
  return kCuSuccess;
}
CuResult primary_release(CuDevice device) {
  Call call("cuDevicePrimaryCtxRelease");
  if (call.code) return call.code;
  if (call.gpu(device) == nullptr) return kCuInvalidDevice;
  Context* primary = call.state.context(call.state.primary(device));
  if (primary->retains == 0) {
    call.state.complain("a primary context is released more often than it was retained");
    return kCuInvalidContext;
  }
  --primary->retains;
  return kCuSuccess;
}
CuResult push_current(CuContext context) {
  Call call("cuCtxPushCurrent");
  if (call.code) return call.code;
  Context* pushed = call.state.context(context);
  if (pushed == nullptr) return kCuInvalidContext;
  thread_contexts(call.state).push_back(pushed);
  return kCuSuccess;
}
CuResult pop_current(CuContext* context) {
  Call call("cuCtxPopCurrent");
  if (call.code) return call.code;
  auto& stack = thread_contexts(call.state);
  if (stack.empty()) return kCuInvalidContext;
  if (context != nullptr) *context = reinterpret_cast<CuContext>(stack.back());
  stack.pop_back();
  return kCuSuccess;
}
CuResult get_current(CuContext* context) {
  Call call("cuCtxGetCurrent");
  *context = reinterpret_cast<CuContext>(call.current());
  return call.code;
}
CuResult priority_range(int* least, int* greatest) {
  Call call("cuCtxGetStreamPriorityRange", Needs::kContext);
  *least = 0;
  *greatest = -5;
  return call.code;
}

// ---- modules ----

CuResult module_load(CuModule* module, const void* image) {
  Call call("cuModuleLoadData", Needs::kContext);
  if (call.unsafe()) return call.code;
  if (image == nullptr) return kCuInvalidValue;
  const std::uint64_t handle = call.state.new_handle();
  auto& made = call.state.modules[handle] = std::make_unique<Module>();
  made->context = call.current();
  *module = reinterpret_cast<CuModule>(handle);
  return kCuSuccess;
}
CuResult module_unload(CuModule module) {
  Call call("cuModuleUnload", Needs::kContext);
  if (call.unsafe()) return call.code;
  return call.state.modules.erase(reinterpret_cast<std::uint64_t>(module)) == 1 ? kCuSuccess
                                                                                : kCuInvalidHandle;
}
CuResult module_function(CuFunction* function, CuModule module, const char* name) {
  static const std::set<std::string> kernels = {"orbitkv_copy_bulk", "orbitkv_copy_16", "orbitkv_copy_8",
                                                "orbitkv_copy_1"};
  Call call("cuModuleGetFunction", Needs::kContext);
  if (call.code) return call.code;
  auto found = call.state.modules.find(reinterpret_cast<std::uint64_t>(module));
  if (found == call.state.modules.end()) return kCuInvalidHandle;
  if (!kernels.contains(name)) return kCuNotFound;
  auto& functions = found->second->functions;
  functions.push_back(std::make_unique<Function>(Function{name}));
  *function = reinterpret_cast<CuFunction>(functions.back().get());
  return kCuSuccess;
}
CuResult function_attribute(CuFunction function, int attribute, int value) {
  Call call("cuFuncSetAttribute", Needs::kContext);
  if (call.code) return call.code;
  if (attribute != kFunctionMaxDynamicShared) return kCuSuccess;
  if (value > call.gpu(call.current()->device)->shared_optin) return kCuInvalidValue;
  reinterpret_cast<Function*>(function)->dynamic_shared = static_cast<std::uint64_t>(value);
  return kCuSuccess;
}
CuResult launch(CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared, CuStream stream, void** parameters,
                void** extra) {
  Call call("cuLaunchKernel", Needs::kContext);
  Stream* on = call.work_on(stream);
  if (call.code) return call.code;
  if (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || extra != nullptr) return kCuInvalidValue;
  return enqueue_kernel(call.state, *reinterpret_cast<Function*>(function), {grid_x, block_x, shared}, *on,
                        parameters[0]);
}

// ---- streams ----

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

// ---- memory ----

CuResult mem_alloc(CuPtr* at, std::size_t bytes) {
  Call call("cuMemAlloc", Needs::kContext);
  if (call.unsafe()) return call.code;
  if (bytes == 0) return kCuInvalidValue;
  Allocation made;
  made.bytes = {static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256)), std::free};
  std::memset(made.bytes.get(), 0xCD, std::min(bytes, kDirty));
  made.size = bytes;
  made.context = call.current();
  *at = reinterpret_cast<CuPtr>(made.bytes.get());
  call.state.memory[*at] = std::move(made);
  return kCuSuccess;
}
CuResult mem_free(CuPtr at) {
  Call call("cuMemFree", Needs::kContext);
  if (call.unsafe()) return call.code;
  if (!call.state.memory.contains(at)) return kCuInvalidValue;
  Context* context = call.state.memory[at].context;
  call.wait_for_all(*context);
  call.state.memory.erase(at);
  return context->error;
}
CuResult host_alloc(void** at, std::size_t bytes, unsigned flags) {
  Call call("cuMemHostAlloc", Needs::kContext);
  if (call.unsafe()) return call.code;
  if (bytes == 0) return kCuInvalidValue;
  HostRange made;
  made.bytes = {static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)), std::free};
  std::memset(made.bytes.get(), 0xCD, std::min(bytes, kDirty));
  made.size = bytes;
  made.flags = flags;
  made.context = call.current();
  *at = made.bytes.get();
  call.state.host_memory[reinterpret_cast<std::uint64_t>(*at)] = std::move(made);
  return kCuSuccess;
}
CuResult free_host(void* at) {
  Call call("cuMemFreeHost", Needs::kContext);
  if (call.unsafe()) return call.code;
  auto found = call.state.host_memory.find(reinterpret_cast<std::uint64_t>(at));
  if (found == call.state.host_memory.end() || !found->second.bytes) return kCuInvalidValue;
  call.wait_for_all(*found->second.context);
  call.state.host_memory.erase(reinterpret_cast<std::uint64_t>(at));
  return kCuSuccess;
}
CuResult host_register(void* at, std::size_t bytes, unsigned flags) {
  Call call("cuMemHostRegister", Needs::kContext);
  if (call.unsafe()) return call.code;
  const auto begin = reinterpret_cast<std::uint64_t>(at);
  if (bytes == 0 || begin == 0) return kCuInvalidValue;
  auto next = call.state.host_memory.lower_bound(begin + bytes);
  if (next != call.state.host_memory.begin()) {
    const auto& [other, range] = *std::prev(next);
    if (other + range.size > begin) return kCuAlreadyRegistered;
  }
  HostRange& made = call.state.host_memory[begin];
  made.size = bytes;
  made.flags = flags;
  made.context = call.current();
  call.state.note("register");
  return kCuSuccess;
}
// As the real one it waits for nothing that a stream holds back for good; what then touches
// the memory faults.
CuResult host_unregister(void* at) {
  Call call("cuMemHostUnregister", Needs::kContext);
  if (call.unsafe()) return call.code;
  auto found = call.state.host_memory.find(reinterpret_cast<std::uint64_t>(at));
  if (found == call.state.host_memory.end() || found->second.bytes) return kCuNotRegistered;
  call.state.host_memory.erase(found);
  call.state.note("unregister");
  return kCuSuccess;
}
CuResult host_pointer(CuPtr* device, void* host, unsigned) {
  Call call("cuMemHostGetDevicePointer", Needs::kContext);
  if (call.code) return call.code;
  const auto at = reinterpret_cast<std::uint64_t>(host);
  if (call.state.pinned(*call.current(), {at, 1}).bytes == nullptr) return kCuInvalidValue;
  *device = call.state.config.aliased ? at + kAlias : at;
  return kCuSuccess;
}
CuResult pointer_attribute(void* value, int attribute, CuPtr pointer) {
  Call call("cuPointerGetAttribute");
  if (call.code) return call.code;
  const Context* owner = nullptr;
  unsigned type = kMemoryTypeDevice;
  auto next = call.state.memory.upper_bound(pointer);
  if (next != call.state.memory.begin()) {
    const auto& [at, allocation] = *std::prev(next);
    if (pointer < at + allocation.size) owner = allocation.context;
  }
  for (const auto& context : call.state.contexts) {
    if (owner != nullptr || !call.state.pinned(*context, {pointer, 1}).bytes) continue;
    owner = context.get();
    type = 1;  // host
  }
  if (owner == nullptr) return kCuInvalidValue;
  if (attribute == kPointerContext) std::memcpy(value, &owner, sizeof owner);
  if (attribute == kPointerMemoryType) std::memcpy(value, &type, sizeof type);
  if (attribute == kPointerDeviceOrdinal) std::memcpy(value, &owner->device, sizeof owner->device);
  return kCuSuccess;
}

Driver make_entries() {
  Driver d;
  d.cuInit = init;
  d.cuDriverGetVersion = driver_version;
  d.cuGetErrorName = error_name;
  d.cuGetErrorString = error_string;
  d.cuDeviceGetCount = device_count;
  d.cuDeviceGet = device_get;
  d.cuDeviceGetUuid = device_uuid;
  d.cuDeviceGetUuidOfParent = parent_uuid;
  d.cuDeviceGetName = device_name;
  d.cuDeviceGetAttribute = device_attribute;
  d.cuDevicePrimaryCtxRetain = primary_retain;
  d.cuDevicePrimaryCtxRelease = primary_release;
  d.cuCtxPushCurrent = push_current;
  d.cuCtxPopCurrent = pop_current;
  d.cuCtxGetCurrent = get_current;
  d.cuCtxGetStreamPriorityRange = priority_range;
  d.cuModuleLoadData = module_load;
  d.cuModuleUnload = module_unload;
  d.cuModuleGetFunction = module_function;
  d.cuFuncSetAttribute = function_attribute;
  d.cuLaunchKernel = launch;
  d.cuStreamCreateWithPriority = stream_create;
  d.cuStreamDestroy = stream_destroy;
  d.cuStreamQuery = stream_query;
  d.cuStreamSynchronize = stream_synchronize;
  d.cuStreamWaitEvent = stream_wait_event;
  d.cuStreamWaitValue32 = stream_wait_value;
  d.cuStreamIsCapturing = stream_is_capturing;
  d.cuStreamGetCtx = stream_context;
  d.cuThreadExchangeStreamCaptureMode = exchange_mode;
  d.cuEventCreate = event_create;
  d.cuEventDestroy = event_destroy;
  d.cuEventRecord = event_record;
  d.cuEventQuery = event_query;
  d.cuMemAlloc = mem_alloc;
  d.cuMemFree = mem_free;
  d.cuMemHostAlloc = host_alloc;
  d.cuMemFreeHost = free_host;
  d.cuMemHostRegister = host_register;
  d.cuMemHostUnregister = host_unregister;
  d.cuMemHostGetDevicePointer = host_pointer;
  d.cuPointerGetAttribute = pointer_attribute;
  add_copies(d);
  return d;
}

}  // namespace

const Driver& entries() {
  static const Driver made = make_entries();
  return made;
}

}  // namespace orbitkv::device::cuda::fake
