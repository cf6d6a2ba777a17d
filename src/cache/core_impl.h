// What Core is made of. Included by core*.cc only.
#pragma once

#include <map>
#include <vector>

#include "cache/budgets.h"
#include "cache/core.h"
#include "cache/drops.h"
#include "cache/grants.h"
#include "cache/images.h"
#include "cache/instances.h"
#include "cache/interests.h"
#include "cache/leases.h"
#include "cache/leftovers.h"
#include "cache/loads.h"
#include "cache/namespaces.h"
#include "cache/operations.h"
#include "cache/publish.h"
#include "cache/recoveries.h"
#include "cache/restore.h"
#include "cache/retire.h"
#include "cache/sessions.h"
#include "cache/spill.h"
#include "cache/waiting.h"
#include "cache/warms.h"

namespace orbitkv::cache {

struct Core::Impl final : Admitting {
  Impl(const CoreConfig& c, mem::Pool& pool_in, Ports& ports, Tier* tier_in);
  ~Impl() override;

  // Admitting
  Attempt admit(const Waiter& waiter, TimePoint now) override;
  bool make_way(AccountIndex account, Full full) override;

  Result<Registration*> registration_of(SessionId session, RegistrationId id);
  // kBusy: a rank of the instance is absent.
  Result<const Instance*> complete_instance(const InstanceId& id);
  Result<Leases::Target> target_of(const Instance& instance, GroupId group);
  Result<RecoveryPlan> plan_of(const Instance& instance, const TokenTail& tail);
  // What a call of a session that is not open is answered.
  Error not_open(SessionId session) const;
  void withdraw(OperationIndex index, const Error& why, TimePoint now);
  // All of it, or the saves that hold memory as far as one call goes. False: there are more.
  enum class Goes : std::uint8_t { kAll, kSome };
  bool withdraw_all(SessionId session, const Error& why, Goes goes, TimePoint now);
  bool lose_all(SessionId session, TimePoint now);
  bool takes_back(const Operation& op);
  void end_some(SessionId session, bool lost, TimePoint now);
  void end_turn(TimePoint now);
  void leave(RegistrationId id);
  void wake(TimePoint now);
  // What a call may give back and look at, at once, is counted from here on; and what those may whom it
  // wakes.
  void begin_call() {
    leftovers.begin_call();
    images.begin_call();
    publisher.begin_call();
    slots_left = config.turn_unpins;
  }
  // Something goes on with the next turn.
  bool works() const {
    return leftovers.any() || !ending.empty() || images.sweeps() || publisher.more() || line.more() ||
           leases.takes() || leases.expires() || recoveries.takes();
  }
  void run_line(TimePoint now);
  void add_budget_stats(CoreStats& s) const;
  void add_tier_stats(CoreStats& s) const;
  void add_class_stats(CoreStats& s) const;

  CoreConfig config;
  mem::Pool& pool;
  Tier* tier;
  Namespaces namespaces;
  Sessions sessions;
  Images images;
  Instances instances;
  Operations operations;
  Budgets budgets;
  Leftovers leftovers;  // of those below
  WaitingLine line;
  Loads loads;
  Leases leases;
  Recoveries recoveries;
  Spill spill;
  Grants grants;
  Publisher publisher;
  Restorer restorer;
  Retirer retirer;
  Warms warms;
  Drops drops;
  std::map<mem::KeptReader, std::vector<RecordId>> kept_reads;  // pinned
  Interests interests;                                          // before what it asks
  // Closed sessions whose saves hold memory that goes back over turns; lost: their process has ended.
  struct Ending {
    SessionId session;
    bool lost = false;
  };
  std::vector<Ending> ending;
  std::size_t slots_left = 0;  // of this call
  TimePoint latest;            // that a caller said
};

}  // namespace orbitkv::cache
