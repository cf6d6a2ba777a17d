// Queries of a client as commands: one a frame's worth of hashes, and what their replies mean
// together. Called in the user's thread, through a function that sends one command and waits
// for its reply. Holds nothing between calls.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "client/attachment.h"
#include "orbitkv/client.h"
#include "wire/messages.h"

namespace orbitkv::client {

using SendCommand = std::function<Result<wire::Buffer>(wire::Opcode, const Attachment::Encode&)>;

struct QueryResult {
  std::uint32_t hit_blocks = 0;
  LeaseId lease;
  bool loading = false, admitted = true;
  std::uint64_t revision = 0;
  std::vector<std::uint32_t> resident, stored;  // discovery: positions
};
Result<QueryResult> run_query(wire::QueryRequest request, std::span<const BlockHash> hashes,
                              const SendCommand& command);
// The pages of `groups` as one list; they ascend by group.
Result<wire::TicketReply> run_recovery(wire::RecoveryRequest request, std::span<const RecoveryGroup> groups,
                                       const SendCommand& command);
Result<wire::TicketReply> run_poll(const wire::PollRequest& request, const SendCommand& command);
Status run_warm(wire::WarmRequest request, std::span<const BlockHash> hashes, const SendCommand& command);
Status run_cancel(const wire::CancelQueryRequest& request, const SendCommand& command);

// Decodes the frame and sends it as its kind of command; an error is answered as a frame.
Result<wire::Buffer> run_interest(std::span<const std::byte> frame, const SendCommand& command);
// A session that is gone holds nothing: a close that met none becomes the answer that it is closed.
void end_by_session(std::span<const std::byte> frame, wire::Buffer& answer);
// kBusy: not all ranks of the instance are registered.
Status ask_authority(const InstanceId& instance, const SendCommand& command, InterestAuthority& out);

Missing missing(const wire::TicketReply& reply);
Recovered to_recovered(const wire::TicketReply& reply);

}  // namespace orbitkv::client
