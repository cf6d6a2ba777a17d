// The SSD behind the core: puts ssd::Store and ssd::Admission behind cache::Tier, maps the
// slabs for their I/O, and hands the store's events to the core. Owned by the Manager and
// used on its core thread, as all parts of it are; only Io has threads of its own.
// It must outlive the core, and the pool must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "cache/core.h"
#include "cache/tier.h"
#include "mem/kept_table.h"
#include "mem/pool_mapping.h"
#include "ssd/admission.h"
#include "ssd/io.h"
#include "ssd/store.h"

namespace orbitkv::daemon {

class SsdTier final : public cache::Tier {
 public:
  struct Options {
    ssd::StoreConfig store;
    ssd::IoKind io = ssd::IoKind::kAuto;
    ssd::IoOptions io_options;
    ssd::AdmissionConfig admission;
  };
  // Opens or makes the store, which reads what it holds in turns of poll() until it is ready(): a
  // block is not found before, and the store takes none, as when it is busy.
  // Errors name path and remedy.
  static Result<std::unique_ptr<SsdTier>> open(const Options& options);
  // The same over an Io that is there already; Options' io and io_options mean nothing.
  static Result<std::unique_ptr<SsdTier>> open(const Options& options, std::unique_ptr<ssd::Io> io);

  std::uint32_t unit() const { return store_->unit(); }  // for mem::PoolConfig
  // The pool that slots come from; once, before the core is made.
  void use_pool(const mem::Pool& pool) { mapping_.emplace(pool); }
  // A slab that has just been offered: mapped, and made known to the device. What cannot be
  // mapped is tried again by map_waiting(); until then its blocks are neither read nor written.
  void add_slab(const mem::SlabInfo& slab);
  void map_waiting();
  // No transfer with it is under way, and none will come: the device forgets it, then it is
  // unmapped.
  void remove_slab(SlabSlot slab);

  int completion_fd() const { return io_->completion_fd(); }
  bool active() const { return store_->active(); }
  TimePoint due() const;  // poll() at the latest then
  // No load begins any more: kBusy.
  void stop_loads() { loads_stopped_ = true; }
  // The store's events of now, told to the core. Called in turns of the loop, not by the core.
  // False: there were none, and nothing else can be done before the device has ended something.
  bool poll(cache::Core& core, TimePoint now);
  bool ready() const { return store_->ready(); }

  // ---- for the operator ----
  ssd::Store& store() { return *store_; }
  const ssd::Store& store() const { return *store_; }
  ssd::AdmissionStats admission_stats() const { return admission_.stats(); }
  const char* io_name() const { return io_->name(); }
  // All that this process has locked, as one number; 0: there are files that only it can open.
  mem::DeviceFiles files() const;
  std::string opened_text() const;   // what there is, for the log at the start
  std::string opening_text() const;  // "12 of 90 segments, about 3 s left"; while it is not ready
  // Look-ups of blocks that DRAM had not, while it was not ready: all of them misses.
  std::uint64_t missed_unready() const { return missed_unready_; }
  bool asked_for_any() const { return asked_for_any_; }  // an engine has registered since the start
  // Drops of namespaces that have become durable, or could not, since the last call.
  std::vector<ssd::StoreEvent> take_flushed() { return std::exchange(flushed_, {}); }

  // ---- cache::Tier ----
  cache::TierSpace open_space(const model::RankRegistration& rank, GroupId group) override;
  cache::TierSpace reopen_space(const Kind& kind) override;
  void close_space(cache::TierSpace space) override;
  void find(cache::TierSpace space, std::span<const BlockHash> hashes,
            std::span<cache::TierRef> out) override;
  Result<cache::TransferId> load(const Key& key, cache::TierRef record,
                                 std::span<const mem::Extent::Words> slots,
                                 std::span<cache::LoadedSlot> slots_out) override;
  Result<cache::TransferId> store(const Key& key, std::span<const cache::SlotWords> slots) override;
  void suspect(const Key& key, const cache::LoadedSlot& first_shard) override;
  void asked(cache::TierSpace space, const Asked& blocks, const cache::TierContext& first) override;
  Answer sealed(const Key& key, ByteCount bytes) override;
  Answer leaving(const Key& key, ByteCount bytes) override;

 private:
  SsdTier(std::unique_ptr<ssd::Io> io, const ssd::AdmissionConfig& admission)
      : io_(std::move(io)), admission_config_(admission), admission_(admission) {}
  ssd::AdmissionKey admission_key(const Key& key) const;
  static Answer answer(ssd::Verdict verdict);
  bool map(const mem::SlabInfo& slab);
  bool mapped(const mem::Extent::Words& words) const {
    return unmapped_.empty() || !mapping_->slab(words.slab).empty();
  }
  void warn_of_budget(const ssd::SpaceShape& shape) const;
  void charge_copies(TimePoint now);

  // A write under way.
  struct Charged {
    ssd::AdmissionKey key;
    ByteCount bytes;
  };

  std::optional<mem::PoolMapping> mapping_;  // goes last: store_ and io_ wait for the device
  std::unique_ptr<ssd::Io> io_;
  std::unique_ptr<ssd::Store> store_;
  const ssd::AdmissionConfig admission_config_;
  ssd::Admission admission_;
  std::unordered_map<ssd::TransferId, Charged> writes_;
  std::vector<mem::SlabInfo> unmapped_;
  ByteCount copies_charged_;  // of the store's, when it reclaims
  bool asked_for_any_ = false, loads_stopped_ = false;
  bool told_ready_ = false;  // the core
  bool held_up_ = false;     // a fault: the last turn read nothing
  std::uint64_t missed_unready_ = 0;
  std::vector<ssd::StoreEvent> events_;  // of the poll() at hand
  std::vector<ssd::StoreEvent> flushed_;
  std::vector<ssd::StoredRef> found_;  // of the find() at hand
  std::vector<ssd::SlotMemory> slots_;
};

}  // namespace orbitkv::daemon
