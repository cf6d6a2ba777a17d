#include "bench/transfer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "bench/transfer_cases.h"
#include "bench/transfer_gpu.h"

namespace orbitkv::bench {
namespace {

// memcpy of an operation's bytes, fragment by fragment, between buffers of the same size
// and spread as the engine's and the pool's.
class CopyCeiling {
 public:
  CopyCeiling(BenchEngine& engine, const TransferCase& what) : engine_(engine), what_(what) {
    other_.resize(engine.memory_bytes());
    std::memset(other_.data(), 1, other_.size());
  }
  Duration copy(std::uint32_t set) {
    const TimePoint start = monotonic_now();
    const std::uint32_t parts = what_.shape.layers * what_.shape.components;
    for (std::uint32_t b = set * what_.blocks; b < (set + 1) * what_.blocks; ++b) {
      for (std::uint32_t part = 0; part < parts; ++part) {
        auto page = engine_.page(part, b);
        std::memcpy(other_.data() + (std::uint64_t{b} * parts + part) * page.size(), page.data(),
                    page.size());
      }
    }
    return monotonic_now() - start;
  }

 private:
  BenchEngine& engine_;
  const TransferCase& what_;
  std::vector<std::byte> other_;
};

Run make_run(Samples& ours, Samples& theirs, std::uint64_t bytes) {
  Run run;
  run.p50 = ours.percentile(0.5);
  run.p99 = ours.percentile(0.99);
  run.gb_per_s = static_cast<double>(bytes) / static_cast<double>(run.p50.ns);
  run.ceiling = static_cast<double>(bytes) / static_cast<double>(theirs.percentile(0.5).ns);
  return run;
}

Result<Run> restore_once(const TransferCase& what, BenchEngine& engine, CopyCeiling& ceiling) {
  Samples ours, theirs;
  const std::uint32_t sets = std::max(1u, what.shape.blocks / what.blocks);
  for (std::uint32_t i = 0; i < what.samples; ++i) {
    const std::uint32_t set = i % sets;
    const auto hashes = hashes_from(std::uint64_t{set} * what.blocks, what.blocks);
    const auto blocks = blocks_of_set(what, set);
    std::memset(engine.page(0, blocks[0]).data(), 0xEE, what.shape.page_bytes);
    ORBITKV_ASSIGN_OR_RETURN(auto lease, engine.lease(hashes));
    const client::Load load{lease, 0, blocks};
    client::OperationHandle handle;
    const TimePoint start = monotonic_now();
    ORBITKV_RETURN_IF_ERROR(
        to_status(engine.client().start_restore(engine.registration(), {&load, 1}, {}, handle)));
    ORBITKV_RETURN_IF_ERROR(finish(engine.client(), handle));
    ours.add(monotonic_now() - start);
    for (std::uint32_t b = 0; b < what.blocks; ++b)
      if (engine.wrong_bytes(hashes[b], blocks[b]) != 0) return bug("a restored block has wrong bytes");
    theirs.add(ceiling.copy((set + sets / 2) % sets));
  }
  return make_run(ours, theirs, what.blocks * engine.block_bytes());
}

Result<Run> publish_once(const TransferCase& what, BenchEngine& engine, CopyCeiling& ceiling) {
  static std::uint64_t next = 1u << 20;
  Samples ours, theirs;
  const std::uint32_t sets = std::max(1u, what.shape.blocks / what.blocks);
  for (std::uint32_t i = 0; i < what.samples; ++i) {
    const std::uint32_t set = i % sets;
    const auto hashes = hashes_from(next, what.blocks, 2);
    next += what.blocks;
    const auto blocks = blocks_of_set(what, set);
    const client::SaveGroup group{0, blocks, hashes};
    client::OperationHandle handle;
    const TimePoint start = monotonic_now();
    ORBITKV_RETURN_IF_ERROR(
        to_status(engine.client().start_save(engine.registration(), {&group, 1}, {}, handle)));
    ORBITKV_RETURN_IF_ERROR(finish(engine.client(), handle));
    ours.add(monotonic_now() - start);
    theirs.add(ceiling.copy((set + sets / 2) % sets));
  }
  // What was published last must come back as it was.
  const std::uint32_t set = (what.samples - 1) % sets;
  const auto blocks = blocks_of_set(what, set);
  for (const std::uint32_t block : blocks)
    for (std::uint32_t part = 0; part < what.shape.layers * what.shape.components; ++part)
      std::memset(engine.page(part, block).data(), 0xEE, what.shape.page_bytes);
  ORBITKV_ASSIGN_OR_RETURN(auto lease, engine.lease(hashes_from(next - what.blocks, what.blocks, 2)));
  const client::Load load{lease, 0, blocks};
  client::OperationHandle handle;
  ORBITKV_RETURN_IF_ERROR(
      to_status(engine.client().start_restore(engine.registration(), {&load, 1}, {}, handle)));
  ORBITKV_RETURN_IF_ERROR(finish(engine.client(), handle));
  for (const std::uint32_t block : blocks)
    if (engine.wrong_bytes(hash_of(block), block) != 0)
      return bug("a published block came back with wrong bytes");
  return make_run(ours, theirs, what.blocks * engine.block_bytes());
}

Status run_case(const Options& options, const TransferCase& what, bool restore) {
  ORBITKV_ASSIGN_OR_RETURN(auto manager, BenchManager::start(options, {"--pool-size", "1GiB"}));
  client::Options client;
  client.inline_copies = what.inline_copies;
  ORBITKV_ASSIGN_OR_RETURN(auto engine, BenchEngine::attach(*manager, what.shape, client));
  for (std::uint32_t b = 0; b < what.shape.blocks; ++b) engine->fill(hash_of(b), b);
  ORBITKV_RETURN_IF_ERROR(engine->make_resident(what.shape.blocks));
  CopyCeiling ceiling(*engine, what);
  pin_thread(usable_cpus()[0]);
  std::vector<Run> runs;
  for (int i = 0; i < options.runs; ++i) {
    ORBITKV_ASSIGN_OR_RETURN(
        auto run, restore ? restore_once(what, *engine, ceiling) : publish_once(what, *engine, ceiling));
    runs.push_back(run);
  }
  Case named{restore ? "restore" : "publish",
             what.name,
             ByteCount(what.blocks * engine->block_bytes()),
             std::uint64_t{what.blocks} * what.shape.layers * what.shape.components,
             {},
             Ceiling{"memcpy", Ceiling::Unit::kGigabytesPerSecond}};
  report(named, runs, options);
  return ok_status();
}

int run_all(const Options& options, bool restore) {
  for (const TransferCase& what : kTransferCases) {
    if (!options.wants(what.name)) continue;
    const Status done = run_case(options, what, restore);
    if (done.ok()) continue;
    std::fprintf(stderr, "bench %s %s: %s\n", restore ? "restore" : "publish", what.name,
                 done.error().message().c_str());
    return 1;
  }
  return 0;
}
}  // namespace

int run_restore_bench(const Options& options) {
  return options.on_gpu() ? run_restore_gpu_bench(options) : run_all(options, true);
}
int run_publish_bench(const Options& options) {
  return options.on_gpu() ? run_publish_gpu_bench(options) : run_all(options, false);
}

}  // namespace orbitkv::bench
