#include "daemon/keep.h"

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/fault.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "daemon/kept_names.h"
#include "shm/bootstrap.h"

namespace orbitkv::daemon {

using namespace kept;

namespace {

constexpr std::uint32_t kFurtherPerBlock = cache::kFurtherSlotsPerBlock;
constexpr Duration kTableAgain = seconds(5);
constexpr Duration kSignEvery = milliseconds(200);

// What follows the kind: numbers in hexadecimal, with a dash between two.
bool parse(std::string_view name, std::string_view kind, std::vector<std::uint64_t>& out, std::size_t count) {
  if (!name.starts_with(kind)) return false;
  name.remove_prefix(kind.size());
  out.clear();
  for (;;) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number, 16);
    if (error != std::errc{}) return false;
    out.push_back(number);
    name.remove_prefix(static_cast<std::size_t>(end - name.data()));
    if (name.empty()) return out.size() == count;
    if (name[0] != '-') return false;
    name.remove_prefix(1);
  }
}

std::uint32_t both(std::uint32_t wanted, std::uint32_t configured) {
  return wanted << 16 | configured;
}

}  // namespace

// ---- the start ----

void Keep::starting(const char* what) {
  const TimePoint now = monotonic_now();
  const bool other = what != nullptr && doing_ != what;
  if (serves_ || (!other && now - said_ < kSignEvery)) return;
  if (other) doing_ = what;
  said_ = now;
  store_->starting(doing_);
}

Status Keep::claim(const std::string& socket) {
  ORBITKV_ASSIGN_OR_RETURN(taken_, store_->take());
  const auto stored =
      std::find_if(taken_->begin(), taken_->end(), [](auto& each) { return each.name == kClaim; });
  if (stored != taken_->end()) {
    UniqueFd fd = std::move(stored->fd);
    taken_->erase(stored);
    if (shm::holds_claim(fd, socket)) {
      claim_ = std::move(fd);
      return ok_status();
    }
    forget(std::string(kClaim));
  }
  ORBITKV_ASSIGN_OR_RETURN(claim_, shm::claim_path(socket, shm::Claimant::kStore));
  (void)put(std::string(kClaim), claim_);
  return ok_status();
}

Result<Keep::Found> Keep::find(std::uint32_t unit, mem::DeviceFiles locked, Start start) {
  locked_ = locked;
  starting("asks for what is kept");
  auto found = taken_ ? Result<std::vector<FdStore::Named>>(std::move(*taken_)) : store_->take();
  taken_.reset();
  starting("reads the table of what is kept");
  // Beside a store that was not read the names of this life would be taken.
  if (!found.ok() && start == Start::kSuccessor && found.error().code() == Code::kReject)
    return recompute(found.error().message());
  if (!found.ok()) return found.error();
  sort_in(std::move(*found));
  const bool anything = !tables_.empty() || !memories_.empty();
  const std::string why = read_tables(unit);
  if (!pool_ && anything && start == Start::kSuccessor) return recompute(why);
  if (!pool_ && anything)
    ORBITKV_WARN("cold start: %s; what an earlier Manager left is let go of", why.c_str());
  let_go_of_all();
  return pool_ ? Found::kKept : anything ? Found::kLetGo : Found::kNothing;
}

// But for what is gone on with.
void Keep::let_go_of_all() {
  for (const mem::KeptMemory& each : memories_) forget(name_of(kSlab, each.name.value));
  memories_.clear();
  if (pool_) return;
  for (const auto& [number, fd] : tables_) forget(name_of(kTable, number));
  tables_.clear();
  for (const auto& [epoch, session] : old_sessions_) close_session(epoch);
  forget_processes([](ProcessId) { return false; });
  old_sessions_.clear();
}

void Keep::sort_in(std::vector<FdStore::Named> found) {
  std::vector<std::uint64_t> numbers;
  for (FdStore::Named& each : found) {
    if (parse(each.name, kTable, numbers, 1)) {
      tables_.emplace(numbers[0], std::move(each.fd));
    } else if (parse(each.name, kSlab, numbers, 1)) {
      memories_.push_back({SlabId(static_cast<std::uint32_t>(numbers[0])), std::move(each.fd)});
    } else if (parse(each.name, kSession, numbers, 2)) {
      const Epoch epoch(numbers[1]);
      old_sessions_[epoch].memory = std::move(each.fd);
      sessions_[epoch].id = SessionId(static_cast<std::uint32_t>(numbers[0]));
    } else if (parse(each.name, kProcess, numbers, 1)) {
      const Epoch epoch(numbers[0]);
      OldSession& session = old_sessions_[epoch];
      session.unbounded = true;
      if (!session.process.valid()) session.process = std::move(each.fd);
      sessions_.try_emplace(epoch);
    } else if (parse(each.name, kProcess, numbers, 2)) {
      const Epoch epoch(numbers[0]);
      old_sessions_[epoch].process = std::move(each.fd);
      sessions_[epoch].below = SlabId(static_cast<std::uint32_t>(numbers[1]));
    } else {
      forget(each.name);
    }
  }
  // One that has got its bound, and whose first name had not gone yet when that life ended.
  for (auto& [epoch, session] : old_sessions_)
    if (sessions_[epoch].below.value != 0 && std::exchange(session.unbounded, false))
      forget(name_of(kProcess, epoch.value));
}

