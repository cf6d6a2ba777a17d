#include "client/submit.h"

#include <unistd.h>

#include <algorithm>

#include "base/limits.h"
#include "base/text.h"

namespace orbitkv::client {
namespace {
// Up to here a copy costs less than waking another thread for it. On a GPU the caller
// starts the copy and does not carry it out.
constexpr std::uint64_t kInlineBytes = 260 * 1024;
constexpr std::uint64_t kInlineGpuBytes = 32 * 1024 * 1024;
// A save may have to wait for another publisher of the same blocks; nobody waits for a
// save. A restore holds a request up.
constexpr Duration kSaveGrantWithin = seconds(10);
// The Manager admits limits::kRestoresPerDevice: a longer restore has some reaped before
// the last are asked for. With layer events it is one transfer.
constexpr std::size_t kPartsPerTransfer = 64;
constexpr useconds_t kRoomPauseUs = 100;

void withdraw_all(Attachment& link, const std::vector<std::unique_ptr<Transfer>>& transfers) {
  for (const auto& transfer : transfers)
    for (const Part& part : transfer->parts)
      if (part.state == PartState::kAsked) link.withdraw(part.ref);
}
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

Transfer& Submitter::new_transfer(Request& request) {
  request.transfers.push_back(std::make_unique<Transfer>());
  Transfer& transfer = *request.transfers.back();
  transfer.kind = request.kind;
  transfer.called = request.called;
  return transfer;
}

Part& Submitter::new_part(Request& request, GroupId group, std::span<const std::uint32_t> blocks) {
  const std::size_t most = request.events.empty() ? kPartsPerTransfer : limits::kRestoresPerDevice;
  const bool full = request.transfers.empty() || request.transfers.back()->parts.size() == most;
  Transfer& transfer = full ? new_transfer(request) : *request.transfers.back();
  Part& part = transfer.parts.emplace_back();
  part.kind = request.kind;
  part.group_id = group;
  part.blocks.assign(blocks.begin(), blocks.end());
  part.traced = request.called.ns != 0;
  ++request.parts;
  return part;
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
      Part& part = new_part(request, GroupId(group.group), group.blocks.subspan(at, n));
      part.hashes = group.hashes.subspan(at, n);
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
      Part& part = new_part(request, GroupId(load.group), load.blocks.subspan(at, n));
      part.lease = load.lease;
      part.first = static_cast<std::uint32_t>(at);
    }
  }
  if (!request.events.empty() && request.parts > limits::kRestoresPerDevice)
    return reject(
        format_text("a restore with layer events of %u parts; at most %u are allowed, start several",
                    request.parts, limits::kRestoresPerDevice));
  return run(registration, std::move(request), out);
}

Status Submitter::prepare(Entry& entry, Request& request) {
  ORBITKV_ASSIGN_OR_RETURN(auto events, events_by_turn(entry, request.events));
  if (request.transfers.empty() && !events.empty()) new_transfer(request);
  for (auto& transfer : request.transfers) {
    transfer->entry = &entry;
    for (Part& part : transfer->parts) {
      part.entry = &entry;
      part.group = entry.group(part.group_id);
      if (!part.group) return reject(format_text("group %u is not registered", part.group_id.value));
    }
    ORBITKV_ASSIGN_OR_RETURN(transfer->ready, entry.device->fence({request.ready_stream}));
    transfer->stamp(&OperationReport::readiness_ns);
  }
  if (!events.empty()) request.transfers.front()->events = std::move(events);
  return ok_status();
}

// ---- commands ----

// Records for all parts are taken before the first is sent, so that "busy" comes while
// nothing is lent yet.
Status Submitter::run(RegistrationHandle registration, Request request, OperationHandle& out) {
  if (closed_) return reconnect("the client is closed");
  // Before the link: nobody waits for the registry while holding a session.
  ORBITKV_ASSIGN_OR_RETURN(Entry * entry, hold_entry(registration));
  Held held(*entry);
  ORBITKV_RETURN_IF_ERROR(prepare(*entry, request));
  const auto count = static_cast<std::uint32_t>(request.transfers.size());
  held.announce(count);
  auto link = link_.use();
  if (!link) return reconnect("no Manager is attached");
  ORBITKV_ASSIGN_OR_RETURN(const auto refs, link->reserve(request.parts));
  out = operations_.open(count, entry->gpu ? entry->executor : nullptr);
  const TimePoint deadline = monotonic_now() + grant_within(request.kind);
  std::size_t next = 0;
  for (auto& transfer : request.transfers) {
    transfer->handle = out;
    transfer->link = link.get();
    transfer->deadline = deadline;
    for (Part& part : transfer->parts) part.ref = refs[next++];
  }
  Status sent = send_all(*link.get(), request.transfers, held);
  if (!sent.ok()) operations_.forget(out);
  return sent;
}

// An Error: the first command was not taken, and so none was sent. A later part that is
// refused ends without the others.
Status Submitter::send_all(Attachment& link, Transfers& transfers, Held& held) {
  bool first = true;
  for (auto& transfer : transfers) {
    for (Part& part : transfer->parts) {
      Status sent = send(link, part);
      while (!sent.ok() && &transfer != &transfers.front() && wait_for_room(link, part, sent, *transfer))
        sent = send(link, part);
      if (!sent.ok()) {
        part.state = PartState::kEnded;
        part.outcome = {false, 0, sent.error().message()};
        if (first) {
          withdraw_all(link, transfers);
          return sent;
        }
      }
      first = false;
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

// The Manager admits only so many restores; those that were started make room.
bool Submitter::wait_for_room(Attachment& link, Part& part, const Status& sent, const Transfer& transfer) {
  if (sent.error().code() != Code::kBusy || monotonic_now() >= transfer.deadline) return false;
  ::usleep(kRoomPauseUs);
  auto ref = link.reserve(1);
  if (ref.ok()) part.ref = ref->front();
  return ref.ok();
}

Status Submitter::send(Attachment& link, const Part& part) {
  const RegistrationId registration(part.entry->registration.load());
  const auto blocks = std::as_bytes(std::span(part.blocks));
  const bool save = part.kind == model::PlanKind::kSave;
  const auto encode = [&](wire::Buffer& frame) {
    if (save)
      wire::encode(wire::PublishRequest{registration, part.group_id, part.ref.operation, part.ref.record,
                                        blocks, part.hashes},
                   frame);
    else
      wire::encode(wire::RestoreRequest{registration, part.ref.operation, part.ref.record, part.lease,
                                        part.first, blocks},
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
