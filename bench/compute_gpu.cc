#include "bench/compute_gpu.h"

#include <algorithm>

namespace orbitkv::bench {
namespace {

constexpr unsigned kThreads = 256;
// Tiles a multiprocessor; eight are there at a time, so that one which shares its place with
// a copy does not hold the layer up.
constexpr unsigned kTiles = 32;

// Two independent products of 16 x 8 x 16 a warp and round. The sum is stored only if it is
// a number that it never is, so that nothing of it can be left out.
constexpr const char* kSource = R"(.version 7.0
.target sm_80
.address_size 64
.visible .entry orbitkv_bench_compute(.param .u64 out, .param .u32 rounds)
.maxntid 256, 1, 1
{
  .reg .pred %more, %never;
  .reg .b32 %a<4>, %b<2>, %left, %thread;
  .reg .b64 %at;
  .reg .f32 %c<4>, %d<4>, %sum;
  ld.param.u32 %left, [rounds];
  mov.u32 %thread, %tid.x;
  or.b32 %a0, %thread, 0x3a003a00;
  or.b32 %a1, %thread, 0x3a803a00;
  or.b32 %a2, %thread, 0x3b003a80;
  or.b32 %a3, %thread, 0x3b803a80;
  or.b32 %b0, %thread, 0x3a403a40;
  or.b32 %b1, %thread, 0xba403a40;
  mov.f32 %c0, 0f00000000;
  mov.f32 %c1, %c0;
  mov.f32 %c2, %c0;
  mov.f32 %c3, %c0;
  mov.f32 %d0, 0f3f800000;
  mov.f32 %d1, %d0;
  mov.f32 %d2, %d0;
  mov.f32 %d3, %d0;
again:
  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
    {%c0, %c1, %c2, %c3}, {%a0, %a1, %a2, %a3}, {%b0, %b1}, {%c0, %c1, %c2, %c3};
  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
    {%d0, %d1, %d2, %d3}, {%a1, %a0, %a3, %a2}, {%b1, %b0}, {%d0, %d1, %d2, %d3};
  sub.u32 %left, %left, 1;
  setp.ne.u32 %more, %left, 0;
  @%more bra again;
  add.f32 %sum, %c0, %c1;
  add.f32 %sum, %sum, %c2;
  add.f32 %sum, %sum, %c3;
  add.f32 %sum, %sum, %d0;
  add.f32 %sum, %sum, %d1;
  add.f32 %sum, %sum, %d2;
  add.f32 %sum, %sum, %d3;
  setp.eq.f32 %never, %sum, 0fbf9e0652;
  @!%never bra done;
  ld.param.u64 %at, [out];
  cvta.to.global.u64 %at, %at;
  st.global.f32 [%at], %sum;
done:
  ret;
}
)";

}  // namespace

Result<std::unique_ptr<ComputeKernel>> ComputeKernel::make(const Gpu& gpu) {
  std::unique_ptr<ComputeKernel> made(new ComputeKernel(gpu));
  const device::cuda::Driver& d = gpu.driver();
  ORBITKV_ASSIGN_OR_RETURN(made->out_, GpuMemory::make(gpu, ByteCount(64)));
  ORBITKV_RETURN_IF_ERROR(gpu.check("cuModuleLoadData", d.cuModuleLoadData(&made->module_, kSource)));
  ORBITKV_RETURN_IF_ERROR(
      gpu.check("cuModuleGetFunction",
                d.cuModuleGetFunction(&made->function_, made->module_, "orbitkv_bench_compute")));
  return made;
}

ComputeKernel::~ComputeKernel() {
  if (module_ != nullptr) gpu_.driver().cuModuleUnload(module_);
}

Status ComputeKernel::launch(const GpuStream& stream, std::uint32_t rounds) const {
  rounds = std::max(rounds, 1u);
  device::cuda::CuPtr out = out_->at();
  void* parameters[] = {&out, &rounds};
  const unsigned tiles = kTiles * static_cast<unsigned>(gpu_.context()->traits().multiprocessors);
  return gpu_.check("cuLaunchKernel", gpu_.driver().cuLaunchKernel(function_, tiles, 1, 1, kThreads, 1, 1, 0,
                                                                   stream.handle(), parameters, nullptr));
}

}  // namespace orbitkv::bench
