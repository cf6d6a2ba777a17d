// Coordinators against the Managers' cores: frames that are lost, doubled, late and out of order,
// Managers that die, sessions that end, ranks that register anew, budgets for less than all. What is
// claimed is the same everywhere and can be restored, or nothing is; all ends, and nothing stays held.
#include "client/coordinator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "base/log.h"
#include "cache/core_tier_test.h"

namespace orbitkv::test {
namespace {

using namespace cache::testing;
using cache::Core;
using cache::OperationKey;
using client::Coordinator;

constexpr std::uint32_t kList = 12;

wire::InterestReply reply_of(const wire::InterestName& name, const cache::InterestAnswer& a) {
  wire::InterestReply out{
      name.interest, name.operation, a.operation, a.authority, a.phase, static_cast<wire::Missing>(a.why),
      a.missing,     a.admitted,     a.blocks,    {}};
  for (const cache::TicketLease& l : a.leases) out.leases.push_back({l.group, l.blocks, l.lease});
  return out;
}

// As the Manager answers a session's frame.
wire::Buffer answer_of(Core& core, SessionId session, std::span<const std::byte> frame, TimePoint now) {
  wire::Buffer out;
  const auto submit = wire::decode_interest_submit(frame);
  const auto call = wire::decode_interest_call(frame);
  Result<cache::InterestAnswer> answer = bug("no frame");
  if (submit.ok()) {
    cache::InterestPart part;
    part.name = {submit->name.instance, submit->name.interest, submit->name.operation};
    part.authority = submit->authority;
    part.group = submit->group;
    if (submit->kind == wire::InterestKind::kRecovery)
      part.tail = cache::TokenTail{submit->origin, submit->boundary};
    part.first = submit->first;
    part.total = submit->total;
    part.hashes = submit->hashes;
    answer = core.submit_interest(session, part, now);
  } else if (call.ok()) {
    answer = core.interest(session,
                           {{call->name.instance, call->name.interest, call->name.operation},
                            call->authority,
                            call->verb,
                            call->blocks},
                           now);
  }
  if (answer.ok()) {
    wire::encode(reply_of(submit.ok() ? submit->name : call->name, *answer), out);
  } else {
    wire::encode(wire::ErrorReply{answer.error().code(), answer.error().message()}, out);
  }
  return out;
}

struct HostPlan {
  std::uint32_t resident = kList, stored = 0;  // leading blocks, and those behind them
  std::uint16_t ranks = 1;
  bool hybrid = false;  // a second group, of which a boundary needs the page that ends there
};
constexpr std::uint64_t kCheckpoints = 1000;  // the pages of the second group are named from there
struct Chance {
  int lost = 0, doubled = 0;  // percent
  Duration delay = milliseconds(1);
};

// One Manager with the ranks of a group that stand at it.
class HostOf {
 public:
  std::uint64_t incarnation() const { return incarnation_; }
  HostOf(const HostPlan& plan, std::uint64_t incarnation, const cache::CoreConfig& config)
      : plan_(plan), config_(config), incarnation_(incarnation) {
    begin();
  }
  // Dies, and another one takes its place; its memory is gone, what is stored is not.
  void die() {
    plan_.stored = plan_.stored > 0 ? plan_.resident + plan_.stored : 0;
    plan_.resident = 0;
    incarnation_ += 1000;
    const TimePoint now = world()->now;
    begin();
    world()->now = now;
  }
  void end_session() {
    core().process_ended(owner, now());
    owner = world()->open();
  }
  void register_anew() {
    if (!core().unregister(worker, ranks.back()).ok()) return;
    ranks.back() = join(static_cast<std::uint16_t>(ranks.size() - 1));
  }
  // Interests of nobody's, which hold.
  void take_places(std::uint32_t count) {
    const auto one = hashes(0, 1);
    for (std::uint32_t i = 1; i <= count; ++i) {
      cache::InterestPart part;
      part.name = {instance_id(1), InterestId(std::uint64_t{5000} << 32 | i), InterestOperation(1)};
      part.total = 1;
      part.hashes = one;
      ASSERT_TRUE(core().submit_interest(owner, part, now()).ok());
    }
  }
  World* world() { return t->world.get(); }
  Core& core() { return *world()->core; }
  TimePoint now() { return world()->now; }
  // The leading run that it could lease.
  std::uint32_t run() const { return plan_.resident + plan_.stored; }

