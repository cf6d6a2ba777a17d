#include "device/cuda/cuda_copier.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "device/cuda/bounce.h"

namespace orbitkv::device::cuda {
namespace {

// Between two looks at the stream itself, which tells of a device that has failed.
constexpr std::uint32_t kPollsPerQuery = 256;
// Headers are read or begun while the first layers are on their way.
constexpr std::uint32_t kHeadersPerPoll = 64;

// A copy the end of which cannot be shown may still write: nothing may be reused, not even
// by an orderly exit of this process.
[[noreturn]] void end_process(const Driver& driver, CuResult code) {
  ORBITKV_ERROR(
      "the GPU cannot say whether copies have ended; ending the process so that no page is reused: %s",
      driver_error(driver, "cuEventQuery", code).message().c_str());
  std::abort();
}

class CudaCopier final : public Copier {
 public:
  CudaCopier(std::shared_ptr<DeviceParts> parts, const CopierOptions& options,
             const CudaDeviceOptions& device)
      : parts_(std::move(parts)),
        options_(options),
        device_(device),
        save_bounce_(parts_->context, device.bounce),
        restore_bounce_(parts_->context, device.bounce) {}

  Status prepare() {
    ORBITKV_ASSIGN_OR_RETURN(queues_,
                             Queues::create(parts_->context, {device_.wait_values, device_.batched_dma}));
    for (auto& pool : pools_) {
      ORBITKV_ASSIGN_OR_RETURN(pool, LaunchPool::create(parts_->context, limits::kCopyLaunches));
    }
    return ok_status();
  }

  ~CudaCopier() override {
    // A driver that has gone answers no more: what it was told to copy, it copies or not.
    while (!batches_.empty() && drain({batches_.begin()->first}).proven) {
    }
    Scope scope(*parts_->context);
    for (CuEvent event : fired_) parts_->context->driver().cuEventDestroy(event);
  }

  std::string name() const override {
    const Traits& t = parts_->context->traits();
    return format_text("cuda sm_%d%d %s", t.major, t.minor,
                       parts_->context->kernels().bulk ? "bulk" : "vector");
  }

  Result<CopyTicket> submit(CopyBatch batch) override {
    if (batches_.size() >= limits::kCopyBatches)
      return busy(format_text("%u copy batches run; poll until one has ended", limits::kCopyBatches));
    ORBITKV_ASSIGN_OR_RETURN(auto opened, Batch::open(std::move(batch), *parts_->slabs, options_.verify));
    const CopyTicket ticket{next_ticket_++};
    Batch& b = *batches_.emplace(ticket.value, std::move(opened)).first->second;
    b.windows = parts_->windows();
    const Visit visit(*this);
    if (b.ready()) note(b, queues().wait_for(b.direction(), b.ready().event(), !b.events().empty()));
    b.ready() = Fence();
    if (!b.bounces()) advance(b);  // filling the buffer is for whoever polls
    return ticket;
  }

  bool enqueued(CopyTicket ticket) const override {
    auto it = batches_.find(ticket.value);
    if (it == batches_.end()) return true;
    const Batch& b = *it->second;
    return b.failure.ok() && b.all_launched() && b.next_event == b.events().size();
  }

  std::optional<CopyEnd> poll(CopyTicket ticket) override {
    auto it = batches_.find(ticket.value);
    if (it == batches_.end()) return std::nullopt;
    const Visit visit(*this);
    Batch& b = *it->second;
    if (!go_on(b)) return unproven(b);
    if (waits_for_others(b)) {
      for (auto& [number, other] : batches_)
        if (!go_on(*other)) return unproven(b);
    }
    const bool copied = b.running.empty() && (!b.failure.ok() || b.all_launched()) && b.take_headers(0);
    if (!copied || !fired(b)) return std::nullopt;
    return end(it);
  }

 private:
  using Batches = std::map<std::uint64_t, std::unique_ptr<Batch>>;

  // One call of the copier. The context is entered where the driver is first needed, which
  // most polls never come to: flags and sums lie in host memory.
  class Visit {
   public:
    explicit Visit(CudaCopier& copier) : copier_(copier) {}
    ~Visit() { copier_.scope_.reset(); }
    Visit(const Visit&) = delete;