// The newest that is complete counts: one that is not was never gone on with. A newer one
// that cannot be read may have lent what an older one holds, so that none counts then.
std::string Keep::read_tables(std::uint32_t unit) {
  std::string why = "nothing was kept";
  bool decided = false;
  for (auto it = tables_.rbegin(); it != tables_.rend(); ++it) {
    number_ = std::max(number_, it->first);
    auto table = fault_hit(FaultPoint::kManagerKeptFormat)
                     ? reject("the kept memory counts as of another format (ORBITKV_FAULT)")
                     : mem::KeptTable::open(std::move(it->second));
    if (!table.ok()) {
      if (!decided) why = table.error().message();
      decided = decided || table.error().code() != Code::kBusy;
      continue;
    }
    superseded_.push_back(std::move(*table));
    if (std::exchange(decided, true)) continue;
    auto pool = mem::scan_kept(superseded_.back(), memories_, unit, [this] { starting(); });
    if (pool.ok())
      pool_ = std::move(*pool);
    else
      why = pool.error().message();
  }
  if (!pool_) return why;
  wanted_ = pool_->wanted;
  for (const auto& slab : pool_->slabs) stored_.insert(slab.name);
  return {};
}

Result<mem::KeptTable*> Keep::make_table(mem::Pool& pool, std::uint32_t max_blocks, std::uint32_t unit) {
  const std::uint64_t further =
      std::min<std::uint64_t>(std::uint64_t{kFurtherPerBlock} * max_blocks, 0xFFFFFFF0u);
  ORBITKV_ASSIGN_OR_RETURN(
      auto made, mem::KeptTable::create({pool.id(), unit, max_blocks, static_cast<std::uint32_t>(further),
                                         limits::kKeptPending}));
  table_ = std::move(made);
  pool.keep_in(*table_);
  table_->set_device_files(locked_);
  if (pool_) {
    // Before anything can be lent: a slab that is tainted stays so.
    for (std::size_t i = 0; i < pool_->slabs.size(); ++i) {
      const auto& slab = pool_->slabs[i];
      const auto state = slab.tainted ? mem::KeptSlabState::kTainted : mem::KeptSlabState::kLive;
      table_->put_slab(SlabSlot(static_cast<std::uint32_t>(i)),
                       {slab.name, slab.bytes, slab.huge, slab.node, state});
    }
    for (const mem::KeptRetired& each : pool_->retired) table_->put_retired(each);
    table_->set_wanted(pool_->wanted);
  }
  old_grants_.emplace(pool, *table_, stalls_);
  return &*table_;
}

void Keep::adopt(cache::Core& core, const NameProcess& name) {
  core_ = &core;
  starting("takes over the blocks that are kept");
  if (pool_) {
    name_processes(name);
    adopt_sessions();
    const bool device_ended = locked_.value != 0 && locked_ == pool_->device_files;
    old_grants_->adopt(pool_->lent, device_ended ? OldGrants::Device::kEnded : OldGrants::Device::kUnknown);
    blocks_ = core.adopt(*pool_, monotonic_now(), old_grants_->reads(), [this] { starting(); });
  }
  table_->set_complete();
  if (pool_) fault_hit(FaultPoint::kManagerAdopted);
  table_stored_ = put(table_name(), table_->memory());
  if (!pool_) return;
  say_adopted();
  pool_.reset();
}

// The store may lose or delay what it is told: no life after this one may go on with what stood there
// before this one lends.
void Keep::ready() {
  for (mem::KeptTable& old : superseded_) old.set_superseded();
  superseded_.clear();
  for (const auto& [number, fd] : tables_) forget(name_of(kTable, number));
  tables_.clear();
  tick();
  serves_ = true;
  store_->ready();
}

void Keep::say_adopted() const {
  const mem::KeptPool::Counts& c = pool_->counts;
  ORBITKV_INFO("%llu blocks of %zu slabs are kept from an earlier Manager; %zu extents were lent",
               static_cast<unsigned long long>(blocks_), pool_->slabs.size(), pool_->lent.size());
  if (c.wrong + c.misplaced + c.overlapping + c.incomplete + c.nameless > 0)
    ORBITKV_WARN(
        "not kept: %llu records that do not verify, %llu out of bounds, %llu that overlap, %llu of "
        "incomplete "
        "blocks, %llu without a namespace",
        static_cast<unsigned long long>(c.wrong), static_cast<unsigned long long>(c.misplaced),
        static_cast<unsigned long long>(c.overlapping), static_cast<unsigned long long>(c.incomplete),
        static_cast<unsigned long long>(c.nameless));
}

