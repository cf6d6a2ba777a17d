// The entry points of the fake for devices, contexts and modules; those of queues, memory
// and copies stand in files of their own.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/cuda/fake_call.h"

namespace orbitkv::device::cuda::fake {
namespace {

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
  // Never destroyed: threads ask to the end of the process.
  static const auto& names =
      *new std::map<CuResult, const char*>{{kCuOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
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
    case kAttributePciBus: *value = gpu->bus; break;
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
                                                "orbitkv_copy_1", "orbitkv_bench_compute"};
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
struct Launch {
  CuFunction function = nullptr;
  LaunchShape shape;
  bool flat = false;  // one dimension
  CuStream stream = nullptr;
  void** parameters = nullptr;
};
CuResult launch(const Launch& what) {
  Call call("cuLaunchKernel", Needs::kContext);
  Stream* on = call.work_on(what.stream);
  if (call.code) return call.code;
  if (!what.flat) return kCuInvalidValue;
  return enqueue_kernel(call.state, *reinterpret_cast<Function*>(what.function), what.shape, *on,
                        what.parameters[0]);
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
  d.cuLaunchKernel = [](CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        CuStream stream, void** parameters, void** extra) {
    const bool flat = grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1 && extra == nullptr;
    return launch({function, {grid_x, block_x, shared}, flat, stream, parameters});
  };
  add_queues(d);
  add_memory(d);
  add_copies(d);
  return d;
}

}  // namespace

const Driver& entries() {
  static const Driver made = make_entries();
  return made;
}

}  // namespace orbitkv::device::cuda::fake
