#include "bench/query_turns.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <source_location>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/heap.h"
#include "base/limits.h"
#include "bench/core_rig.h"
#include "bench/manager.h"
#include "wire/messages.h"

namespace orbitkv::bench {
namespace {

using cache::QueryPart;
using cache::TicketKind;
using cache::TicketName;

constexpr std::uint32_t kBlocks = limits::kTailPages;
constexpr std::uint32_t kPart = 2000;
constexpr std::uint32_t kStored = 512;  // behind those in memory
constexpr SessionId kEngine(0);
constexpr Duration kLongAfter = seconds(1000);

// Holds the last blocks of the list, and ends no load before it is told to.
class Shelf final : public cache::Tier {
 public:
  explicit Shelf(std::span<const BlockHash> holds) {
    for (const BlockHash& hash : holds) held_.insert(word(hash));
  }
  cache::TierSpace open_space(const model::RankRegistration&, GroupId) override {
    return cache::TierSpace(0);
  }
  void close_space(cache::TierSpace) override {}
  void find(cache::TierSpace, std::span<const BlockHash> hashes, std::span<cache::TierRef> out) override {
    for (std::size_t i = 0; i < hashes.size(); ++i)
      if (held_.contains(word(hashes[i]))) out[i] = {0, 1};
  }
  Result<cache::TransferId> load(const Key&, cache::TierRef, std::span<const mem::Extent::Words>,
                                 std::span<cache::LoadedSlot>) override {
    return cache::TransferId(++last_);
  }
  Result<cache::TransferId> store(const Key&, std::span<const cache::SlotWords>) override {
    return busy("nothing is stored");
  }
  void suspect(const Key&, const cache::LoadedSlot&) override {}
  void asked(cache::TierSpace, const Asked&, const cache::TierContext&) override {}
  Answer sealed(const Key&, ByteCount) override { return Answer::kNo; }
  Answer leaving(const Key&, ByteCount) override { return Answer::kNo; }
  // Those that are under way fail.
  void end_all(cache::Core& core, TimePoint now) {
    while (ended_ < last_) core.loaded(cache::TransferId(++ended_), false, now);
  }

 private:
  static std::uint64_t word(const BlockHash& hash) {
    std::uint64_t out = 0;
    std::memcpy(&out, hash.bytes.data(), sizeof out);
    return out;
  }
  std::unordered_set<std::uint64_t> held_;
  std::uint64_t last_ = 0, ended_ = 0;
};

class TurnBench {
 public:
  TurnBench() : list_(hashes_from(0, kBlocks + kStored)), now_(monotonic_now()) {}

  Status run() {
    ORBITKV_RETURN_IF_ERROR(with_room());
    ORBITKV_RETURN_IF_ERROR(with_little_room());
    ORBITKV_RETURN_IF_ERROR(with_loads());
    ORBITKV_RETURN_IF_ERROR(deaths());
    ORBITKV_RETURN_IF_ERROR(saves());
    if (failed_line_ == 0) return ok_status();
    return bug("a list of the bench went another way than it was to, line " + std::to_string(failed_line_));
  }
  const std::map<std::string, Duration>& longest() const { return longest_; }

 private:
  // ---- what is measured ----

  template <class Call>
  auto spend(const char* what, Call call) {
    const TimePoint begin = thread_cpu_now();
    struct Note {
      TurnBench* bench;
      const char* what;
      TimePoint begin;
      ~Note() {
        Duration& longest = bench->longest_[what];
        longest = std::max(longest, thread_cpu_now() - begin);
      }
    } note{this, what, begin};
    return call();
  }
  void turns(const char* what) {
    while (spend(what, [&] { return core().turn(now_); })) continue;
  }
  void expect(bool holds, std::source_location at = std::source_location::current()) {
    if (!holds && failed_line_ == 0) failed_line_ = at.line();
  }

  // ---- calls ----