  std::unique_ptr<TierWorld> t;
  SessionId owner, worker;
  std::vector<RegistrationId> ranks;

 private:
  void begin() {
    t.reset();
    WorldOptions options;
    options.core = config_;
    options.core.incarnation = Incarnation(incarnation_);
    t = std::make_unique<TierWorld>(options);
    owner = world()->open();
    worker = world()->open();
    ranks.clear();
    for (std::uint16_t r = 0; r < plan_.ranks; ++r) ranks.push_back(join(r));
    for (const std::uint64_t first : {std::uint64_t{0}, kCheckpoints}) {
      if (first > 0 && !plan_.hybrid) continue;
      if (plan_.resident > 0) store(GroupId(first > 0), hashes(first, plan_.resident));
      for (std::uint64_t n = plan_.resident; n < plan_.resident + plan_.stored; ++n) t->tier.put(first + n);
    }
  }
  RegistrationId join(std::uint16_t rank) {
    model::RankRegistration r = rank_of({.rank = rank, .world = plan_.ranks});
    if (plan_.hybrid) {
      r.groups.resize(2, r.groups[0]);
      r.groups[1].group = GroupId(1);
      r.groups[1].rule = model::RecoveryRule::kCheckpoint;
    }
    const auto joined = core().register_rank(worker, r, now());
    EXPECT_TRUE(joined.ok()) << joined.error().to_string();
    return joined.ok() ? *joined : RegistrationId(0);
  }
  void store(GroupId group, const std::vector<BlockHash>& list) {
    const OperationKey op = world()->next_op(worker);
    const auto at = blocks(0, list.size());
    ASSERT_TRUE(core().publish({op, ranks[0], group, at, list}, now()).ok());
    if (world()->ports.granted.contains(op)) world()->commit(op);
  }

  HostPlan plan_;
  cache::CoreConfig config_;
  std::uint64_t incarnation_;
};

// Coordinators and hosts on one clock. Events are functions of time.
class Net {
 public:
  Net(std::uint64_t seed, Chance chance) : random(seed), chance_(chance) { set_log_level(LogLevel::kOff); }

  void add_host(const HostPlan& plan, const cache::CoreConfig& config = {}) {
    hosts.push_back(std::make_unique<HostOf>(plan, 100 + hosts.size(), config));
  }
  TimePoint now() const { return now_; }
  std::uint32_t roll(std::uint64_t below) { return static_cast<std::uint32_t>(random() % below); }
  bool percent(int of) { return static_cast<int>(roll(100)) < of; }
  void after(Duration delay, std::function<void()> what) {
    events_.emplace(std::pair(now_ + delay, ++number_), std::move(what));
  }
  Duration delay() {
    return nanoseconds(1 +
                       static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(chance_.delay.ns)));
  }

  std::size_t start(client::AttemptTimes times = {}) {
    client::Attempt attempt;
    attempt.interest = InterestId(std::uint64_t{coordinators.size() + 1} << 32 | 1);
    std::uint16_t rank = 0;
    for (const auto& host : hosts) {
      client::Seat seat{instance_id(1), {}};
      for (std::size_t i = 0; i < host->ranks.size(); ++i) seat.ranks.push_back(rank++);
      attempt.seats.push_back(seat);
    }
    attempt.hashes = hashes(0, list);
    if (boundary > 0) {  // pages
      attempt.kind = wire::InterestKind::kRecovery;
      attempt.boundary = std::uint64_t{16} * boundary;
      attempt.hashes = hashes(0, boundary);
      attempt.hashes.push_back(hash_of(kCheckpoints + boundary - 1));
    }
    attempt.times = times;
    coordinators.push_back(std::make_unique<Coordinator>(std::move(attempt), now_));
    handled.push_back(false);
    deadlines.push_back(now_ + times.wait + times.hold + times.close + milliseconds(1));
    flush(coordinators.size() - 1);
    return coordinators.size() - 1;
  }

