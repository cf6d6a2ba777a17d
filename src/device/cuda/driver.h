// The CUDA driver as this process finds it at run time: libcuda.so.1 by dlopen, one
// table of the entry points that the copier and its benches use, and their types, declared
// here so that neither headers nor libraries of a CUDA toolkit are needed. Loaded once and
// never unloaded. Tests replace single entries of a copy of the table, or all of it. Any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace orbitkv::device::cuda {

using CuResult = int;
inline constexpr CuResult kCuSuccess = 0;
inline constexpr CuResult kCuOutOfMemory = 2;
inline constexpr CuResult kCuDeinitialized = 4;  // the process is ending
inline constexpr CuResult kCuNoDevice = 100;
inline constexpr CuResult kCuInvalidContext = 201;
inline constexpr CuResult kCuInvalidValue = 1, kCuInvalidHandle = 400;
inline constexpr CuResult kCuNotReady = 600;
inline constexpr CuResult kCuIllegalAddress = 700;
inline constexpr CuResult kCuAlreadyRegistered = 712;
inline constexpr CuResult kCuCaptureUnsupported = 900;

using CuDevice = int;
using CuPtr = std::uint64_t;  // CUdeviceptr
using CuContext = struct CuContextOpaque*;
using CuModule = struct CuModuleOpaque*;
using CuFunction = struct CuFunctionOpaque*;
using CuStream = struct CuStreamOpaque*;
using CuEvent = struct CuEventOpaque*;
struct CuUuid {
  unsigned char bytes[16];
};

// Enumerators of cuda.h that are used; driver_test compares them where cuda.h is there.
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterPortable = 1, kHostRegisterDeviceMap = 2;
inline constexpr unsigned kHostAllocPortable = 1, kHostAllocDeviceMap = 2;
inline constexpr unsigned kWaitValueEqual = 1;
inline constexpr int kAttributeMaxPitch = 11;
inline constexpr int kAttributeMultiprocessors = 16;
inline constexpr int kAttributePciBus = 33, kAttributePciDevice = 34, kAttributePciDomain = 50;
inline constexpr int kAttributeMajor = 75, kAttributeMinor = 76;
inline constexpr int kAttributeSharedOptin = 97;
inline constexpr int kFunctionMaxDynamicShared = 8;
inline constexpr int kPointerContext = 1, kPointerMemoryType = 2, kPointerDeviceOrdinal = 9;
inline constexpr int kCaptureNone = 0;
inline constexpr unsigned kMemoryTypeDevice = 2, kMemoryTypeUnified = 4;
inline constexpr int kCaptureRelaxed = 2;

