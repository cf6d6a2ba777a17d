// The world of the tests of interests: a core of which one session owns interests and another has the
// ranks.
#pragma once

#include <vector>

#include "cache/core_tier_test.h"

namespace orbitkv::cache::testing {

template <class T>
void done(const Result<T>& result) {
  EXPECT_TRUE(result.ok()) << result.error().to_string();
}

// Blocks 0..3 are in memory, 4..7 stored; 8 and 9 are nowhere. One rank, or as many as asked for.
struct Asked {
  TierWorld t;
  SessionId owner, worker;
  std::vector<RegistrationId> ranks;

  static WorldOptions with_incarnation(WorldOptions options) {
    options.core.incarnation = Incarnation(77);
    return options;
  }
  explicit Asked(const WorldOptions& options = {}, std::uint16_t world = 1)
      : t(with_incarnation(options)), owner(t->open()), worker(t->open()) {
    for (std::uint16_t r = 0; r < world; ++r) ranks.push_back(t->join(worker, {.rank = r, .world = world}));
    t->store(worker, ranks[0], hashes(0, 4));
    for (std::uint64_t n = 4; n < 8; ++n) t.tier.put(n);
  }
  Core& core() { return *t->core; }
  static InterestName name(std::uint32_t operation, std::uint64_t interest = 1) {
    return {instance_id(1), InterestId(interest), InterestOperation(operation)};
  }
  Result<InterestAnswer> submit_part(const InterestName& of, const std::vector<BlockHash>& list,
                                     std::uint32_t first, std::uint32_t count) {
    InterestPart part;
    part.name = of;
    part.authority = authority;
    part.total = static_cast<std::uint32_t>(list.size());
    part.first = first;
    part.hashes = std::span(list).subspan(first, count);
    return core().submit_interest(owner, part, t->now);
  }
  Result<InterestAnswer> submit(const InterestName& of, std::uint64_t count) {
    const auto list = hashes(0, count);
    return submit_part(of, list, 0, static_cast<std::uint32_t>(count));
  }
  Result<InterestAnswer> call(const InterestName& of, InterestVerb verb, std::uint32_t count = 0) {
    return core().interest(owner, {of, authority, verb, count}, t->now);
  }
  InterestPhase phase(const Result<InterestAnswer>& answer) {
    EXPECT_TRUE(answer.ok()) << answer.error().to_string();
    return answer.ok() ? answer->phase : InterestPhase::kUnknown;
  }
  InterestPhase poll(std::uint32_t operation, std::uint64_t interest = 1) {
    return phase(call(name(operation, interest), InterestVerb::kPoll));
  }
  LeaseId claim(const InterestName& of, std::uint32_t count) {
    const auto answer = call(of, InterestVerb::kClaim, count);
    EXPECT_EQ(phase(answer), InterestPhase::kClaimed);
    return answer.ok() && !answer->leases.empty() ? answer->leases[0].lease : LeaseId{};
  }
  void restore_all(LeaseId lease, std::uint32_t count, RegistrationId rank) {
    const OperationKey op = t->next_op(worker);
    const auto done = t->restore(op, rank, lease, blocks(100, count));
    ASSERT_TRUE(done.ok()) << done.error().to_string();
    t->verified(op);
  }
  CoreStats stats() { return t.stats(); }
  void expect_nothing_held() {
    const CoreStats s = stats();
    EXPECT_EQ(s.leases, 0u);
    EXPECT_EQ(s.leased, ByteCount(0));
    EXPECT_EQ(s.tickets, 0u);
    EXPECT_EQ(s.budgets.used, s.budgets.draining);
    EXPECT_EQ(core().census().pinned, 0u);
  }

  InterestAuthority authority;  // zero: as it comes
};

}  // namespace orbitkv::cache::testing
