#include "bench/transfer_gpu.h"

#include <cstdio>
#include <cstring>

#include "base/text.h"
#include "bench/dma.h"
#include "bench/layers_gpu.h"
#include "bench/transfer_cases.h"

namespace orbitkv::bench {
namespace {

using device::Direction;

constexpr std::uint32_t kTracedOperations = 30;
constexpr std::uint64_t kFreshHashes = 1u << 20;  // above those that are resident

// The GPU, an idle stream that operations are ordered behind, and what they are compared with.
struct Stand {
  Gpu& gpu;
  std::unique_ptr<GpuStream> ready;
  std::unique_ptr<RegisteredMemory> host;
  std::unique_ptr<GpuMemory> device;
  std::unique_ptr<Dma> dma;
  std::uint64_t ready_stream() const { return reinterpret_cast<std::uint64_t>(ready->handle()); }
};

Result<std::unique_ptr<Stand>> make_stand(Gpu& gpu, ByteCount largest) {
  auto stand = std::make_unique<Stand>(Stand{gpu, nullptr, nullptr, nullptr, nullptr});
  ORBITKV_ASSIGN_OR_RETURN(stand->ready, GpuStream::make(gpu));
  ORBITKV_ASSIGN_OR_RETURN(stand->host, RegisteredMemory::make(gpu, largest));
  ORBITKV_ASSIGN_OR_RETURN(stand->device, GpuMemory::make(gpu, largest));
  ORBITKV_ASSIGN_OR_RETURN(stand->dma, Dma::make(gpu, {stand->device->at(), stand->host->data()}));
  return stand;
}

// One case against a Manager of its own.
class TransferRunner {
 public:
  static Result<std::unique_ptr<TransferRunner>> make(const Options& options, const TransferCase& what,
                                                      Stand& stand, bool traced) {
    std::unique_ptr<TransferRunner> made(new TransferRunner(what, stand));
    ORBITKV_ASSIGN_OR_RETURN(made->manager_, BenchManager::start(options, {"--pool-size", "1GiB"}));
    client::Options client;
    client.inline_copies = what.inline_copies;
    if (traced) client.trace_file = "/dev/null";
    ORBITKV_ASSIGN_OR_RETURN(made->engine_,
                             BenchEngine::attach(*made->manager_, what.shape, client, &stand.gpu));
    for (std::uint32_t b = 0; b < what.shape.blocks; ++b) made->engine_->fill(hash_of(b), b);
    ORBITKV_RETURN_IF_ERROR(made->engine_->push({0, what.shape.blocks}));
    ORBITKV_RETURN_IF_ERROR(made->engine_->make_resident(what.shape.blocks));
    return made;
  }
  std::uint64_t bytes() const { return what_.blocks * engine_->block_bytes(); }

  Result<Run> run(Direction direction) {
    Samples ours, theirs;
    for (std::uint32_t i = 0; i < what_.samples; ++i) {
      ORBITKV_ASSIGN_OR_RETURN(const Duration took, operation(direction, i % what_.sets(), nullptr));
      ours.add(took);
      ORBITKV_ASSIGN_OR_RETURN(const Duration plain, stand_.dma->one(direction, ByteCount(bytes())));
      theirs.add(plain);
    }
    if (direction == Direction::kSave) ORBITKV_RETURN_IF_ERROR(check_last_save());
    Run run;
    run.p50 = ours.percentile(0.5);
    run.p99 = ours.percentile(0.99);
    run.gb_per_s = static_cast<double>(bytes()) / static_cast<double>(run.p50.ns);
    run.ceiling = static_cast<double>(bytes()) / static_cast<double>(theirs.percentile(0.5).ns);
    return run;
  }

  // Medians of what the client observed, as JSON.
  Result<std::string> stages(Direction direction) {
    std::vector<client::OperationReport> reports(kTracedOperations);
    for (std::uint32_t i = 0; i < kTracedOperations; ++i) {
      ORBITKV_ASSIGN_OR_RETURN(const Duration took, operation(direction, i % what_.sets(), &reports[i]));
      (void)took;
    }
    const auto median_of = [&](std::uint64_t client::OperationReport::* stage) {
      std::vector<double> values;
      for (const auto& report : reports) values.push_back(static_cast<double>(report.*stage) / 1000);
      return median(std::move(values));
    };
    using Report = client::OperationReport;
    return format_text(
        "{\"readiness\":%.1f,\"dispatched\":%.1f,\"dequeued\":%.1f,\"claimed\":%.1f,\"enqueued\":%.1f,"
        "\"drained\":%.1f}",
        median_of(&Report::readiness_ns), median_of(&Report::dispatched_ns), median_of(&Report::dequeued_ns),
        median_of(&Report::claimed_ns), median_of(&Report::enqueued_ns), median_of(&Report::drained_ns));
  }

