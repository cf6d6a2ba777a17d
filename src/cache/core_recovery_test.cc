// Recoveries through the whole core: all pages of a boundary, of all groups, or nothing.
#include <array>
#include <random>

#include "base/limits.h"
#include "cache/core_tier_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

constexpr std::uint32_t kPage = 64;

// Attention, a window of 100 tokens (two pages) and a checkpoint.
model::RankRegistration hybrid_rank(int instance = 1, std::uint16_t rank = 0, std::uint16_t world = 1) {
  model::RankRegistration r = rank_of({.instance = instance, .rank = rank, .world = world});
  r.block_tokens = kPage;
  r.groups[0].writer = rank == 0;
  r.groups.resize(3, r.groups[0]);
  r.groups[1].group = GroupId(1);
  r.groups[1].rule = model::RecoveryRule::kWindow;
  r.groups[1].window_tokens = 100;
  r.groups[2].group = GroupId(2);
  r.groups[2].rule = model::RecoveryRule::kCheckpoint;
  return r;
}

std::uint64_t block_of(std::uint16_t group, std::uint64_t page) {
  return 1000u * group + page;
}

// The tail [128, 512): pages 2..7 of the attention, 6..7 of the window, 7 of the checkpoint.
constexpr TokenTail kTail{128, 512};
std::vector<BlockHash> set_of(TokenTail tail) {
  std::vector<BlockHash> out;
  const std::uint64_t first = tail.origin / kPage, end = tail.boundary / kPage;
  for (std::uint64_t p = first; p < end; ++p) out.push_back(hash_of(block_of(0, p)));
  for (std::uint64_t p = std::max(first, end - std::min<std::uint64_t>(end, 2)); p < end; ++p) {
    out.push_back(hash_of(block_of(1, p)));
  }
  out.push_back(hash_of(block_of(2, end - 1)));
  return out;
}
const std::vector<std::uint32_t> kPages{6, 2, 1};

struct Hybrid {
  TierWorld t;
  SessionId scheduler, worker;
  RegistrationId registration;
  std::uint32_t spaces = 0;

  explicit Hybrid(const WorldOptions& options = {}, std::uint16_t world = 1) : t(options) {
    scheduler = t->open();
    worker = t->open();
    for (std::uint16_t r = 0; r < world; ++r) {
      auto made = t->core->register_rank(worker, hybrid_rank(1, r, world), t->now);
      EXPECT_TRUE(made.ok()) << made.error().to_string();
      if (r == 0 && made.ok()) registration = *made;
    }
  }
  void store(std::uint16_t group, std::uint64_t first, std::uint64_t count) {
    const OperationKey op = t->next_op(worker);
    std::vector<BlockHash> list;
    for (std::uint64_t p = first; p < first + count; ++p) list.push_back(hash_of(block_of(group, p)));
    const auto indices = blocks(0, list.size());
    ASSERT_TRUE(t->core->publish({op, registration, GroupId(group), indices, list}, t->now).ok());
    if (t->ports.granted.contains(op)) t->commit(op);
  }
  // Everything that kTail needs is in memory.
  void fill() {
    store(0, 2, 6);
    store(1, 6, 2);
    store(2, 7, 1);
  }
  // In the space that the scripted tier has for all groups of a namespace.
  void put(std::uint16_t group, std::uint64_t page) { t.tier.put(block_of(group, page)); }
  Result<TicketAnswer> ask_part(const std::vector<BlockHash>& list, std::uint32_t first, std::uint32_t count,
                                TokenTail tail = kTail, std::string_view id = "r") {
    return t->core->read_recovery(scheduler,
                                  {instance_id(1), id, tail, first, static_cast<std::uint32_t>(list.size()),
                                   std::span(list).subspan(first, count)},
                                  t->now);
  }
  Result<TicketAnswer> go_on(const std::vector<BlockHash>& list, std::uint32_t first, std::uint32_t count,
                             Revision revision) {
    return t->core->read_recovery(scheduler,
                                  {instance_id(1), "r", kTail, first, static_cast<std::uint32_t>(list.size()),
                                   std::span(list).subspan(first, count), revision},
                                  t->now);
  }
  TicketAnswer ask(TokenTail tail = kTail, std::string_view id = "r") {
    const auto list = set_of(tail);
    auto answer = ask_part(list, 0, static_cast<std::uint32_t>(list.size()), tail, id);
    EXPECT_TRUE(answer.ok()) << answer.error().to_string();
    if (!answer.ok()) return {};
    check(*answer);
    return *answer;
  }
  TicketName name(std::string_view id = "r") const { return {instance_id(1), {}, id, TicketKind::kRecovery}; }
  TicketAnswer poll(Revision revision, std::string_view id = "r") {
    auto answer = t->core->poll(scheduler, name(id), revision, t->now);
    EXPECT_TRUE(answer.ok()) << answer.error().to_string();
    if (!answer.ok()) return {};
    check(*answer);
    return *answer;
  }
  // At no point does a reply show leases of some groups only.
  static void check(const TicketAnswer& answer) {
    EXPECT_EQ(answer.leases.size(), answer.state == TicketState::kReady ? 3u : 0u);
    for (std::size_t g = 0; g < answer.leases.size(); ++g) {
      EXPECT_EQ(answer.leases[g].group.value, g);
      EXPECT_TRUE(answer.leases[g].lease);
    }
  }
  bool restore(const TicketLease& lease) {
    return t->restore(t->next_op(worker), registration, lease.lease, blocks(0, lease.blocks)).ok();
  }
  CoreStats stats() { return t.stats(); }
};

