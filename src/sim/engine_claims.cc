// Claims of an engine: what of a list all of its ranks can restore, or none.
#include <algorithm>
#include <utility>

#include "sim/engine.h"
#include "sim/group_claim.h"
#include "sim/world.h"

namespace orbitkv::sim {
namespace {
constexpr std::size_t kMostClaims = 4;
}  // namespace

// Each engine has two coordinators, and so no session meets more than it remembers.
void Engine::claim(const Action& action) {
  if (!usable()) return;
  std::erase_if(claims_, [](const auto& each) { return each->over(); });
  const std::uint64_t word = action.words[3];
  if (!claims_.empty() && (word % 4 == 0 || claims_.size() == kMostClaims)) {
    const std::shared_ptr<GroupClaim> one = claims_[action.words[1] % claims_.size()];
    return word >> 8 & 1 ? one->give_up() : one->meddle(action.words[2]);
  }
  GroupClaim::Wanted wanted;
  if (word >> 16 & 1) {
    const auto recovery = recovery_of(action);
    wanted.kind = wire::InterestKind::kRecovery;
    wanted.origin = recovery->origin;
    wanted.boundary = recovery->boundary;
    for (Recovery::Range& range : recovery->ranges)
      wanted.ranges.push_back({range.group, std::move(range.blocks)});
  } else {
    wanted.ranges.push_back({(word >> 8) % space().groups.size(), pick_blocks(action)});
  }
  std::vector<Engine*> engines{this};
  for (std::size_t i = 0; word >> 17 & 1 && engines.size() == 1 && i < world_.engines().size(); ++i) {
    Engine& other = world_.engine((action.words[2] >> 16) + i);
    if (&other != this && other.plan_.space == plan_.space && other.usable()) engines.push_back(&other);
  }
  const std::uint64_t coordinator = 4 * plan_.index + 2 * (word >> 18 & 1) + 1;
  const InterestId id(coordinator << 32 | ++last_claim_);
  claims_.push_back(std::make_shared<GroupClaim>(world_, id, std::move(engines), std::move(wanted)));
  claims_.back()->begin();
}

void Engine::carry(const wire::Buffer& frame, Process::Reply reply) {
  const bool submits = wire::decode_interest_submit(frame).ok();
  scheduler().call(
      submits ? wire::Opcode::kSubmitInterest : wire::Opcode::kInterest,
      [frame](wire::Buffer& out) { out.insert(out.end(), frame.begin(), frame.end()); },
      [this, reply = std::move(reply), alive = alive_, generation = generation_](const auto& answer) {
        if (*alive == generation) reply(answer);
      });
}

void Engine::restore_claimed(const Claimed& what, const RankEnded& ended) {
  auto work = std::make_shared<Work>();
  work->group = what.group;
  work->blocks = what.blocks;
  work->pages = take_pages(work->group, what.blocks.size());
  if (work->pages.size() < what.blocks.size()) {
    for (const std::uint32_t page : work->pages) give_page(work->group, page);
    for (const std::uint16_t rank : what.ranks) ended(rank, {true, false, 0, "no page is free"});
    return;
  }
  Job job;
  job.kind = model::PlanKind::kRestore;
  job.group = group(work->group).id;
  job.lease = what.lease;
  job.pages = work->pages;
  work->ranks = static_cast<std::uint32_t>(what.ranks.size());
  work->ended = ended;
  if (what.ranks.empty())
    for (const std::uint32_t page : work->pages) give_page(work->group, page);
  for (const std::uint16_t rank : what.ranks) start_rank(work, rank, job);
}

}  // namespace orbitkv::sim