  cache::Core& core() { return rig_->core(); }
  Status open(cache::CoreConfig config = {}, cache::Tier* tier = nullptr) {
    rig_ = std::make_unique<CoreRig>();
    config.load_wait = kLongAfter;
    ORBITKV_RETURN_IF_ERROR(rig_->open({1, kBlocks, config, tier}));
    now_ = monotonic_now();
    return ok_status();
  }
  struct Ask {
    const char* id;
    std::uint32_t total = kBlocks;
    bool prepare = false;
    std::uint32_t stops_before = kBlocks + kStored;  // parts
  };
  // Part by part; `what` is the longest of them.
  cache::QueryAnswer ask(const char* what, const Ask& ask) {
    cache::QueryAnswer last;
    for (std::uint32_t first = 0; first < std::min(ask.total, ask.stops_before); first += kPart) {
      QueryPart part{CoreRig::instance(0),
                     GroupId(0),
                     cache::QueryMode::kRead,
                     ask.id,
                     first,
                     ask.total,
                     std::span(list_).subspan(first, std::min(kPart, ask.total - first))};
      part.prepare = ask.prepare;
      const auto answer = spend(what, [&] { return core().query(kEngine, part, now_); });
      if (!answer.ok() && answer.error().code() == Code::kBusy) return {};
      expect(answer.ok());
      if (answer.ok()) last = *answer;
    }
    return last;
  }
  cache::TicketAnswer recover(const char* what, const char* id) {
    cache::TicketAnswer last;
    for (std::uint32_t first = 0; first < kBlocks; first += kPart) {
      const cache::RecoveryPart part{CoreRig::instance(0),
                                     id,
                                     {0, std::uint64_t{kBlocks} * 16},
                                     first,
                                     kBlocks,
                                     std::span(list_).subspan(first, std::min(kPart, kBlocks - first))};
      const auto answer = spend(what, [&] { return core().read_recovery(kEngine, part, now_); });
      expect(answer.ok());
      if (answer.ok()) last = *answer;
    }
    return last;
  }
  TicketName name(const char* id, TicketKind kind = TicketKind::kPrefix) {
    return {CoreRig::instance(0), GroupId(0), id, kind};
  }
  LeaseId lease_of(const char* id, Revision revision, TicketKind kind = TicketKind::kPrefix) {
    const auto answer = core().poll(kEngine, name(id, kind), revision, now_);
    expect(answer.ok() && answer->state == cache::TicketState::kReady);
    return answer.ok() && !answer->leases.empty() ? answer->leases[0].lease : LeaseId{};
  }
  void release(const char* what, LeaseId lease) {
    expect(spend(what, [&] { return core().release(kEngine, lease); }).ok());
  }
  void cancel(const char* what, const char* id, TicketKind kind = TicketKind::kPrefix) {
    expect(spend(what, [&] { return core().cancel(kEngine, name(id, kind)); }).ok());
  }
  void tick(const char* what, Duration later) {
    now_ = now_ + later;
    spend(what, [&] {
      core().tick(now_);
      return true;
    });
  }
  void restore(const char* what, LeaseId lease, std::uint32_t first, std::uint32_t record) {
    const std::vector<std::uint32_t> targets = targets_from(first);
    const cache::OperationKey op = rig_->next_operation(kEngine, record);
    expect(spend(what, [&] {
             return core().restore({op, rig_->registration(0), lease, first, targets}, now_);
           }).ok());
  }
  static std::vector<std::uint32_t> targets_from(std::uint32_t first) {
    std::vector<std::uint32_t> targets(limits::kBlocksPerGrant);
    for (std::uint32_t i = 0; i < targets.size(); ++i) targets[i] = first + i;
    return targets;
  }
  // Of the block, it says, the bytes were wrong: what is looked up is not of one moment.
  void lose(LeaseId lease) {
    const std::vector<std::uint32_t> target{0};
    const std::vector<std::uint64_t> failed{1};
    const cache::OperationKey op = rig_->next_operation(kEngine);
    expect(core().restore({op, rig_->registration(0), lease, 0, target}, now_).ok());
    core().drained(op, {false, {}, failed, {}}, now_);
    rig_->ports().granted.clear();
  }

  // ---- what happens to lists ----

  Status with_room() {
    ORBITKV_RETURN_IF_ERROR(open());
    const LeaseId lease = ask("query", {"a"}).lease;
    restore("restore", lease, 0, 0);
    spend("restore_end", [&] {
      rig_->drain(now_);
      return true;
    });
    release("release", lease);
    turns("release_turn");

    ask("query", {"a", kBlocks, false, kBlocks - kPart});
    cancel("cancel_collecting", "a");
    turns("release_turn");

    expect(bool(ask("query", {"a"}).lease));
    std::swap(list_[kBlocks - 1], list_[kBlocks]);  // which is nowhere
    ask("new_list", {"a"});                         // may be told to ask anew
    std::swap(list_[kBlocks - 1], list_[kBlocks]);
    turns("release_turn");
    cancel("cancel", "a");
    turns("release_turn");

    ask("prepare", {"a", kBlocks, true});
    turns("take_turn");
    release("release", ask("claim", {"a"}).lease);
    turns("release_turn");

    const Revision revision = recover("recovery", "a").revision;
    turns("recovery_turn");
    release("release", lease_of("a", revision, TicketKind::kRecovery));
    turns("release_turn");
    return ok_status();
  }