TEST(CoreRecovery, what_is_in_memory_is_leased_at_once_group_by_group) {
  Hybrid h;
  h.fill();
  const TicketAnswer a = h.ask();
  ASSERT_EQ(a.state, TicketState::kReady);
  for (std::size_t g = 0; g < 3; ++g) EXPECT_EQ(a.leases[g].blocks, kPages[g]);
  EXPECT_EQ(h.stats().leases, 3u);
  EXPECT_EQ(h.stats().tickets, 0u);
  EXPECT_EQ(h.stats().leased, 9 * slot_bytes());
  EXPECT_EQ(h.stats().hits, 9u);
  for (const TicketLease& lease : a.leases) EXPECT_TRUE(h.restore(lease));
  EXPECT_EQ(h.stats().leases, 0u);
  EXPECT_EQ(h.t.tier.finds, 0u) << "nothing was missing";
}

TEST(CoreRecovery, a_list_that_is_no_complete_boundary_is_refused) {
  Hybrid h;
  h.fill();
  auto list = set_of(kTail);
  for (const bool longer : {false, true}) {
    auto other = list;
    longer ? other.push_back(hash_of(1)) : other.pop_back();
    const auto answer = h.ask_part(other, 0, static_cast<std::uint32_t>(other.size()));
    ASSERT_EQ(code_of(answer), Code::kReject);
    EXPECT_NE(answer.error().message().find("need 9"), std::string::npos) << answer.error().message();
  }
  EXPECT_EQ(code_of(h.ask_part(list, 0, 9, {128, 500})), Code::kReject) << "not of whole pages";
  EXPECT_EQ(code_of(h.ask_part(list, 0, 9, {512, 512})), Code::kReject);
  EXPECT_EQ(code_of(h.ask_part(list, 0, 0)), Code::kReject);
  EXPECT_EQ(h.stats().tickets, 0u);
}

TEST(CoreRecovery, a_page_that_is_nowhere_reads_nothing_of_the_others) {
  for (std::uint16_t group = 0; group < 3; ++group) {
    Hybrid h;
    for (std::uint64_t p = 2; p < 8; ++p) h.put(0, p);
    for (std::uint64_t p = 6; p < 8; ++p) h.put(1, p);
    h.put(2, 7);
    h.t.tier.records.erase({1, block_of(group, 7)});
    h.store(0, 2, 1);
    const TicketAnswer a = h.ask();
    EXPECT_EQ(a.state, TicketState::kMissing);
    EXPECT_EQ(a.why, Missing::kGone);
    EXPECT_EQ(a.missing.value, group);
    EXPECT_TRUE(h.t.tier.loads.empty());
    EXPECT_EQ(h.stats().leased, ByteCount(0));
    EXPECT_EQ(h.stats().tickets, 0u) << "told at once";
    EXPECT_EQ(h.poll(a.revision).state, TicketState::kUnknown);
  }
}

