// Queries, tickets and leases of Core.
#include <algorithm>

#include "base/text.h"
#include "cache/core_impl.h"

namespace orbitkv::cache {

Result<const Instance*> Core::Impl::complete_instance(const InstanceId& id) {
  const Instance* instance = instances.find_instance(id);
  if (instance == nullptr) {
    return busy(
        format_text("instance %s is not ready: no rank of it has registered", short_hex(id.bytes).c_str()));
  }
  if (!instance->complete()) {
    return busy(format_text("instance %s is not ready: %u of %zu ranks are registered",
                            short_hex(id.bytes).c_str(), instance->present, instance->ranks.size()));
  }
  return instance;
}

Result<Leases::Target> Core::Impl::target_of(const Instance& instance, GroupId group_id) {
  const RegisteredGroup* group = instances.any_rank(instance).find_group(group_id);
  if (group == nullptr) {
    return reject(format_text("group %u is not registered by the instance", group_id.value));
  }
  Leases::Target target;
  target.space = images.table().key_space(instance.name_space, group_id);
  target.ranks = static_cast<std::uint16_t>(instance.ranks.size());
  target.shards = group->shards;
  target.slot_bytes = group->slot_bytes;
  target.account = instance.account;
  if (tier == nullptr) return target;
  target.tier = namespaces.space(instance.name_space, group_id);
  if (const auto nodes = instance.nodes.find(group_id); nodes != instance.nodes.end())
    target.near = nodes->second;
  return target;
}

Result<QueryAnswer> Core::query(SessionId session, const QueryPart& part, TimePoint now) {
  if (impl_->sessions.open_session(session) == nullptr) return impl_->not_open(session);
  ORBITKV_ASSIGN_OR_RETURN(const Instance* instance, impl_->complete_instance(part.instance));
  ORBITKV_ASSIGN_OR_RETURN(const Leases::Target target, impl_->target_of(*instance, part.group));
  impl_->begin_call();
  Result<QueryAnswer> answer = impl_->leases.query(session, part, target, now);
  impl_->wake(now);
  return answer;
}

Result<RecoveryPlan> Core::Impl::plan_of(const Instance& instance, const TokenTail& tail) {
  const model::RecoveryContract& contract = *instance.contract;
  ORBITKV_ASSIGN_OR_RETURN(const auto ranges,
                           contract.required_ranges(contract.name_space(), {tail.origin, tail.boundary}));
  RecoveryPlan plan;
  std::uint32_t first = 0;
  for (const model::GroupRange& range : ranges) {
    ORBITKV_ASSIGN_OR_RETURN(const Leases::Target target, target_of(instance, range.group));
    const auto pages =
        static_cast<std::uint32_t>((range.tokens.end - range.tokens.begin) / contract.page_tokens());
    plan.push_back({range.group, target, first, pages});
    first += pages;
  }
  return plan;
}

// The client names the boundary, never the set: a list of any other length is not of it.
Result<TicketAnswer> Core::read_recovery(SessionId session, const RecoveryPart& part, TimePoint now) {
  if (impl_->sessions.open_session(session) == nullptr) return impl_->not_open(session);
  ORBITKV_ASSIGN_OR_RETURN(const Instance* instance, impl_->complete_instance(part.instance));
  ORBITKV_ASSIGN_OR_RETURN(RecoveryPlan plan, impl_->plan_of(*instance, part.tail));
  impl_->begin_call();
  Result<TicketAnswer> answer = impl_->recoveries.read(session, part, std::move(plan), now);
  impl_->wake(now);
  return answer;
}

Status Core::warm(SessionId session, const WarmPart& part, TimePoint now) {
  if (impl_->sessions.open_session(session) == nullptr) return impl_->not_open(session);
  ORBITKV_ASSIGN_OR_RETURN(const Instance* instance, impl_->complete_instance(part.instance));
  ORBITKV_ASSIGN_OR_RETURN(const Leases::Target target, impl_->target_of(*instance, part.group));
  if (target.tier == kNoTierSpace) return ok_status();  // nothing is stored
  impl_->begin_call();
  const Status added = impl_->warms.add(session, part, target, now);
  impl_->wake(now);
  return added;
}

Status Core::release(SessionId session_id, LeaseId id) {
  const Session* session = impl_->sessions.open_session(session_id);
  if (session == nullptr) return impl_->not_open(session_id);
  Lease* lease = impl_->leases.find(id);
  if (lease == nullptr) return ok_status();
  const auto of_instance = [&](RegistrationId r) {
    return impl_->instances.find(r)->instance == lease->name.instance;
  };
  if (lease->session != session_id &&
      std::none_of(session->registrations.begin(), session->registrations.end(), of_instance)) {
    return reject("the lease belongs to another instance");
  }
  if (lease->held) return reject("an interest holds the lease; cancel or close that");
  impl_->begin_call();
  impl_->leases.release(*lease);
  if (impl_->line.count() > 0) impl_->wake(impl_->latest);
  return ok_status();
}

Result<TicketAnswer> Core::poll(SessionId session, const TicketName& ticket, Revision revision,
                                TimePoint now) {
  if (impl_->sessions.open_session(session) == nullptr) return impl_->not_open(session);
  impl_->begin_call();
  auto answer = ticket.kind == TicketKind::kPrefix ? impl_->leases.poll(session, ticket, revision, now)
                                                   : impl_->recoveries.poll(session, ticket, revision, now);
  impl_->wake(now);  // it may have ended a wait, and loads that publishers wait for
  return answer;
}

Status Core::cancel(SessionId session, const TicketName& ticket, Revision revision) {
  if (impl_->sessions.open_session(session) == nullptr) return impl_->not_open(session);
  impl_->begin_call();
  Status ended = ok_status();
  if (ticket.kind == TicketKind::kWarm) {
    impl_->warms.cancel(session, ticket);
  } else if (ticket.kind == TicketKind::kPrefix) {
    ended = impl_->leases.cancel(session, ticket, revision);
  } else {
    ended = impl_->recoveries.cancel(session, ticket, revision);
  }
  impl_->wake(impl_->latest);
  return ended;
}

// ---- interests ----

Result<InterestAnswer> Core::submit_interest(SessionId session, const InterestPart& part, TimePoint now) {
  if (impl_->sessions.open_session(session) == nullptr) return impl_->not_open(session);
  ORBITKV_RETURN_IF_ERROR(impl_->interests.check(session, part));
  ORBITKV_ASSIGN_OR_RETURN(const Instance* instance, impl_->complete_instance(part.name.instance));
  Interests::Asked asked;
  if (part.tail) {
    ORBITKV_ASSIGN_OR_RETURN(asked.plan, impl_->plan_of(*instance, *part.tail));
  } else {
    ORBITKV_ASSIGN_OR_RETURN(asked.target, impl_->target_of(*instance, part.group));
  }
  impl_->begin_call();
  Result<InterestAnswer> answer = impl_->interests.submit(session, part, std::move(asked), now);
  impl_->wake(now);
  return answer;
}

Result<InterestAnswer> Core::interest(SessionId session, const InterestCall& call, TimePoint now) {
  if (impl_->sessions.open_session(session) == nullptr) return impl_->not_open(session);
  impl_->begin_call();
  Result<InterestAnswer> answer = impl_->interests.call(session, call, now);
  impl_->wake(now);
  return answer;
}

}  // namespace orbitkv::cache
