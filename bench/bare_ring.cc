#include "bench/bare_ring.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <memory>
#include <new>

#include "base/limits.h"
#include "rt/spin.h"

namespace orbitkv::bench {
namespace {

constexpr std::size_t kEntries = limits::kRingEntries;
constexpr std::uint64_t kStop = ~std::uint64_t{0};

struct alignas(64) Entry {
  std::array<std::atomic<std::uint64_t>, 7> words;
  std::atomic<std::uint64_t> sequence;
};
struct Rings {
  std::array<Entry, kEntries> there, back;
};
using Words = std::array<std::uint64_t, 7>;

void put(std::array<Entry, kEntries>& ring, std::uint64_t sequence, const Words& words) {
  Entry& entry = ring[sequence % kEntries];
  for (std::size_t i = 0; i < words.size(); ++i) entry.words[i].store(words[i], std::memory_order_relaxed);
  entry.sequence.store(sequence, std::memory_order_release);
}

Words take(std::array<Entry, kEntries>& ring, std::uint64_t sequence) {
  Entry& entry = ring[sequence % kEntries];
  while (entry.sequence.load(std::memory_order_acquire) != sequence) rt::spin_pause();
  Words words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = entry.words[i].load(std::memory_order_relaxed);
  return words;
}

int echo(Rings& rings, int cpu) {
  pin_thread(cpu);
  for (std::uint64_t sequence = 1;; ++sequence) {
    const Words words = take(rings.there, sequence);
    if (words[0] == kStop) return 0;
    put(rings.back, sequence, words);
  }
}

struct Unmap {
  void operator()(Rings* rings) const { ::munmap(rings, sizeof(Rings)); }
};

}  // namespace

Result<PinnedPair> pinned_pair() {
  const std::vector<int>& cpus = usable_cpus();
  if (cpus.size() < 2) return reject("two cores are needed, this shell may use one; widen its cpuset");
  return PinnedPair{cpus[0], cpus[1]};
}

Result<Duration> bare_ring_ping(PinnedPair cpus, std::size_t pings) {
  void* memory = ::mmap(nullptr, sizeof(Rings), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return errno_error("cannot map the bare ring");
  const std::unique_ptr<Rings, Unmap> rings(new (memory) Rings{});
  ORBITKV_ASSIGN_OR_RETURN(auto child, ChildProcess::start([&] { return echo(*rings, cpus.far_cpu); }));
  pin_thread(cpus.near_cpu);
  Samples samples;
  samples.reserve(pings);
  std::uint64_t sequence = 1;
  TimePoint before = monotonic_now();
  for (; sequence <= pings; ++sequence) {
    put(rings->there, sequence, Words{sequence});
    if (take(rings->back, sequence)[0] != sequence) return bug("the bare ring returned another ping");
    const TimePoint after = monotonic_now();
    samples.add(after - before);
    before = after;
  }
  put(rings->there, sequence, Words{kStop});
  child.wait();
  return samples.percentile(0.5);
}

}  // namespace orbitkv::bench