// Attention in memory, window and checkpoint stored.
struct Mixed : Hybrid {
  explicit Mixed(const WorldOptions& options = {}) : Hybrid(options) {
    store(0, 2, 6);
    put(1, 6);
    put(1, 7);
    put(2, 7);
  }
};

TEST(CoreRecovery, it_is_ready_when_the_last_page_has_landed) {
  Mixed m;
  const TicketAnswer first = m.ask();
  EXPECT_EQ(first.state, TicketState::kLoading);
  EXPECT_TRUE(first.admitted);
  EXPECT_EQ(m.stats().leased, 6 * slot_bytes()) << "what is there cannot go";
  m.t.loaded(block_of(2, 7));
  m.t.loaded(block_of(1, 6));
  EXPECT_EQ(m.poll(first.revision).state, TicketState::kLoading);
  m.t.loaded(block_of(1, 7));
  const TicketAnswer ready = m.poll(first.revision);
  EXPECT_EQ(ready.state, TicketState::kReady);
  const TicketAnswer again = m.ask();
  EXPECT_EQ(again.revision, first.revision);
  EXPECT_EQ(again.leases[2].lease, ready.leases[2].lease);
  EXPECT_EQ(m.stats().leases, 3u);
}

TEST(CoreRecovery, a_page_that_fails_ends_all_of_it) {
  Mixed m;
  const Revision revision = m.ask().revision;
  m.t.loaded(block_of(1, 7), false);
  EXPECT_EQ(m.stats().leased, ByteCount(0));
  EXPECT_EQ(m.stats().tickets, 1u) << "nobody has been told";
  const TicketAnswer a = m.poll(revision);
  EXPECT_EQ(a.state, TicketState::kMissing);
  EXPECT_EQ(a.why, Missing::kGone);
  EXPECT_EQ(a.missing, GroupId(1));
  m.t.all_loaded();
  EXPECT_EQ(m.stats().blocks, 8u) << "the other reads served the cache";
  EXPECT_EQ(m.stats().tickets, 0u);
}

TEST(CoreRecovery, the_wait_has_an_end_and_says_which_group) {
  Mixed m;
  const Revision revision = m.ask().revision;
  m.t.loaded(block_of(1, 6));
  m.t.loaded(block_of(1, 7));
  m.t.wait(seconds(5));
  const TicketAnswer a = m.poll(revision);
  EXPECT_EQ(a.why, Missing::kTimeout);
  EXPECT_EQ(a.missing, GroupId(2));
  EXPECT_EQ(m.stats().leased, ByteCount(0));
  EXPECT_EQ(m.stats().loading, 1u) << "the read drains";
}

// Room for 12 slots.
WorldOptions tight() {
  WorldOptions options;
  options.pool = ByteCount(12 * slot_bytes().value + 8192);
  options.core.eviction_batch = slot_bytes();
  return options;
}

TEST(CoreRecovery, room_for_one_group_is_not_taken_from_another) {
  Hybrid h(tight());
  h.store(2, 7, 1);  // the least recent
  h.store(1, 6, 2);
  for (std::uint64_t p = 2; p < 8; ++p) h.put(0, p);
  h.store(0, 100, 9);
  ASSERT_EQ(h.stats().blocks, 12u);
  EXPECT_EQ(h.ask().state, TicketState::kLoading);
  h.t.all_loaded();
  const TicketAnswer a = h.ask();
  EXPECT_EQ(a.state, TicketState::kReady);
  EXPECT_EQ(h.t.tier.loads.size(), 6u) << "window and checkpoint stayed";
}