  void flush(std::size_t c) {
    for (Coordinator::Send& out : coordinators[c]->take_sends()) {
      auto frame = std::make_shared<wire::Buffer>(std::move(out.frame));
      for (int copies = percent(chance_.lost) ? 0 : 1 + (percent(chance_.doubled) ? 1 : 0); copies > 0;
           --copies)
        after(delay(), [=, this, seat = out.seat, token = out.token] { at_host(c, seat, token, *frame); });
    }
  }
  void at_host(std::size_t c, client::ParticipantIndex seat, client::FrameToken token,
               const wire::Buffer& frame) {
    HostOf& host = *hosts[seat.value];
    host.world()->now = std::max(host.now(), now_);
    auto answer = std::make_shared<wire::Buffer>(answer_of(host.core(), host.owner, frame, host.now()));
    for (int copies = percent(chance_.lost) ? 0 : 1 + (percent(chance_.doubled) ? 1 : 0); copies > 0;
         --copies) {
      after(delay(), [=, this] {
        coordinators[c]->arrive(seat, token, *answer, now_);
        look(c);
      });
    }
  }
  // All ranks restore as soon as they are told to.
  void look(std::size_t c) {
    Coordinator& it = *coordinators[c];
    if (it.phase() == Coordinator::Phase::kHolding && !handled[c]) {
      handled[c] = true;
      ++claims;
      on_claim(c);
    }
    flush(c);
  }
  void on_claim(std::size_t c) {
    const std::uint32_t common = coordinators[c]->blocks();
    EXPECT_GT(common, 0u);
    const auto leases = coordinators[c]->take_leases();
    ASSERT_EQ(leases.size(), hosts.size());
    std::uint16_t rank = 0;
    for (std::size_t h = 0; h < hosts.size(); ++h) {
      ASSERT_EQ(leases[h].size(), boundary > 0 ? 2u : 1u);
      std::uint32_t leased = 0;
      for (const wire::TicketLease& lease : leases[h]) leased += lease.blocks;
      EXPECT_EQ(leased, common) << "leases of another length";
      for (std::size_t r = 0; r < hosts[h]->ranks.size(); ++r, ++rank)
        after(delay(), [=, this, of = leases[h]] { restore(c, {h, r, rank}, of); });
    }
  }
  struct RankAt {
    std::size_t host, index;  // of the host's ranks
    std::uint16_t rank;
  };
  void restore(std::size_t c, RankAt at, const std::vector<wire::TicketLease>& leases) {
    HostOf& host = *hosts[at.host];
    const std::uint16_t rank = at.rank;
    host.world()->now = std::max(host.now(), now_);
    std::vector<OperationKey> ops;
    for (const wire::TicketLease& lease : leases) {
      ops.push_back(host.world()->next_op(host.worker));
      const auto begun =
          host.world()->restore(ops.back(), host.ranks[at.index], lease.lease, blocks(100, lease.blocks));
      if (begun.ok()) {
        EXPECT_EQ(*begun, lease.blocks);
        continue;
      }
      ++refused;
      ops.pop_back();
      for (const OperationKey& op : ops) host.world()->drain_failed(op);
      coordinators[c]->report(rank, false, now_);
      return look(c);
    }
    EXPECT_FALSE(coordinators[c]->quiet());
    after(delay(), [=, this, &host, incarnation = host.incarnation()] {
      if (host.incarnation() != incarnation) {  // its Manager died meanwhile
        coordinators[c]->report(rank, false, now_);
        return look(c);
      }
      const bool well = !percent(fail_restores);
      for (const OperationKey& op : ops) well ? host.world()->verified(op) : host.world()->drain_failed(op);
      coordinators[c]->report(rank, well, now_);
      look(c);
    });
  }
  void tick_all() {
    for (auto& host : hosts) {
      host->world()->now = std::max(host->now(), now_);
      host->core().tick(host->now());
      for (int i = 0; i < 2; ++i) {
        const auto load = host->t->tier.oldest(true);
        if (!load || !percent(70)) continue;
        host->t->tier.end(*load, true);
        host->core().loaded(*load, true, host->now());
      }
    }
    for (std::size_t c = 0; c < coordinators.size(); ++c) {
      coordinators[c]->tick(now_);
      look(c);
    }
  }
  bool done() const {
    return std::all_of(coordinators.begin(), coordinators.end(),
                       [](const auto& c) { return c->phase() == Coordinator::Phase::kDone; });
  }
  // Until all coordinators are done.
  void run() {
    while (!done()) {
      if (::testing::Test::HasFatalFailure()) return;
      step();
    }
    drain_events();
  }
  void step() {
    {
      const TimePoint next_tick = now_ + milliseconds(1);
      while (!events_.empty() && events_.begin()->first.first <= next_tick) {
        now_ = std::max(now_, events_.begin()->first.first);
        auto what = std::move(events_.begin()->second);
        events_.erase(events_.begin());
        what();
      }
      now_ = next_tick;
      tick_all();
      for (std::size_t c = 0; c < coordinators.size(); ++c)
        if (coordinators[c]->phase() != Coordinator::Phase::kDone) {
          ASSERT_LT(now_, deadlines[c]) << "coordinator " << c << " does not end";
        }
    }
  }
  // Frames and copies that are under way still.
  void drain_events() {
    while (!events_.empty()) {
      now_ = std::max(now_, events_.begin()->first.first);
      auto what = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      what();
    }
  }
  // What nobody answers for any more ends by itself.
  void expect_nothing_held() {
    for (int i = 0; i < 3; ++i) {
      now_ = now_ + seconds(31);
      for (int loads = 0; loads < 20; ++loads) tick_all();
    }
    for (auto& host : hosts) {
      host->t->all_loaded();
      host->world()->now = now_ + seconds(31);
      host->core().tick(host->now());
      const cache::CoreStats s = host->core().stats();
      EXPECT_EQ(s.interests.interests, 0u);
      EXPECT_EQ(s.leases, 0u);
      EXPECT_EQ(s.tickets, 0u);
      EXPECT_EQ(s.budgets.used, ByteCount(0));
      EXPECT_EQ(host->core().census().pinned, 0u);
    }
  }
  std::uint32_t shortest() const {
    std::uint32_t least = kList;
    for (const auto& host : hosts) least = std::min(least, host->run());
    return least;
  }
  Coordinator::Verdict verdict(std::size_t c = 0) const { return coordinators[c]->outcome().verdict; }