   private:
    CudaCopier& copier_;
  };
  void enter() {
    if (!scope_) scope_.emplace(*parts_->context);
  }
  Queues& queues() {
    enter();
    return *queues_;
  }
  const Driver& driver() {
    enter();
    return parts_->context->driver();
  }

  static std::size_t index(const Batch& b) { return static_cast<std::size_t>(b.direction()); }
  Bounce& bounce(const Batch& b) {
    return b.direction() == Direction::kSave ? save_bounce_ : restore_bounce_;
  }
  static void note(Batch& b, const Status& status) {
    if (b.failure.ok() && !status.ok()) b.failure = status;
  }

  PlanRules rules_for(const Batch& b) const {
    const Traits& traits = parts_->context->traits();
    PlanRules rules;
    rules.has_bulk = parts_->context->kernels().bulk != nullptr && b.bytes() > kTinyBytes;
    rules.max_slots = slots_that_fit(static_cast<std::uint32_t>(traits.shared_bytes));
    rules.one_turn_a_launch = !queues_->signals_layers() && !b.events().empty();
    rules.skip_sums = !options_.verify && b.direction() == Direction::kRestore;
    rules.stage_bytes = b.windows.of(b.direction(), options_.pace, b.typical_fragment()).stage_bytes;
    if (direct(b, b.typical_fragment())) {
      rules.max_bytes = kDirectBytes;
      rules.max_runs = kDirectRuns;
    }
    return rules;
  }

  // False: the driver has gone, because the process ends.
  bool go_on(Batch& b) {
    if (!collect(b)) return false;
    advance(b);
    return true;
  }
  static CopyEnd unproven(const Batch& b) { return {recompute("the process is ending"), b.stats, false}; }
  // They hold all launches, or the buffer, and nobody may be polling them.
  static bool waits_for_others(const Batch& b) {
    return b.failure.ok() && b.running.empty() && !b.all_launched();
  }

  // Puts on the queues whatever there is room for; a round begins when the last has ended.
  void advance(Batch& b) {
    while (b.failure.ok()) {
      if (b.next_launch == b.launches.size()) {
        if (!b.running.empty() || !begin_round(b)) break;
        continue;
      }
      LaunchPool& pool = *pools_[index(b)];
      if (!pool.any_free() || signals_full(b)) return;
      enter();
      LaunchMemory* transfer = pool.take();
      if (transfer == nullptr) return;
      launch(b, *transfer);
    }
    const bool copied = b.running.empty() && (!b.failure.ok() || b.all_launched());
    if (copied && b.bounces() && bounce(b).user == &b) bounce(b).user = nullptr;
    if (b.failure.ok() && b.all_launched() && (!b.bounces() || b.running.empty())) record_rest(b);
  }

  // The next launch has more layers than the signal queue takes beside those on their way.
  bool signals_full(const Batch& b) const {
    if (b.events().empty()) return false;
    std::size_t on_their_way = 0;
    for (const auto& [number, other] : batches_) {
      if (other->events().empty()) continue;
      for (const Batch::Running& r : other->running)
        on_their_way += other->launches[r.plan].turns.size() - r.signal;
    }
    return on_their_way > 0 && on_their_way + b.launches[b.next_launch].turns.size() > kSignalsInFlight;
  }

  // False: no further round, or the buffer is another batch's for now.
  bool begin_round(Batch& b) {
    if (!b.bounces()) return b.next_round(rules_for(b), {}) && !b.launches.empty();
    Bounce& buffer = bounce(b);
    if (buffer.user != nullptr && buffer.user != &b) return false;
    enter();
    note(b, buffer.ready(b.largest_slot()));
    if (!b.failure.ok()) return false;
    buffer.user = &b;
    b.stats.bounced = true;
    return b.next_round(rules_for(b), buffer.buffer());
  }