TEST(CoreRecovery, without_room_it_waits_and_holds_nothing) {
  for (const bool comes : {true, false}) {
    Hybrid h(tight());
    h.store(0, 2, 4);
    for (std::uint64_t p = 6; p < 8; ++p) h.put(0, p);
    for (std::uint64_t p = 6; p < 8; ++p) h.put(1, p);
    h.put(2, 7);
    h.store(0, 100, 8);
    std::vector<BlockHash> others;
    for (std::uint64_t p = 100; p < 108; ++p) others.push_back(hash_of(block_of(0, p)));
    const LeaseId held = h.t->read(h.scheduler, others, "other").lease;
    const TicketAnswer first = h.ask();
    EXPECT_EQ(first.state, TicketState::kLoading);
    EXPECT_FALSE(first.admitted);
    EXPECT_EQ(h.stats().leased, 8 * slot_bytes());
    EXPECT_EQ(h.stats().loading, 0u) << "nothing is read for half a set";
    EXPECT_EQ(h.ask().revision, first.revision);
    if (!comes) {
      h.t.wait(seconds(5));
      EXPECT_EQ(h.poll(first.revision).why, Missing::kNoMemory);
      continue;
    }
    ASSERT_TRUE(h.t->core->release(h.scheduler, held).ok());
    h.t.wait(milliseconds(250));
    EXPECT_TRUE(h.poll(first.revision).admitted);
    h.t.all_loaded();
    EXPECT_EQ(h.poll(first.revision).state, TicketState::kReady);
    EXPECT_GE(h.stats().recovery_waits, 1u);
  }
}

TEST(CoreRecovery, a_set_larger_than_memory_is_a_miss_at_once) {
  Hybrid h(tight());
  const TokenTail long_tail{0, 40 * kPage};
  const TicketAnswer a = h.ask(long_tail);
  EXPECT_EQ(a.state, TicketState::kMissing);
  EXPECT_EQ(a.why, Missing::kTooLarge);
  EXPECT_EQ(h.t.tier.finds, 0u);
}

TEST(CoreRecovery, a_set_that_may_never_be_loaded_as_a_whole_is_a_miss_at_once) {
  Hybrid h(tight());
  for (std::uint64_t p = 2; p < 8; ++p) h.put(0, p);
  for (std::uint64_t p = 6; p < 8; ++p) h.put(1, p);
  h.put(2, 7);
  EXPECT_EQ(h.ask().why, Missing::kTooLarge) << "nine slots; loads may have six";
  EXPECT_TRUE(h.t.tier.loads.empty());
  h.store(0, 2, 3);
  EXPECT_EQ(h.ask().state, TicketState::kLoading);
}

TEST(CoreRecovery, parts_give_what_one_list_would_give) {
  Mixed m;
  const auto list = set_of(kTail);
  const auto p0 = m.ask_part(list, 0, 4);
  ASSERT_TRUE(p0.ok());
  EXPECT_EQ(p0->state, TicketState::kLoading);
  EXPECT_EQ(m.stats().leased, ByteCount(0)) << "parts hold nothing";
  EXPECT_EQ(m.stats().tickets, 1u);
  EXPECT_EQ(code_of(m.ask_part(list, 5, 4)), Code::kReject) << "out of order";
  ASSERT_TRUE(m.ask_part(list, 4, 4).ok());
  EXPECT_TRUE(m.t.tier.loads.empty()) << "loads come with the last part only";
  const auto p2 = m.ask_part(list, 8, 1);
  ASSERT_TRUE(p2.ok());
  EXPECT_EQ(p2->revision, p0->revision);
  EXPECT_EQ(m.t.tier.loads.size(), 3u);
  m.t.all_loaded();
  EXPECT_EQ(m.ask_part(list, 0, 5)->state, TicketState::kLoading) << "told with the last part";
  const auto again = m.ask_part(list, 5, 4);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->state, TicketState::kReady);
  EXPECT_EQ(again->revision, p0->revision);
}

TEST(CoreRecovery, parts_of_two_lists_never_become_one) {
  Mixed m;
  const auto list = set_of(kTail);
  auto other = list;
  other[8] = hash_of(77);
  const auto begun = m.ask_part(list, 0, 5);
  const auto replaced = m.ask_part(other, 0, 5);
  ASSERT_TRUE(begun.ok() && replaced.ok());
  EXPECT_NE(begun->revision, replaced->revision);
  EXPECT_EQ(code_of(m.go_on(list, 5, 4, begun->revision)), Code::kBusy);
  const auto goes_on = m.go_on(other, 5, 4, replaced->revision);
  ASSERT_TRUE(goes_on.ok());
  EXPECT_EQ(goes_on->state, TicketState::kMissing);
}

