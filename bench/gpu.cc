#include "bench/gpu.h"

#include <sys/mman.h>

#include <charconv>
#include <cstdio>

#include "base/text.h"
#include "base/unique_fd.h"

namespace orbitkv::bench {
namespace {
using device::cuda::Driver;

DriverSource& source() {
  static DriverSource now = device::cuda::load_driver;
  return now;
}

std::optional<int> ordinal_of(const std::string& name) {
  if (!name.starts_with("cuda:")) return std::nullopt;
  int number = -1;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + 5, end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || number < 0) return std::nullopt;
  return number;
}
}  // namespace

void use_driver(DriverSource replacement) {
  source() = std::move(replacement);
}

// ---- the GPU ----

Result<std::unique_ptr<Gpu>> Gpu::open(const std::string& name) {
  const auto ordinal = ordinal_of(name);
  if (!ordinal) return reject("no GPU is called \"" + name + "\" here; use cuda:<number>");
  ORBITKV_ASSIGN_OR_RETURN(const Driver* driver, source()());
  int count = 0;
  ORBITKV_RETURN_IF_ERROR(
      device::cuda::status_of(*driver, "cuDeviceGetCount", driver->cuDeviceGetCount(&count)));
  if (*ordinal >= count)
    return reject(format_text("there is no %s: this process sees %d GPUs", name.c_str(), count));
  device::cuda::CuDevice device = 0;
  ORBITKV_RETURN_IF_ERROR(
      device::cuda::status_of(*driver, "cuDeviceGet", driver->cuDeviceGet(&device, *ordinal)));
  ORBITKV_ASSIGN_OR_RETURN(auto context, device::cuda::Context::open(*driver, device));
  return std::unique_ptr<Gpu>(new Gpu(std::move(context)));
}

std::string Gpu::model() const {
  char name[128] = "";
  driver().cuDeviceGetName(name, sizeof name - 1, context_->device());
  return name;
}

int skip(const char* bench, const Error& why) {
  std::fprintf(stderr, "bench %s: skipped: %s\n", bench, why.message().c_str());
  return kSkipped;
}

// ---- memory ----

Result<std::unique_ptr<GpuMemory>> GpuMemory::make(const Gpu& gpu, ByteCount bytes) {
  std::unique_ptr<GpuMemory> made(new GpuMemory(gpu, bytes));
  ORBITKV_RETURN_IF_ERROR(gpu.check("cuMemAlloc", gpu.driver().cuMemAlloc(&made->at_, bytes.value)));
  return made;
}

GpuMemory::~GpuMemory() {
  if (at_ != 0) gpu_.driver().cuMemFree(at_);
}

// The default stream's end is waited for: pageable bytes may still be on their way.
Status GpuMemory::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  const Driver& d = gpu_.driver();
  ORBITKV_RETURN_IF_ERROR(
      gpu_.check("cuMemcpyHtoD", d.cuMemcpyHtoD(at_ + offset, bytes.data(), bytes.size())));
  return gpu_.check("cuStreamSynchronize", d.cuStreamSynchronize(nullptr));
}

Status GpuMemory::read(std::span<std::byte> out, std::uint64_t offset) const {
  return gpu_.check("cuMemcpyDtoH", gpu_.driver().cuMemcpyDtoH(out.data(), at_ + offset, out.size()));
}

Status GpuMemory::fill(std::uint32_t word) {
  return fill(0, bytes_, word);
}

Status GpuMemory::fill(std::uint64_t offset, ByteCount bytes, std::uint32_t word) {
  const Driver& d = gpu_.driver();
  ORBITKV_RETURN_IF_ERROR(
      gpu_.check("cuMemsetD32Async", d.cuMemsetD32Async(at_ + offset, word, bytes.value / 4, nullptr)));
  return gpu_.check("cuStreamSynchronize", d.cuStreamSynchronize(nullptr));
}

Result<std::unique_ptr<FileMemory>> FileMemory::make(ByteCount bytes) {
  const UniqueFd fd(::memfd_create("orbitkv-bench", MFD_CLOEXEC));
  if (fd.get() < 0 || ::ftruncate(fd.get(), static_cast<off_t>(bytes.value)) != 0)
    return errno_error("making a memory file for the bench");
  void* at = ::mmap(nullptr, bytes.value, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (at == MAP_FAILED) return errno_error("mapping a memory file for the bench");
  return std::unique_ptr<FileMemory>(new FileMemory({static_cast<std::byte*>(at), bytes.value}));
}

FileMemory::~FileMemory() {
  ::munmap(bytes_.data(), bytes_.size());
}

Result<std::unique_ptr<RegisteredMemory>> RegisteredMemory::make(const Gpu& gpu, ByteCount bytes) {
  ORBITKV_ASSIGN_OR_RETURN(auto memory, FileMemory::make(bytes));
  std::unique_ptr<RegisteredMemory> made(new RegisteredMemory(gpu, std::move(memory)));
  ORBITKV_RETURN_IF_ERROR(gpu.check(
      "cuMemHostRegister",
      gpu.driver().cuMemHostRegister(made->data(), bytes.value, device::cuda::kHostRegisterPortable)));
  made->registered_ = true;
  return made;
}

RegisteredMemory::~RegisteredMemory() {
  if (registered_) gpu_.driver().cuMemHostUnregister(data());
}

// ---- streams ----

Result<std::unique_ptr<GpuStream>> GpuStream::make(const Gpu& gpu) {
  std::unique_ptr<GpuStream> made(new GpuStream(gpu));
  const Driver& d = gpu.driver();
  ORBITKV_RETURN_IF_ERROR(
      gpu.check("cuStreamCreateWithPriority",
                d.cuStreamCreateWithPriority(&made->stream_, device::cuda::kStreamNonBlocking, 0)));
  for (auto& mark : made->marks_)
    ORBITKV_RETURN_IF_ERROR(
        gpu.check("cuEventCreate", d.cuEventCreate(&mark, device::cuda::kEventDisableTiming)));
  return made;
}

GpuStream::~GpuStream() {
  const Driver& d = gpu_.driver();
  if (stream_ != nullptr) {
    d.cuStreamSynchronize(stream_);
    d.cuStreamDestroy(stream_);
  }
  for (auto& mark : marks_)
    if (mark != nullptr) d.cuEventDestroy(mark);
}

Status GpuStream::mark(std::size_t which) {
  return gpu_.check("cuEventRecord", gpu_.driver().cuEventRecord(marks_[which], stream_));
}

Result<bool> GpuStream::passed(std::size_t which) const {
  const device::cuda::CuResult code = gpu_.driver().cuEventQuery(marks_[which]);
  if (code == device::cuda::kCuNotReady) return false;
  ORBITKV_RETURN_IF_ERROR(gpu_.check("cuEventQuery", code));
  return true;
}

Status GpuStream::finish() {
  for (;;) {
    ORBITKV_ASSIGN_OR_RETURN(const bool over, passed());
    if (over) return ok_status();
  }
}

}  // namespace orbitkv::bench
