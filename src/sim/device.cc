#include "sim/device.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "device/host/host_copier.h"
#include "sim/manager_node.h"
#include "sim/world.h"

namespace orbitkv::sim {
namespace {

// The copier of a process: batches become jobs of the device.
class SimCopier final : public device::Copier {
 public:
  SimCopier(World& world, SimDevice& device, SimDevice::Owner& owner)
      : world_(world), device_(device), owner_(owner) {}
  ~SimCopier() override { world_.dma().orphan(owner_.process()); }

  std::string name() const override { return "simulated"; }
  Result<device::CopyTicket> submit(device::CopyBatch batch) override;
  bool enqueued(device::CopyTicket) const override { return true; }
  std::optional<device::CopyEnd> poll(device::CopyTicket ticket) override;

 private:
  struct Batch {
    std::shared_ptr<CopyJob> job;
    std::vector<device::GroupCopy> groups;
  };
  World& world_;
  SimDevice& device_;
  SimDevice::Owner& owner_;
  std::map<std::uint64_t, Batch> batches_;
};

Result<device::CopyTicket> SimCopier::submit(device::CopyBatch batch) {
  if (owner_.doomed()) return busy("the process has died");
  for (const device::GroupCopy& copy : batch.groups) ORBITKV_RETURN_IF_ERROR(device::validate(copy));
  if (batch.direction == device::Direction::kRestore)
    ORBITKV_RETURN_IF_ERROR(device::validate_destinations(batch.groups));
  CopyJob job;
  job.process = owner_.process();
  job.direction = batch.direction;
  job.entry = owner_.entry();
  job.memory = owner_.memory();
  job.view = owner_.view();
  job.session = owner_.epoch();
  job.life = owner_.life();
  for (const device::GroupCopy& copy : batch.groups) {
    const std::uint64_t bytes = model::slot_layout(copy.group->shape).slot_bytes;
    std::size_t group = 0;
    while (&job.entry->groups[group].geometry != copy.group) ++group;
    for (const device::SlotCopy& slot : copy.slots) {
      const SimDevice::Mapping* at = device_.find(slot.image);
      if (!at) {
        world_.fail("slabs", "a copy to or from an address that its process has not mapped");
        return reject("no slab is mapped there");
      }
      const auto offset = static_cast<std::uint64_t>(slot.image - at->bytes.data());
      CopyItem item{copy.group,
                    group,
                    slot,
                    {at->view->pool, at->name, offset, at->view->rounded(bytes)},
                    at->bytes.data()};
      item.slot.image = at->view->slabs.at(at->name).base() + offset;
      job.items.push_back(item);
    }
  }
  Batch kept{world_.dma().start(std::move(job), [owner = &owner_] { owner->copy_ended(); }), batch.groups};
  const device::CopyTicket ticket{kept.job->id};
  batches_.emplace(ticket.value, std::move(kept));
  return ticket;
}

std::optional<device::CopyEnd> SimCopier::poll(device::CopyTicket ticket) {
  const auto it = batches_.find(ticket.value);
  if (it == batches_.end() || !it->second.job->ended) return std::nullopt;
  const CopyJob& job = *it->second.job;
  device::CopyEnd end{ok_status(), {}, true};
  if (job.fails_at) end.status = recompute("the device reports an error");
  std::size_t next = 0;
  for (const device::GroupCopy& copy : it->second.groups) {
    for (device::SlotCopy& slot : copy.slots) {
      slot.digest = job.items[next].slot.digest;
      slot.verified = job.items[next].slot.verified;
      ++next;
    }
    end.stats.fragments += copy.slots.size();
  }
  batches_.erase(it);
  return end;
}

std::string who(const CopyJob& job) {
  return std::string(job.direction == device::Direction::kSave ? "save " : "restore ") +
         std::to_string(job.id) + " of process " + std::to_string(job.process);
}
Use use_of(const CopyJob& job) {
  return job.direction == device::Direction::kSave ? Use::kWrite : Use::kRead;
}

}  // namespace

// ---- the device ----

void SimDevice::add_slab(std::span<std::byte> slab) {
  ORBITKV_CHECK(expected_.has_value(), "a slab is mapped that nobody offered");
  slabs_.push_back({*expected_, owner_.view(), slab});
  expected_.reset();
}

void SimDevice::remove_slab(std::span<std::byte> slab) {
  std::erase_if(slabs_, [&](const Mapping& known) { return known.bytes.data() == slab.data(); });
}

const SimDevice::Mapping* SimDevice::find(const std::byte* address) const {
  for (const Mapping& each : slabs_)
    if (address >= each.bytes.data() && address < each.bytes.data() + each.bytes.size()) return &each;
  return nullptr;
}

Result<std::unique_ptr<device::Copier>> SimDevice::new_copier(const device::CopierOptions&) {
  return std::unique_ptr<device::Copier>(std::make_unique<SimCopier>(world_, *this, owner_));
}

// ---- copies ----

Dma::Dma(World& world) : world_(world), host_(device::make_host_copier()) {}

std::shared_ptr<CopyJob> Dma::start(CopyJob job, std::function<void()> done) {
  job.id = ++last_;
  if (std::exchange(fail_next_, false)) job.fails_at = job.items.size() / 2;
  auto shared = std::make_shared<CopyJob>(std::move(job));
  if (world_.plant() == Plant::kSharedExtent && !jobs_.empty())
    shared->items[0].place = jobs_.begin()->second.first->items[0].place;
  begin(*shared);
  jobs_.emplace(shared->id, std::pair(shared, std::move(done)));
  const Duration first = std::exchange(slow_next_, std::nullopt).value_or(Duration{});
  world_.events().after(first, [this, shared] { step(shared); });
  world_.note(World::Note::kCopy, shared->id, shared->items.size());
  return shared;
}

// Of a session of another life the Manager knows nothing but that somebody may write.
void Dma::begin(CopyJob& job) {
  const ManagerNode& manager = world_.manager();
  job.stale = use_of(job) == Use::kRead && (!manager.alive() || job.life != manager.life());
  for (const CopyItem& item : job.items) {
    ++job.memory->copies(item.group, item.slot.block);
    if (job.stale) continue;
    if (job.life == manager.life() && !manager.lends(item.place))
      world_.fail("slabs", who(job) + " begins on slab " + std::to_string(item.place.slab.value) +
                               ", whose grants were taken back");
    // From the claim on: what a plan names is the client's until its receipt.
    if (const auto conflict = world_.ledger().take(item.place, use_of(job), who(job)))
      world_.fail("extents", *conflict);
  }
}

// What a dead engine reads may be given to others: nobody looks at what it gets.
void Dma::orphan(std::uint32_t process) {
  for (auto& [id, held] : jobs_) {
    CopyJob& job = *held.first;
    if (job.process != process || std::exchange(job.orphan, true)) continue;
    if (use_of(job) == Use::kWrite || job.stale) continue;
    for (const CopyItem& item : job.items) world_.ledger().leave(item.place, Use::kRead);
  }
}

std::vector<std::shared_ptr<const CopyJob>> Dma::make_stale() {
  std::vector<std::shared_ptr<const CopyJob>> reading;
  for (auto& [id, held] : jobs_) {
    CopyJob& job = *held.first;
    if (use_of(job) == Use::kWrite || job.orphan || std::exchange(job.stale, true)) continue;
    for (const CopyItem& item : job.items) world_.ledger().leave(item.place, Use::kRead);
    reading.push_back(held.first);
  }
  return reading;
}

bool Dma::running_on(std::uint32_t process, const std::byte* mapping) const {
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& running) {
    const CopyJob& job = *running.second.first;
    const auto there = [&](const CopyItem& item) { return item.mapping == mapping; };
    return job.process == process && std::any_of(job.items.begin(), job.items.end(), there);
  });
}

