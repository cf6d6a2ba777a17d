#include "daemon/keep.h"

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/fault.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"

namespace orbitkv::daemon {
namespace {

constexpr std::string_view kSlab = "slab-", kTable = "table-", kSession = "session-", kProcess = "process-";
constexpr std::uint32_t kFurtherPerBlock = cache::kFurtherSlotsPerBlock;

std::string name_of(std::string_view kind, std::uint64_t number) {
  return std::string(kind) + format_text("%llx", static_cast<unsigned long long>(number));
}
std::string session_name(SessionId session, Epoch epoch) {
  return std::string(kSession) +
         format_text("%x-%llx", session.value, static_cast<unsigned long long>(epoch.value));
}

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

void Keep::find(std::uint32_t unit) {
  auto found = store_->take();
  if (!found.ok()) return ORBITKV_WARN("cold start: %s", found.error().message().c_str());
  sort_in(std::move(*found));
  read_tables(unit);
  for (const mem::KeptMemory& each : memories_) forget(name_of(kSlab, each.name.value));
  memories_.clear();
  if (pool_) return;
  std::vector<Epoch> old;
  for (const auto& [epoch, session] : old_sessions_) old.push_back(epoch);
  for (const Epoch epoch : old) close_session(epoch);
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
      old_sessions_[Epoch(numbers[1])].memory = std::move(each.fd);
      sessions_[Epoch(numbers[1])] = SessionId(static_cast<std::uint32_t>(numbers[0]));
    } else if (parse(each.name, kProcess, numbers, 1)) {
      old_sessions_[Epoch(numbers[0])].process = std::move(each.fd);
    } else {
      forget(each.name);
    }
  }
}

// The newest that is complete counts: one that is not was never gone on with. A newer one
// that cannot be read may have lent what an older one holds, so that none counts then.
void Keep::read_tables(std::uint32_t unit) {
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
    auto pool = mem::scan_kept(superseded_.back(), memories_, unit);
    if (pool.ok())
      pool_ = std::move(*pool);
    else
      why = pool.error().message();
  }
  if (pool_) {
    wanted_ = pool_->wanted;
    for (const auto& slab : pool_->slabs) stored_.insert(slab.name);
    return;
  }
  if (!tables_.empty() || !memories_.empty())
    ORBITKV_WARN("cold start: %s; what an earlier Manager left is let go of", why.c_str());
  for (const auto& [number, fd] : tables_) forget(name_of(kTable, number));
  tables_.clear();
}

Result<mem::KeptTable*> Keep::make_table(mem::Pool& pool, std::uint32_t max_blocks, std::uint32_t unit) {
  const std::uint64_t further =
      std::min<std::uint64_t>(std::uint64_t{kFurtherPerBlock} * max_blocks, 0xFFFFFFF0u);
  ORBITKV_ASSIGN_OR_RETURN(
      auto made, mem::KeptTable::create({pool.id(), unit, max_blocks, static_cast<std::uint32_t>(further),
                                         limits::kKeptPending}));
  table_ = std::move(made);
  pool.keep_in(*table_);
  if (pool_) {
    // Before anything can be lent: a slab that is tainted stays so.
    for (std::size_t i = 0; i < pool_->slabs.size(); ++i) {
      const auto& slab = pool_->slabs[i];
      const auto state = slab.tainted ? mem::KeptSlabState::kTainted : mem::KeptSlabState::kLive;
      table_->put_slab(SlabSlot(static_cast<std::uint32_t>(i)),
                       {slab.name, slab.bytes, slab.huge, slab.node, state});
    }
    table_->set_wanted(pool_->wanted);
  }
  old_grants_.emplace(pool, *table_);
  return &*table_;
}

void Keep::adopt_sessions() {
  for (auto& [epoch, session] : old_sessions_) {
    auto memory = session.memory.valid()
                      ? shm::SessionMemory::attach(std::move(session.memory), sessions_[epoch], epoch)
                      : Result<shm::SessionMemory>(reject("its memory was not kept"));
    if (memory.ok()) {
      old_grants_->add_session(epoch, std::move(*memory), std::move(session.process));
    } else {
      ORBITKV_WARN("what a session of an earlier Manager has under way cannot be asked for: %s",
                   memory.error().message().c_str());
      close_session(epoch);
    }
  }
  old_sessions_.clear();
}

void Keep::adopt(cache::Core& core) {
  if (pool_) {
    adopt_sessions();
    old_grants_->adopt(pool_->lent);
    blocks_ = core.adopt(*pool_, monotonic_now());
  }
  table_->set_complete();
  if (pool_) fault_hit(FaultPoint::kManagerAdopted);
  put(name_of(kTable, number_ + 1), table_->memory());
  // The store may lose or delay what it is told: no life after this one may go on with what
  // stood there before this one lends.
  for (mem::KeptTable& old : superseded_) old.set_superseded();
  superseded_.clear();
  for (const auto& [number, fd] : tables_) forget(name_of(kTable, number));
  tables_.clear();
  if (!pool_) return;
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
  pool_.reset();
  old_grants_->settle();
  tick();
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

void Keep::open_session(SessionId session, Epoch epoch, const shm::SessionMemory& memory,
                        const UniqueFd& process) {
  table_->set_session(session, epoch);
  UniqueFd copy(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return;
  if (put(session_name(session, epoch), copy)) put(name_of(kProcess, epoch.value), process);
  sessions_[epoch] = session;
}

void Keep::close_session(Epoch epoch) {
  const auto session = sessions_.find(epoch);
  if (session != sessions_.end()) {
    forget(session_name(session->second, epoch));
    sessions_.erase(session);
  }
  forget(name_of(kProcess, epoch.value));
}

bool Keep::offer(const mem::SlabInfo& slab, const UniqueFd& memory) {
  if (stored_.contains(slab.id)) return true;  // of an earlier life
  if (!put(name_of(kSlab, slab.id.value), memory)) return false;
  stored_.insert(slab.id);
  table_->put_slab(slab.slot, {slab.id, slab.bytes, slab.huge, slab.node, mem::KeptSlabState::kLive});
  return true;
}

bool Keep::let_go(SlabId slab) {
  const auto going = going_.find(slab);
  if (going == going_.end() && stored_.erase(slab) == 0) return true;
  if (going == going_.end()) going_.emplace(slab, store_->remove(name_of(kSlab, slab.value)));
  if (!store_->removed(going_.at(slab))) return false;
  going_.erase(slab);
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
    if (!std::exchange(said_not_kept_, true))
      ORBITKV_WARN("not all will outlive this process: the %s is full, and did not take %s", store_->kind(),
                   name.c_str());
  }
}

void Keep::tick() {
  poll();
  if (!old_grants_) return;
  old_grants_->settle();
  for (const Epoch epoch : old_grants_->take_ended()) close_session(epoch);
}

Keep::View Keep::view() const {
  return {store_->kind(), store_->alive(), blocks_, old_grants_ ? old_grants_->pending() : 0, not_kept_};
}

}  // namespace orbitkv::daemon