  bool direct(const Batch& b, std::uint64_t run_bytes) const {
    if (options_.method != CopyMethod::kAuto) return options_.method == CopyMethod::kDirect;
    if (options_.pace == CopyPace::kGentle) return false;
    const bool beside_save = b.direction() == Direction::kRestore && save_runs();
    return run_bytes >= (beside_save ? kDirectFromBesideSave : kDirectFromFull);
  }
  // A restore may find a save beside it that was not there when it was planned, and one slot
  // may have more rows than a queue should take: the kernel copies those, asked for or not.
  bool direct(const Batch& b, const LaunchPlan& plan) const {
    if (plan.runs > kDirectRuns) return false;
    return std::all_of(plan.fragments.begin(), plan.fragments.end(),
                       [&](const PlanFragment& f) { return direct(b, f.row_bytes); });
  }
  bool save_runs() const {
    return std::any_of(batches_.begin(), batches_.end(), [](const auto& entry) {
      return entry.second->direction() == Direction::kSave && !entry.second->running.empty();
    });
  }

  void launch(Batch& b, LaunchMemory& transfer) {
    const std::size_t number = b.next_launch++;
    const LaunchPlan& plan = b.launches[number];
    const bool by_dma = direct(b, plan);
    Status enqueued = ok_status();
    if (by_dma) {
      enqueued = queues().copy_direct(plan, transfer, b.direction(), b.stats.submissions);
    } else {
      enqueued = queues().launch(plan, transfer, b.direction(), window_for(b, plan));
      ++b.stats.submissions;
    }
    b.stats.method = by_dma ? CopyMethod::kDirect : CopyMethod::kKernel;
    b.stats.bytes += plan.bytes;
    b.stats.plan_bytes += plan.upload_bytes();
    for (const PlanFragment& f : plan.fragments) b.stats.fragments += f.slots;
    b.running.push_back({&transfer, number, 0, 0, 0, !enqueued.ok()});
    if (enqueued.ok())
      record_turns(b, plan, transfer);
    else
      drain_accepted(b, transfer, enqueued);
  }

  Window window_for(const Batch& b, const LaunchPlan& plan) const {
    Window window = b.windows.of(b.direction(), options_.pace, b.typical_fragment());
    const bool bulk = plan.width == Width::kBulk && parts_->context->kernels().bulk != nullptr;
    if (!bulk) window.ctas = b.windows.any_ctas_of(options_.pace);
    return window;
  }

  // What a failed call left on the queues is waited for like a launch that reads no sums.
  void drain_accepted(Batch& b, LaunchMemory& transfer, const Status& why) {
    note(b, why);
    const Status fenced = queues().fence_accepted(transfer, b.direction());
    if (fenced.ok()) return;
    const CuResult code = queues().drain();
    if (code != kCuSuccess && code != kCuDeinitialized) end_process(parts_->context->driver(), code);
    b.running.pop_back();
    pools_[index(b)]->give_back(&transfer);
  }

  // Events of the layers that this launch completes, and of those without bytes before them.
  void record_turns(Batch& b, const LaunchPlan& plan, LaunchMemory& transfer) {
    if (b.bounces()) return;  // no queue waits for the host: after the last round
    const auto& events = b.events();
    for (std::uint32_t signal = 0; signal < plan.turns.size() && b.failure.ok(); ++signal) {
      if (signal + 1 == plan.turns.size() && plan.last_turn_goes_on) break;
      while (b.next_event < events.size() && events[b.next_event].turn < plan.turns[signal] && b.failure.ok())
        note(b, queues().record(events[b.next_event++].event));
      if (b.next_event < events.size() && events[b.next_event].turn == plan.turns[signal] && b.failure.ok())
        note(b, queues().record_after(transfer, signal, events[b.next_event++].event));
    }
    note(b, queues().close_signals(transfer));
  }

  void record_rest(Batch& b) {
    while (b.next_event < b.events().size() && b.failure.ok())
      note(b, queues().record(b.events()[b.next_event++].event));
  }

