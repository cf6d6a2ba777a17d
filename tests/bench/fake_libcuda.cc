// libcuda.so.1 of the fake driver: programs that load the driver by its name run on a GPU
// that exists only in their process. One such GPU; figures mean nothing. Tests only.
#include "tests/bench/fake_libcuda.h"

namespace orbitkv::device::cuda::fake {

// Never destroyed, as the real one.
FakeDriver& of_this_process() {
  static FakeDriver* driver = new FakeDriver;
  return *driver;
}

namespace {

const Driver& table() {
  return of_this_process().driver();
}

template <auto Entry>
struct Forward;
template <class... A, CuResult (*Driver::*Entry)(A...)>
struct Forward<Entry> {
  static CuResult call(A... a) { return (table().*Entry)(a...); }
};

}  // namespace
}  // namespace orbitkv::device::cuda::fake

using AnyFunction = void();

// dlsym of `symbol` answers the forwarder of the entry.
#define ORBITKV_SYMBOL(symbol, entry)                                            \
  static AnyFunction* resolve_##symbol() {                                       \
    using namespace orbitkv::device::cuda;                                       \
    return reinterpret_cast<AnyFunction*>(&fake::Forward<&Driver::entry>::call); \
  }                                                                              \
  [[gnu::visibility("default"), gnu::ifunc("resolve_" #symbol)]] void symbol();

extern "C" {
ORBITKV_SYMBOL(cuInit, cuInit)
ORBITKV_SYMBOL(cuDriverGetVersion, cuDriverGetVersion)
ORBITKV_SYMBOL(cuGetErrorName, cuGetErrorName)
ORBITKV_SYMBOL(cuGetErrorString, cuGetErrorString)
ORBITKV_SYMBOL(cuDeviceGetCount, cuDeviceGetCount)
ORBITKV_SYMBOL(cuDeviceGet, cuDeviceGet)
ORBITKV_SYMBOL(cuDeviceGetUuid_v2, cuDeviceGetUuid)
ORBITKV_SYMBOL(cuDeviceGetName, cuDeviceGetName)
ORBITKV_SYMBOL(cuDeviceGetAttribute, cuDeviceGetAttribute)
ORBITKV_SYMBOL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)
ORBITKV_SYMBOL(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease)
ORBITKV_SYMBOL(cuCtxPushCurrent_v2, cuCtxPushCurrent)
ORBITKV_SYMBOL(cuCtxPopCurrent_v2, cuCtxPopCurrent)
ORBITKV_SYMBOL(cuCtxGetCurrent, cuCtxGetCurrent)
ORBITKV_SYMBOL(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange)
ORBITKV_SYMBOL(cuModuleLoadData, cuModuleLoadData)
ORBITKV_SYMBOL(cuModuleUnload, cuModuleUnload)
ORBITKV_SYMBOL(cuModuleGetFunction, cuModuleGetFunction)
ORBITKV_SYMBOL(cuFuncSetAttribute, cuFuncSetAttribute)
ORBITKV_SYMBOL(cuLaunchKernel, cuLaunchKernel)
ORBITKV_SYMBOL(cuStreamCreateWithPriority, cuStreamCreateWithPriority)
ORBITKV_SYMBOL(cuStreamDestroy_v2, cuStreamDestroy)
ORBITKV_SYMBOL(cuStreamQuery, cuStreamQuery)
ORBITKV_SYMBOL(cuStreamSynchronize, cuStreamSynchronize)
ORBITKV_SYMBOL(cuStreamWaitEvent, cuStreamWaitEvent)
ORBITKV_SYMBOL(cuStreamIsCapturing, cuStreamIsCapturing)
ORBITKV_SYMBOL(cuStreamGetCtx, cuStreamGetCtx)
ORBITKV_SYMBOL(cuEventCreate, cuEventCreate)
ORBITKV_SYMBOL(cuEventDestroy_v2, cuEventDestroy)
ORBITKV_SYMBOL(cuEventRecord, cuEventRecord)
ORBITKV_SYMBOL(cuEventQuery, cuEventQuery)
ORBITKV_SYMBOL(cuMemAlloc_v2, cuMemAlloc)
ORBITKV_SYMBOL(cuMemFree_v2, cuMemFree)
ORBITKV_SYMBOL(cuMemHostAlloc, cuMemHostAlloc)
ORBITKV_SYMBOL(cuMemFreeHost, cuMemFreeHost)
ORBITKV_SYMBOL(cuMemHostRegister_v2, cuMemHostRegister)
ORBITKV_SYMBOL(cuMemHostUnregister, cuMemHostUnregister)
ORBITKV_SYMBOL(cuMemHostGetDevicePointer_v2, cuMemHostGetDevicePointer)
ORBITKV_SYMBOL(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync)
ORBITKV_SYMBOL(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync)
ORBITKV_SYMBOL(cuMemcpyDtoH_v2, cuMemcpyDtoH)
ORBITKV_SYMBOL(cuMemcpyHtoD_v2, cuMemcpyHtoD)
ORBITKV_SYMBOL(cuMemcpy2DAsync_v2, cuMemcpy2DAsync)
ORBITKV_SYMBOL(cuMemsetD32Async, cuMemsetD32Async)
ORBITKV_SYMBOL(cuPointerGetAttribute, cuPointerGetAttribute)
ORBITKV_SYMBOL(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode)
ORBITKV_SYMBOL(cuStreamWaitValue32_v2, cuStreamWaitValue32)
ORBITKV_SYMBOL(cuDeviceGetUuid, cuDeviceGetUuidOfParent)
ORBITKV_SYMBOL(cuMemcpyBatchAsync, cuMemcpyBatchAsync)
}
