#include "client/queries.h"

#include <algorithm>

#include "base/limits.h"
#include "base/text.h"

namespace orbitkv::client {
namespace {

constexpr std::size_t kMostHashes = limits::kMetadataPerOperation.value / limits::kBlockHashBytes;

Status check_id(std::string_view request_id) {
  if (request_id.size() <= limits::kRequestIdBytes) return ok_status();
  return reject(format_text("a request id has at most %u bytes", limits::kRequestIdBytes));
}

void collect_positions(const wire::QueryReply& reply, std::span<const std::uint64_t> bitmap,
                       std::vector<std::uint32_t>& out) {
  for (std::uint32_t i = 0; i < reply.count && !bitmap.empty(); ++i)
    if (bitmap[i / 64] >> (i % 64) & 1) out.push_back(reply.first + i);
}
}  // namespace

// One command a frame's worth of hashes; the Manager carries the run over the parts.
Result<QueryResult> run_query(wire::QueryRequest request, std::span<const BlockHash> hashes,
                              const SendCommand& command) {
  QueryResult result;
  ORBITKV_RETURN_IF_ERROR(check_id(request.request_id));
  if (hashes.size() > kMostHashes) return reject(format_text("a query has at most %zu hashes", kMostHashes));
  request.total = static_cast<std::uint32_t>(hashes.size());
  const std::uint32_t step = wire::query_hashes_per_frame(request.request_id.size());
  for (std::uint32_t at = 0; at < request.total; at += step) {
    request.first = at;
    request.hashes = hashes.subspan(at, std::min<std::size_t>(step, request.total - at));
    ORBITKV_ASSIGN_OR_RETURN(
        auto frame, command(wire::Opcode::kQuery, [&](wire::Buffer& out) { wire::encode(request, out); }));
    ORBITKV_ASSIGN_OR_RETURN(auto reply, wire::decode_query_reply(frame));
    if (reply.first != at || reply.count != request.hashes.size())
      return bug("the reply answers another query part");
    result.hit_blocks = reply.hit_blocks;
    result.lease = reply.lease;
    result.loading = reply.loading;
    result.admitted = reply.admitted;
    result.revision = reply.revision.value;
    if (request.mode == wire::QueryMode::kRead) request.revision = reply.revision;
    if (request.mode != wire::QueryMode::kDiscover) continue;
    collect_positions(reply, reply.resident, result.resident);
    collect_positions(reply, reply.stored, result.stored);
  }
  return result;
}

// A part may cross from one group to the next, so the list is put together once.
Result<wire::TicketReply> run_recovery(wire::RecoveryRequest request, std::span<const RecoveryGroup> groups,
                                       const SendCommand& command) {
  ORBITKV_RETURN_IF_ERROR(check_id(request.request_id));
  std::vector<BlockHash> list;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (i > 0 && groups[i].group <= groups[i - 1].group)
      return reject(format_text("group %u stands behind group %u; groups ascend", groups[i].group,
                                groups[i - 1].group));
    list.insert(list.end(), groups[i].hashes.begin(), groups[i].hashes.end());
    if (list.size() > kMostHashes)
      return reject(format_text("a recovery has at most %zu pages", kMostHashes));
  }
  if (list.empty()) return reject("a recovery without pages");
  if (request.origin >= request.boundary) return reject("the boundary of a recovery lies behind its origin");
  request.total = static_cast<std::uint32_t>(list.size());
  const std::uint32_t most = wire::recovery_hashes_per_frame(request.request_id.size());
  wire::TicketReply reply;
  for (std::uint32_t at = 0; at < request.total; at += most) {
    request.first = at;
    request.hashes = std::span(list).subspan(at, std::min<std::size_t>(most, request.total - at));
    ORBITKV_ASSIGN_OR_RETURN(auto frame, command(wire::Opcode::kReadRecovery,
                                                 [&](wire::Buffer& out) { wire::encode(request, out); }));
    ORBITKV_ASSIGN_OR_RETURN(reply, wire::decode_ticket_reply(frame));
    request.revision = reply.revision;
  }
  for (std::size_t i = 0; i < reply.leases.size(); ++i) {
    const wire::TicketLease& lease = reply.leases[i];
    if (reply.leases.size() != groups.size() || lease.group.value != groups[i].group ||
        lease.blocks != groups[i].hashes.size())
      return bug("the reply leases other pages than the recovery asked for");
  }
  return reply;
}