  std::mt19937_64 random;
  std::vector<std::unique_ptr<HostOf>> hosts;
  std::vector<std::unique_ptr<Coordinator>> coordinators;
  std::vector<bool> handled;
  std::vector<TimePoint> deadlines;
  int fail_restores = 0;       // percent
  std::uint32_t list = kList;  // blocks that are asked for
  std::uint32_t boundary = 0;  // or a recovery, at so many pages
  std::uint32_t claims = 0, refused = 0;

 private:
  Chance chance_;
  TimePoint now_{1'000'000'000};
  std::map<std::pair<TimePoint, std::uint64_t>, std::function<void()>> events_;
  std::uint64_t number_ = 0;
};

TEST(Coordinator, the_shortest_run_is_claimed_everywhere) {
  Net net(1, {});
  net.add_host({12, 0, 2});
  net.add_host({5, 2, 1});
  net.add_host({3, 9, 4});
  net.start();
  net.run();
  EXPECT_EQ(net.verdict(), Coordinator::Verdict::kRestored) << net.coordinators[0]->outcome().message;
  EXPECT_EQ(net.coordinators[0]->blocks(), 7u);
  EXPECT_EQ(net.coordinators[0]->unclosed(), 0u);
  net.expect_nothing_held();
}

TEST(Coordinator, a_host_that_has_nothing_leaves_none_claimed) {
  Net net(2, {});
  net.add_host({12, 0, 1});
  net.add_host({0, 0, 1});
  net.start();
  net.run();
  EXPECT_EQ(net.verdict(), Coordinator::Verdict::kMissed);
  EXPECT_EQ(net.coordinators[0]->outcome().why, wire::Missing::kGone);
  EXPECT_EQ(net.coordinators[0]->outcome().seat.value, 1u);
  EXPECT_EQ(net.hosts[0]->core().stats().interests.claims, 0u);
  EXPECT_EQ(net.hosts[0]->core().stats().leased, ByteCount(0)) << "closed, and not only forgotten";
  EXPECT_TRUE(net.coordinators[0]->quiet());
}

TEST(Coordinator, any_schedule_without_deaths_finds_exactly_the_common_prefix) {
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    SCOPED_TRACE(seed);
    Net net(seed,
            {static_cast<int>(seed % 3) * 8, static_cast<int>(seed % 5) * 10, milliseconds(1 + seed % 40)});
    const std::uint32_t hosts = 1 + net.roll(4);
    for (std::uint32_t i = 0; i < hosts; ++i) {
      const std::uint32_t resident = 1 + net.roll(kList);
      net.add_host({resident, net.roll(kList - resident + 1), static_cast<std::uint16_t>(1 + net.roll(3))});
    }
    client::AttemptTimes times;
    times.wait = seconds(20);  // frames are lost
    net.start(times);
    net.run();
    ASSERT_EQ(net.verdict(), Coordinator::Verdict::kRestored) << net.coordinators[0]->outcome().message;
    ASSERT_EQ(net.coordinators[0]->blocks(), net.shortest());
    ASSERT_EQ(net.refused, 0u);
    net.expect_nothing_held();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Coordinator, whatever_dies_it_is_all_or_none_and_nothing_stays_held) {
  std::map<Coordinator::Verdict, int> seen;
  for (std::uint64_t seed = 1; seed <= 160; ++seed) {
    SCOPED_TRACE(seed);
    Net net(seed * 7919,
            {static_cast<int>(seed % 4) * 6, static_cast<int>(seed % 3) * 20, milliseconds(1 + seed % 60)});
    net.fail_restores = seed % 6 == 0 ? 20 : 0;
    const std::uint32_t hosts = 1 + net.roll(4);
    for (std::uint32_t i = 0; i < hosts; ++i) {
      const std::uint32_t resident = net.roll(kList + 1);
      net.add_host({resident, net.roll(kList - resident + 1), static_cast<std::uint16_t>(1 + net.roll(3))});
    }
    for (std::uint32_t i = 0; i < 1 + net.roll(2); ++i) net.start();
    std::uint32_t took = 0;
    for (std::uint32_t faults = net.roll(3); faults > 0; --faults) {
      const std::uint32_t host = net.roll(hosts), kind = net.roll(4);
      net.after(milliseconds(static_cast<std::int64_t>(net.roll(200))), [&net, &took, host, kind] {
        if (kind == 0) net.hosts[host]->die();
        if (kind == 1) net.hosts[host]->end_session();
        if (kind == 2) net.hosts[host]->register_anew();
        if (kind == 3) net.coordinators[0]->give_up(net.now());
        ++took;
      });
    }
    net.run();
    EXPECT_TRUE(net.refused == 0 || took > 0 || net.fail_restores > 0)
        << "a lease that was told could not be restored";
    for (std::size_t c = 0; c < net.coordinators.size(); ++c) {
      ++seen[net.verdict(c)];
      EXPECT_TRUE(net.coordinators[c]->quiet()) << "every rank that was told has reported";
      EXPECT_EQ(net.handled[c] || net.verdict(c) != Coordinator::Verdict::kRestored, true);
    }
    net.expect_nothing_held();
    if (::testing::Test::HasFailure()) return;
  }
  for (const auto verdict :
       {Coordinator::Verdict::kRestored, Coordinator::Verdict::kMissed, Coordinator::Verdict::kFailed})
    EXPECT_GT(seen[verdict], 2) << static_cast<int>(verdict);
}

TEST(Coordinator, two_that_need_more_than_there_is_do_not_wait_for_each_other) {
  std::uint32_t both = 0;
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    SCOPED_TRACE(seed);
    Net net(seed, {0, 0, milliseconds(1 + seed % 20)});
    cache::CoreConfig config;
    config.query_budget = config.query_instance_budget = ByteCount(kList * slot_bytes().value * 3 / 2);
    for (int i = 0; i < 3; ++i) net.add_host({kList, 0, 1}, config);
    net.start();
    net.start();
    net.run();
    ASSERT_GE(net.claims, 1u) << net.coordinators[0]->outcome().message;
    both += net.claims == 2 ? 1 : 0;
    ASSERT_EQ(net.refused, 0u);
    for (std::size_t c = 0; c < 2; ++c)
      ASSERT_NE(net.verdict(c), Coordinator::Verdict::kFailed) << net.coordinators[c]->outcome().message;
    net.expect_nothing_held();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(both, 75u) << "the second gets its turn when the first is done";
}

// A list that takes three frames, of which each may be lost, doubled and late.
TEST(Coordinator, a_list_of_several_parts_is_put_together_whatever_becomes_of_its_frames) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Net net(seed, {static_cast<int>(seed % 3) * 8, 30, milliseconds(1 + seed % 40)});
    net.list = 2 * wire::interest_hashes_per_frame() + 5;
    for (std::uint32_t i = 0; i < 2; ++i) net.add_host({3 + net.roll(5), net.roll(4), 1});
    client::AttemptTimes times;
    times.wait = seconds(30);
    net.start(times);
    net.run();
    ASSERT_EQ(net.verdict(), Coordinator::Verdict::kRestored) << net.coordinators[0]->outcome().message;
    ASSERT_EQ(net.coordinators[0]->blocks(), net.shortest());
    net.expect_nothing_held();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Coordinator, a_boundary_is_had_at_every_manager_or_at_none) {
  std::map<Coordinator::Verdict, int> seen;
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    SCOPED_TRACE(seed);
    Net net(seed,
            {static_cast<int>(seed % 3) * 8, static_cast<int>(seed % 5) * 10, milliseconds(1 + seed % 40)});
    net.boundary = 4;
    const std::uint32_t hosts = 1 + net.roll(4);
    for (std::uint32_t i = 0; i < hosts; ++i) {
      const std::uint32_t resident = net.roll(kList + 1), lacks = net.roll(4) == 0 ? kList : 0;
      const std::uint32_t stored = kList - std::max(resident, lacks);
      net.add_host({resident, stored, static_cast<std::uint16_t>(1 + net.roll(2)), true});
    }
    client::AttemptTimes times;
    times.wait = seconds(20);
    net.start(times);
    const std::uint32_t fault = net.roll(4);
    if (fault == 0) net.after(milliseconds(20), [&net] { net.hosts[0]->die(); });
    net.run();
    const bool there = net.shortest() >= net.boundary;
    const Coordinator& c = *net.coordinators[0];
    ++seen[net.verdict()];
    if (fault != 0 && there) {
      ASSERT_EQ(net.verdict(), Coordinator::Verdict::kRestored) << c.outcome().message;
      ASSERT_EQ(c.blocks(), net.boundary + 1) << "the pages of both groups";
      ASSERT_EQ(net.refused, 0u);
    }
    if (fault != 0 && !there) {
      ASSERT_EQ(net.verdict(), Coordinator::Verdict::kMissed) << c.outcome().message;
      ASSERT_EQ(c.outcome().why, wire::Missing::kGone);
      ASSERT_EQ(net.claims, 0u);
    }
    net.expect_nothing_held();
    if (::testing::Test::HasFailure()) return;
  }
  for (const auto verdict : {Coordinator::Verdict::kRestored, Coordinator::Verdict::kMissed})
    EXPECT_GT(seen[verdict], 5) << static_cast<int>(verdict);
}

