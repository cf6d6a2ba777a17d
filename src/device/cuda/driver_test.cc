// driver.h against the toolkit's own header, where the machine has one: every constant,
// layout and signature that is declared there a second time.
#include "device/cuda/driver.h"

#include <gtest/gtest.h>

#include <cstring>
#include <type_traits>

#if __has_include(<cuda.h>)
// The symbols by their own names, old ABIs too, and no macros that lead from one to another.
#define __CUDA_API_VERSION_INTERNAL  // NOLINT(bugprone-reserved-identifier): cuda.h asks for it
#include <cuda.h>
#endif

namespace orbitkv::device::cuda {
namespace {

TEST(DriverError, NamesTheCallAndTheCode) {
  Driver driver;
  driver.cuGetErrorName = [](CuResult, const char** name) {
    *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
    return kCuSuccess;
  };
  driver.cuGetErrorString = [](CuResult, const char** text) {
    *text = "an illegal memory access was encountered";
    return kCuSuccess;
  };
  EXPECT_EQ(driver_error(driver, "cuLaunchKernel", kCuIllegalAddress).message(),
            "cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)");
  // A code that an older driver does not know.
  driver.cuGetErrorName = driver.cuGetErrorString = [](CuResult, const char** text) {
    *text = nullptr;
    return 1;
  };
  EXPECT_EQ(driver_error(driver, "cuInit", 999).message(), "cuInit: unknown error (no text)");
}

TEST(LoadDriver, SaysWhatIsMissing) {
  const auto driver = load_driver();
  if (driver.ok()) {
    int count = 0;
    EXPECT_EQ((*driver)->cuDeviceGetCount(&count), kCuSuccess);
    EXPECT_GT(count, 0);
    return;
  }
  EXPECT_EQ(driver.error().code(), Code::kReject);
  EXPECT_NE(driver.error().message().find("NVIDIA driver"), std::string::npos) << driver.error().message();
}

#if __has_include(<cuda.h>)

static_assert(kCuSuccess == CUDA_SUCCESS && kCuOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kCuDeinitialized == CUDA_ERROR_DEINITIALIZED && kCuNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kCuInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(kCuInvalidHandle == CUDA_ERROR_INVALID_HANDLE);
static_assert(kCuNotReady == CUDA_ERROR_NOT_READY && kCuIllegalAddress == CUDA_ERROR_ILLEGAL_ADDRESS);
static_assert(kCuAlreadyRegistered == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
static_assert(kCuCaptureUnsupported == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);

static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING && kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kHostRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(kHostAllocPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(kHostAllocDeviceMap == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(kWaitValueEqual == CU_STREAM_WAIT_VALUE_EQ);
static_assert(kAttributeMaxPitch == CU_DEVICE_ATTRIBUTE_MAX_PITCH);
static_assert(kAttributePciBus == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
static_assert(kAttributePciDevice == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
static_assert(kAttributePciDomain == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
static_assert(kAttributeMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(kAttributeMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kAttributeMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kAttributeSharedOptin == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
static_assert(kFunctionMaxDynamicShared == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(kPointerContext == CU_POINTER_ATTRIBUTE_CONTEXT);
static_assert(kPointerMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(kPointerDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(kCaptureNone == CU_STREAM_CAPTURE_STATUS_NONE &&
              kCaptureRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(kMemoryTypeDevice == CU_MEMORYTYPE_DEVICE && kMemoryTypeUnified == CU_MEMORYTYPE_UNIFIED);

static_assert(sizeof(CuUuid) == sizeof(CUuuid) && sizeof(CuPtr) == sizeof(CUdeviceptr));
static_assert(sizeof(CuDevice) == sizeof(CUdevice) && sizeof(CuResult) == sizeof(CUresult));

#define ORBITKV_SAME(ours, theirs, our_field, their_field) \
  static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field))
static_assert(sizeof(CuCopy2D) == sizeof(CUDA_MEMCPY2D));
ORBITKV_SAME(CuCopy2D, CUDA_MEMCPY2D, src_x, srcXInBytes);
ORBITKV_SAME(CuCopy2D, CUDA_MEMCPY2D, src_y, srcY);
ORBITKV_SAME(CuCopy2D, CUDA_MEMCPY2D, src_type, srcMemoryType);
ORBITKV_SAME(CuCopy2D, CUDA_MEMCPY2D, src_host, srcHost);
ORBITKV_SAME(CuCopy2D, CUDA_MEMCPY2D, src_device, srcDevice);
ORBITKV_SAME(CuCopy2D, CUDA_MEMCPY2D, src_array, srcArray);
ORBITKV_SAME(CuCopy2D, CUDA_MEMCPY2D, src_pitch, srcPitch);
ORBITKV_SAME(CuCopy2D, CUDA_MEMCPY2D, dst_x, dstXInBytes);
ORBITKV_SAME(CuCopy2D, CUDA_MEMCPY2D, dst_y, dstY);
ORBITKV_SAME(CuCopy2D, CUDA_MEMCPY2D, dst_type, dstMemoryType);
ORBITKV_SAME(CuCopy2D, CUDA_MEMCPY2D, dst_host, dstHost);
ORBITKV_SAME(CuCopy2D, CUDA_MEMCPY2D, dst_device, dstDevice);
ORBITKV_SAME(CuCopy2D, CUDA_MEMCPY2D, dst_array, dstArray);
ORBITKV_SAME(CuCopy2D, CUDA_MEMCPY2D, dst_pitch, dstPitch);
ORBITKV_SAME(CuCopy2D, CUDA_MEMCPY2D, width, WidthInBytes);
ORBITKV_SAME(CuCopy2D, CUDA_MEMCPY2D, height, Height);
#if CUDA_VERSION >= 12080
static_assert(sizeof(CuCopyAttributes) == sizeof(CUmemcpyAttributes));
ORBITKV_SAME(CuCopyAttributes, CUmemcpyAttributes, src_access_order, srcAccessOrder);
ORBITKV_SAME(CuCopyAttributes, CUmemcpyAttributes, src_location, srcLocHint);
ORBITKV_SAME(CuCopyAttributes, CUmemcpyAttributes, dst_location, dstLocHint);
ORBITKV_SAME(CuCopyAttributes, CUmemcpyAttributes, flags, flags);
TEST(CopyAttributes, AskForTheOrderOfTheStream) {
  EXPECT_EQ(CuCopyAttributes().src_access_order, int{CU_MEMCPY_SRC_ACCESS_ORDER_STREAM});
}
#endif

// One type stands for another where the calling convention cannot tell them apart.
template <class A, class B>
constexpr bool alike() {
  if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    return std::is_const_v<std::remove_pointer_t<A>> == std::is_const_v<std::remove_pointer_t<B>>;
  } else if constexpr (std::is_pointer_v<A> || std::is_pointer_v<B>) {
    return false;
  } else {
    return sizeof(A) == sizeof(B) && (std::is_integral_v<A> || std::is_enum_v<A>) &&
           (std::is_integral_v<B> || std::is_enum_v<B>);
  }
}
template <class A, class B>
struct SameCall : std::false_type {};
template <class... A, class... B>
struct SameCall<CuResult (*)(A...), CUresult (*)(B...)> {
  static constexpr bool arguments() {
    if constexpr (sizeof...(A) == sizeof...(B))
      return (alike<A, B>() && ...);
    else
      return false;
  }
  static constexpr bool value = arguments();
};
// The entry, and the symbol that driver.cc asks for.
#define ORBITKV_SIGNATURE(entry, symbol) \
  static_assert(SameCall<decltype(Driver::entry), decltype(&::symbol)>::value, #entry)
ORBITKV_SIGNATURE(cuInit, cuInit);
ORBITKV_SIGNATURE(cuDriverGetVersion, cuDriverGetVersion);
ORBITKV_SIGNATURE(cuGetErrorName, cuGetErrorName);
ORBITKV_SIGNATURE(cuGetErrorString, cuGetErrorString);
ORBITKV_SIGNATURE(cuDeviceGetCount, cuDeviceGetCount);
ORBITKV_SIGNATURE(cuDeviceGet, cuDeviceGet);
ORBITKV_SIGNATURE(cuDeviceGetName, cuDeviceGetName);
ORBITKV_SIGNATURE(cuDeviceGetAttribute, cuDeviceGetAttribute);
ORBITKV_SIGNATURE(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain);
ORBITKV_SIGNATURE(cuCtxGetCurrent, cuCtxGetCurrent);
ORBITKV_SIGNATURE(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange);
ORBITKV_SIGNATURE(cuModuleLoadData, cuModuleLoadData);
ORBITKV_SIGNATURE(cuModuleUnload, cuModuleUnload);
ORBITKV_SIGNATURE(cuModuleGetFunction, cuModuleGetFunction);
ORBITKV_SIGNATURE(cuFuncSetAttribute, cuFuncSetAttribute);
ORBITKV_SIGNATURE(cuLaunchKernel, cuLaunchKernel);
ORBITKV_SIGNATURE(cuStreamCreateWithPriority, cuStreamCreateWithPriority);
ORBITKV_SIGNATURE(cuStreamQuery, cuStreamQuery);
ORBITKV_SIGNATURE(cuStreamSynchronize, cuStreamSynchronize);
ORBITKV_SIGNATURE(cuStreamWaitEvent, cuStreamWaitEvent);
ORBITKV_SIGNATURE(cuStreamIsCapturing, cuStreamIsCapturing);
ORBITKV_SIGNATURE(cuStreamGetCtx, cuStreamGetCtx);
ORBITKV_SIGNATURE(cuEventCreate, cuEventCreate);
ORBITKV_SIGNATURE(cuEventRecord, cuEventRecord);
ORBITKV_SIGNATURE(cuEventQuery, cuEventQuery);
ORBITKV_SIGNATURE(cuMemHostAlloc, cuMemHostAlloc);
ORBITKV_SIGNATURE(cuMemFreeHost, cuMemFreeHost);
ORBITKV_SIGNATURE(cuMemHostUnregister, cuMemHostUnregister);
ORBITKV_SIGNATURE(cuMemsetD32Async, cuMemsetD32Async);
ORBITKV_SIGNATURE(cuPointerGetAttribute, cuPointerGetAttribute);
ORBITKV_SIGNATURE(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode);
ORBITKV_SIGNATURE(cuDeviceGetUuid, cuDeviceGetUuid_v2);
ORBITKV_SIGNATURE(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);
ORBITKV_SIGNATURE(cuCtxPushCurrent, cuCtxPushCurrent_v2);
ORBITKV_SIGNATURE(cuCtxPopCurrent, cuCtxPopCurrent_v2);
ORBITKV_SIGNATURE(cuStreamDestroy, cuStreamDestroy_v2);
ORBITKV_SIGNATURE(cuEventDestroy, cuEventDestroy_v2);
ORBITKV_SIGNATURE(cuMemAlloc, cuMemAlloc_v2);
ORBITKV_SIGNATURE(cuMemFree, cuMemFree_v2);
ORBITKV_SIGNATURE(cuMemHostRegister, cuMemHostRegister_v2);
ORBITKV_SIGNATURE(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2);
ORBITKV_SIGNATURE(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2);
ORBITKV_SIGNATURE(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2);
ORBITKV_SIGNATURE(cuMemcpyDtoH, cuMemcpyDtoH_v2);
ORBITKV_SIGNATURE(cuMemcpyHtoD, cuMemcpyHtoD_v2);
ORBITKV_SIGNATURE(cuMemcpy2DAsync, cuMemcpy2DAsync_v2);
ORBITKV_SIGNATURE(cuStreamWaitValue32, cuStreamWaitValue32_v2);
ORBITKV_SIGNATURE(cuDeviceGetUuidOfParent, cuDeviceGetUuid);
#if CUDA_VERSION >= 12080
ORBITKV_SIGNATURE(cuMemcpyBatchAsync, cuMemcpyBatchAsync);
#endif

#endif  // cuda.h

}  // namespace
}  // namespace orbitkv::device::cuda