  // Takes in what signals say. False: the driver has gone, because the process ends.
  bool collect(Batch& b) {
    if (!b.take_headers(kHeadersPerPoll)) return true;
    while (!b.running.empty()) {
      Batch::Running& front = b.running.front();
      const LaunchPlan& plan = b.launches[front.plan];
      const std::uint32_t before = front.signal;
      collect_raised(b, front);
      const bool done = !front.only_drains && front.signal == plan.turns.size();
      if (!done) {
        if (front.signal != before) b.quiet_polls = 0;
        if (!front.only_drains && ++b.quiet_polls % kPollsPerQuery != 0) return true;
        bool ended = false;
        if (!look_at_device(b, front, ended)) return false;
        if (!ended) return true;
      }
      pools_[index(b)]->give_back(front.transfer);
      b.running.pop_front();
    }
    if (b.next_launch == b.launches.size() && b.next_launch > 0 && b.failure.ok() && b.bounces())
      b.end_round(bounce(b).buffer().host);
    return true;
  }

  static void collect_raised(Batch& b, Batch::Running& front) {
    if (front.only_drains) return;
    const std::size_t signals = b.launches[front.plan].turns.size();
    while (front.signal < signals && front.transfer->raised(front.signal) && b.collect(front)) {
    }
  }

  // Whether the launch has ended on the device, and as it should.
  bool look_at_device(Batch& b, Batch::Running& front, bool& ended) {
    const Driver& d = driver();
    const CuResult code = d.cuEventQuery(front.transfer->ended);
    if (code == kCuNotReady) return true;
    if (code == kCuDeinitialized) return false;
    if (code != kCuSuccess) end_process(d, code);
    ended = true;
    if (front.only_drains) return true;
    collect_raised(b, front);  // what came since we looked
    if (front.signal == b.launches[front.plan].turns.size()) return true;
    note(b, bug("a copy kernel ended without its signals"));
    front.transfer->raise_all();
    return true;
  }

  // The batch's events have fired, those of a failed batch too: nobody must wait for a
  // record that will not come.
  bool fired(Batch& b) {
    if (b.events().empty()) return true;
    const Driver& d = driver();
    if (b.fired == nullptr) {
      while (b.next_event < b.events().size()) {
        const Status recorded = queues().record(b.events()[b.next_event++].event);
        note(b, recorded);
      }
      b.fired = take_event();
      const Status marked = b.fired != nullptr ? queues().record({reinterpret_cast<std::uint64_t>(b.fired)})
                                               : Status(bug("no event to mark the layer events with"));
      note(b, marked);
      if (!marked.ok()) return true;
    }
    return d.cuEventQuery(b.fired) != kCuNotReady;
  }
  CuEvent take_event() {
    CuEvent event = nullptr;
    if (fired_.empty()) {
      driver().cuEventCreate(&event, kEventDisableTiming);
      return event;
    }
    event = fired_.back();
    fired_.pop_back();
    return event;
  }

  CopyEnd end(Batches::iterator it) {
    Batch& b = *it->second;
    if (b.fired != nullptr) fired_.push_back(b.fired);
    if (b.failure.ok()) b.settle();
    CopyEnd out{b.failure, b.stats, true};
    batches_.erase(it);
    return out;
  }

  const std::shared_ptr<DeviceParts> parts_;
  const CopierOptions options_;
  const CudaDeviceOptions device_;
  Bounce save_bounce_, restore_bounce_;
  std::unique_ptr<Queues> queues_;
  std::array<std::unique_ptr<LaunchPool>, 2> pools_;
  Batches batches_;
  std::vector<CuEvent> fired_;  // not in use
  std::optional<Scope> scope_;  // of the present call
  std::uint64_t next_ticket_ = 1;
};

}  // namespace

Result<std::unique_ptr<Copier>> make_cuda_copier(std::shared_ptr<DeviceParts> parts,
                                                 const CopierOptions& options,
                                                 const CudaDeviceOptions& device) {
  auto copier = std::make_unique<CudaCopier>(std::move(parts), options, device);
  ORBITKV_RETURN_IF_ERROR(copier->prepare());
  return std::unique_ptr<Copier>(std::move(copier));
}

}  // namespace orbitkv::device::cuda