TEST(CoreRecovery, another_boundary_or_list_is_a_new_revision) {
  Hybrid h;
  h.fill();
  h.store(0, 0, 2);
  const TicketAnswer a = h.ask();
  const TicketAnswer b = h.ask({0, 512});
  EXPECT_GT(b.revision, a.revision);
  EXPECT_EQ(h.stats().leases, 3u);
  EXPECT_FALSE(h.restore(a.leases[0]));
  EXPECT_EQ(h.poll(a.revision).state, TicketState::kUnknown);
  auto changed = set_of({0, 512});
  changed[10] = hash_of(77);  // the checkpoint, in the second part
  ASSERT_TRUE(h.ask_part(changed, 0, 6, {0, 512}).ok());
  const auto c = h.ask_part(changed, 6, 5, {0, 512});
  ASSERT_TRUE(c.ok());
  EXPECT_GT(c->revision, b.revision);
  EXPECT_EQ(c->state, TicketState::kMissing);
  EXPECT_EQ(c->missing, GroupId(2));
  EXPECT_EQ(h.stats().leased, ByteCount(0));
}

TEST(CoreRecovery, delivered_leases_end_each_by_itself) {
  Hybrid h;
  h.fill();
  const TicketAnswer a = h.ask();
  EXPECT_TRUE(h.restore(a.leases[1]));
  ASSERT_TRUE(h.t->core->release(h.scheduler, a.leases[0].lease).ok());
  EXPECT_EQ(h.stats().leases, 1u);
  EXPECT_EQ(h.poll(a.revision).state, TicketState::kUnknown) << "never some of its groups";
  EXPECT_TRUE(h.restore(a.leases[2]));
  EXPECT_EQ(h.stats().leases, 0u);
  const TicketAnswer b = h.ask();
  EXPECT_GT(b.revision, a.revision);
  EXPECT_TRUE(h.restore(b.leases[0]));
  const TicketAnswer c = h.ask();
  EXPECT_GT(c.revision, b.revision) << "asked again after a consumption it is leased anew";
  EXPECT_FALSE(h.restore(b.leases[1]));
  EXPECT_TRUE(h.t->core->cancel(h.scheduler, h.name(), c.revision).ok());
  EXPECT_EQ(h.stats().leases, 0u);
}

TEST(CoreRecovery, every_rank_consumes_every_group) {
  Hybrid h({}, 2);
  h.fill();
  const TicketAnswer a = h.ask();
  ASSERT_EQ(a.state, TicketState::kReady);
  for (const TicketLease& lease : a.leases) EXPECT_TRUE(h.restore(lease));
  EXPECT_EQ(h.stats().leases, 3u) << "the other rank has consumed nothing";
}

TEST(CoreRecovery, results_that_nobody_fetches_release_themselves) {
  Mixed m;
  const Revision revision = m.ask().revision;
  m.t.all_loaded();
  EXPECT_EQ(m.stats().leases, 3u);
  m.t.wait(seconds(60));
  EXPECT_EQ(m.stats().leases, 0u);
  EXPECT_EQ(m.stats().undelivered, 1u);
  EXPECT_EQ(m.poll(revision).state, TicketState::kUnknown);
  const TicketAnswer a = m.ask();
  m.t.wait(seconds(599));
  EXPECT_EQ(m.stats().leases, 3u) << "fetched: the term of a lease";
  m.t.wait(seconds(1));
  EXPECT_EQ(m.stats().leases, 0u);
  EXPECT_EQ(m.poll(a.revision).state, TicketState::kUnknown);
}

TEST(CoreRecovery, a_prefix_query_has_the_same_id_for_itself) {
  Hybrid h;
  h.fill();
  const TicketAnswer a = h.ask();
  std::vector<BlockHash> list;
  for (std::uint64_t p = 2; p < 8; ++p) list.push_back(hash_of(block_of(0, p)));
  const QueryAnswer prefix = h.t->read(h.scheduler, list, "r");
  EXPECT_TRUE(prefix.lease);
  EXPECT_EQ(h.stats().leases, 4u);
  EXPECT_TRUE(h.t->core->cancel(h.scheduler, {instance_id(1), GroupId(0), "r"}).ok());
  EXPECT_EQ(h.poll(a.revision).state, TicketState::kReady);
  EXPECT_EQ(h.poll(prefix.revision).state, TicketState::kUnknown);
}

