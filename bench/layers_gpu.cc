#include "bench/layers_gpu.h"

#include <algorithm>
#include <cstdio>

#include "base/text.h"
#include "bench/compute_gpu.h"
#include "bench/transfer_cases.h"

namespace orbitkv::bench {
namespace {

using device::cuda::CuEvent;
using device::cuda::Driver;

constexpr TransferCase kLayered[] = {
    {"layers_36", {36, 2, 128, 2 * kKiB.value}, 128, true, 20},         // 18 MiB
    {"layers_36_16KiB", {36, 2, 128, 16 * kKiB.value}, 128, true, 10},  // 144 MiB
};
constexpr double kMostRounds = 1e5;  // of a layer's compute
struct Load {
  const char* name;
  double of_copy;  // compute alone over copy alone
};
constexpr Load kLoads[] = {{"half", 0.5}, {"equal", 1}, {"double", 2}};

// What a consumer does for each layer.
class Consumer {
 public:
  static Result<std::unique_ptr<Consumer>> make(Gpu& gpu, std::uint32_t layers) {
    std::unique_ptr<Consumer> made(new Consumer(gpu));
    ORBITKV_ASSIGN_OR_RETURN(made->stream_, GpuStream::make(gpu));
    ORBITKV_ASSIGN_OR_RETURN(made->compute_, ComputeKernel::make(gpu));
    for (std::uint32_t i = 0; i < layers; ++i) {
      CuEvent event = nullptr;
      ORBITKV_RETURN_IF_ERROR(
          gpu.check("cuEventCreate", gpu.driver().cuEventCreate(&event, device::cuda::kEventDisableTiming)));
      made->events_.push_back(event);
      made->names_.push_back("layer " + std::to_string(i));
    }
    return made;
  }
  ~Consumer() {
    stream_.reset();
    for (CuEvent event : events_) gpu_.driver().cuEventDestroy(event);
  }

  std::vector<client::LayerEvent> layer_events() const {
    std::vector<client::LayerEvent> out;
    for (std::size_t i = 0; i < events_.size(); ++i)
      out.push_back({names_[i], reinterpret_cast<std::uint64_t>(events_[i])});
    return out;
  }
  GpuStream& stream() { return *stream_; }
  bool first_is_ready() const { return gpu_.driver().cuEventQuery(events_[0]) != device::cuda::kCuNotReady; }

  // Enqueues all layers; the end is the stream's mark.
  Status start(bool waits) {
    const Driver& d = gpu_.driver();
    for (CuEvent event : events_) {
      if (waits)
        ORBITKV_RETURN_IF_ERROR(
            gpu_.check("cuStreamWaitEvent", d.cuStreamWaitEvent(stream_->handle(), event, 0)));
      ORBITKV_RETURN_IF_ERROR(compute_->launch(*stream_, rounds_));
    }
    return stream_->mark();
  }
  Result<Duration> alone() {
    const TimePoint start_at = monotonic_now();
    ORBITKV_RETURN_IF_ERROR(start(false));
    ORBITKV_RETURN_IF_ERROR(stream_->finish());
    return monotonic_now() - start_at;
  }
  // So that all layers together take about so long, alone: some steps of proportion.
  Status aim_at(Duration target) {
    for (int i = 0; i < 4; ++i) {
      ORBITKV_ASSIGN_OR_RETURN(const Duration now, alone());
      const double rounds = rounds_ * static_cast<double>(target.ns) / static_cast<double>(now.ns);
      rounds_ = static_cast<std::uint32_t>(std::clamp(rounds, 1.0, kMostRounds));
    }
    return ok_status();
  }

 private:
  explicit Consumer(Gpu& gpu) : gpu_(gpu) {}

