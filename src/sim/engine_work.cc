// Saves and restores of an engine, and what is checked when they have ended.
#include <utility>

#include "sim/engine.h"
#include "sim/world.h"

namespace orbitkv::sim {

std::vector<BlockNumber> Engine::pick_blocks(const Action& action) const {
  const auto& config = world_.config();
  const auto chain = static_cast<std::uint32_t>(action.words[1] % config.chains);
  const auto count = static_cast<std::uint32_t>(1 + action.words[2] % config.chain_blocks);
  std::vector<BlockNumber> blocks;
  for (std::uint32_t i = 0; i < count; ++i) blocks.push_back(block_at(chain, i));
  return blocks;
}

// Of one group, or of all of them, as a prefill does it.
void Engine::publish(const Action& action) {
  if (!usable()) return;
  std::vector<BlockNumber> blocks = pick_blocks(action);
  // Mostly whole prefixes; sometimes what a prefill adds to one.
  if (action.words[3] % 4 == 0 && blocks.size() > 1)
    blocks.erase(blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(blocks.size() / 2));
  if ((action.words[3] >> 16) % 8 < 3)
    for (std::size_t g = 0; g < space().groups.size(); ++g) publish_group(g, blocks);
  else
    publish_group((action.words[3] >> 8) % space().groups.size(), blocks);
}

void Engine::publish_group(std::size_t place, const std::vector<BlockNumber>& blocks) {
  auto work = std::make_shared<Work>();
  work->save = true;
  work->group = place;
  work->blocks = blocks;
  work->pages = take_pages(work->group, work->blocks.size());
  work->blocks.resize(work->pages.size());
  if (work->pages.empty()) return;
  Job job;
  job.group = group(work->group).id;
  job.pages = work->pages;
  for (const BlockNumber block : work->blocks) job.hashes.push_back(hash_of(block));
  const auto ranks = static_cast<std::uint16_t>(group(work->group).replicated ? 1 : space().world);
  work->ranks = ranks;
  for (std::uint16_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < work->pages.size(); ++i)
      workers_[rank]->memory()->fill(
          work->group, work->pages[i],
          content_of({plan_.space, job.group, work->blocks[i], shard_of(work->group, rank)}));
  }
  world_.say("engine %u publishes %zu blocks from %llx on, group %zu", plan_.index, work->blocks.size(),
             static_cast<unsigned long long>(work->blocks.front()), work->group);
  for (std::uint16_t rank = 0; rank < ranks; ++rank) start_rank(work, rank, job);
  if (world_.plant() == Plant::kEarlyPages)
    for (const std::uint32_t page : work->pages)
      workers_[0]->memory()->fill(work->group, page, world_.filling());
}

void Engine::restore(const Action& action) {
  if (!usable() || leases_.empty()) return;
  Held& lease = leases_[action.words[1] % leases_.size()];
  auto work = std::make_shared<Work>();
  work->group = lease.group;
  const std::uint16_t only = static_cast<std::uint16_t>((action.words[2] >> 8) % space().world);
  const bool all = action.words[2] % 8 != 0;
  std::vector<std::uint16_t> ranks;
  const std::uint32_t first = lease.consumed[all ? 0 : only];
  for (std::uint16_t rank = 0; rank < space().world; ++rank)
    if ((all || rank == only) && lease.consumed[rank] == first) ranks.push_back(rank);
  const std::uint32_t left = static_cast<std::uint32_t>(lease.blocks.size()) - first;
  if (left == 0 || ranks.empty()) return;
  const std::uint32_t count =
      action.words[2] % 3 == 0 ? 1 + static_cast<std::uint32_t>(action.words[3] % left) : left;
  work->pages = take_pages(work->group, count);
  if (work->pages.size() < count) {
    for (const std::uint32_t page : work->pages) give_page(work->group, page);
    return;
  }
  work->blocks.assign(lease.blocks.begin() + first, lease.blocks.begin() + first + count);
  Job job;
  job.kind = model::PlanKind::kRestore;
  job.group = group(work->group).id;
  job.lease = lease.id;
  job.first = first;
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool hole = (action.words[3] >> (16 + i % 32) & 3) == 3;
    if (hole) give_page(work->group, std::exchange(work->pages[i], kHole));
  }
  job.pages = work->pages;
  world_.say("engine %u restores %u blocks of lease %s from %u on", plan_.index, count,
             short_name(lease.id).c_str(), first);
  bool over = true;
  for (const std::uint16_t rank : ranks) lease.consumed[rank] = first + count;
  for (const std::uint32_t consumed : lease.consumed) over &= consumed == lease.blocks.size();
  if (over) forget_lease(lease.id);
  work->ranks = static_cast<std::uint32_t>(ranks.size());
  for (const std::uint16_t rank : ranks) start_rank(work, rank, job);
}

// As an engine does that was told early: before all of it has come.
void Engine::restore_soon(LeaseId id) {
  world_.events().after(microseconds(5), [this, id, alive = alive_, generation = generation_] {
    if (*alive != generation) return;
    for (std::size_t i = 0; i < leases_.size(); ++i) {
      Action whole;
      whole.words = {0, i, 1, 0};
      if (leases_[i].id == id) return restore(whole);
    }
  });
}

void Engine::start_rank(const std::shared_ptr<Work>& work, std::uint16_t rank, Job job) {
  workers_[rank]->run(std::move(job), [this, work, rank, alive = alive_,
                                       generation = generation_](const client::OperationStatus& status) {
    if (*alive == generation) on_rank(work, rank, status);
  });
}

// The rank's pages are the engine's again, and it uses them at once.
void Engine::on_rank(const std::shared_ptr<Work>& work, std::uint16_t rank,
                     const client::OperationStatus& status) {
  const auto memory = workers_[rank]->memory();
  world_.say("engine %u rank %u: %s of %zu blocks %s %s", plan_.index, rank, work->save ? "save" : "restore",
             work->pages.size(), status.success ? "done" : "failed:", status.message.c_str());
  if (!work->save && status.success) check_restored(*work, rank, status);
  for (const std::uint32_t page : work->pages) {
    if (page == kHole) continue;
    if (memory->copies(work->group, page) > 0)
      world_.fail("pages", "page " + std::to_string(page) + " is the engine's again while a copy of it runs");
    memory->fill(work->group, page, world_.filling());
  }
  if (--work->ranks == 0) {
    for (const std::uint32_t page : work->pages)
      if (page != kHole) give_page(work->group, page);
  }
  if (work->ended) work->ended(rank, status);
}

void Engine::check_restored(const Work& work, std::uint16_t rank, const client::OperationStatus& status) {
  const auto memory = workers_[rank]->memory();
  std::uint32_t wanted = 0;
  for (std::size_t i = 0; i < work.pages.size(); ++i) {
    if (work.pages[i] == kHole) continue;
    ++wanted;
    const Content content =
        content_of({plan_.space, group(work.group).id, work.blocks[i], shard_of(work.group, rank)});
    if (!memory->holds(work.group, work.pages[i], content))
      return world_.fail("bytes", "rank " + std::to_string(rank) + " of engine " +
                                      std::to_string(plan_.index) + " restored block " +
                                      std::to_string(work.blocks[i]) + " of group " +
                                      std::to_string(work.group) + " with other bytes than were published");
  }
  if (status.blocks != wanted)
    world_.fail("bytes", "a restore of " + std::to_string(wanted) + " blocks says that it copied " +
                             std::to_string(status.blocks));
}

}  // namespace orbitkv::sim
