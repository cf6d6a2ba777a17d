// One engine whose ranks stand at several Managers: the common prefix, claimed at all or none, restored
// byte for byte; and deaths of a Manager, a rank and the coordinator at each stage.
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>

#include "base/time.h"
#include "orbitkv/interests.h"
#include "tests/native/engine.h"
#include "tests/native/processes.h"
#include "wire/messages.h"

namespace orbitkv::test {
namespace {

using client::CommonPrefix;
using client::CommonRestore;

// Says what goes by before it goes.
class Watched final : public client::Carrier {
 public:
  enum class What : std::uint8_t { kSubmit, kPoll, kClaim, kClose };
  using Watch = std::function<void(std::uint32_t participant, What what)>;
  Watched(std::unique_ptr<Carrier> inner, Watch watch) : inner_(std::move(inner)), watch_(std::move(watch)) {}
  void send(client::ParticipantIndex participant, client::FrameToken token,
            std::vector<std::byte> frame) override {
    watch_(participant.value, what_is(frame));
    inner_->send(participant, token, std::move(frame));
  }
  bool receive(std::uint32_t timeout_ms, Arrival& out) override { return inner_->receive(timeout_ms, out); }

 private:
  static What what_is(std::span<const std::byte> frame) {
    const auto call = wire::decode_interest_call(frame);
    if (!call.ok()) return What::kSubmit;
    if (call->verb == InterestVerb::kClaim) return What::kClaim;
    return call->verb == InterestVerb::kClose ? What::kClose : What::kPoll;
  }
  std::unique_ptr<Carrier> inner_;
  Watch watch_;
};

std::unique_ptr<client::Client> scheduler_at(const Manager& manager) {
  client::Options options;
  options.bootstrap_socket = manager.socket();
  options.timeout_ms = 2000;
  client::Outcome outcome;
  auto client = client::Client::open(options, outcome);
  EXPECT_TRUE(outcome.ok()) << outcome.message;
  EXPECT_TRUE(client->wait_connected(kDoneWithinMs).ok());
  return client;
}

constexpr client::PrefixGroup::Options kOptions{kDoneWithinMs, 60'000, 50, 2};

// Managers with the ranks of one engine, as many at each, and its scheduler.
struct Hosts {
  explicit Hosts(std::size_t count, std::uint16_t ranks_each = 1, Shape shape = {}) {
    std::uint16_t rank = 0;
    for (std::size_t h = 0; h < count; ++h) {
      managers.push_back(std::make_unique<Manager>(std::vector<std::string>{"--pool-size", "32MiB"}));
      participants.push_back({instance_of(1), {}});
      for (std::uint16_t r = 0; r < ranks_each; ++r, ++rank) {
        participants.back().ranks.push_back(rank);
        engines.push_back(std::make_unique<Engine>(EngineOptions{.socket = managers.back()->socket(),
                                                                 .shape = shape,
                                                                 .name_space = "part " + std::to_string(h),
                                                                 .rank = r,
                                                                 .world_size = ranks_each,
                                                                 .shard = r,
                                                                 .shards = ranks_each}));
        host_of.push_back(h);
        EXPECT_EQ(engines.back()->connect().message, "");
      }
      schedulers.push_back(scheduler_at(*managers.back()));
    }
  }
  // Every rank of the host saves the first blocks.
  void save(std::size_t host, std::uint32_t count) {
    for (std::size_t e = 0; e < engines.size(); ++e) {
      if (host_of[e] != host) continue;
      client::OperationHandle handle;
      const auto blocks = blocks_of(0, count);
      const auto hashes = hashes_of(1, count);
      for (std::uint32_t i = 0; i < count; ++i) engines[e]->compute(blocks[i], hashes[i]);
      ASSERT_TRUE(engines[e]->start_save(blocks, hashes, handle).ok());
      ASSERT_TRUE(engines[e]->client().wait(handle, kDoneWithinMs).success);
    }
    managers[host]->settle("blocks", count * engines[0]->description().groups.size());
  }
  void open(Watched::Watch watch = [](auto, auto) {}, client::PrefixGroup::Options options = kOptions) {
    std::vector<client::Client*> carried;
    for (auto& scheduler : schedulers) carried.push_back(scheduler.get());
    client::Outcome outcome;
    auto carrier = client::carry_over(carried, outcome);
    ASSERT_TRUE(outcome.ok()) << outcome.message;
    group = client::PrefixGroup::open(
        options, participants, std::make_unique<Watched>(std::move(carrier), std::move(watch)), outcome);
    ASSERT_TRUE(outcome.ok()) << outcome.message;
  }
  CommonPrefix claim(std::uint32_t count) {
    const auto hashes = hashes_of(1, count);
    return claim(client::CommonList{hashes});
  }
  // All pages of both groups.
  CommonPrefix claim_boundary(std::uint32_t pages) {
    auto hashes = hashes_of(1, pages);
    hashes.insert(hashes.end(), hashes.begin(), hashes.begin() + pages);
    const std::uint64_t tokens = std::uint64_t{pages} * engines[0]->description().block_tokens;
    return claim(client::CommonList{hashes, 0, 0, tokens});
  }
  CommonPrefix claim(const client::CommonList& list) {
    EXPECT_TRUE(group->begin(list, number).ok());
    CommonPrefix out;
    EXPECT_TRUE(group->poll(number, 2 * kDoneWithinMs, out).ok());
    EXPECT_FALSE(out.loading);
    return out;
  }
  bool restore(std::uint16_t rank, const CommonPrefix& found) {
    Engine& engine = *engines[rank];
    const auto& leases = found.leases.at(host_of[rank]);
    const auto targets = blocks_of(20, leases.at(0).pages);
    std::vector<client::Load> loads;
    for (const client::RecoveryLease& lease : leases) loads.push_back({lease.lease, lease.group, targets});
    client::OperationHandle handle;
    client::OperationStatus status{true, false, 0, {}};
    if (engine.client().start_restore(engine.registration(), loads, {}, handle).ok())
      status = engine.client().wait(handle, kDoneWithinMs);
    std::uint64_t wrong = 0;
    for (std::uint32_t i = 0; status.success && i < targets.size(); ++i)
      wrong += engine.wrong_bytes(targets[i], hash_of(1 + i));
    EXPECT_EQ(wrong, 0u) << "rank " << rank;
    return status.done && status.success;
  }
  CommonRestore wait() {
    CommonRestore out;
    EXPECT_TRUE(group->wait(number, kDoneWithinMs, out).ok());
    return out;
  }
  void expect_nothing_held(std::size_t host) {
    EXPECT_EQ(managers[host]->settle("leases", 0), 0u) << "host " << host;
    EXPECT_EQ(managers[host]->settle("interests.open", 0), 0u) << "host " << host;
    EXPECT_EQ(managers[host]->settle("pool.leased", 0), 0u) << "host " << host;
    EXPECT_EQ(managers[host]->settle("budgets.used", 0), 0u) << "host " << host;
  }

  std::vector<std::unique_ptr<Manager>> managers;
  std::vector<client::Participant> participants;
  std::vector<std::unique_ptr<Engine>> engines;  // by rank
  std::vector<std::size_t> host_of;              // by rank
  std::vector<std::unique_ptr<client::Client>> schedulers;
  std::unique_ptr<client::PrefixGroup> group;
  std::uint64_t number = 0;
};

TEST(Tp, every_rank_restores_exactly_the_common_prefix) {
  Hosts hosts(3, 2);
  hosts.save(0, 12);
  hosts.save(1, 7);
  hosts.save(2, 10);
  hosts.open();
  const CommonPrefix found = hosts.claim(16);
  ASSERT_EQ(found.blocks, 7u) << found.message;
  ASSERT_EQ(found.leases.size(), 3u);
  for (std::uint16_t rank = 0; rank < 6; ++rank) {
    ASSERT_TRUE(hosts.restore(rank, found));
    if (rank == 1) {
      EXPECT_EQ(hosts.managers[0]->settle("leases", 1), 1u) << "held until the last rank of the last host";
    }
    ASSERT_TRUE(hosts.group->restored(hosts.number, rank, true).ok());
  }
  const CommonRestore end = hosts.wait();
  EXPECT_TRUE(end.done && end.success && end.quiet) << end.message;
  for (std::size_t host = 0; host < 3; ++host) hosts.expect_nothing_held(host);
  EXPECT_TRUE(hosts.group->close(hosts.number).ok());
  EXPECT_EQ(hosts.group->close(hosts.number).action, client::Action::kReject);
}

TEST(Tp, a_boundary_of_two_groups_is_had_on_every_rank_or_on_none) {
  Hosts hosts(2, 2, {.groups = 2});
  hosts.save(0, 6);
  hosts.save(1, 4);
  hosts.open();
  const CommonPrefix none = hosts.claim_boundary(6);
  EXPECT_EQ(none.blocks, 0u);
  EXPECT_EQ(none.why, client::Missing::kGone) << none.message;
  EXPECT_EQ(none.participant.value, 1u);
  hosts.expect_nothing_held(0);
  const CommonPrefix found = hosts.claim_boundary(4);
  ASSERT_EQ(found.blocks, 8u) << found.message;
  for (const auto& leases : found.leases) {
    ASSERT_EQ(leases.size(), 2u);
    EXPECT_EQ(leases[1].group, 1u);
    EXPECT_EQ(leases[1].pages, 4u);
  }
  for (std::uint16_t rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(hosts.restore(rank, found));
    ASSERT_TRUE(hosts.group->restored(hosts.number, rank, true).ok());
  }
  EXPECT_TRUE(hosts.wait().success);
  for (std::size_t host = 0; host < 2; ++host) hosts.expect_nothing_held(host);
}

TEST(Tp, a_list_of_several_parts_is_one) {
  Hosts hosts(2);
  hosts.save(0, 6);
  hosts.save(1, 5);
  hosts.open();
  const CommonPrefix found = hosts.claim(2 * wire::interest_hashes_per_frame() + 7);
  ASSERT_EQ(found.blocks, 5u) << found.message;
  for (std::uint16_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(hosts.restore(rank, found));
    ASSERT_TRUE(hosts.group->restored(hosts.number, rank, true).ok());
  }
  EXPECT_TRUE(hosts.wait().success);
}

TEST(Tp, a_participant_that_is_another_than_was_named_is_refused_and_one_that_is_not_there_waited_for) {
  Hosts hosts(2);
  hosts.save(0, 4);
  hosts.save(1, 4);
  for (std::size_t h = 0; h < 2; ++h)
    ASSERT_TRUE(
        hosts.schedulers[h]->interest_authority(instance_of(1), hosts.participants[h].authority).ok());
  hosts.open();
  EXPECT_EQ(hosts.claim(4).blocks, 4u) << "those that it is bound to";
  hosts.group.reset();
  // Each names the other's registrations.
  std::swap(hosts.participants[0].authority, hosts.participants[1].authority);
  hosts.open();
  const CommonPrefix swapped = hosts.claim(4);
  EXPECT_EQ(swapped.blocks, 0u);
  EXPECT_NE(swapped.message.find("stale authority"), std::string::npos) << swapped.message;
  hosts.group.reset();
  // An instance that nobody knows, with registrations and without.
  hosts.participants[0].instance = instance_of(9);
  hosts.open();
  EXPECT_NE(hosts.claim(4).message.find("stale authority"), std::string::npos);
  hosts.group.reset();
  for (client::Participant& each : hosts.participants) each.authority = {};
  client::PrefixGroup::Options options = kOptions;
  options.timeout_ms = 300;
  hosts.open([](auto, auto) {}, options);
  const CommonPrefix unknown = hosts.claim(4);
  EXPECT_EQ(unknown.why, client::Missing::kTimeout);
  EXPECT_EQ(unknown.participant.value, 0u);
  EXPECT_NE(unknown.message.find("participant 0 did not have it in time; its Manager says: instance 09"),
            std::string::npos)
      << unknown.message;
  InterestAuthority none;
  const client::Outcome asked = hosts.schedulers[0]->interest_authority(instance_of(9), none);
  EXPECT_EQ(asked.action, client::Action::kRetry);
  EXPECT_NE(asked.message.find("not ready"), std::string::npos) << asked.message;
  EXPECT_FALSE(none);
}

TEST(Tp, one_host_without_it_leaves_nothing_claimed) {
  Hosts hosts(2);
  hosts.save(0, 12);
  hosts.open();
  const CommonPrefix found = hosts.claim(12);
  EXPECT_EQ(found.blocks, 0u);
  EXPECT_EQ(found.why, client::Missing::kGone);
  EXPECT_EQ(found.participant.value, 1u);
  hosts.expect_nothing_held(0);
  EXPECT_EQ(hosts.managers[0]->status()["interests.claims"], 0u);
}

// Replicated bytes, as those of MLA: one shard, one writer, whatever the number of ranks.
TEST(Tp, what_all_ranks_share_is_stored_and_charged_once) {
  Manager manager({"--pool-size", "32MiB"});
  std::vector<std::unique_ptr<Engine>> engines;
  for (std::uint8_t rank = 0; rank < 4; ++rank) {
    engines.push_back(
        std::make_unique<Engine>(EngineOptions{.socket = manager.socket(),
                                               .shape = {},
                                               .instance = static_cast<std::uint8_t>(1 + rank / 2),
                                               .rank = static_cast<std::uint16_t>(rank % 2),
                                               .world_size = 2,
                                               .writer = rank % 2 == 0}));
    ASSERT_EQ(engines.back()->connect().message, "");
  }
  ASSERT_TRUE(engines[0]->save(0, 1, 8).success);
  EXPECT_EQ(manager.settle("blocks", 8), 8u);
  const std::uint64_t used = manager.status()["pool.used"];
  auto scheduler = scheduler_at(manager);
  client::Outcome outcome;
  auto group =
      client::PrefixGroup::open(kOptions, {{instance_of(1), {0, 1}}, {instance_of(2), {2, 3}}},
                                client::carry_over({scheduler.get(), scheduler.get()}, outcome), outcome);
  ASSERT_TRUE(outcome.ok()) << outcome.message;
  const auto hashes = hashes_of(1, 8);
  std::uint64_t claim = 0;
  CommonPrefix found;
  ASSERT_TRUE(group->begin({hashes}, claim).ok());
  ASSERT_TRUE(group->poll(claim, kDoneWithinMs, found).ok());
  ASSERT_EQ(found.blocks, 8u) << found.message;
  EXPECT_EQ(manager.status()["pool.used"], used);
  const std::uint64_t leased = manager.status()["pool.leased"];
  EXPECT_GT(leased, 0u);
  EXPECT_LE(leased, used) << "one image, pinned for two instances";
  EXPECT_EQ(manager.status()["budgets.used"], 2 * leased) << "once for each instance, not for each rank";
  for (std::uint16_t rank = 0; rank < 4; ++rank) {
    const auto targets = blocks_of(20, 8);
    const auto status = engines[rank]->restore_from(found.leases[rank / 2][0].lease, targets);
    ASSERT_TRUE(status.success) << status.message;
    for (std::uint32_t i = 0; i < 8; ++i)
      EXPECT_EQ(engines[rank]->wrong_bytes(targets[i], hash_of(1 + i)), 0u);
    ASSERT_TRUE(group->restored(claim, rank, true).ok());
  }
  CommonRestore end;
  ASSERT_TRUE(group->wait(claim, kDoneWithinMs, end).ok());
  EXPECT_TRUE(end.success && end.quiet);
}

TEST(Tp, a_manager_that_dies_at_any_stage_leaves_nothing_held_at_the_others) {
  using What = Watched::What;
  for (const What stage : {What::kSubmit, What::kClaim, What::kClose}) {
    SCOPED_TRACE(static_cast<int>(stage));
    bool killed = false;
    Hosts hosts(2);
    hosts.save(0, 6);
    hosts.save(1, 6);
    hosts.open([&](std::uint32_t participant, What what) {
      if (participant != 1 || what != stage || killed) return;
      killed = true;
      hosts.managers[1]->process().signal(SIGKILL);
      EXPECT_TRUE(hosts.managers[1]->process().ended_within());
    });
    const CommonPrefix found = hosts.claim(6);
    if (stage == What::kClose) {
      ASSERT_EQ(found.blocks, 6u) << found.message;
      for (std::uint16_t rank = 0; rank < 2; ++rank) {
        ASSERT_TRUE(hosts.restore(rank, found));
        ASSERT_TRUE(hosts.group->restored(hosts.number, rank, true).ok());
      }
      EXPECT_TRUE(hosts.wait().success);
    } else {
      EXPECT_EQ(found.blocks, 0u);
      EXPECT_EQ(found.participant.value, 1u) << found.message;
      EXPECT_TRUE(hosts.wait().quiet) << "no rank was told anything";
    }
    hosts.expect_nothing_held(0);
    EXPECT_TRUE(killed);
  }
}

TEST(Tp, a_manager_that_dies_after_the_claim_fails_it_for_all) {
  Hosts hosts(2);
  hosts.save(0, 6);
  hosts.save(1, 6);
  hosts.open();
  const CommonPrefix found = hosts.claim(6);
  ASSERT_EQ(found.blocks, 6u) << found.message;
  ASSERT_TRUE(hosts.restore(0, found));
  ASSERT_TRUE(hosts.group->restored(hosts.number, 0, true).ok());
  hosts.managers[1]->process().signal(SIGKILL);
  ASSERT_TRUE(hosts.managers[1]->process().ended_within());
  EXPECT_FALSE(hosts.restore(1, found));
  ASSERT_TRUE(hosts.group->restored(hosts.number, 1, false).ok());
  const CommonRestore end = hosts.wait();
  EXPECT_TRUE(end.done && !end.success && end.quiet) << end.message;
  hosts.expect_nothing_held(0);
  // The Manager is there again, without a block: nothing common, and no error.
  hosts.managers[1]->start();
  ASSERT_TRUE(hosts.group->close(hosts.number).ok());
  CommonPrefix again;
  const TimePoint deadline = monotonic_now() + milliseconds(kDoneWithinMs);
  do {
    again = hosts.claim(6);
    ASSERT_EQ(again.blocks, 0u);
    hosts.group->close(hosts.number);
    ::usleep(50'000);
  } while (again.why != client::Missing::kGone && monotonic_now() < deadline);
  EXPECT_EQ(again.why, client::Missing::kGone) << again.message;
}

// All have claimed, and the engine has not looked yet.
TEST(Tp, a_manager_that_dies_before_the_engine_is_told_leaves_no_page_lent) {
  Hosts hosts(2);
  hosts.save(0, 6);
  hosts.save(1, 6);
  hosts.open();
  const auto hashes = hashes_of(1, 6);
  ASSERT_TRUE(hosts.group->begin({hashes}, hosts.number).ok());
  for (std::size_t host = 0; host < 2; ++host)
    ASSERT_EQ(hosts.managers[host]->settle("interests.claims", 1), 1u);
  EXPECT_EQ(hosts.group->restored(hosts.number, 0, true).action, client::Action::kReject);
  hosts.managers[1]->process().signal(SIGKILL);
  ASSERT_TRUE(hosts.managers[1]->process().ended_within());
  const CommonRestore end = hosts.wait();
  EXPECT_TRUE(end.done && !end.success && end.quiet) << end.message;
  CommonPrefix found;
  ASSERT_TRUE(hosts.group->poll(hosts.number, 0, found).ok());
  EXPECT_EQ(found.blocks, 0u);
  EXPECT_FALSE(found.loading);
  hosts.expect_nothing_held(0);
}

TEST(Tp, a_rank_that_dies_after_the_claim_fails_it_though_nobody_says_so) {
  Hosts hosts(1);
  Manager second({"--pool-size", "32MiB"});
  Process rank = start_helper({"engine", "socket=" + second.socket(), "space=part 1"});
  ASSERT_EQ(rank.line().value_or("").substr(0, 5), "ready");
  rank.say("save 0 1 6");
  ASSERT_EQ(rank.line().value_or("").substr(0, 7), "saved 1");
  second.settle("blocks", 6);
  hosts.save(0, 6);
  hosts.schedulers.push_back(scheduler_at(second));
  hosts.participants.push_back({instance_of(1), {1}});
  hosts.open();
  const CommonPrefix found = hosts.claim(6);
  ASSERT_EQ(found.blocks, 6u) << found.message;
  rank.signal(SIGKILL);
  ASSERT_TRUE(rank.ended_within());
  CommonRestore end;
  const TimePoint deadline = monotonic_now() + milliseconds(kDoneWithinMs);
  while (!end.done && monotonic_now() < deadline) ASSERT_TRUE(hosts.group->wait(hosts.number, 20, end).ok());
  EXPECT_TRUE(end.done && !end.success) << end.message;
  EXPECT_NE(end.message.find("participant 1"), std::string::npos) << end.message;
  EXPECT_FALSE(end.quiet) << "the engine has to say that its rank is gone";
  hosts.group->restored(hosts.number, 0, false);
  hosts.group->restored(hosts.number, 1, false);
  EXPECT_TRUE(hosts.wait().quiet);
  hosts.expect_nothing_held(0);
  EXPECT_EQ(second.settle("leases", 0), 0u);
}

TEST(Tp, a_coordinator_that_is_killed_holds_nothing) {
  Hosts hosts(2);
  hosts.save(0, 6);
  hosts.save(1, 4);
  Process coordinator = start_helper(
      {"coordinator", "first=" + hosts.managers[0]->socket(), "second=" + hosts.managers[1]->socket()});
  ASSERT_EQ(coordinator.line(), "claimed 4");
  EXPECT_EQ(hosts.managers[0]->settle("leases", 1), 1u);
  EXPECT_EQ(hosts.managers[1]->settle("leases", 1), 1u);
  coordinator.signal(SIGKILL);
  ASSERT_TRUE(coordinator.ended_within());
  for (std::size_t host = 0; host < 2; ++host) hosts.expect_nothing_held(host);
}

TEST(Tp, a_manager_that_stands_still_is_waited_for_so_long_and_no_longer) {
  Hosts hosts(2);
  hosts.save(0, 6);
  hosts.save(1, 6);
  client::PrefixGroup::Options options = kOptions;
  options.timeout_ms = 1000;
  hosts.open([](auto, auto) {}, options);
  hosts.managers[1]->process().signal(SIGSTOP);
  const CommonPrefix found = hosts.claim(6);
  EXPECT_EQ(found.blocks, 0u);
  hosts.expect_nothing_held(0);
  hosts.managers[1]->process().signal(SIGCONT);
  hosts.group.reset();
  hosts.expect_nothing_held(1);
}

TEST(Tp, nothing_but_frames_of_interests_is_carried) {
  Hosts hosts(1);
  wire::Buffer frame;
  wire::encode(wire::ReleaseRequest{LeaseId{{std::byte{1}}}}, frame);
  std::vector<std::byte> reply;
  EXPECT_EQ(hosts.schedulers[0]->carry_interest(frame, reply).action, client::Action::kReject);
  frame.clear();
  wire::encode(
      wire::InterestCall{{instance_of(9), InterestId(1), InterestOperation(1)}, {}, InterestVerb::kPoll, 0},
      frame);
  ASSERT_TRUE(hosts.schedulers[0]->carry_interest(frame, reply).ok());
  EXPECT_EQ(wire::decode_interest_reply(reply)->phase, InterestPhase::kUnknown);
  frame.back() ^= std::byte{1};
  EXPECT_EQ(hosts.schedulers[0]->carry_interest(frame, reply).action, client::Action::kReject);
}

}  // namespace
}  // namespace orbitkv::test