Result<wire::TicketReply> run_poll(const wire::PollRequest& request, const SendCommand& command) {
  ORBITKV_RETURN_IF_ERROR(check_id(request.request_id));
  if (request.revision.value == 0) return reject("a poll needs the ticket of an answer, with its revision");
  ORBITKV_ASSIGN_OR_RETURN(
      auto frame, command(wire::Opcode::kPoll, [&](wire::Buffer& out) { wire::encode(request, out); }));
  return wire::decode_ticket_reply(frame);
}

// As much of the list as one frame holds: it is a hint.
Status run_warm(wire::WarmRequest request, std::span<const BlockHash> hashes, const SendCommand& command) {
  constexpr std::uint8_t kSure = 100;
  ORBITKV_RETURN_IF_ERROR(check_id(request.request_id));
  if (request.confidence > kSure) return reject("the confidence of a hint is 0 to 100");
  if (hashes.size() > kMostHashes) return reject(format_text("a hint has at most %zu hashes", kMostHashes));
  if (hashes.empty()) return ok_status();
  const std::size_t most = wire::warm_hashes_per_frame(request.request_id.size());
  request.hashes = hashes.first(std::min(most, hashes.size()));
  const auto reply = command(wire::Opcode::kWarm, [&](wire::Buffer& out) { wire::encode(request, out); });
  return reply.ok() ? ok_status() : Status(reply.error());
}

Status run_cancel(const wire::CancelQueryRequest& request, const SendCommand& command) {
  ORBITKV_RETURN_IF_ERROR(check_id(request.request_id));
  const auto reply =
      command(wire::Opcode::kCancelQuery, [&](wire::Buffer& out) { wire::encode(request, out); });
  return reply.ok() ? ok_status() : Status(reply.error());
}

// Whoever brings frames may be reached by others: nothing goes on as it came.
Result<wire::Buffer> run_interest(std::span<const std::byte> frame, const SendCommand& command) {
  wire::Buffer out;
  const auto submit = wire::decode_interest_submit(frame);
  const auto call = submit.ok() ? Result<wire::InterestCall>(bug("none")) : wire::decode_interest_call(frame);
  if (!submit.ok() && !call.ok())
    return reject("no frame of an interest, or a damaged one: " + call.error().message());
  auto reply =
      submit.ok()
          ? command(wire::Opcode::kSubmitInterest, [&](wire::Buffer& to) { wire::encode(*submit, to); })
          : command(wire::Opcode::kInterest, [&](wire::Buffer& to) { wire::encode(*call, to); });
  if (reply.ok()) return reply;
  const std::string text = reply.error().message().substr(0, limits::kSocketErrorBytes);
  wire::encode(wire::ErrorReply{reply.error().code(), text}, out);
  return out;
}

void end_by_session(std::span<const std::byte> frame, wire::Buffer& answer) {
  const auto call = wire::decode_interest_call(frame);
  const auto error = wire::decode_error_reply(answer);
  if (!call.ok() || call->verb != InterestVerb::kClose || !error.ok() || error->code != Code::kReconnect)
    return;
  wire::InterestReply closed;
  closed.interest = call->name.interest;
  closed.phase = InterestPhase::kClosed;
  answer.clear();
  wire::encode(closed, answer);
}

Status ask_authority(const InstanceId& instance, const SendCommand& command, InterestAuthority& out) {
  // No coordinator's: their words are lower.
  const wire::InterestName nobodys{instance, InterestId(~std::uint64_t{0}), InterestOperation(1)};
  ORBITKV_ASSIGN_OR_RETURN(const wire::Buffer frame, command(wire::Opcode::kInterest, [&](wire::Buffer& to) {
                             wire::encode(wire::InterestCall{nobodys, {}, InterestVerb::kPoll, 0}, to);
                           }));
  ORBITKV_ASSIGN_OR_RETURN(const wire::InterestReply reply, wire::decode_interest_reply(frame));
  if (!reply.authority) return busy("the instance is not ready: not all of its ranks are registered here");
  out = reply.authority;
  return ok_status();
}

Missing missing(const wire::TicketReply& reply) {
  if (reply.state == wire::TicketState::kUnknown) return Missing::kUnknown;
  return static_cast<Missing>(reply.why);
}

Recovered to_recovered(const wire::TicketReply& reply) {
  Recovered out;
  out.loading = reply.state == wire::TicketState::kLoading;
  out.admitted = reply.admitted;
  out.ticket = {0, reply.revision.value};
  out.why = missing(reply);
  out.missing_group = reply.missing.value;
  for (const wire::TicketLease& lease : reply.leases)
    out.leases.push_back({lease.group.value, lease.blocks, lease.lease});
  return out;
}

}  // namespace orbitkv::client
