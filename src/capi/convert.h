// From the structs of the C interface to those of client.h. What they point to is copied
// or viewed for the length of one call. Wrong input is an answer that names the member.
#pragma once

#include <vector>

#include "capi/sized.h"
#include "orbitkv/interests.h"

namespace orbitkv::capi {

Outcome to_options(const orbitkv_options* in, client::Options& out);
Outcome to_registration(const orbitkv_memory* in, client::Registration& out);

using Query = client::PrefixQuery;  // views of the caller's
Outcome to_hint(const orbitkv_warm_hint* in, client::WarmHint& out);
Outcome to_query(const orbitkv_query* in, Query& out);

struct RecoveryQuery {
  InstanceId instance;
  std::string_view request_id;
  std::vector<client::RecoveryGroup> groups;
  client::RecoverySet set;  // views `groups`
};
Outcome to_recovery(const orbitkv_recovery* in, RecoveryQuery& out);
// Reject: there is no room for the leases.
Outcome from_recovered(const client::Recovered& in, orbitkv_recovered& out);

// One participant of a group, and the client that reaches it.
struct Seat {
  orbitkv_client* client = nullptr;
  client::Participant participant;
};
struct Seats {
  std::span<const orbitkv_participant> given;
  bool carried = false;  // by a carrier, and not by their clients
};
Outcome to_seats(const Seats& in, std::vector<Seat>& out);
orbitkv_authority from_authority(const InterestAuthority& in);
Outcome to_carrier(const orbitkv_carrier* in, orbitkv_carrier& out);
Outcome to_common_list(const orbitkv_common_list* in, client::CommonList& out);
// Reject: there is no room for the leases.
Outcome from_common(const client::CommonPrefix& in, orbitkv_common_prefix& out);

struct Save {
  std::vector<client::SaveGroup> groups;
  client::SaveOptions options;
};
Outcome to_save(const orbitkv_save* in, Save& out);

struct Restore {
  std::vector<client::Load> loads;
  std::vector<client::LayerEvent> events;
  client::RestoreOptions options;  // views `events`
};
Outcome to_restore(const orbitkv_restore* in, Restore& out);

LeaseId to_lease(const orbitkv_lease& in);
orbitkv_lease from_lease(const LeaseId& in);
orbitkv_hit from_ready(const client::Ready& in);

// Cut to the field with "..." at its end if it is too long.
void copy_text(const std::string& text, std::span<char> field);

}  // namespace orbitkv::capi