enum class Stage { kCollecting, kWaiting, kLoading, kReady, kDelivered, kMissed };
constexpr std::array kStages = {Stage::kCollecting, Stage::kWaiting,   Stage::kLoading,
                                Stage::kReady,      Stage::kDelivered, Stage::kMissed};

Revision bring_to(Hybrid& h, Stage stage) {
  if (stage == Stage::kCollecting) {
    const auto part = h.ask_part(set_of(kTail), 0, 5);
    return part.ok() ? part->revision : Revision{};
  }
  if (stage == Stage::kDelivered) {
    h.fill();
    return h.ask().revision;
  }
  h.store(0, 2, 4);
  for (std::uint64_t p = 6; p < 8; ++p) h.put(0, p);
  for (std::uint64_t p = 6; p < 8; ++p) h.put(1, p);
  h.put(2, 7);
  if (stage == Stage::kWaiting) {
    h.store(0, 100, 8);
    std::vector<BlockHash> others;
    for (std::uint64_t p = 100; p < 108; ++p) others.push_back(hash_of(block_of(0, p)));
    h.t->read(h.scheduler, others, "other");
  }
  const Revision revision = h.ask().revision;
  if (stage == Stage::kReady) h.t.all_loaded();
  if (stage == Stage::kMissed) h.t.all_loaded(false);
  return revision;
}

TEST(CoreRecovery, an_old_revision_touches_no_replacement) {
  for (const Stage stage : kStages) {
    SCOPED_TRACE(static_cast<int>(stage));
    Hybrid h(tight());
    const Revision old = h.ask({0, 64}).revision;
    const Revision revision = bring_to(h, stage);
    ASSERT_GT(revision, old);
    const CoreStats before = h.stats();
    EXPECT_EQ(h.poll(old).state, TicketState::kUnknown);
    EXPECT_TRUE(h.t->core->cancel(h.scheduler, h.name(), old).ok());
    const CoreStats after = h.stats();
    EXPECT_EQ(after.leased, before.leased);
    EXPECT_EQ(after.leases, before.leases);
    EXPECT_EQ(after.tickets, before.tickets);
    EXPECT_EQ(after.loading, before.loading);
    const SessionId other = h.t->open();
    EXPECT_EQ(code_of(h.t->core->poll(other, h.name(), revision, h.t->now)), Code::kReject);
    EXPECT_EQ(code_of(h.t->core->cancel(other, h.name(), revision)), Code::kReject);
    EXPECT_NE(h.poll(revision).state, TicketState::kUnknown);
    EXPECT_TRUE(h.t->core->cancel(h.scheduler, h.name(), revision).ok());
    EXPECT_EQ(h.poll(revision).state, TicketState::kUnknown);
    EXPECT_EQ(h.stats().tickets, 0u);
  }
}

TEST(CoreRecovery, a_session_or_instance_that_ends_takes_along_every_state) {
  for (const Stage stage : kStages) {
    for (const bool scheduler : {true, false}) {
      SCOPED_TRACE(static_cast<int>(stage));
      Hybrid h(tight());
      bring_to(h, stage);
      h.t->core->process_ended(scheduler ? h.scheduler : h.worker, h.t->now);
      EXPECT_EQ(h.stats().tickets, 0u);
      EXPECT_EQ(h.stats().leases, 0u);
      h.t.all_loaded();
      h.t.wait(seconds(1));
      h.t->core->process_ended(h.scheduler, h.t->now);
      h.t->core->process_ended(h.worker, h.t->now);
      EXPECT_EQ(h.stats().leased, ByteCount(0));
    }
  }
}

