#include "orbitkv/client.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "client/devices.h"
#include "client/executor.h"
#include "client/io_thread.h"
#include "client/queries.h"
#include "client/submit.h"
#include "device/cuda/cuda_device.h"
#include "shm/bootstrap.h"

namespace orbitkv::client {
namespace {

constexpr std::uint32_t kMostTimeoutMs = 24 * 3600 * 1000;  // poll() takes an int
// What is unclaimed has ended within it after its session was lost.
constexpr Duration kLastWait = seconds(1);
constexpr std::uint32_t kMostSpins = 1'000'000;  // spins look at no clock

// A forked child must not touch what its parent shares with a Manager.
std::atomic<int> g_forks{0};
void count_fork() {
  g_forks.fetch_add(1, std::memory_order_relaxed);
}
int register_fork_handler() {
  static const int once = pthread_atfork(nullptr, nullptr, count_fork);
  return once;
}

Outcome outcome_of(const Error& error) {
  return {static_cast<Action>(error.code()), error.message()};
}
template <class T>
Outcome outcome_of(const Result<T>& result) {
  return result.ok() ? Outcome{} : outcome_of(result.error());
}
// The one place that reads it.
std::string default_trace_file() {
  const char* name = std::getenv("ORBITKV_TRACE_TRANSFERS");
  return name ? name : "";
}

Result<device::CopierOptions> copier_options(const Options& options) {
  using device::CopyMethod, device::CopyPace;
  device::CopierOptions out;
  out.verify = options.verify;
  if (options.copy_method == "direct")
    out.method = CopyMethod::kDirect;
  else if (options.copy_method == "kernel")
    out.method = CopyMethod::kKernel;
  else if (options.copy_method != "auto")
    return reject("copy_method '" + options.copy_method + "' is none of auto, direct and kernel");
  if (options.copy_pace == "gentle")
    out.pace = CopyPace::kGentle;
  else if (options.copy_pace != "full")
    return reject("copy_pace '" + options.copy_pace + "' is neither full nor gentle");
  return out;
}

const Error& forked() {
  static const Error error = reject("this process was forked from the client's; open a new client here");
  return error;
}
}  // namespace

struct Client::Impl {
  Impl(Options o, const device::CopierOptions& copiers, std::unique_ptr<Trace> trace_file)
      : options(std::move(o)),
        trace(std::move(trace_file)),
        executors(operations, copiers, trace.get()),
        submitter(link, operations, registry, options),
        io({options.bootstrap_socket.empty() ? shm::default_socket_path() : options.bootstrap_socket,
            options.name, options.timeout_ms, options.spin_iterations, &devices},
           link, executors, registry) {}

  bool here() const { return forks == g_forks.load(std::memory_order_relaxed); }
  Result<wire::Buffer> command(wire::Opcode opcode, const Attachment::Encode& encode) {
    if (!here()) return forked();
    auto current = link.use();
    if (!current) return reconnect("no Manager is attached: " + io.state().message);
    return current->call(opcode, encode, options.timeout_ms);
  }
  SendCommand commands() {
    return [this](wire::Opcode opcode, const Attachment::Encode& encode) { return command(opcode, encode); };
  }

