#include "device/cuda/code.h"

#include <dlfcn.h>

#include <string>
#include <vector>

#include "base/text.h"

// The files as they are, with a zero behind them. ORBITKV_*_FILE come from CMakeLists.txt.
#define ORBITKV_EMBED(name, file)                                                                       \
  asm(".pushsection .rodata\n.balign 16\n.hidden orbitkv_embed_" #name "\n.global orbitkv_embed_" #name \
      "\norbitkv_embed_" #name ":\n.incbin \"" file "\"\n.byte 0\n.popsection\n")

extern "C" {
extern const char kEmbeddedFatbin[] asm("orbitkv_embed_fatbin");
extern const char kEmbeddedKernels[] asm("orbitkv_embed_kernels");
extern const char kEmbeddedPlan[] asm("orbitkv_embed_plan");
}
#ifdef ORBITKV_FATBIN_FILE
ORBITKV_EMBED(fatbin, ORBITKV_FATBIN_FILE);
static const char* const kFatbin = kEmbeddedFatbin;
#else
static const char* const kFatbin = nullptr;
#endif
ORBITKV_EMBED(kernels, ORBITKV_KERNELS_FILE);
ORBITKV_EMBED(plan, ORBITKV_PLAN_FILE);

namespace orbitkv::device::cuda {
namespace {

using NvrtcProgram = struct NvrtcProgramOpaque*;
struct Nvrtc {
  int (*nvrtcCreateProgram)(NvrtcProgram*, const char* source, const char* name, int headers,
                            const char* const* texts, const char* const* names) = nullptr;
  int (*nvrtcCompileProgram)(NvrtcProgram, int options, const char* const* texts) = nullptr;
  int (*nvrtcGetCUBINSize)(NvrtcProgram, std::size_t* bytes) = nullptr;
  int (*nvrtcGetCUBIN)(NvrtcProgram, char* out) = nullptr;
  int (*nvrtcGetProgramLogSize)(NvrtcProgram, std::size_t* bytes) = nullptr;
  int (*nvrtcGetProgramLog)(NvrtcProgram, char* out) = nullptr;
  int (*nvrtcDestroyProgram)(NvrtcProgram*) = nullptr;
};

template <class Entry>
bool find(void* library, const char* name, Entry*& entry) {
  entry = reinterpret_cast<Entry*>(dlsym(library, name));
  return entry != nullptr;
}

// The engine's own, if it has loaded one; else the newest that the loader finds.
bool load_nvrtc(Nvrtc& n) {
  void* library = nullptr;
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  return library != nullptr && find(library, "nvrtcCreateProgram", n.nvrtcCreateProgram) &&
         find(library, "nvrtcCompileProgram", n.nvrtcCompileProgram) &&
         find(library, "nvrtcGetCUBINSize", n.nvrtcGetCUBINSize) &&
         find(library, "nvrtcGetCUBIN", n.nvrtcGetCUBIN) &&
         find(library, "nvrtcGetProgramLogSize", n.nvrtcGetProgramLogSize) &&
         find(library, "nvrtcGetProgramLog", n.nvrtcGetProgramLog) &&
         find(library, "nvrtcDestroyProgram", n.nvrtcDestroyProgram);
}

Result<std::vector<char>> compile(const Nvrtc& nvrtc, int major, int minor) {
  const char* header_texts[] = {kEmbeddedPlan};
  const char* header_names[] = {"device/cuda/plan.h"};
  NvrtcProgram program = nullptr;
  if (nvrtc.nvrtcCreateProgram(&program, kEmbeddedKernels, "kernels.cu", 1, header_texts, header_names) != 0)
    return reject("NVRTC does not take the copy kernels");
  const std::string architecture = format_text("--gpu-architecture=sm_%d%d", major, minor);
  const char* options[] = {architecture.c_str(), "--std=c++17", "--device-as-default-execution-space"};
  const int code = nvrtc.nvrtcCompileProgram(program, 3, options);
  std::size_t bytes = 0;
  std::vector<char> out;
  if (code == 0 && nvrtc.nvrtcGetCUBINSize(program, &bytes) == 0 && bytes > 0) {
    out.resize(bytes);
    nvrtc.nvrtcGetCUBIN(program, out.data());
  } else if (nvrtc.nvrtcGetProgramLogSize(program, &bytes) == 0) {
    out.resize(bytes + 1);
    nvrtc.nvrtcGetProgramLog(program, out.data());
  }
  nvrtc.nvrtcDestroyProgram(&program);
  if (code != 0)
    return reject(format_text("NVRTC cannot compile for sm_%d%d: %.400s", major, minor, out.data()));
  return out;
}

}  // namespace

Result<std::vector<char>> compile_kernels(int major, int minor) {
  Nvrtc nvrtc;
  if (!load_nvrtc(nvrtc))
    return reject(
        "there is no libnvrtc to compile them: install the nvidia-cuda-nvrtc package of your CUDA version");
  return compile(nvrtc, major, minor);
}

Result<CuModule> load_module(const Driver& driver, int major, int minor) {
  CuModule module = nullptr;
  std::string why = "this build has no GPU code (it was built without nvcc)";
  if (const char* image = kFatbin) {
    const CuResult code = driver.cuModuleLoadData(&module, image);
    if (code == kCuSuccess) return module;
    why = driver_error(driver, "cuModuleLoadData", code).message();
  }
  auto compiled = compile_kernels(major, minor);
  if (!compiled.ok())
    return reject(format_text("no copy kernels for sm_%d%d: %s; %s", major, minor, why.c_str(),
                              compiled.error().message().c_str()));
  const std::vector<char> image = std::move(compiled).value();
  const CuResult code = driver.cuModuleLoadData(&module, image.data());
  if (code == kCuSuccess) return module;
  return reject(driver_error(driver, "cuModuleLoadData of NVRTC's code", code).message());
}

}  // namespace orbitkv::device::cuda
