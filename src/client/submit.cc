#include "client/submit.h"

#include <algorithm>

#include "base/limits.h"
#include "base/text.h"

namespace orbitkv::client {
namespace {
// Up to here a copy costs less than waking another thread for it. On a GPU the caller
// starts the copy and does not carry it out.
constexpr std::uint64_t kInlineBytes = 260 * 1024;
constexpr std::uint64_t kInlineGpuBytes = 4 * 1024 * 1024;
// A save may have to wait for another publisher of the same blocks; nobody waits for a
// save. A restore holds a request up.
constexpr Duration kSaveGrantWithin = seconds(10);
// The Manager admits limits::kRestoresPerDevice: a longer restore has some reaped before
// the last are asked for. With layer events it is one transfer.
constexpr std::size_t kPartsPerTransfer = 64;
}  // namespace

// An entry that stays, and places in its executor's count, until transfers have taken them.
class Submitter::Held {
 public:
  // hold_entry() has taken one already.
  explicit Held(Entry& entry) : entry_(entry) {}
  Held(const Held&) = delete;
  ~Held() {
    entry_.open_transfers.fetch_sub(std::max(left_, unused_), std::memory_order_release);
    if (left_ > 0) entry_.executor->leave(left_);
  }
  void announce(std::uint32_t transfers) {
    if (transfers == 0) return;
    entry_.open_transfers.fetch_add(transfers - 1, std::memory_order_relaxed);
    entry_.executor->enter(transfers);
    left_ = transfers;
    unused_ = 0;
  }
  void taken() { --left_; }