  const Options options;
  const int forks = g_forks.load();
  const std::unique_ptr<Trace> trace;  // null: off
  Devices devices{device::cuda::open_cuda_device};
  Link link;  // its slabs are the devices' too
  OperationTable operations;
  Registry registry;
  Executors executors;
  Submitter submitter;
  IoThread io;
  std::atomic<bool> closed{false};
  bool left_running = false;  // close() could not wait for the last copies
};

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

std::unique_ptr<Client> Client::open(const Options& options, Outcome& outcome) {
  register_fork_handler();
  if (options.timeout_ms > kMostTimeoutMs || options.spin_iterations > kMostSpins) {
    outcome = {Action::kReject, format_text("timeout_ms is at most %u and spin_iterations at most %u",
                                            kMostTimeoutMs, kMostSpins)};
    return nullptr;
  }
  const auto printable = [](char c) { return c >= 0x20 && c < 0x7F; };
  if (options.timeout_ms == 0 || options.name.size() > limits::kPeerNameBytes ||
      !std::all_of(options.name.begin(), options.name.end(), printable)) {
    outcome = {Action::kReject,
               format_text("timeout_ms must be above 0 and the name at most %u bytes of ASCII",
                           limits::kPeerNameBytes)};
    return nullptr;
  }
  auto copiers = copier_options(options);
  if (!copiers.ok()) {
    outcome = outcome_of(copiers);
    return nullptr;
  }
  Options complete = options;
  if (complete.trace_file.empty()) complete.trace_file = default_trace_file();
  std::unique_ptr<Trace> trace;
  if (!complete.trace_file.empty()) {
    auto opened = Trace::open(complete.trace_file);
    outcome = outcome_of(opened);
    if (!opened.ok()) return nullptr;
    trace = std::move(*opened);
  }
  try {
    auto impl = std::make_unique<Impl>(std::move(complete), *copiers, std::move(trace));
    Status started = impl->io.start();
    outcome = outcome_of(started);
    if (!started.ok()) return nullptr;
    return std::unique_ptr<Client>(new Client(std::move(impl)));
  } catch (const std::system_error& error) {
    outcome = {Action::kRetry, format_text("the client's threads cannot start: %s", error.what())};
    return nullptr;
  }
}

Client::~Client() {
  if (impl_->here()) close();
  if (impl_->here() && !impl_->left_running) return;
  Impl* kept = impl_.release();
  if (!kept->here()) return;  // a forked child owns none of the threads; nothing here is its to end
  // What still copies needs all of it: it goes when the copies have ended.
  kept->executors.bound_waits(std::nullopt);
  try {
    std::thread([kept] {
      if (kept->executors.wait_empty()) delete kept;
    }).detach();
  } catch (const std::system_error& error) {
    ORBITKV_WARN("the mappings of a closed client stay until this process ends: %s", error.what());
  }
}

void Client::close() {
  if (!impl_->here() || impl_->closed.exchange(true)) return;
  impl_->submitter.close();
  impl_->operations.wait_all(impl_->options.timeout_ms);
  // A stream that never ends must not keep whoever closes.
  impl_->executors.bound_waits(monotonic_now() + kLastWait);
  impl_->io.stop();
  Attachment* const last = impl_->link.mine();  // the I/O thread has ended
  const bool lives = last != nullptr && !last->lost();
  if (last != nullptr) last->lose();
  impl_->executors.bound_waits(monotonic_now() + kLastWait);
  impl_->left_running = !impl_->executors.wait_empty();
  if (impl_->left_running) {
    if (last != nullptr) last->hang_up();
    return;
  }
  impl_->executors.stop();
  if (lives) last->say_goodbye();
  impl_->link.swap(nullptr);
}

Outcome Client::wait_connected(std::uint32_t timeout_ms) {
  if (!impl_->here()) return outcome_of(forked());
  if (impl_->io.wait_connected(timeout_ms)) return {};
  return {Action::kReconnect, "no Manager is attached: " + impl_->io.state().message};
}

// ---- registration ----

Outcome Client::register_rank(const Registration& registration, RegistrationHandle& out) {
  if (!impl_->here()) return outcome_of(forked());
  if (impl_->closed) return {Action::kReconnect, "the client is closed"};
  auto device = impl_->devices.find(registration.device);
  if (!device.ok()) return outcome_of(device);
  auto executor = impl_->executors.on(**device);
  if (!executor.ok()) return outcome_of(executor);
  std::lock_guard lock(impl_->registry.mutex);
  auto entry = make_entry(registration, impl_->registry.next, **device);
  if (!entry.ok()) return outcome_of(entry);
  (*entry)->executor = *executor;
  if (impl_->io.state().connected) {
    Status made = impl_->io.register_entry(**entry, impl_->options.timeout_ms);
    // A Manager that went away in between gets it with the next attach.
    if (!made.ok() && made.error().code() != Code::kReconnect) return outcome_of(made);
  }
  out.value = impl_->registry.next++;
  impl_->registry.entries.emplace(out.value, std::move(*entry));
  return {};
}

Outcome Client::unregister(RegistrationHandle registration) {
  if (!impl_->here()) return outcome_of(forked());
  std::unique_lock lock(impl_->registry.mutex);
  auto it = impl_->registry.entries.find(registration.value);
  if (it == impl_->registry.entries.end()) return {Action::kReject, "unknown registration handle"};
  Entry& entry = *it->second;
  if (entry.closing) return {Action::kReject, "the registration is being unregistered by another thread"};
  entry.closing = true;
  lock.unlock();
  const TimePoint deadline = monotonic_now() + milliseconds(impl_->options.timeout_ms);
  while (entry.open_transfers.load(std::memory_order_acquire) > 0) {
    if (monotonic_now() > deadline) {
      lock.lock();
      entry.closing = false;
      return {Action::kRetry, "operations of the registration are still open; wait for them and try again"};
    }
    usleep(200);
  }
  Outcome outcome;
  const RegistrationId id(entry.registration.load());
  while (id.value != 0) {
    auto reply =
        impl_->io.call([&](std::uint64_t request,
                           wire::Buffer& frame) { wire::encode(wire::Unregister{request, id}, frame); },
                       impl_->options.timeout_ms);
    // The Manager may still be reaping; a Manager that is gone holds nothing.
    const bool again = !reply.ok() && reply.error().code() == Code::kBusy && monotonic_now() < deadline;
    if (again) {
      usleep(1000);
      continue;
    }
    if (!reply.ok() && reply.error().code() != Code::kReconnect) outcome = outcome_of(reply);
    break;
  }
  lock.lock();
  if (outcome.action == Action::kRetry) {  // it stands in the Manager still: the handle stays good
    entry.closing = false;
    return outcome;
  }
  impl_->registry.entries.erase(registration.value);
  return outcome;
}

// ---- queries ----

Outcome Client::query_candidates(InstanceId instance, std::span<const BlockHash> hashes,
                                 std::string_view request_id, std::uint16_t group, Candidates& out) {
  wire::QueryRequest request{instance, GroupId(group), wire::QueryMode::kDiscover, request_id, 0, 0, {}};
  auto result = run_query(request, hashes, impl_->commands());
  if (!result.ok()) return outcome_of(result);
  out.hit_blocks = result->hit_blocks;
  out.hit_positions = std::move(result->resident);
  out.stored_positions = std::move(result->stored);
  return {};
}

namespace {
wire::QueryRequest read_request(const PrefixQuery& query) {
  wire::QueryRequest request;
  request.instance = query.instance;
  request.group = GroupId(query.group);
  request.mode = wire::QueryMode::kRead;
  request.request_id = query.request_id;
  return request;
}
}  // namespace

Outcome Client::query_prefetch(const PrefixQuery& query, Ready& out) {
  wire::QueryRequest request = read_request(query);
  request.early_lease = impl_->options.early_leases;
  request.full_prefix = query.wait_for_full_prefix;
  auto result = run_query(request, query.hashes, impl_->commands());
  if (!result.ok()) return outcome_of(result);
  const std::uint32_t blocks = result->lease || result->loading ? result->hit_blocks : 0;
  out = {blocks, result->lease, result->loading, {query.group, result->revision}};
  out.admitted = result->admitted;
  return {};
}

Outcome Client::prepare_prefix(const PrefixQuery& query, bool& begun) {
  begun = false;
  wire::QueryRequest request = read_request(query);
  request.prepare = true;
  auto result = run_query(request, query.hashes, impl_->commands());
  if (!result.ok()) return outcome_of(result);
  begun = result->loading;
  return {};
}

Outcome Client::warm_prefix(const PrefixQuery& query, const WarmHint& hint) {
  return outcome_of(run_warm({query.instance,
                              GroupId(query.group),
                              query.request_id,
                              hint.first_use_ms,
                              hint.max_wait_ms,
                              hint.priority,
                              hint.confidence,
                              {}},
                             query.hashes, impl_->commands()));
}

Outcome Client::cancel_warm(InstanceId instance, std::string_view request_id, std::uint16_t group) {
  return outcome_of(
      run_cancel({instance, GroupId(group), request_id, {}, wire::TicketKind::kWarm}, impl_->commands()));
}

Outcome Client::poll_query(InstanceId instance, std::string_view request_id, const Ticket& ticket,
                           Ready& out) {
  const auto reply =
      run_poll({instance, GroupId(ticket.group), request_id, Revision(ticket.revision)}, impl_->commands());
  if (!reply.ok()) return outcome_of(reply);
  const LeaseId lease = reply->leases.empty() ? LeaseId{} : reply->leases[0].lease;
  out = {reply->hit_blocks, lease,          reply->state == wire::TicketState::kLoading, ticket,
         missing(*reply),   reply->admitted};
  return {};
}

Outcome Client::read_recovery(InstanceId instance, std::string_view request_id, const RecoverySet& set,
                              Recovered& out) {
  const auto reply =
      run_recovery({instance, request_id, set.origin, set.boundary, 0, 0, {}}, set.groups, impl_->commands());
  if (!reply.ok()) return outcome_of(reply);
  out = to_recovered(*reply);
  return {};
}

Outcome Client::prepare_recovery(InstanceId instance, std::string_view request_id, const RecoverySet& set,
                                 bool& begun) {
  begun = false;
  wire::RecoveryRequest request{instance, request_id, set.origin, set.boundary, 0, 0, {}};
  request.prepare = true;
  const auto reply = run_recovery(request, set.groups, impl_->commands());
  if (!reply.ok()) return outcome_of(reply);
  begun = reply->state == wire::TicketState::kLoading;
  return {};
}

Outcome Client::poll_recovery(InstanceId instance, std::string_view request_id, const Ticket& ticket,
                              Recovered& out) {
  const auto reply = run_poll(
      {instance, {}, request_id, Revision(ticket.revision), wire::TicketKind::kRecovery}, impl_->commands());
  if (!reply.ok()) return outcome_of(reply);
  out = to_recovered(*reply);
  out.ticket = ticket;
  return {};
}

Outcome Client::release(LeaseId lease) {
  return outcome_of(impl_->command(wire::Opcode::kRelease, [&](wire::Buffer& frame) {
    wire::encode(wire::ReleaseRequest{lease}, frame);
  }));
}

Outcome Client::cancel_query(InstanceId instance, std::string_view request_id, const Ticket& ticket) {
  return outcome_of(run_cancel({instance, GroupId(ticket.group), request_id, Revision(ticket.revision)},
                               impl_->commands()));
}

Outcome Client::cancel_recovery(InstanceId instance, std::string_view request_id, const Ticket& ticket) {
  return outcome_of(run_cancel(
      {instance, {}, request_id, Revision(ticket.revision), wire::TicketKind::kRecovery}, impl_->commands()));
}

Outcome Client::carry_interest(std::span<const std::byte> frame, std::vector<std::byte>& reply) {
  auto answered = run_interest(frame, impl_->commands());
  if (!answered.ok()) return outcome_of(answered);
  reply = std::move(*answered);
  if (!health().connected) end_by_session(frame, reply);
  return {};
}

Outcome Client::interest_authority(InstanceId instance, InterestAuthority& out) {
  return outcome_of(ask_authority(instance, impl_->commands(), out));
}

Outcome Client::ping() {
  return outcome_of(impl_->command(wire::Opcode::kPing, nullptr));
}

Outcome Client::publish_activity(InstanceId instance, PublishActivity& out) {
  auto frame = impl_->command(wire::Opcode::kPublishActivity, [&](wire::Buffer& request) {
    wire::encode(wire::ActivityRequest{instance}, request);
  });
  if (!frame.ok()) return outcome_of(frame);
  const auto reply = wire::decode_activity_reply(*frame);
  if (!reply.ok()) return outcome_of(reply);
  out = {reply->open, reply->waiting, reply->lent.value, reply->dropped,
         static_cast<std::uint64_t>(reply->oldest.ns)};
  return {};
}

// ---- operations ----

Outcome Client::start_save(RegistrationHandle registration, std::span<const SaveGroup> groups,
                           const SaveOptions& options, OperationHandle& out) {
  if (!impl_->here()) return outcome_of(forked());
  return outcome_of(impl_->submitter.save(registration, groups, options, out));
}

Outcome Client::start_restore(RegistrationHandle registration, std::span<const Load> loads,
                              const RestoreOptions& options, OperationHandle& out) {
  if (!impl_->here()) return outcome_of(forked());
  return outcome_of(impl_->submitter.restore(registration, loads, options, out));
}

OperationStatus Client::poll(OperationHandle handle) {
  if (!impl_->here()) return {true, false, 0, forked().message()};
  return impl_->operations.poll(handle);
}
OperationStatus Client::wait(OperationHandle handle, std::uint32_t timeout_ms) {
  if (!impl_->here()) return {true, false, 0, forked().message()};
  return impl_->operations.wait(handle, timeout_ms);
}
Outcome Client::wait_enqueued(OperationHandle handle, std::uint32_t timeout_ms) {
  if (!impl_->here()) return outcome_of(forked());
  return impl_->operations.wait_enqueued(handle, timeout_ms);
}
Outcome Client::report(OperationHandle handle, OperationReport& out) {
  if (!impl_->here()) return outcome_of(forked());
  return impl_->operations.report(handle, out);
}
std::vector<OperationHandle> Client::take_completed() {
  if (!impl_->here()) return {};  // the eventfd is the parent's too
  return impl_->operations.take_completed();
}
int Client::completion_fd() const {
  return impl_->operations.completion_fd();
}
void Client::drop(OperationHandle handle) {
  if (impl_->here()) impl_->operations.drop(handle);
}

// ---- health ----

Health Client::health() const {
  if (!impl_->here()) return {false, 0, 0, 0, forked().message()};
  const IoThread::State state = impl_->io.state();
  return {state.connected, state.incarnation, state.reconnects, impl_->operations.open_count(),
          state.message};
}

bool Client::peer_alive() const {
  if (!impl_->here()) return false;
  auto link = impl_->link.use();
  return link && !shm::process_ended(link->peer().pidfd);
}

Outcome Client::status(std::string& json) {
  if (!impl_->here()) return outcome_of(forked());
  auto frame = impl_->io.call(
      [](std::uint64_t request, wire::Buffer& out) { wire::encode(wire::StatusRequest{request}, out); },
      impl_->options.timeout_ms);
  if (!frame.ok()) return outcome_of(frame);
  auto reply = wire::decode_status_reply(*frame);
  if (!reply.ok()) return outcome_of(reply);
  json = std::move(reply->json);
  return {};
}

}  // namespace orbitkv::client