void Dma::step(const std::shared_ptr<CopyJob>& job) {
  if (job->next == job->items.size() || job->fails_at == job->next) return end(job);
  copy(*job, job->items[job->next++]);
  if (world_.plant() == Plant::kStrayCopy && !job->ended && !job->orphan) {
    job->ended = true;
    jobs_.at(job->id).second();
  }
  auto random = world_.random(0xC0B1u, job->id, job->next);
  const DurationRange& time = world_.config().copy;
  world_.events().after(random.between(time.least, time.most), [this, job] { step(job); });
}

void Dma::copy(CopyJob& job, CopyItem& item) {
  if (world_.plant() == Plant::kUnwrittenShard && job.direction == device::Direction::kSave) return;
  const device::GroupCopy one{item.geometry, {&item.slot, 1}};
  auto ticket = host_->submit({job.direction, {one}, {}, {}});
  ORBITKV_CHECK(ticket.ok() && host_->poll(*ticket), "the host copier copies at once");
  if (job.direction == device::Direction::kSave) {
    world_.ledger().written(job.memory->content(item.group, item.slot.block));
  } else if (world_.plant() == Plant::kWrongBytes && item.slot.verified && job.id % 8 == 7) {
    job.memory->damage(item.group, item.slot.block);
  }
}

// An orphan's claim has no receipt: what it wrote is never free again.
void Dma::end(const std::shared_ptr<CopyJob>& job) {
  job->ended = true;
  for (const CopyItem& item : job->items) {
    --job->memory->copies(item.group, item.slot.block);
    if (job->orphan || job->stale) continue;
    world_.ledger().leave(item.place, use_of(*job));
  }
  const auto done = std::move(jobs_.at(job->id).second);
  jobs_.erase(job->id);
  if (!job->orphan && world_.plant() != Plant::kStrayCopy) done();
}

}  // namespace orbitkv::sim