void Keep::stop() {
  old_grants_.reset();
  core_ = nullptr;
}

// ---- descriptors ----

bool Keep::put(const std::string& name, const UniqueFd& fd) {
  const Status stored = store_->put(name, fd);
  if (stored.ok()) return true;
  ++not_kept_;
  if (!std::exchange(said_not_kept_, true))
    ORBITKV_WARN("not all will outlive this process: %s", stored.error().message().c_str());
  return false;
}

bool Keep::offer(const mem::SlabInfo& slab, const UniqueFd& memory) {
  if (stored_.contains(slab.id)) return true;  // of an earlier life
  if (!put(name_of(kSlab, slab.id.value), memory)) {
    lacking_.insert(slab.id);
    return false;
  }
  lacking_.erase(slab.id);
  stored_.insert(slab.id);
  table_->put_slab(slab.slot, {slab.id, slab.bytes, slab.huge, slab.node, mem::KeptSlabState::kLive});
  return true;
}

void Keep::abandon(const mem::KeptRetired& slab) {
  table_->put_retired(slab);
  lacking_.erase(slab.name);
  if (stored_.erase(slab.name) > 0)
    going_.emplace(slab.name, store_->remove(name_of(kSlab, slab.name.value)));
}

bool Keep::let_go(SlabId slab) {
  const auto going = going_.find(slab);
  if (going != going_.end() && !store_->removed(going->second)) return false;
  if (going != going_.end()) going_.erase(going);
  table_->drop_retired(slab);
  return true;
}

void Keep::note_wanted(std::uint32_t wanted, std::uint32_t configured) {
  const std::uint32_t word = both(wanted, configured);
  if (noted_ == word || !table_) return;
  noted_ = word;
  table_->set_wanted(word);
}

std::optional<std::uint32_t> Keep::wanted(std::uint32_t configured) const {
  if (!wanted_ || (*wanted_ & 0xFFFF) != configured || *wanted_ >> 16 == 0) return std::nullopt;
  return *wanted_ >> 16;
}

// ---- turns ----

void Keep::poll() {
  store_->poll();
  for (const std::string& name : store_->refused()) {
    ++not_kept_;
    if (name == table_name()) table_stored_ = false;
    std::vector<std::uint64_t> slab;
    if (parse(name, kSlab, slab, 1)) {
      const SlabId id(static_cast<std::uint32_t>(slab[0]));
      if (stored_.erase(id) > 0) lacking_.insert(id);  // else it is abandoned by now
    }
    if (!std::exchange(said_not_kept_, true))
      ORBITKV_WARN("not all will outlive this process: the %s is full, and did not take %s", store_->kind(),
                   name.c_str());
  }
}

void Keep::tick() {
  poll();
  if (!old_grants_ || core_ == nullptr) return;
  store_table_again();
  old_grants_->settle(monotonic_now());
  for (const mem::KeptReader reader : old_grants_->take_read()) core_->end_kept_read(reader);
  for (const Epoch epoch : old_grants_->take_ended()) close_session(epoch);
  relieve();
}

std::string Keep::table_name() const {
  return name_of(kTable, number_ + 1);
}

// Without it all the rest is kept for nothing.
void Keep::store_table_again() {
  const TimePoint now = monotonic_now();
  if (table_stored_ || !store_->alive() || now < table_again_) return;
  table_again_ = now + kTableAgain;
  table_stored_ = store_->put(table_name(), table_->memory()).ok();
}

// The table, and a slab that it speaks of, if there is one. Where all have retired nothing is missing.
bool Keep::all_stored() const {
  return table_stored_ && (lacking_.empty() || !stored_.empty());
}

Status Keep::may_succeed() const {
  if (!store_->alive())
    return busy(format_text("the %s is gone: nothing is kept, and upgrades need a restart", store_->kind()));
  if (all_stored()) return ok_status();
  return busy(
      format_text("the %s has not taken what the next Manager would go on with: it would start cold; see "
                  "kept.not_kept of orbitkv status",
                  store_->kind()));
}

Status Keep::succeed(const FdStore::Successor& successor) {
  ORBITKV_RETURN_IF_ERROR(may_succeed());
  return store_->succeed(successor);
}

// What engines that stand still hold is not taken while nobody misses it.
void Keep::relieve() {
  if (!old_grants_->stalled()) return refused_.reset();
  const cache::CoreStats stats = core_->stats();
  const std::uint64_t refused = stats.dropped + stats.loads_refused_memory;
  if (refused > refused_.value_or(refused)) {
    ORBITKV_WARN("engines of an earlier Manager stand still, and memory is short: their slabs are replaced");
    old_grants_->relieve();
  }
  refused_ = refused;
}

Keep::View Keep::view() const {
  View view{store_->kind(), store_->alive(), store_->alive() && all_stored(), blocks_, 0, not_kept_, {}};
  if (!old_grants_) return view;
  view.old_grants = old_grants_->pending();
  view.old = old_grants_->view();
  return view;
}

}  // namespace orbitkv::daemon
