#include "device/cuda/context.h"

#include <cstring>

#include "base/text.h"
#include "device/cuda/code.h"

namespace orbitkv::device::cuda {
namespace {

std::string uuid_text(const char* prefix, const CuUuid& uuid) {
  const unsigned char* b = uuid.bytes;
  return format_text("%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", prefix, b[0],
                     b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
                     b[15]);
}

}  // namespace

Status status_of(const Driver& driver, const char* call, CuResult code) {
  if (code == kCuSuccess) return ok_status();
  return driver_error(driver, call, code);
}

Scope::Scope(const Context& context) : driver_(context.driver()) {
  driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  pushed_ = driver_.cuCtxPushCurrent(context.handle()) == kCuSuccess;
}

Scope::~Scope() {
  CuContext ours = nullptr;
  if (pushed_) driver_.cuCtxPopCurrent(&ours);
  driver_.cuThreadExchangeStreamCaptureMode(&mode_);
}

Result<std::shared_ptr<Context>> Context::open(const Driver& driver, CuDevice device) {
  std::shared_ptr<Context> context(new Context(driver, device));
  ORBITKV_RETURN_IF_ERROR(context->prepare());
  return context;
}

Context::~Context() {
  if (context_ == nullptr) return;
  if (module_ != nullptr) {
    Scope scope(*this);
    driver_.cuModuleUnload(module_);
  }
  driver_.cuDevicePrimaryCtxRelease(device_);
}

Status Context::prepare() {
  const auto attribute = [&](int which, int& value) {
    return status_of(driver_, "cuDeviceGetAttribute", driver_.cuDeviceGetAttribute(&value, which, device_));
  };
  ORBITKV_RETURN_IF_ERROR(attribute(kAttributeMajor, traits_.major));
  ORBITKV_RETURN_IF_ERROR(attribute(kAttributeMinor, traits_.minor));
  ORBITKV_RETURN_IF_ERROR(attribute(kAttributeMultiprocessors, traits_.multiprocessors));
  ORBITKV_RETURN_IF_ERROR(attribute(kAttributeSharedOptin, traits_.shared_bytes));
  ORBITKV_RETURN_IF_ERROR(attribute(kAttributeMaxPitch, traits_.max_pitch));
  ORBITKV_ASSIGN_OR_RETURN(identity_, identity_of(driver_, device_));
  ORBITKV_RETURN_IF_ERROR(
      status_of(driver_, "cuDevicePrimaryCtxRetain", driver_.cuDevicePrimaryCtxRetain(&context_, device_)));
  Scope scope(*this);
  ORBITKV_RETURN_IF_ERROR(status_of(driver_, "cuCtxGetStreamPriorityRange",
                                    driver_.cuCtxGetStreamPriorityRange(&least_, &greatest_)));
  return load_kernels();
}

// A MIG instance has a UUID of its own; the older call names the GPU that it is a part of.
Result<std::string> identity_of(const Driver& driver, CuDevice device) {
  CuUuid own, parent;
  ORBITKV_RETURN_IF_ERROR(status_of(driver, "cuDeviceGetUuid", driver.cuDeviceGetUuid(&own, device)));
  const bool known = driver.cuDeviceGetUuidOfParent != nullptr &&
                     driver.cuDeviceGetUuidOfParent(&parent, device) == kCuSuccess;
  const bool instance = known && std::memcmp(own.bytes, parent.bytes, sizeof own.bytes) != 0;
  return uuid_text(instance ? "MIG" : "GPU", own);
}

Status Context::load_kernels() {
  ORBITKV_ASSIGN_OR_RETURN(module_, load_module(driver_, traits_.major, traits_.minor));
  const auto function = [&](const char* name, CuFunction& out) -> Status {
    ORBITKV_RETURN_IF_ERROR(
        status_of(driver_, "cuModuleGetFunction", driver_.cuModuleGetFunction(&out, module_, name)));
    return status_of(driver_, "cuFuncSetAttribute",
                     driver_.cuFuncSetAttribute(out, kFunctionMaxDynamicShared, traits_.shared_bytes));
  };
  ORBITKV_RETURN_IF_ERROR(function("orbitkv_copy_16", kernels_.any16));
  ORBITKV_RETURN_IF_ERROR(function("orbitkv_copy_8", kernels_.any8));
  ORBITKV_RETURN_IF_ERROR(function("orbitkv_copy_1", kernels_.any1));
  if (traits_.major >= 9) ORBITKV_RETURN_IF_ERROR(function("orbitkv_copy_bulk", kernels_.bulk));
  return ok_status();
}

}  // namespace orbitkv::device::cuda