  Status with_little_room() {
    cache::CoreConfig config;
    config.query_budget = config.query_instance_budget =
        ByteCount(kBlocks * CoreRig::block_bytes().value * 5 / 4);
    config.lease_ttl = config.reply_ttl = seconds(100'000);
    ORBITKV_RETURN_IF_ERROR(open(config));
    LeaseId first = ask("query", {"a"}).lease;
    Revision revision = ask("wait", {"b"}).revision;
    release("release", first);
    turns("take_turn");
    first = lease_of("b", revision);

    ask("wait", {"c"});
    tick("wait_timeout", kLongAfter);
    cancel("cancel_missed", "c");  // its list is counted until somebody is told
    turns("release_turn");

    // Long past its wait when it gets its charge, and what it has taken by then has to be looked at again.
    ask("wait", {"d"});
    release("release", first);
    const std::uint64_t half = core().stats().looked_up + kBlocks / 2;
    while (core().stats().looked_up < half)
      if (!spend("take_turn", [&] { return core().turn(now_); })) return bug("what waits is not taken");
    lose(ask("query", {"e", 1}).lease);
    tick("take_timeout", kLongAfter);
    turns("take_turn");
    return ok_status();
  }

  Status with_loads() {
    Shelf shelf{std::span<const BlockHash>(list_).subspan(kBlocks)};
    ORBITKV_RETURN_IF_ERROR(open({}, &shelf));
    const std::uint32_t all = kBlocks + kStored;
    list_.erase(list_.begin(), list_.begin() + kStored);  // so that it is no longer than a list may be
    for (const bool waits : {true, false}) {
      const auto asked = ask("query", {"a", all - kStored});
      turns("take_turn");
      expect(asked.loading);
      if (waits) {
        tick("load_timeout", kLongAfter);
        release("release", lease_of("a", asked.revision));
      } else {
        cancel("cancel_loading", "a");
      }
      turns("release_turn");
      spend("loads_end", [&] {
        shelf.end_all(core(), now_);
        return true;
      });
      turns("release_turn");
    }
    rig_.reset();
    list_ = hashes_from(0, kBlocks + kStored);
    return ok_status();
  }

  // As many leases of a few thousand blocks as make up the list, and all restores that may be open.
  Status deaths() {
    constexpr std::uint32_t kEach = 4096;
    for (const bool restores : {false, true}) {
      ORBITKV_RETURN_IF_ERROR(open());
      if (restores) {
        const LeaseId lease = ask("query", {"a"}).lease;
        for (std::uint32_t i = 0; i < kBlocks / limits::kBlocksPerGrant; ++i)
          restore("restore", lease, i * limits::kBlocksPerGrant, i);
      }
      for (std::uint32_t i = 0; !restores && i < kBlocks / kEach; ++i) {
        const std::string id = std::to_string(i);
        const QueryPart part{CoreRig::instance(0),
                             GroupId(0),
                             cache::QueryMode::kRead,
                             id,
                             0,
                             kEach,
                             std::span(list_).subspan(i * kEach, kEach)};
        expect(core().query(kEngine, part, now_).ok());
      }
      const char* what = restores ? "death_restores" : "death_leases";
      spend(what, [&] {
        core().close_session(kEngine, now_);
        return true;
      });
      spend(what, [&] {
        core().process_ended(kEngine, now_);
        return true;
      });
      turns("death_turn");
      expect(core().census().pins == 0);
    }
    return ok_status();
  }

  // As many blocks each as one request names, until each takes the place of others.
  Status saves() {
    ORBITKV_RETURN_IF_ERROR(open());
    const std::uint32_t each = wire::publish_blocks_per_frame();
    std::vector<std::uint32_t> blocks(each);
    std::iota(blocks.begin(), blocks.end(), 0);
    for (std::uint64_t first = 2 * kBlocks; first < 2 * kBlocks + kBlocks / 2; first += each) {
      const auto fresh = hashes_from(first, each);
      const auto saved = spend("publish", [&] {
        return core().publish(
            {rig_->next_operation(kEngine), rig_->registration(0), GroupId(0), blocks, fresh}, now_);
      });
      expect(saved.ok() && saved->accepted == each);
      turns("publish_turn");
      spend("commit", [&] {
        rig_->drain(now_);
        return true;
      });
      turns("publish_turn");
    }
    return ok_status();
  }

  std::vector<BlockHash> list_;
  std::unique_ptr<CoreRig> rig_;
  TimePoint now_;
  std::map<std::string, Duration> longest_;
  std::uint32_t failed_line_ = 0;
};

}  // namespace

Status run_longest_turns(const Options& options) {
  constexpr const char* kName = "longest_turn";
  if (!options.wants(kName)) return ok_status();
  pin_thread(usable_cpus()[0]);
  keep_heap();  // as the Manager does
  std::vector<Run> runs;
  std::map<std::string, std::vector<double>> figures;
  for (int i = 0; i < options.runs; ++i) {
    TurnBench bench;
    ORBITKV_RETURN_IF_ERROR(bench.run());
    Run run;
    for (const auto& [what, longest] : bench.longest()) {
      figures[what].push_back(static_cast<double>(longest.ns) / 1000);
      run.p50 = run.p99 = std::max(run.p99, longest);
    }
    runs.push_back(run);
  }
  Case line{"query", kName, {}, {}, kBlocks, {}, false, {}};
  for (const auto& [what, us] : figures) line.extras.push_back({what + "_us", std::to_string(median(us))});
  report(line, runs, options);
  return ok_status();
}

}  // namespace orbitkv::bench