 private:
  Entry& entry_;
  std::uint32_t unused_ = 1;  // nothing was announced
  std::uint32_t left_ = 0;
};

Submitter::Submitter(Link& link, OperationTable& operations, Registry& registry, const Options& options)
    : link_(link), operations_(operations), registry_(registry), options_(options) {}

Duration Submitter::grant_within(model::PlanKind kind) const {
  const Duration call = milliseconds(options_.timeout_ms);
  return kind == model::PlanKind::kSave ? std::max(call, kSaveGrantWithin) : call;
}

Result<Entry*> Submitter::hold_entry(RegistrationHandle registration) {
  std::lock_guard lock(registry_.mutex);
  auto it = registry_.entries.find(registration.value);
  if (it == registry_.entries.end() || it->second->closing)
    return reject("unknown or closing registration handle");
  it->second->open_transfers.fetch_add(1, std::memory_order_relaxed);
  return it->second.get();
}

// ---- what is asked ----

Submitter::Request Submitter::new_request(model::PlanKind kind, std::uint64_t ready_stream) const {
  Request request;
  request.kind = kind;
  request.ready_stream = ready_stream;
  if (!options_.trace_file.empty()) request.called = monotonic_now();
  return request;
}

void Submitter::add_part(Request& request, GroupId group, std::span<const std::uint32_t> blocks,
                         const Ask& ask) {
  Part part;
  part.kind = request.kind;
  part.group_id = group;
  part.blocks.assign(blocks.begin(), blocks.end());
  part.traced = request.called.ns != 0;
  request.parts.push_back(std::move(part));
  request.asks.push_back(ask);
}

Status Submitter::save(RegistrationHandle registration, std::span<const SaveGroup> groups,
                       const SaveOptions& options, OperationHandle& out) {
  Request request = new_request(model::PlanKind::kSave, options.ready_stream);
  for (const SaveGroup& group : groups) {
    if (group.blocks.size() != group.hashes.size())
      return reject(format_text("save of group %u: %zu blocks but %zu hashes", group.group,
                                group.blocks.size(), group.hashes.size()));
    const std::size_t step = wire::publish_blocks_per_frame();
    for (std::size_t at = 0; at < group.blocks.size(); at += step) {
      const std::size_t n = std::min(step, group.blocks.size() - at);
      add_part(request, GroupId(group.group), group.blocks.subspan(at, n),
               {group.hashes.subspan(at, n), {}, 0});
    }
  }
  return run(registration, std::move(request), out);
}

Status Submitter::restore(RegistrationHandle registration, std::span<const Load> loads,
                          const RestoreOptions& options, OperationHandle& out) {
  Request request = new_request(model::PlanKind::kRestore, options.ready_stream);
  request.events = options.layer_events;
  for (const Load& load : loads) {
    if (!load.lease) return reject("a load without a lease");
    const std::size_t step = wire::restore_blocks_per_frame();
    for (std::size_t at = 0; at < load.blocks.size(); at += step) {
      const std::size_t n = std::min(step, load.blocks.size() - at);
      add_part(request, GroupId(load.group), load.blocks.subspan(at, n),
               {{}, load.lease, static_cast<std::uint32_t>(at)});
    }
  }
  if (!request.events.empty() && request.parts.size() > limits::kRestoresPerDevice)
    return reject(
        format_text("a restore with layer events of %zu parts; at most %u are allowed, start several",
                    request.parts.size(), limits::kRestoresPerDevice));
  return run(registration, std::move(request), out);
}

Result<Submitter::Transfers> Submitter::plan(Entry& entry, Request& request) const {
  ORBITKV_ASSIGN_OR_RETURN(auto events, events_by_turn(entry, request.events));
  for (Part& part : request.parts) {
    part.entry = &entry;
    part.group = entry.group(part.group_id);
    if (!part.group) return reject(format_text("group %u is not registered", part.group_id.value));
  }
  const std::size_t step = events.empty() ? kPartsPerTransfer : limits::kRestoresPerDevice;
  Transfers transfers;
  for (std::size_t at = 0; at < request.parts.size() || (at == 0 && !events.empty()); at += step) {
    auto transfer = std::make_unique<Transfer>();
    transfer->entry = &entry;
    transfer->kind = request.kind;
    transfer->called = request.called;
    ORBITKV_ASSIGN_OR_RETURN(transfer->ready, entry.device->fence({request.ready_stream}));
    const auto first = request.parts.begin() + static_cast<std::ptrdiff_t>(at);
    const auto n = static_cast<std::ptrdiff_t>(std::min(step, request.parts.size() - at));
    transfer->parts.assign(std::move_iterator(first), std::move_iterator(first + n));
    transfer->stamp(&OperationReport::readiness_ns);
    transfers.push_back(std::move(transfer));
  }
  if (!events.empty()) transfers.front()->events = std::move(events);
  return transfers;
}

// ---- commands ----

// Records for all parts are taken before the first is sent, so that "busy" comes while
// nothing is lent yet.
Status Submitter::run(RegistrationHandle registration, Request request, OperationHandle& out) {
  if (closed_) return reconnect("the client is closed");
  // Before the link: nobody waits for the registry while holding a session.
  ORBITKV_ASSIGN_OR_RETURN(Entry * entry, hold_entry(registration));
  Held held(*entry);
  const auto parts = static_cast<std::uint32_t>(request.parts.size());
  ORBITKV_ASSIGN_OR_RETURN(Transfers transfers, plan(*entry, request));
  held.announce(static_cast<std::uint32_t>(transfers.size()));
  auto link = link_.use();
  if (!link) return reconnect("no Manager is attached");
  ORBITKV_ASSIGN_OR_RETURN(const auto refs, link->reserve(parts));
  out =
      operations_.open(static_cast<std::uint32_t>(transfers.size()), entry->gpu ? entry->executor : nullptr);
  std::size_t next = 0;
  for (auto& transfer : transfers) {
    transfer->handle = out;
    transfer->link = link.get();
    transfer->deadline = monotonic_now() + grant_within(request.kind);
    for (Part& part : transfer->parts) part.ref = refs[next++];
  }
  Status sent = send_all(*link.get(), std::move(transfers), request.asks, held);
  if (!sent.ok()) operations_.forget(out);
  return sent;
}

// An Error: the first command was not taken, and so none was sent. A later part that is
// refused ends without the others.
Status Submitter::send_all(Attachment& link, Transfers transfers, std::span<const Ask> asks, Held& held) {
  std::size_t next = 0;
  for (auto& transfer : transfers) {
    for (Part& part : transfer->parts) {
      const std::size_t i = next++;
      Status sent = send(link, part, asks[i]);
      if (sent.ok()) continue;
      part.state = PartState::kEnded;
      part.outcome = {false, 0, sent.error().message()};
      if (i > 0) continue;
      for (auto& other : transfers)
        for (Part& unsent : other->parts)
          if (unsent.state == PartState::kAsked) link.withdraw(unsent.ref);
      return sent;
    }
    transfer->stamp(&OperationReport::dispatched_ns);
    Executor& executor = *transfer->entry->executor;
    const bool here = transfers.size() == 1 && small(*transfer);
    held.taken();
    if (here)
      executor.start_here(std::move(transfer));
    else
      executor.add(std::move(transfer));
  }
  return ok_status();
}

Status Submitter::send(Attachment& link, const Part& part, const Ask& ask) {
  const RegistrationId registration(part.entry->registration.load());
  const auto blocks = std::as_bytes(std::span(part.blocks));
  const bool save = part.kind == model::PlanKind::kSave;
  const auto encode = [&](wire::Buffer& frame) {
    if (save)
      wire::encode(wire::PublishRequest{registration, part.group_id, part.ref.operation, part.ref.record,
                                        blocks, ask.hashes},
                   frame);
    else
      wire::encode(wire::RestoreRequest{registration, part.ref.operation, part.ref.record, ask.lease,
                                        ask.first, blocks},
                   frame);
  };
  auto reply = link.call(save ? wire::Opcode::kPublish : wire::Opcode::kRestore, encode, options_.timeout_ms);
  if (reply.ok()) return ok_status();
  if (link.withdraw(part.ref)) return reply.error();
  // No answer, but the Manager has the request: its record says how it ends.
  if (reply.error().code() == Code::kReconnect) return ok_status();
  link.retire(part.ref);
  return reply.error();
}

bool Submitter::small(const Transfer& transfer) const {
  std::uint64_t bytes = 0;
  for (const Part& part : transfer.parts) bytes += part.blocks.size() * part.group->layout.slot_bytes;
  return options_.inline_copies && bytes <= (transfer.entry->gpu ? kInlineGpuBytes : kInlineBytes);
}

}  // namespace orbitkv::client