// Of the places that the session has in the instance one is left at each Manager.
TEST(Coordinator, two_that_have_the_last_place_at_one_manager_each_do_not_wait_for_each_other) {
  std::uint32_t both = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Net net(seed, {0, 0, milliseconds(1 + seed % 20)});
    for (int i = 0; i < 3; ++i) net.add_host({kList, 0, 1});
    for (const auto& host : net.hosts) host->take_places(limits::kInterestsPerInstance - 1);
    net.start();
    net.start();
    net.run();
    ASSERT_GE(net.claims, 1u) << net.coordinators[0]->outcome().message;
    both += net.claims == 2 ? 1 : 0;
    for (std::size_t c = 0; c < 2; ++c)
      ASSERT_NE(net.verdict(c), Coordinator::Verdict::kFailed) << net.coordinators[c]->outcome().message;
    net.expect_nothing_held();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(both, 55u) << "the second gets its turn when the first is done";
}

TEST(Coordinator, a_rank_that_never_tells_leaves_the_pages_lent_and_the_rest_ends) {
  Net net(3, {});
  net.add_host({4, 0, 1});
  net.add_host({4, 0, 1});
  net.fail_restores = 100;
  net.start();
  net.run();
  EXPECT_EQ(net.verdict(), Coordinator::Verdict::kFailed);
  EXPECT_TRUE(net.coordinators[0]->quiet());

  // One fails at once; the other is copying still.
  Coordinator& c = *net.coordinators[net.start()];
  net.handled[1] = true;  // nobody restores
  while (c.phase() != Coordinator::Phase::kHolding) net.step();
  ASSERT_EQ(c.take_leases().size(), 2u);
  c.report(0, false, net.now());
  EXPECT_EQ(c.outcome().verdict, Coordinator::Verdict::kFailed);
  EXPECT_NE(c.outcome().message.find("rank 0"), std::string::npos);
  EXPECT_FALSE(c.quiet()) << "rank 1 may copy into pages that are not the engine's yet";
  net.flush(1);
  net.run();
  EXPECT_FALSE(c.quiet());
  c.report(0, true, net.now());
  EXPECT_FALSE(c.quiet());
  c.report(1, true, net.now());
  EXPECT_TRUE(c.quiet());
  EXPECT_EQ(c.outcome().verdict, Coordinator::Verdict::kFailed) << "it stays as it is";
}

}  // namespace
}  // namespace orbitkv::test
