#include "bench/windows_choice.h"

#include <cstdio>

#include "device/cuda/tuner.h"

namespace orbitkv::bench {
namespace {
using device::cuda::Window;
using device::cuda::Windows;

Windows tuned(const Gpu& gpu) {
  const std::string path = device::cuda::windows_path(*gpu.context());
  if (!path.empty()) {
    if (const auto kept = device::cuda::read_windows(path)) return *kept;
  }
  const auto measured = device::cuda::measure_windows(gpu.context());
  if (measured.ok()) return *measured;
  std::fprintf(stderr, "bench: default windows: %s\n", measured.error().message().c_str());
  return {};
}
}  // namespace

Result<Windows> choose_windows(const std::string& text, const Gpu& gpu) {
  if (text == "default") return Windows();
  if (text.empty() || text == "tuned") return tuned(gpu);
  Window w;
  unsigned kib = 0;
  if (std::sscanf(text.c_str(), "%u,%u,%u,%u", &w.ctas, &kib, &w.loads, &w.stores) != 4 || w.ctas == 0 ||
      kib == 0 || w.loads == 0 || w.stores == 0)
    return reject("a window is \"ctas,stage KiB,loads,stores\", for example 4,16,2,2");
  w.stage_bytes = kib * 1024;
  Windows windows;
  for (auto& direction : windows.full) direction.fill(w);
  windows.gentle.fill(w);
  windows.any_ctas.fill(w.ctas);
  return windows;
}

}  // namespace orbitkv::bench