TEST(CoreRecovery, bounds_are_answers) {
  Mixed m;
  const auto list = set_of(kTail);
  EXPECT_EQ(code_of(m.ask_part(list, 0, 9, kTail, std::string(257, 'x'))), Code::kReject);
  m.t.tier.most_loads = 0;
  for (std::uint32_t i = 0; i < limits::kTicketsPerSession; ++i) {
    ASSERT_TRUE(m.ask_part(list, 0, 9, kTail, std::to_string(i)).ok()) << i;
  }
  EXPECT_EQ(code_of(m.ask_part(list, 0, 9, kTail, "more")), Code::kBusy);
  EXPECT_EQ(m.stats().loading, 3u) << "one read for all of them";
  m.t.tier.most_loads = 9;
  m.t->core->tier_ready(m.t->now);
  m.t.all_loaded();
  EXPECT_EQ(m.stats().tickets, 0u);
  EXPECT_EQ(m.stats().leases, 3 * limits::kTicketsPerSession);
  for (std::uint32_t i = limits::kTicketsPerSession; i < limits::kQueriesPerSession / 3; ++i) {
    ASSERT_TRUE(m.ask_part(list, 0, 9, kTail, std::to_string(i)).ok()) << i;
  }
  EXPECT_EQ(code_of(m.ask_part(list, 0, 9, kTail, "leases")), Code::kBusy);
}

TEST(CoreRecovery, all_groups_are_charged_together_and_each_lease_returns_its_own) {
  WorldOptions options;
  options.core.query_budget = options.core.query_instance_budget = 16 * slot_bytes();
  Hybrid h(options);
  h.fill();
  const TicketAnswer a = h.ask();
  ASSERT_EQ(a.state, TicketState::kReady);
  EXPECT_EQ(h.stats().budgets.used, 9 * slot_bytes());
  const TicketAnswer b = h.ask(kTail, "b");
  EXPECT_FALSE(b.admitted) << "no part of it is charged";
  EXPECT_EQ(h.stats().budgets.used, 9 * slot_bytes());
  ASSERT_TRUE(h.t->core->release(h.scheduler, a.leases[1].lease).ok());
  EXPECT_EQ(h.stats().budgets.used, 16 * slot_bytes());
  EXPECT_EQ(h.poll(b.revision, "b").state, TicketState::kReady);
}

TEST(CoreRecovery, a_set_beyond_the_budget_is_bypassed) {
  WorldOptions options;
  options.core.query_budget = options.core.query_instance_budget = 8 * slot_bytes();
  Hybrid h(options);
  h.fill();
  EXPECT_EQ(h.ask().why, Missing::kTooLarge);
  EXPECT_EQ(h.stats().budgets.bypassed, 1u);
  EXPECT_EQ(h.stats().budgets.waiting, 0u);
}

// A large set that waits for room is not starved by small ones that come later.
TEST(CoreRecovery, a_large_set_has_its_turn) {
  Hybrid h(tight());
  for (std::uint64_t p = 2; p < 8; ++p) h.put(0, p);
  h.store(1, 6, 2);
  h.store(2, 7, 1);
  h.store(0, 100, 8);
  std::vector<BlockHash> others;
  for (std::uint64_t p = 100; p < 108; ++p) others.push_back(hash_of(block_of(0, p)));
  std::deque<LeaseId> held{h.t->read(h.scheduler, others, "held").lease};
  const TicketAnswer large = h.ask();
  EXPECT_FALSE(large.admitted);
  int passed = 0;
  for (int i = 0; i < 100; ++i) {
    const QueryAnswer small =
        h.t->read(h.scheduler, {others[static_cast<std::size_t>(i % 8)]}, "s" + std::to_string(i));
    if (!small.lease) break;
    held.push_back(small.lease);
    ++passed;
  }
  EXPECT_EQ(passed, 16);
  for (const LeaseId& lease : held) ASSERT_TRUE(h.t->core->release(h.scheduler, lease).ok());
  EXPECT_TRUE(h.poll(large.revision).admitted);
  h.t.all_loaded();
  EXPECT_EQ(h.poll(large.revision).state, TicketState::kReady);
}