 private:
  TransferRunner(const TransferCase& what, Stand& stand) : what_(what), stand_(stand) {}

  Result<Duration> operation(Direction direction, std::uint32_t set, client::OperationReport* report) {
    return direction == Direction::kRestore ? restore(set, report) : publish(set, report);
  }

  Result<Duration> restore(std::uint32_t set, client::OperationReport* report) {
    const auto hashes = hashes_from(std::uint64_t{set} * what_.blocks, what_.blocks);
    const auto blocks = blocks_of_set(what_, set);
    ORBITKV_RETURN_IF_ERROR(engine_->spoil({blocks[0], what_.blocks}));
    ORBITKV_ASSIGN_OR_RETURN(const LeaseId lease, engine_->lease(hashes));
    const client::Load load{lease, 0, blocks};
    client::RestoreOptions options;
    options.ready_stream = stand_.ready_stream();
    client::OperationHandle handle;
    const TimePoint start = monotonic_now();
    ORBITKV_RETURN_IF_ERROR(
        to_status(engine_->client().start_restore(engine_->registration(), {&load, 1}, options, handle)));
    ORBITKV_ASSIGN_OR_RETURN(const Duration took, end(handle, start, report));
    ORBITKV_RETURN_IF_ERROR(check(hashes, blocks));
    return took;
  }

  Result<Duration> publish(std::uint32_t set, client::OperationReport* report) {
    const auto hashes = hashes_from(kFreshHashes + published_, what_.blocks, 2);
    published_ += what_.blocks;
    last_set_ = set;
    const auto blocks = blocks_of_set(what_, set);
    const client::SaveGroup group{0, blocks, hashes};
    client::OperationHandle handle;
    const TimePoint start = monotonic_now();
    ORBITKV_RETURN_IF_ERROR(to_status(engine_->client().start_save(
        engine_->registration(), {&group, 1}, {.ready_stream = stand_.ready_stream()}, handle)));
    return end(handle, start, report);
  }

