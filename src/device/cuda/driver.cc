#include "device/cuda/driver.h"

#include <dlfcn.h>

#include <mutex>

#include "base/text.h"

namespace orbitkv::device::cuda {
namespace {

constexpr int kOldestDriver = 12000;  // CUDA 12.0

struct Symbol {
  const char* name;
  void** entry;
  bool required = true;
};

template <class Entry>
void** slot(Entry*& entry) {
  return reinterpret_cast<void**>(&entry);
}

// Plain names of entry points that were changed once belong to their oldest ABI.
Status fill(void* library, Driver& d) {
  const Symbol symbols[] = {
      {"cuInit", slot(d.cuInit)},
      {"cuDriverGetVersion", slot(d.cuDriverGetVersion)},
      {"cuGetErrorName", slot(d.cuGetErrorName)},
      {"cuGetErrorString", slot(d.cuGetErrorString)},
      {"cuDeviceGetCount", slot(d.cuDeviceGetCount)},
      {"cuDeviceGet", slot(d.cuDeviceGet)},
      {"cuDeviceGetUuid_v2", slot(d.cuDeviceGetUuid)},
      {"cuDeviceGetName", slot(d.cuDeviceGetName)},
      {"cuDeviceGetAttribute", slot(d.cuDeviceGetAttribute)},
      {"cuDevicePrimaryCtxRetain", slot(d.cuDevicePrimaryCtxRetain)},
      {"cuDevicePrimaryCtxRelease_v2", slot(d.cuDevicePrimaryCtxRelease)},
      {"cuCtxPushCurrent_v2", slot(d.cuCtxPushCurrent)},
      {"cuCtxPopCurrent_v2", slot(d.cuCtxPopCurrent)},
      {"cuCtxGetCurrent", slot(d.cuCtxGetCurrent)},
      {"cuCtxGetStreamPriorityRange", slot(d.cuCtxGetStreamPriorityRange)},
      {"cuModuleLoadData", slot(d.cuModuleLoadData)},
      {"cuModuleUnload", slot(d.cuModuleUnload)},
      {"cuModuleGetFunction", slot(d.cuModuleGetFunction)},
      {"cuFuncSetAttribute", slot(d.cuFuncSetAttribute)},
      {"cuLaunchKernel", slot(d.cuLaunchKernel)},
      {"cuStreamCreateWithPriority", slot(d.cuStreamCreateWithPriority)},
      {"cuStreamDestroy_v2", slot(d.cuStreamDestroy)},
      {"cuStreamQuery", slot(d.cuStreamQuery)},
      {"cuStreamSynchronize", slot(d.cuStreamSynchronize)},
      {"cuStreamWaitEvent", slot(d.cuStreamWaitEvent)},
      {"cuStreamIsCapturing", slot(d.cuStreamIsCapturing)},
      {"cuStreamGetCtx", slot(d.cuStreamGetCtx)},
      {"cuEventCreate", slot(d.cuEventCreate)},
      {"cuEventDestroy_v2", slot(d.cuEventDestroy)},
      {"cuEventRecord", slot(d.cuEventRecord)},
      {"cuEventQuery", slot(d.cuEventQuery)},
      {"cuMemAlloc_v2", slot(d.cuMemAlloc)},
      {"cuMemFree_v2", slot(d.cuMemFree)},
      {"cuMemHostAlloc", slot(d.cuMemHostAlloc)},
      {"cuMemFreeHost", slot(d.cuMemFreeHost)},
      {"cuMemHostRegister_v2", slot(d.cuMemHostRegister)},
      {"cuMemHostUnregister", slot(d.cuMemHostUnregister)},
      {"cuMemHostGetDevicePointer_v2", slot(d.cuMemHostGetDevicePointer)},
      {"cuMemcpyHtoDAsync_v2", slot(d.cuMemcpyHtoDAsync)},
      {"cuMemcpyDtoHAsync_v2", slot(d.cuMemcpyDtoHAsync)},
      {"cuMemcpyDtoH_v2", slot(d.cuMemcpyDtoH)},
      {"cuMemcpyHtoD_v2", slot(d.cuMemcpyHtoD)},
      {"cuMemcpy2DAsync_v2", slot(d.cuMemcpy2DAsync)},
      {"cuMemsetD32Async", slot(d.cuMemsetD32Async)},
      {"cuPointerGetAttribute", slot(d.cuPointerGetAttribute)},
      {"cuThreadExchangeStreamCaptureMode", slot(d.cuThreadExchangeStreamCaptureMode)},
      {"cuStreamWaitValue32_v2", slot(d.cuStreamWaitValue32), false},
      {"cuDeviceGetUuid", slot(d.cuDeviceGetUuidOfParent), false},
      {"cuMemcpyBatchAsync", slot(d.cuMemcpyBatchAsync), false},
  };
  for (const Symbol& symbol : symbols) {
    *symbol.entry = dlsym(library, symbol.name);
    if (*symbol.entry == nullptr && symbol.required)
      return reject(format_text(
          "the NVIDIA driver has no %s: it is older than CUDA 12.0; install a newer driver", symbol.name));
  }
  return ok_status();
}

Status initialise(const Driver& driver) {
  if (const CuResult code = driver.cuInit(0); code == kCuNoDevice)
    return reject("the NVIDIA driver finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES");
  else if (code != kCuSuccess)
    return Error(Code::kReject, driver_error(driver, "cuInit", code).message());
  int version = 0;
  driver.cuDriverGetVersion(&version);
  if (version >= kOldestDriver) return ok_status();
  return reject(format_text("the NVIDIA driver speaks CUDA %d.%d; OrbitKV needs 12.0 or newer",
                            version / 1000, version % 1000 / 10));
}

Result<const Driver*> load() {
  // Never closed: the driver's own threads and exit handlers live in it.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return reject(format_text(
        "no NVIDIA driver on this machine (%s); install it, or register pages in CPU memory", dlerror()));
  static Driver driver;
  ORBITKV_RETURN_IF_ERROR(fill(library, driver));
  ORBITKV_RETURN_IF_ERROR(initialise(driver));
  return &driver;
}

}  // namespace

Result<const Driver*> load_driver() {
  static const Result<const Driver*> loaded = load();
  return loaded;
}

Error driver_error(const Driver& driver, const char* call, CuResult code) {
  const char *name = nullptr, *text = nullptr;
  driver.cuGetErrorName(code, &name);
  driver.cuGetErrorString(code, &text);
  return bug(format_text("%s: %s (%s)", call, name ? name : "unknown error", text ? text : "no text"));
}

}  // namespace orbitkv::device::cuda
