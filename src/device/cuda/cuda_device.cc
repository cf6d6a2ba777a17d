#include "device/cuda/cuda_device.h"

#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "device/cuda/cuda_copier.h"
#include "device/cuda/numa_node.h"
#include "device/cuda/tuner.h"

namespace orbitkv::device::cuda {
namespace {

// The special stream handles: 0 and 1 are the default stream that orders itself with all
// blocking streams, 2 the calling thread's own.
bool is_special(StreamHandle stream) {
  return stream.value <= 2;
}

class EventPool final : public FencePool {
 public:
  explicit EventPool(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  ~EventPool() override {
    Scope scope(*context_);
    for (CuEvent event : free_) context_->driver().cuEventDestroy(event);
  }
  Result<CuEvent> take() {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        CuEvent event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    CuEvent event = nullptr;
    const Driver& d = context_->driver();
    ORBITKV_RETURN_IF_ERROR(status_of(d, "cuEventCreate", d.cuEventCreate(&event, kEventDisableTiming)));
    return event;
  }
  // Any thread; no driver call. Bounded by the operations that are open.
  void give_back(EventHandle event) override {
    std::lock_guard lock(mutex_);
    free_.push_back(reinterpret_cast<CuEvent>(event.value));
  }

 private:
  const std::shared_ptr<Context> context_;
  std::mutex mutex_;
  std::vector<CuEvent> free_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<Context> context, const CudaDeviceOptions& options)
      : options_(options),
        parts_(std::make_shared<DeviceParts>()),
        events_(context),
        node_(numa_node_of(context->driver(), context->device())) {
    parts_->slabs = std::make_shared<SlabTable>(context, options.slabs);
    parts_->context = std::move(context);
    if (options.tunes) tuner_ = std::thread([this] { tune(); });
  }
  ~CudaDevice() override {
    if (tuner_.joinable()) tuner_.join();
  }

  std::string identity() const override { return parts_->context->identity(); }
  NodeId node() const override { return node_; }
  Status check_memory(std::span<const std::byte> memory) const override;
  void add_slab(std::span<std::byte> slab) override { parts_->slabs->add(slab); }
  void remove_slab(std::span<std::byte> slab) override { parts_->slabs->remove(slab); }
  std::size_t reachable_slabs() const override { return parts_->slabs->registered(); }
  Result<Fence> fence(StreamHandle stream) override;
  Result<std::unique_ptr<Copier>> new_copier(const CopierOptions& options) override {
    return make_cuda_copier(parts_, options, options_);
  }

 private:
  void tune();
  Status check_address(const std::byte* at) const;
  Status check_stream(StreamHandle stream, CuContext callers) const;