  Gpu& gpu_;
  std::unique_ptr<GpuStream> stream_;
  std::unique_ptr<ComputeKernel> compute_;
  std::vector<CuEvent> events_;
  std::vector<std::string> names_;
  std::uint32_t rounds_ = 16;  // of a layer
};

struct Times {
  Duration enqueued, first, whole, consumed;
};

class LayersRunner {
 public:
  static Result<std::unique_ptr<LayersRunner>> make(const Options& options, const TransferCase& what,
                                                    Gpu& gpu) {
    std::unique_ptr<LayersRunner> made(new LayersRunner(what));
    ORBITKV_ASSIGN_OR_RETURN(made->manager_, BenchManager::start(options, {"--pool-size", "1GiB"}));
    ORBITKV_ASSIGN_OR_RETURN(made->consumer_, Consumer::make(gpu, what.shape.layers));
    ORBITKV_ASSIGN_OR_RETURN(made->ready_, GpuStream::make(gpu));
    ORBITKV_ASSIGN_OR_RETURN(made->engine_, BenchEngine::attach(*made->manager_, what.shape, {}, &gpu));
    for (std::uint32_t b = 0; b < what.shape.blocks; ++b) made->engine_->fill(hash_of(b), b);
    ORBITKV_RETURN_IF_ERROR(made->engine_->push({0, what.shape.blocks}));
    ORBITKV_RETURN_IF_ERROR(made->engine_->make_resident(what.shape.blocks));
    return made;
  }
  Consumer& consumer() { return *consumer_; }

