#include "device/cuda/tuner.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/text.h"
#include "base/time.h"
#include "base/version.h"
#include "device/cuda/queues.h"

namespace orbitkv::device::cuda {
namespace {

constexpr std::uint64_t kBytes = std::uint64_t{64} << 20;  // of one measurement
constexpr int kRuns = 3;
// A window counts as filling the link from here on.
constexpr double kEnough = 0.998;
// Below this share of one large DMA something else was on the link.
constexpr double kPlausible = 0.80;

// Ascending bytes in flight.
constexpr std::array kSmallCandidates{Window{4, 16384, 2, 1},  Window{4, 16384, 2, 2}, Window{8, 8192, 2, 2},
                                      Window{8, 16384, 2, 1},  Window{8, 16384, 2, 2}, Window{16, 8192, 2, 2},
                                      Window{16, 16384, 2, 2}, Window{24, 16384, 2, 2}};
constexpr std::array kLargeCandidates{Window{2, 16384, 2, 2}, Window{3, 16384, 2, 1}, Window{4, 16384, 1, 1},
                                      Window{4, 16384, 2, 1}, Window{4, 16384, 2, 2}, Window{4, 16384, 4, 2},
                                      Window{8, 16384, 2, 2}, Window{16, 16384, 2, 2}};

// Pages and images to copy between, and the queues that do it.
class Bench {
 public:
  explicit Bench(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  ~Bench() {
    Scope scope(*context_);
    if (host_ != nullptr) driver().cuMemFreeHost(host_);
    if (pages_ != 0) driver().cuMemFree(pages_);
  }
  Status prepare() {
    Scope scope(*context_);
    ORBITKV_RETURN_IF_ERROR(
        status_of(driver(), "cuMemHostAlloc",
                  driver().cuMemHostAlloc(&host_, 2 * kBytes, kHostAllocPortable | kHostAllocDeviceMap)));
    std::memset(host_, 0x5A, 2 * kBytes);
    ORBITKV_RETURN_IF_ERROR(status_of(driver(), "cuMemHostGetDevicePointer",
                                      driver().cuMemHostGetDevicePointer(&images_, host_, 0)));
    ORBITKV_RETURN_IF_ERROR(status_of(driver(), "cuMemAlloc", driver().cuMemAlloc(&pages_, 2 * kBytes)));
    ORBITKV_ASSIGN_OR_RETURN(queues_, Queues::create(context_, {}));
    ORBITKV_ASSIGN_OR_RETURN(transfers_, LaunchPool::create(context_, 2));
    return ok_status();
  }

  // Median bytes a second.
  Result<double> rate(Direction direction, const LaunchPlan& plan, const Window& window, CopyMethod method) {
    std::vector<double> rates;
    Scope scope(*context_);
    for (int i = 0; i <= kRuns; ++i) {
      LaunchMemory* transfer = transfers_->take();
      if (transfer == nullptr) return busy("a launch of the tuner has not ended");
      const TimePoint begin = monotonic_now();
      std::uint32_t calls = 0;
      ORBITKV_RETURN_IF_ERROR(method == CopyMethod::kDirect
                                  ? queues_->copy_direct(plan, *transfer, direction, calls)
                                  : queues_->launch(plan, *transfer, direction, window));
      if (queues_->drain() != kCuSuccess) return bug("the device failed while it was measured");
      const Duration took = monotonic_now() - begin;
      transfers_->give_back(transfer);
      if (i > 0) rates.push_back(static_cast<double>(plan.bytes) / static_cast<double>(took.ns));
    }
    std::nth_element(rates.begin(), rates.begin() + kRuns / 2, rates.end());
    return rates[kRuns / 2];
  }

  // kBytes in fragments of this size, every other page of either side, the images backwards.
  LaunchPlan plan_of(std::uint64_t fragment_bytes, std::uint32_t stage_bytes) {
    const auto per_slot =
        static_cast<std::uint32_t>(std::max<std::uint64_t>(1, kBytes / fragment_bytes / 512));
    const auto slots = static_cast<std::uint32_t>(kBytes / fragment_bytes / per_slot);
    geometry_ = {};
    layout_ = {};
    geometry_.num_blocks = slots;
    layout_.slot_bytes = 2 * per_slot * fragment_bytes;
    for (std::uint32_t f = 0; f < per_slot; ++f) {
      geometry_.fragments.push_back({.layer = static_cast<std::uint16_t>(f),
                                     .base = reinterpret_cast<std::byte*>(pages_ + 2 * f * fragment_bytes),
                                     .block_stride = 2 * per_slot * fragment_bytes,
                                     .row_bytes = fragment_bytes});
      layout_.fragment_offsets.push_back(f * fragment_bytes);
    }
    PlanGroup group{&geometry_, &layout_, {}, {}};
    for (std::uint32_t i = 0; i < slots; ++i) {
      group.images.push_back(images_ + (slots - 1 - i) * layout_.slot_bytes);
      group.blocks.push_back(i);
    }
    PlanRules rules;
    rules.stage_bytes = stage_bytes;
    std::vector<LaunchPlan> launches = build_launches({&group, 1}, rules);
    return std::move(launches.front());
  }

 private:
  const Driver& driver() const { return context_->driver(); }

  const std::shared_ptr<Context> context_;
  void* host_ = nullptr;
  CuPtr images_ = 0, pages_ = 0;
  std::unique_ptr<Queues> queues_;
  std::unique_ptr<LaunchPool> transfers_;
  GroupGeometry geometry_;
  model::SlotLayout layout_;
};

// The smallest of the candidates that does about what the best one does.
template <std::size_t N>
Result<Window> choose(Bench& bench, Direction direction, std::uint64_t fragment_bytes,
                      const std::array<Window, N>& candidates) {
  std::array<double, N> rates{};
  for (std::size_t i = 0; i < N; ++i) {
    const LaunchPlan plan = bench.plan_of(fragment_bytes, candidates[i].stage_bytes);
    ORBITKV_ASSIGN_OR_RETURN(rates[i], bench.rate(direction, plan, candidates[i], CopyMethod::kKernel));
  }
  const LaunchPlan whole = bench.plan_of(kBytes / 2, 16384);
  ORBITKV_ASSIGN_OR_RETURN(const double dma, bench.rate(direction, whole, {}, CopyMethod::kDirect));
  const double best = *std::max_element(rates.begin(), rates.end());
  if (best < kPlausible * dma) return busy("other work was on the link while it was measured");
  std::size_t i = 0;
  while (rates[i] < kEnough * best) ++i;
  return candidates[i];
}

std::string form() {
  return format_text("orbitkv %s windows 2", std::string(kVersion).c_str());
}

bool plausible(const Window& w) {
  return w.ctas >= 1 && w.ctas <= 64 && w.stage_bytes >= 1024 && w.stage_bytes <= 32 * 1024 &&
         w.stage_bytes % 16 == 0 && w.loads >= 1 && w.loads <= kMaxStages && w.stores >= 1 &&
         w.stores <= kMaxStages;
}

}  // namespace

Result<Windows> measure_windows(const std::shared_ptr<Context>& context) {
  Bench bench(context);
  ORBITKV_RETURN_IF_ERROR(bench.prepare());
  Windows windows;
  for (const Direction direction : {Direction::kSave, Direction::kRestore}) {
    auto& full = windows.full[static_cast<std::size_t>(direction)];
    ORBITKV_ASSIGN_OR_RETURN(full[static_cast<std::size_t>(SizeClass::kSmall)],
                             choose(bench, direction, 2048, kSmallCandidates));
    ORBITKV_ASSIGN_OR_RETURN(full[static_cast<std::size_t>(SizeClass::kLarge)],
                             choose(bench, direction, 16384, kLargeCandidates));
  }
  return windows;
}

// ---- the file: a line of its form, then one line a window ----

std::string windows_path(const Context& context) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::string root = cache != nullptr && *cache == '/' ? cache : "";
  if (root.empty() && home != nullptr && *home == '/') root = std::string(home) + "/.cache";
  if (root.empty()) return {};
  int version = 0;
  context.driver().cuDriverGetVersion(&version);
  return format_text("%s/orbitkv/gpu-%s-%d.windows", root.c_str(), context.identity().c_str(), version);
}

std::optional<Windows> read_windows(const std::string& path) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), std::fclose);
  if (!file) return std::nullopt;
  char line[128] = "";
  if (std::fgets(line, sizeof line, file.get()) == nullptr || form() + "\n" != line) return std::nullopt;
  Windows windows;
  for (auto& direction : windows.full) {
    for (Window& w : direction) {
      if (std::fgets(line, sizeof line, file.get()) == nullptr ||
          std::sscanf(line, "%u %u %u %u", &w.ctas, &w.stage_bytes, &w.loads, &w.stores) != 4 ||
          !plausible(w))
        return std::nullopt;
    }
  }
  return windows;
}

Status write_windows(const std::string& path, const Windows& windows) {
  const std::string directory = path.substr(0, path.rfind('/'));
  ::mkdir(directory.substr(0, directory.rfind('/')).c_str(), 0700);
  ::mkdir(directory.c_str(), 0700);
  const std::string temporary = format_text("%s.%d", path.c_str(), static_cast<int>(::getpid()));
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(temporary.c_str(), "we"), std::fclose);
  if (!file) return errno_error(temporary);
  std::string text = form() + "\n";
  for (const auto& direction : windows.full)
    for (const Window& w : direction)
      text += format_text("%u %u %u %u\n", w.ctas, w.stage_bytes, w.loads, w.stores);
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file.get()) == text.size() && std::fflush(file.get()) == 0;
  if (written && std::rename(temporary.c_str(), path.c_str()) == 0) return ok_status();
  const Error error = errno_error(path);
  std::remove(temporary.c_str());
  return error;
}

}  // namespace orbitkv::device::cuda
