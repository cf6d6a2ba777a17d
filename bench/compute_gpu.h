// A kernel that computes like a GEMM and touches no memory: chains of tensor-core products
// in registers, as tiles of which several waves fill the GPU. What it takes beside a copy is
// the copy's doing. PTX, compiled by the driver.
#pragma once

#include <cstdint>
#include <memory>

#include "bench/gpu.h"

namespace orbitkv::bench {

class ComputeKernel {
 public:
  // kReject: the driver cannot compile it.
  static Result<std::unique_ptr<ComputeKernel>> make(const Gpu& gpu);
  ~ComputeKernel();
  ComputeKernel(const ComputeKernel&) = delete;
  // Its time grows with the rounds: about half a microsecond each on an H200.
  Status launch(const GpuStream& stream, std::uint32_t rounds) const;

 private:
  explicit ComputeKernel(const Gpu& gpu) : gpu_(gpu) {}
  const Gpu& gpu_;
  device::cuda::CuModule module_ = nullptr;
  device::cuda::CuFunction function_ = nullptr;
  std::unique_ptr<GpuMemory> out_;
};

}  // namespace orbitkv::bench