  // With or without a consumer behind the events. Times since the call.
  Result<Times> restore(bool consumes) {
    client::Client& client = engine_->client();
    ORBITKV_RETURN_IF_ERROR(engine_->spoil({0, what_.shape.blocks}));
    ORBITKV_ASSIGN_OR_RETURN(const LeaseId lease, engine_->lease(hashes_from(0, what_.blocks)));
    const auto blocks = blocks_of_set(what_, 0);
    const auto events = consumer_->layer_events();
    const client::Load load{lease, 0, blocks};
    client::RestoreOptions restore;
    restore.ready_stream = reinterpret_cast<std::uint64_t>(ready_->handle());
    restore.layer_events = events;
    client::OperationHandle handle;
    Times times;
    const TimePoint start = monotonic_now();
    ORBITKV_RETURN_IF_ERROR(
        to_status(client.start_restore(engine_->registration(), {&load, 1}, restore, handle)));
    ORBITKV_RETURN_IF_ERROR(to_status(client.wait_enqueued(handle, 60'000)));
    times.enqueued = monotonic_now() - start;
    if (consumes) ORBITKV_RETURN_IF_ERROR(consumer_->start(true));
    while (!consumes && !consumer_->first_is_ready()) {
    }
    times.first = monotonic_now() - start;
    if (consumes) ORBITKV_RETURN_IF_ERROR(consumer_->stream().finish());
    times.consumed = monotonic_now() - start;
    ORBITKV_RETURN_IF_ERROR(finish(client, handle));
    times.whole = monotonic_now() - start;
    return times;
  }

  Status compare() {
    ORBITKV_RETURN_IF_ERROR(engine_->pull({0, what_.shape.blocks}));
    for (std::uint32_t b = 0; b < what_.shape.blocks; ++b)
      if (engine_->wrong_bytes(hash_of(b), b) != 0) return bug("a restored block has wrong bytes");
    return ok_status();
  }
  std::uint64_t bytes() const { return what_.blocks * engine_->block_bytes(); }

 private:
  explicit LayersRunner(const TransferCase& what) : what_(what) {}
  const TransferCase& what_;
  std::unique_ptr<BenchManager> manager_;
  std::unique_ptr<GpuStream> ready_;
  std::unique_ptr<Consumer> consumer_;
  std::unique_ptr<BenchEngine> engine_;  // goes before the events that its client may know
};

double us(Duration d) {
  return static_cast<double>(d.ns) / 1000;
}

// The whole restore is the case's figure, the first layer's share stands beside it.
Status run_first(const Options& options, const TransferCase& what, LayersRunner& runner) {
  std::vector<Run> runs;
  std::vector<double> firsts, enqueued, shares;
  for (int i = 0; i < options.runs; ++i) {
    Samples wholes;
    for (std::uint32_t n = 0; n < what.samples; ++n) {
      ORBITKV_ASSIGN_OR_RETURN(const Times times, runner.restore(false));
      wholes.add(times.whole);
      firsts.push_back(us(times.first));
      enqueued.push_back(us(times.enqueued));
      shares.push_back(us(times.first) / us(times.whole));
    }
    Run run;
    run.p50 = wholes.percentile(0.5);
    run.p99 = wholes.percentile(0.99);
    run.gb_per_s = static_cast<double>(runner.bytes()) / static_cast<double>(run.p50.ns);
    runs.push_back(run);
  }
  Case line{"restore", what.name, ByteCount(runner.bytes()), what.fragments(), {}, {}};
  line.spread = true;
  line.extras = {{"first_layer_us", format_text("%.1f", median(firsts))},
                 {"enqueued_us", format_text("%.1f", median(enqueued))},
                 {"first_layer_share", format_text("%.4f", median(shares))}};
  report(line, std::move(runs), options);
  return ok_status();
}

Status run_consumer(const Options& options, const TransferCase& what, const Load& load,
                    LayersRunner& runner) {
  ORBITKV_ASSIGN_OR_RETURN(const Times warm, runner.restore(false));
  ORBITKV_RETURN_IF_ERROR(runner.consumer().aim_at(
      {static_cast<std::int64_t>(static_cast<double>(warm.whole.ns) * load.of_copy)}));
  std::vector<Run> runs;
  std::vector<double> copies, computes, over;
  for (int i = 0; i < options.runs; ++i) {
    Samples together, copy, compute;
    for (std::uint32_t n = 0; n < what.samples; ++n) {
      ORBITKV_ASSIGN_OR_RETURN(const Times alone, runner.restore(false));
      copy.add(alone.whole);
      ORBITKV_ASSIGN_OR_RETURN(const Duration computed, runner.consumer().alone());
      compute.add(computed);
      ORBITKV_ASSIGN_OR_RETURN(const Times both, runner.restore(true));
      together.add(both.consumed);
    }
    Run run;
    run.p50 = together.percentile(0.5);
    run.p99 = together.percentile(0.99);
    run.ceiling = std::max(us(copy.percentile(0.5)), us(compute.percentile(0.5)));
    runs.push_back(run);
    copies.push_back(us(copy.percentile(0.5)));
    computes.push_back(us(compute.percentile(0.5)));
    over.push_back(us(run.p50) / run.ceiling - 1);
  }
  Case line{"restore",
            format_text("%s_consumer_%s", what.name, load.name),
            ByteCount(runner.bytes()),
            what.fragments(),
            {},
            Ceiling{"max_of_copy_and_compute", Ceiling::Unit::kMicroseconds}};
  line.spread = true;
  line.extras = {{"copy_us", format_text("%.1f", median(copies))},
                 {"compute_us", format_text("%.1f", median(computes))},
                 {"over", format_text("%.4f", median(over))}};
  report(line, std::move(runs), options);
  return ok_status();
}

Status run_layered(const Options& options, const TransferCase& what, Gpu& gpu) {
  std::vector<const Load*> loads;
  for (const Load& load : kLoads)
    if (options.wants(format_text("%s_consumer_%s", what.name, load.name))) loads.push_back(&load);
  if (loads.empty() && !options.wants(what.name)) return ok_status();
  ORBITKV_ASSIGN_OR_RETURN(auto runner, LayersRunner::make(options, what, gpu));
  pin_thread(usable_cpus()[0]);
  if (options.wants(what.name)) ORBITKV_RETURN_IF_ERROR(run_first(options, what, *runner));
  for (const Load* load : loads) ORBITKV_RETURN_IF_ERROR(run_consumer(options, what, *load, *runner));
  return runner->compare();
}

}  // namespace

Status run_layers(const Options& options, Gpu& gpu) {
  for (const TransferCase& what : kLayered) {
    const Status done = run_layered(options, what, gpu);
    if (!done.ok()) return Error(done.error().code(), std::string(what.name) + ": " + done.error().message());
  }
  return ok_status();
}

}  // namespace orbitkv::bench
