// An NVIDIA GPU as a bench uses it beside the product: its memory, streams and copies
// through the driver table. The driver is loaded when a bench is asked for a GPU, never
// before; without one the bench is skipped. Main thread; the GPU's primary context is
// current while a Gpu lives. Failing calls come back as text that names them.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "bench/harness.h"
#include "device/cuda/context.h"
#include "device/cuda/driver.h"

namespace orbitkv::bench {

// Where benches get their driver from; tests put another one in.
using DriverSource = std::function<Result<const device::cuda::Driver*>()>;
void use_driver(DriverSource source);

class Gpu {
 public:
  // "cuda:<number>". kReject: no driver, or no such GPU.
  static Result<std::unique_ptr<Gpu>> open(const std::string& name);
  const device::cuda::Driver& driver() const { return context_->driver(); }
  const std::shared_ptr<device::cuda::Context>& context() const { return context_; }
  std::string model() const;  // "NVIDIA H200"
  Status check(const char* call, device::cuda::CuResult code) const {
    return device::cuda::status_of(driver(), call, code);
  }

 private:
  explicit Gpu(std::shared_ptr<device::cuda::Context> context)
      : context_(std::move(context)), scope_(*context_) {}
  const std::shared_ptr<device::cuda::Context> context_;
  const device::cuda::Scope scope_;
};

// Says why on stderr; the exit status of a bench that cannot run here.
int skip(const char* bench, const Error& why);

class GpuMemory {
 public:
  static Result<std::unique_ptr<GpuMemory>> make(const Gpu& gpu, ByteCount bytes);
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  device::cuda::CuPtr at() const { return at_; }
  std::byte* data() const { return reinterpret_cast<std::byte*>(at_); }
  std::uint64_t size() const { return bytes_.value; }
  // These return when it is done.
  Status write(std::uint64_t offset, std::span<const std::byte> bytes);
  Status read(std::span<std::byte> out, std::uint64_t offset) const;
  Status fill(std::uint32_t word);
  Status fill(std::uint64_t offset, ByteCount bytes, std::uint32_t word);

 private:
  GpuMemory(const Gpu& gpu, ByteCount bytes) : gpu_(gpu), bytes_(bytes) {}
  const Gpu& gpu_;
  const ByteCount bytes_;
  device::cuda::CuPtr at_ = 0;
};

// Host memory as a pool has it: an unnamed file, mapped shared, touched.
class FileMemory {
 public:
  static Result<std::unique_ptr<FileMemory>> make(ByteCount bytes);
  ~FileMemory();
  FileMemory(const FileMemory&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit FileMemory(std::span<std::byte> bytes) : bytes_(bytes) {}
  const std::span<std::byte> bytes_;
};

// The same, registered with the driver.
class RegisteredMemory {
 public:
  static Result<std::unique_ptr<RegisteredMemory>> make(const Gpu& gpu, ByteCount bytes);
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  std::byte* data() const { return memory_->bytes().data(); }

 private:
  RegisteredMemory(const Gpu& gpu, std::unique_ptr<FileMemory> memory)
      : gpu_(gpu), memory_(std::move(memory)) {}
  const Gpu& gpu_;
  const std::unique_ptr<FileMemory> memory_;
  bool registered_ = false;
};

class GpuStream {
 public:
  static Result<std::unique_ptr<GpuStream>> make(const Gpu& gpu);
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  device::cuda::CuStream handle() const { return stream_; }
  // Two marks of the end of what was enqueued until then.
  Status mark(std::size_t which = 0);
  Result<bool> passed(std::size_t which = 0) const;
  Status finish();  // spins until the first mark is passed

 private:
  explicit GpuStream(const Gpu& gpu) : gpu_(gpu) {}
  const Gpu& gpu_;
  device::cuda::CuStream stream_ = nullptr;
  std::array<device::cuda::CuEvent, 2> marks_{};
};

}  // namespace orbitkv::bench