// One member an entry point, named as cuda.h names it for programs (driver.cc asks for the
// symbol of that ABI, which often ends in _v2). Never null after load_driver(), but for the
// optional ones, which stand last.
struct Driver {
  CuResult (*cuInit)(unsigned flags) = nullptr;
  CuResult (*cuDriverGetVersion)(int* version) = nullptr;
  CuResult (*cuGetErrorName)(CuResult code, const char** name) = nullptr;
  CuResult (*cuGetErrorString)(CuResult code, const char** text) = nullptr;
  CuResult (*cuDeviceGetCount)(int* count) = nullptr;
  CuResult (*cuDeviceGet)(CuDevice* device, int ordinal) = nullptr;
  CuResult (*cuDeviceGetUuid)(CuUuid* uuid, CuDevice device) = nullptr;  // a MIG instance's own
  CuResult (*cuDeviceGetName)(char* name, int bytes, CuDevice device) = nullptr;
  CuResult (*cuDeviceGetAttribute)(int* value, int attribute, CuDevice device) = nullptr;
  CuResult (*cuDevicePrimaryCtxRetain)(CuContext* context, CuDevice device) = nullptr;
  CuResult (*cuDevicePrimaryCtxRelease)(CuDevice device) = nullptr;
  CuResult (*cuCtxPushCurrent)(CuContext context) = nullptr;
  CuResult (*cuCtxPopCurrent)(CuContext* context) = nullptr;
  CuResult (*cuCtxGetCurrent)(CuContext* context) = nullptr;
  CuResult (*cuCtxGetStreamPriorityRange)(int* least, int* greatest) = nullptr;
  CuResult (*cuModuleLoadData)(CuModule* module, const void* image) = nullptr;
  CuResult (*cuModuleUnload)(CuModule module) = nullptr;
  CuResult (*cuModuleGetFunction)(CuFunction* function, CuModule module, const char* name) = nullptr;
  CuResult (*cuFuncSetAttribute)(CuFunction function, int attribute, int value) = nullptr;
  CuResult (*cuLaunchKernel)(CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                             CuStream stream, void** parameters, void** extra) = nullptr;
  CuResult (*cuStreamCreateWithPriority)(CuStream* stream, unsigned flags, int priority) = nullptr;
  CuResult (*cuStreamDestroy)(CuStream stream) = nullptr;
  CuResult (*cuStreamQuery)(CuStream stream) = nullptr;
  CuResult (*cuStreamSynchronize)(CuStream stream) = nullptr;
  CuResult (*cuStreamWaitEvent)(CuStream stream, CuEvent event, unsigned flags) = nullptr;
  CuResult (*cuStreamIsCapturing)(CuStream stream, int* status) = nullptr;
  CuResult (*cuStreamGetCtx)(CuStream stream, CuContext* context) = nullptr;
  CuResult (*cuEventCreate)(CuEvent* event, unsigned flags) = nullptr;
  CuResult (*cuEventDestroy)(CuEvent event) = nullptr;
  CuResult (*cuEventRecord)(CuEvent event, CuStream stream) = nullptr;
  CuResult (*cuEventQuery)(CuEvent event) = nullptr;
  CuResult (*cuMemAlloc)(CuPtr* at, std::size_t bytes) = nullptr;
  CuResult (*cuMemFree)(CuPtr at) = nullptr;
  CuResult (*cuMemHostAlloc)(void** at, std::size_t bytes, unsigned flags) = nullptr;
  CuResult (*cuMemFreeHost)(void* at) = nullptr;
  CuResult (*cuMemHostRegister)(void* at, std::size_t bytes, unsigned flags) = nullptr;
  CuResult (*cuMemHostUnregister)(void* at) = nullptr;
  CuResult (*cuMemHostGetDevicePointer)(CuPtr* device, void* host, unsigned flags) = nullptr;
  CuResult (*cuMemcpyHtoDAsync)(CuPtr to, const void* from, std::size_t bytes, CuStream stream) = nullptr;
  CuResult (*cuMemcpyDtoHAsync)(void* to, CuPtr from, std::size_t bytes, CuStream stream) = nullptr;
  CuResult (*cuMemcpyDtoH)(void* to, CuPtr from, std::size_t bytes) = nullptr;
  CuResult (*cuMemcpyHtoD)(CuPtr to, const void* from, std::size_t bytes) = nullptr;
  CuResult (*cuMemcpy2DAsync)(const struct CuCopy2D* copy, CuStream stream) = nullptr;
  CuResult (*cuMemsetD32Async)(CuPtr at, unsigned value, std::size_t words, CuStream stream) = nullptr;
  CuResult (*cuPointerGetAttribute)(void* value, int attribute, CuPtr pointer) = nullptr;
  CuResult (*cuThreadExchangeStreamCaptureMode)(int* mode) = nullptr;
  // Optional.
  CuResult (*cuStreamWaitValue32)(CuStream stream, CuPtr at, std::uint32_t value, unsigned flags) = nullptr;
  CuResult (*cuDeviceGetUuidOfParent)(CuUuid* uuid, CuDevice device) = nullptr;  // cuDeviceGetUuid of old
  // CUDA 12.8; the plain symbol, for the later one of the same name in cuda.h takes no `failed`.
  CuResult (*cuMemcpyBatchAsync)(CuPtr* to, CuPtr* from, std::size_t* bytes, std::size_t count,
                                 struct CuCopyAttributes* attributes, std::size_t* attribute_of,
                                 std::size_t attributes_count, std::size_t* failed,
                                 CuStream stream) = nullptr;
};

// CUDA_MEMCPY2D of cuda.h.
struct CuCopy2D {
  std::size_t src_x = 0, src_y = 0;
  unsigned src_type = 0;
  const void* src_host = nullptr;
  CuPtr src_device = 0;
  void* src_array = nullptr;
  std::size_t src_pitch = 0;
  std::size_t dst_x = 0, dst_y = 0;
  unsigned dst_type = 0;
  void* dst_host = nullptr;
  CuPtr dst_device = 0;
  void* dst_array = nullptr;
  std::size_t dst_pitch = 0;
  std::size_t width = 0, height = 0;
};
static_assert(sizeof(CuCopy2D) == 128);
// CUmemcpyAttributes of cuda.h.
struct CuCopyAttributes {
  int src_access_order = 1;  // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
  int src_location[2] = {0, 0};
  int dst_location[2] = {0, 0};
  unsigned flags = 0;
};
static_assert(sizeof(CuCopyAttributes) == 24);

// Loads and initialises the driver, once a process; called no earlier than the first GPU
// page is registered, because a process that forks after cuInit has no CUDA in its
// children. kReject says what is missing and what to install: no libcuda, a driver that is
// too old (its version and ours), no device.
Result<const Driver*> load_driver();

// "cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)".
Error driver_error(const Driver& driver, const char* call, CuResult code);

}  // namespace orbitkv::device::cuda