// Random schedules with little memory: every answer is all or nothing, and all comes back.
class Walk {
 public:
  static WorldOptions options(std::uint64_t seed) {
    WorldOptions o = tight();
    if (seed % 3 == 0) o.core.query_budget = o.core.query_instance_budget = 14 * slot_bytes();
    return o;
  }
  explicit Walk(std::uint64_t seed) : random_(seed), h_(options(seed)) {
    for (std::uint64_t p = 0; p < 12; ++p) {
      for (std::uint16_t g = 0; g < 3; ++g) h_.put(g, p);
    }
  }
  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(i);
      step();
      ASSERT_LE(h_.stats().leased, h_.t->pool->stats().capacity);
      ASSERT_EQ(h_.stats().budgets.used, h_.t->core->census().charged);
      ASSERT_LE(h_.stats().budgets.used, h_.stats().budgets.limit);
    }
    finish();
  }
  std::array<std::uint64_t, 4> states{};  // answers by TicketState
  std::uint64_t waited = 0;

 private:
  std::uint64_t pick(std::uint64_t n) { return random_() % n; }
  void note(const TicketAnswer& a, const std::string& id) {
    ++states[static_cast<std::size_t>(a.state)];
    waited += a.admitted ? 0 : 1;
    if (a.state == TicketState::kReady) leases_[id] = a.leases;
    revisions_[id] = a.revision;
  }
  void step() {
    const std::string id = std::to_string(pick(4));
    const std::uint64_t what = pick(20);
    if (what < 5) {
      const std::uint64_t first = pick(10), end = first + 1 + pick(std::min<std::uint64_t>(12 - first, 5));
      note(h_.ask({first * kPage, end * kPage}, id), id);
    } else if (what < 8) {
      if (revisions_.contains(id)) note(h_.poll(revisions_[id], id), id);
    } else if (what < 12) {
      if (const auto load = h_.t.tier.oldest(true)) {
        const bool ok = pick(8) != 0;
        h_.t.tier.end(*load, ok);
        h_.t->core->loaded(*load, ok, h_.t->now);
      }
    } else if (what < 15) {
      for (const TicketLease& l : leases_[id]) {
        if (pick(3) > 0) h_.restore(l);
      }
    } else if (what < 16) {
      EXPECT_TRUE(h_.t->core->cancel(h_.scheduler, h_.name(id)).ok());
    } else if (what < 18) {
      for (const auto& [op, plan] : std::map(h_.t->ports.granted)) h_.t->verified(op);
    } else if (what < 19) {
      h_.store(static_cast<std::uint16_t>(pick(3)), pick(12), 1);
    } else {
      h_.t.wait(milliseconds(static_cast<std::int64_t>(pick(3000))));
    }
  }
  void finish() {
    for (const auto& [op, plan] : std::map(h_.t->ports.granted)) h_.t->verified(op);
    h_.t.wait(seconds(6));
    h_.t.all_loaded();
    h_.t.wait(seconds(700));
    EXPECT_EQ(h_.stats().tickets, 0u);
    EXPECT_EQ(h_.stats().leases, 0u);
    EXPECT_EQ(h_.stats().leased, ByteCount(0));
    EXPECT_EQ(h_.stats().loading, 0u);
    EXPECT_EQ(h_.stats().budgets.used, ByteCount(0));
    EXPECT_EQ(h_.stats().budgets.waiting, 0u);
  }

  std::mt19937_64 random_;
  Hybrid h_;
  std::map<std::string, std::vector<TicketLease>> leases_;
  std::map<std::string, Revision> revisions_;
};

TEST(CoreRecovery, random_schedules_are_all_or_nothing) {
  std::array<std::uint64_t, 4> states{};
  std::uint64_t waited = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    Walk walk(seed);
    walk.run(4000);
    for (std::size_t i = 0; i < states.size(); ++i) states[i] += walk.states[i];
    waited += walk.waited;
  }
  EXPECT_GT(states[static_cast<std::size_t>(TicketState::kReady)], 300u);
  EXPECT_GT(states[static_cast<std::size_t>(TicketState::kMissing)], 100u);
  EXPECT_GT(states[static_cast<std::size_t>(TicketState::kLoading)], 1000u);
  EXPECT_GT(waited, 100u);
}

}  // namespace
}  // namespace orbitkv::cache