  const CudaDeviceOptions options_;
  const std::shared_ptr<DeviceParts> parts_;
  EventPool events_;
  const NodeId node_;
  std::thread tuner_;
};

// What an earlier process found, or a measurement beside whatever the engine does now.
void CudaDevice::tune() {
  const std::string path = windows_path(*parts_->context);
  if (!path.empty()) {
    if (const auto known = read_windows(path)) return parts_->set_windows(*known);
  }
  const auto measured = measure_windows(parts_->context);
  if (!measured.ok()) {
    ORBITKV_INFO("copy windows of %s stay at their defaults: %s", identity().c_str(),
                 measured.error().message().c_str());
    return;
  }
  parts_->set_windows(*measured);
  if (path.empty()) return;
  if (const Status kept = write_windows(path, *measured); !kept.ok())
    ORBITKV_INFO("copy windows were not kept: %s", kept.error().message().c_str());
}

// ---- pages ----

Status CudaDevice::check_address(const std::byte* at) const {
  const Driver& d = parts_->context->driver();
  const auto address = reinterpret_cast<CuPtr>(at);
  unsigned type = 0;
  int ordinal = -1;
  CuContext owner = nullptr;
  if (d.cuPointerGetAttribute(&type, kPointerMemoryType, address) != kCuSuccess || type != kMemoryTypeDevice)
    return reject(format_text(
        "%p is not GPU memory; register it with device \"cpu:0\", or pass the tensor that lies on %s",
        static_cast<const void*>(at), identity().c_str()));
  if (d.cuPointerGetAttribute(&ordinal, kPointerDeviceOrdinal, address) == kCuSuccess &&
      ordinal != parts_->context->device())
    return reject(format_text("%p lies on device %d of this process, not on %s", static_cast<const void*>(at),
                              ordinal, identity().c_str()));
  // Memory of pools and of virtual address ranges belongs to no context.
  if (d.cuPointerGetAttribute(static_cast<void*>(&owner), kPointerContext, address) == kCuSuccess &&
      owner != nullptr && owner != parts_->context->handle())
    return reject(
        format_text("%p belongs to another CUDA context than the device's primary one; allocate pages in "
                    "that one, as torch and the CUDA runtime do",
                    static_cast<const void*>(at)));
  return ok_status();
}

Status CudaDevice::check_memory(std::span<const std::byte> memory) const {
  Scope scope(*parts_->context);
  if (memory.empty()) return reject("an empty allocation");
  ORBITKV_RETURN_IF_ERROR(check_address(memory.data()));
  return check_address(memory.data() + memory.size() - 1);
}

// ---- fences ----

Status CudaDevice::check_stream(StreamHandle stream, CuContext callers) const {
  const Driver& d = parts_->context->driver();
  const CuContext ours = parts_->context->handle();
  auto* handle = reinterpret_cast<CuStream>(stream.value);
  if (is_special(stream)) {
    if (callers == nullptr || callers == ours) return ok_status();
    return reject(
        "the default stream was given while another CUDA context is current; give the stream's own handle");
  }
  CuContext owner = nullptr;
  const CuResult code = d.cuStreamGetCtx(handle, &owner);
  if (code != kCuSuccess)
    return reject(format_text("stream %#llx: %s", static_cast<unsigned long long>(stream.value),
                              driver_error(d, "cuStreamGetCtx", code).message().c_str()));
  if (owner != ours)
    return reject(format_text(
        "stream %#llx is not a stream of %s's primary context; give the one that works on the pages",
        static_cast<unsigned long long>(stream.value), identity().c_str()));
  return ok_status();
}

Result<Fence> CudaDevice::fence(StreamHandle stream) {
  if (stream == kNoStream) return Fence();
  const Driver& d = parts_->context->driver();
  CuContext callers = nullptr;
  d.cuCtxGetCurrent(&callers);
  Scope scope(*parts_->context);
  ORBITKV_RETURN_IF_ERROR(check_stream(stream, callers));
  auto* handle = reinterpret_cast<CuStream>(stream.value);
  int capturing = 0;
  // Asking a capturing stream for its progress would break the engine's capture.
  const CuResult status = d.cuStreamIsCapturing(handle, &capturing);
  if (status != kCuSuccess || capturing != kCaptureNone)
    return reject(
        "the ready stream is being captured into a graph; start the operation before the capture or its "
        "replay");
  // An idle default stream says nothing about the streams that order themselves with it.
  if (!is_special(stream)) {
    const CuResult idle = d.cuStreamQuery(handle);
    if (idle == kCuSuccess) return Fence();
    if (idle != kCuNotReady) return driver_error(d, "cuStreamQuery of the ready stream", idle);
  }
  ORBITKV_ASSIGN_OR_RETURN(CuEvent event, events_.take());
  Fence fence(&events_, {reinterpret_cast<std::uint64_t>(event)});
  ORBITKV_RETURN_IF_ERROR(status_of(d, "cuEventRecord on the ready stream", d.cuEventRecord(event, handle)));
  return fence;
}

// ---- finding a device ----

std::string visible_devices(const Driver& driver, int count) {
  std::string text;
  for (CuDevice i = 0; i < count; ++i) {
    char name[64] = "";
    driver.cuDeviceGetName(name, sizeof name - 1, i);
    text += format_text("%scuda:%d (%s)", i > 0 ? ", " : "", i, name);
  }
  return text.empty() ? "none" : text;
}

// The device that `name` means. No context is made on the others.
Result<CuDevice> find_device(const Driver& driver, const std::string& name) {
  int count = 0;
  ORBITKV_RETURN_IF_ERROR(status_of(driver, "cuDeviceGetCount", driver.cuDeviceGetCount(&count)));
  for (CuDevice i = 0; i < count; ++i) {
    CuDevice device = 0;
    ORBITKV_RETURN_IF_ERROR(status_of(driver, "cuDeviceGet", driver.cuDeviceGet(&device, i)));
    if (name == format_text("cuda:%d", i)) return device;
    const auto identity = identity_of(driver, device);
    if (identity.ok() && *identity == name) return device;
  }
  return reject(format_text("no GPU \"%s\" in this process; it sees: %s", name.c_str(),
                            visible_devices(driver, count).c_str()));
}

}  // namespace

Result<std::shared_ptr<Device>> make_cuda_device(const Driver& driver, CuDevice ordinal,
                                                 const CudaDeviceOptions& options) {
  ORBITKV_ASSIGN_OR_RETURN(auto context, Context::open(driver, ordinal));
  return std::shared_ptr<Device>(std::make_shared<CudaDevice>(std::move(context), options));
}

Result<std::shared_ptr<Device>> open_cuda_device(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Device>> open;  // by identity
  ORBITKV_ASSIGN_OR_RETURN(const Driver* driver, load_driver());
  ORBITKV_ASSIGN_OR_RETURN(const CuDevice ordinal, find_device(*driver, name));
  ORBITKV_ASSIGN_OR_RETURN(const std::string identity, identity_of(*driver, ordinal));
  std::lock_guard lock(mutex);
  auto& known = open[identity];
  if (auto device = known.lock()) return device;
  ORBITKV_ASSIGN_OR_RETURN(auto context, Context::open(*driver, ordinal));
  std::shared_ptr<Device> device =
      std::make_shared<CudaDevice>(std::move(context), CudaDeviceOptions{.tunes = true});
  known = device;
  return device;
}

}  // namespace orbitkv::device::cuda
