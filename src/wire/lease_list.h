// The leases of a reply, as TicketReply and InterestReply carry them: one a group, in order of the
// groups, of 24 bytes each. For the codecs of this library alone.
#pragma once

#include <vector>

#include "base/limits.h"
#include "wire/codec.h"
#include "wire/messages.h"

namespace orbitkv::wire {

inline constexpr std::size_t kLeaseBytes = 24;
inline constexpr std::uint32_t kMaxHashes =
    static_cast<std::uint32_t>(limits::kMetadataPerOperation.value / limits::kBlockHashBytes);

inline void write_leases(const std::vector<TicketLease>& leases, FrameBuilder& f) {
  for (const TicketLease& lease : leases) {
    f.put(lease.group.value);
    f.zeros(2);
    f.put(lease.blocks);
    f.array<std::byte>(lease.lease.bytes);
  }
}

inline void read_leases(BodyReader& in, std::size_t count, std::vector<TicketLease>& leases) {
  for (std::size_t i = 0; i < count && in.ok(); ++i) {
    TicketLease lease;
    lease.group = GroupId(in.get<std::uint16_t>());
    in.zeros(2);
    lease.blocks = in.get<std::uint32_t>();
    lease.lease = in.name<LeaseId>();
    in.require(lease.blocks > 0 && lease.blocks <= kMaxHashes, "a lease without blocks, or of too many");
    in.require(static_cast<bool>(lease.lease), "no lease");
    in.require(leases.empty() || leases.back().group < lease.group, "leases out of order");
    leases.push_back(lease);
  }
}

}  // namespace orbitkv::wire
