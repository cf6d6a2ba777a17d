#include "client/submit.h"

#include <algorithm>

#include "base/limits.h"
#include "base/text.h"

namespace orbitkv::client {
namespace {
// Up to here a copy costs less than waking another thread for it.
constexpr std::uint64_t kInlineBytes = 260 * 1024;
// A save may have to wait for another publisher of the same blocks; nobody waits for a
// save. A restore holds a request up.
constexpr Duration kSaveGrantWithin = seconds(10);
}  // namespace

Duration Submitter::grant_within(const Part& part) const {
  const Duration call = milliseconds(options_.timeout_ms);
  return part.kind == model::PlanKind::kSave ? std::max(call, kSaveGrantWithin) : call;
}

Submitter::Submitter(Link& link, OperationTable& operations, Executor& executor, Registry& registry,
                     const Options& options)
    : link_(link),
      operations_(operations),
      executor_(executor),
      registry_(registry),
      options_(options),
      inline_runner_(options.verify) {}

Result<Entry*> Submitter::hold_entry(RegistrationHandle registration, std::uint32_t parts) {
  std::lock_guard lock(registry_.mutex);
  auto it = registry_.entries.find(registration.value);
  if (it == registry_.entries.end() || it->second->closing)
    return reject("unknown or closing registration handle");
  it->second->open_parts.fetch_add(parts, std::memory_order_relaxed);
  return it->second.get();
}

Status Submitter::save(RegistrationHandle registration, std::span<const SaveGroup> groups,
                       OperationHandle& out) {
  std::vector<Draft> drafts;
  for (const SaveGroup& group : groups) {
    if (group.blocks.size() != group.hashes.size())
      return reject(format_text("save of group %u: %zu blocks but %zu hashes", group.group,
                                group.blocks.size(), group.hashes.size()));
    const std::size_t step = wire::publish_blocks_per_frame();
    for (std::size_t at = 0; at < group.blocks.size(); at += step) {
      const std::size_t n = std::min(step, group.blocks.size() - at);
      Draft draft{std::make_unique<Part>(), group.hashes.subspan(at, n), {}, 0};
      draft.part->kind = model::PlanKind::kSave;
      draft.part->group_id = GroupId(group.group);
      draft.part->blocks.assign(group.blocks.begin() + at, group.blocks.begin() + at + n);
      drafts.push_back(std::move(draft));
    }
  }
  return run(registration, std::move(drafts), out);
}

Status Submitter::restore(RegistrationHandle registration, std::span<const Load> loads,
                          OperationHandle& out) {
  std::vector<Draft> drafts;
  for (const Load& load : loads) {
    if (!load.lease) return reject("a load without a lease");
    const std::size_t step = wire::restore_blocks_per_frame();
    for (std::size_t at = 0; at < load.blocks.size(); at += step) {
      const std::size_t n = std::min(step, load.blocks.size() - at);
      Draft draft{std::make_unique<Part>(), {}, load.lease, static_cast<std::uint32_t>(at)};
      draft.part->kind = model::PlanKind::kRestore;
      draft.part->group_id = GroupId(load.group);
      draft.part->blocks.assign(load.blocks.begin() + at, load.blocks.begin() + at + n);
      drafts.push_back(std::move(draft));
    }
  }
  return run(registration, std::move(drafts), out);
}

// Records for all parts are taken before the first is sent, so that "busy" comes while
// nothing is lent yet.
Status Submitter::run(RegistrationHandle registration, std::vector<Draft> drafts, OperationHandle& out) {
  if (closed_) return reconnect("the client is closed");
  const auto parts = static_cast<std::uint32_t>(drafts.size());
  // Before the link: nobody waits for the registry while holding a session.
  ORBITKV_ASSIGN_OR_RETURN(Entry * entry, hold_entry(registration, parts));
  const auto let_go = [&](std::uint32_t n) { entry->open_parts.fetch_sub(n, std::memory_order_release); };
  auto link = link_.use();
  if (!link) {
    let_go(parts);
    return reconnect("no Manager is attached");
  }
  for (Draft& draft : drafts) {
    draft.part->entry = entry;
    draft.part->group = entry->group(draft.part->group_id);
    if (draft.part->group) continue;
    let_go(parts);
    return reject(format_text("group %u is not registered", draft.part->group_id.value));
  }
  auto refs = link->reserve(parts);
  if (!refs.ok()) {
    let_go(parts);
    return refs.error();
  }
  out = operations_.open(parts);
  for (std::uint32_t i = 0; i < parts; ++i) {
    drafts[i].part->handle = out;
    drafts[i].part->ref = (*refs)[i];
    drafts[i].part->session = link->epoch();
    drafts[i].part->deadline = monotonic_now() + grant_within(*drafts[i].part);
  }
  for (std::uint32_t i = 0; i < parts; ++i) {
    Status sent = send(*link.get(), drafts[i]);
    if (sent.ok()) continue;
    if (i == 0) {
      for (std::uint32_t k = 1; k < parts; ++k) link->withdraw(drafts[k].part->ref);
      operations_.forget(out);
      let_go(parts);
      return sent;
    }
    Executor::settle(operations_, *drafts[i].part, {false, 0, sent.error().message()});
  }
  return ok_status();
}

void Submitter::encode(const Draft& draft, wire::Buffer& frame) const {
  const Part& part = *draft.part;
  const RegistrationId registration(part.entry->registration.load());
  const auto blocks = std::as_bytes(std::span(part.blocks));
  if (part.kind == model::PlanKind::kSave)
    wire::encode(wire::PublishRequest{registration, part.group_id, part.ref.operation, part.ref.record,
                                      blocks, draft.hashes},
                 frame);
  else
    wire::encode(wire::RestoreRequest{registration, part.ref.operation, part.ref.record, draft.lease,
                                      draft.first, blocks},
                 frame);
}

Status Submitter::send(Attachment& link, Draft& draft) {
  const RecordRef ref = draft.part->ref;
  const bool save = draft.part->kind == model::PlanKind::kSave;
  const bool here = small(*draft.part);
  const auto opcode = save ? wire::Opcode::kPublish : wire::Opcode::kRestore;
  auto reply = link.call(opcode, [&](wire::Buffer& frame) { encode(draft, frame); }, options_.timeout_ms);
  if (reply.ok()) {
    if (here)
      run_inline(link, std::move(draft.part));
    else
      executor_.add(std::move(draft.part));
    return ok_status();
  }
  if (link.withdraw(ref)) return reply.error();
  if (reply.error().code() == Code::kReconnect) {
    // No answer, but the Manager has the request: its record says how it ends.
    executor_.add(std::move(draft.part));
    return ok_status();
  }
  link.retire(ref);
  return reply.error();
}

bool Submitter::small(const Part& part) const {
  return options_.inline_copies && part.blocks.size() * part.group->layout.slot_bytes <= kInlineBytes;
}

void Submitter::run_inline(Attachment& link, std::unique_ptr<Part> part) {
  std::optional<PartOutcome> outcome;
  {
    std::lock_guard lock(inline_mutex_);
    outcome = inline_runner_.step(link, *part, Duration{0});
  }
  if (outcome)
    Executor::settle(operations_, *part, *outcome);
  else
    executor_.add(std::move(part));
}

}  // namespace orbitkv::client