  Result<Duration> end(client::OperationHandle handle, TimePoint start, client::OperationReport* report) {
    client::Client& client = engine_->client();
    const auto status = client.wait(handle, 60'000);
    const Duration took = monotonic_now() - start;
    Status reported = ok_status();
    if (report != nullptr) reported = to_status(client.report(handle, *report));
    client.drop(handle);
    if (!status.done || !status.success) return bug("an operation of the bench failed: " + status.message);
    if (!reported.ok()) return reported.error();
    return took;
  }

  Status check(std::span<const BlockHash> content, std::span<const std::uint32_t> blocks) {
    ORBITKV_RETURN_IF_ERROR(engine_->pull({blocks[0], what_.blocks}));
    for (std::uint32_t b = 0; b < what_.blocks; ++b)
      if (engine_->wrong_bytes(content[b], blocks[b]) != 0) return bug("a restored block has wrong bytes");
    return ok_status();
  }

  // What was published last must come back as it was.
  Status check_last_save() {
    const auto blocks = blocks_of_set(what_, last_set_);
    ORBITKV_RETURN_IF_ERROR(engine_->spoil({blocks[0], what_.blocks}));
    ORBITKV_ASSIGN_OR_RETURN(
        const LeaseId lease,
        engine_->lease(hashes_from(kFreshHashes + published_ - what_.blocks, what_.blocks, 2)));
    const client::Load load{lease, 0, blocks};
    client::OperationHandle handle;
    ORBITKV_RETURN_IF_ERROR(
        to_status(engine_->client().start_restore(engine_->registration(), {&load, 1}, {}, handle)));
    ORBITKV_RETURN_IF_ERROR(finish(engine_->client(), handle));
    std::vector<BlockHash> content;
    for (const std::uint32_t block : blocks) content.push_back(hash_of(block));
    return check(content, blocks);
  }

  const TransferCase& what_;
  Stand& stand_;
  std::unique_ptr<BenchManager> manager_;
  std::unique_ptr<BenchEngine> engine_;
  std::uint64_t published_ = 0;
  std::uint32_t last_set_ = 0;
};

Result<std::string> stages_of(const Options& options, const TransferCase& what, Stand& stand,
                              Direction direction) {
  ORBITKV_ASSIGN_OR_RETURN(auto runner, TransferRunner::make(options, what, stand, true));
  return runner->stages(direction);
}

Status run_case(const Options& options, const TransferCase& what, Stand& stand, Direction direction) {
  std::vector<Run> runs;
  Case line{direction == Direction::kRestore ? "restore" : "publish", what.name, {}, what.fragments(), {},
            Ceiling{"one_dma", Ceiling::Unit::kGigabytesPerSecond}};
  {
    ORBITKV_ASSIGN_OR_RETURN(auto runner, TransferRunner::make(options, what, stand, false));
    pin_thread(usable_cpus()[0]);
    for (int i = 0; i < options.runs; ++i) {
      ORBITKV_ASSIGN_OR_RETURN(const Run run, runner->run(direction));
      runs.push_back(run);
    }
    line.bytes = ByteCount(runner->bytes());
  }
  ORBITKV_ASSIGN_OR_RETURN(const std::string stages, stages_of(options, what, stand, direction));
  line.spread = true;
  line.extras = {{"device", "\"" + options.device + "\""}, {"stages_us", stages}};
  report(line, std::move(runs), options);
  return ok_status();
}

// ---- a large pool ----

// Its memory is untouched: registering it takes minutes, and the engine must not wait.
constexpr const char* kAttachName = "attach_64GiB";

Result<double> seconds_to_first_restore(const Options& options, Gpu& gpu) {
  ORBITKV_ASSIGN_OR_RETURN(auto manager,
                           BenchManager::start(options, {"--pool-size", "64GiB", "--no-prefault"}));
  const EngineShape shape{1, 1, 8, 64 * kKiB.value};
  const TimePoint start = monotonic_now();
  ORBITKV_ASSIGN_OR_RETURN(auto engine, BenchEngine::attach(*manager, shape, {}, &gpu));
  for (std::uint32_t b = 0; b < shape.blocks; ++b) engine->fill(hash_of(b), b);
  ORBITKV_RETURN_IF_ERROR(engine->push({0, shape.blocks}));
  ORBITKV_RETURN_IF_ERROR(engine->make_resident(shape.blocks));
  ORBITKV_RETURN_IF_ERROR(engine->spoil({0, shape.blocks}));
  std::vector<std::uint32_t> blocks(shape.blocks);
  std::iota(blocks.begin(), blocks.end(), 0u);
  ORBITKV_ASSIGN_OR_RETURN(const LeaseId lease, engine->lease(hashes_from(0, shape.blocks)));
  const client::Load load{lease, 0, blocks};
  client::OperationHandle handle;
  ORBITKV_RETURN_IF_ERROR(
      to_status(engine->client().start_restore(engine->registration(), {&load, 1}, {}, handle)));
  ORBITKV_RETURN_IF_ERROR(finish(engine->client(), handle));
  const double took = static_cast<double>((monotonic_now() - start).ns) / 1e9;
  ORBITKV_RETURN_IF_ERROR(engine->pull({0, shape.blocks}));
  for (std::uint32_t b = 0; b < shape.blocks; ++b)
    if (engine->wrong_bytes(hash_of(b), b) != 0) return bug("a restored block has wrong bytes");
  return took;
}

Status run_attach(const Options& options, Gpu& gpu) {
  if (!options.wants(kAttachName)) return ok_status();
  ORBITKV_ASSIGN_OR_RETURN(const double took, seconds_to_first_restore(options, gpu));
  count_report();
  std::printf(options.json ? "{\"bench\":\"restore\",\"case\":\"%s\",\"seconds\":%.3f,\"bar\":1}\n"
                           : "bench=restore  case=%s  seconds=%.3f  bar=1\n",
              kAttachName, took);
  std::fflush(stdout);
  return ok_status();
}

Status run_all(const Options& options, Gpu& gpu, Direction direction) {
  std::unique_ptr<Stand> stand;
  for (const TransferCase& what : kTransferCases) {
    if (!options.wants(what.name)) continue;
    if (!stand) {
      ORBITKV_ASSIGN_OR_RETURN(stand, make_stand(gpu, 32 * kMiB));
    }
    const Status done = run_case(options, what, *stand, direction);
    if (!done.ok()) return Error(done.error().code(), std::string(what.name) + ": " + done.error().message());
  }
  if (direction != Direction::kRestore) return ok_status();
  ORBITKV_RETURN_IF_ERROR(run_layers(options, gpu));
  return run_attach(options, gpu);
}

int run_on_gpu(const Options& options, Direction direction) {
  const char* name = direction == Direction::kRestore ? "restore" : "publish";
  auto gpu = Gpu::open(options.device);
  if (!gpu.ok()) return skip(name, gpu.error());
  const Status done = run_all(options, **gpu, direction);
  if (done.ok()) return 0;
  std::fprintf(stderr, "bench %s: %s\n", name, done.error().message().c_str());
  return 1;
}

}  // namespace

int run_restore_gpu_bench(const Options& options) {
  return run_on_gpu(options, Direction::kRestore);
}
int run_publish_gpu_bench(const Options& options) {
  return run_on_gpu(options, Direction::kSave);
}

}  // namespace orbitkv::bench
