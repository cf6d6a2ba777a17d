#include "ssd/store.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/limits.h"
#include "base/readable.h"
#include "ssd/flushes.h"
#include "ssd/open_paths.h"
#include "ssd/reclaim.h"
#include "ssd/recovery.h"
#include "ssd/scrub.h"
#include "ssd/superblocks.h"
#include "ssd/sweep.h"
#include "ssd/unused_drop.h"

namespace orbitkv::ssd {
namespace {

constexpr std::size_t kResultsAPoll = 1024;
constexpr int kRoundsAPoll = 4;
constexpr Duration kBetweenLooks = seconds(10);   // at the names of files
constexpr Duration kOpenWait = milliseconds(50);  // of open(), between looks at stop_fd

}  // namespace

struct Store::Impl {
  Impl(const StoreConfig& config, Io& io, OpenedPaths&& opened)
      : unit(opened.unit),
        state(config, io, std::move(opened.paths)),
        tombstones(state.segments, config.tombstones),
        durability(state, [this](PathIndex path) { path_failed(path); }),
        writer(state, durability, tombstones),
        scrub(
            state, [this](StoredRef ref) { condemn(ref); },
            [this](StoredRef ref) { reader.device_failed(ref); }),
        reader(state,
               {[this](StoredRef ref) { scrub.suspect(ref); }, [this](StoredRef ref) { condemn(ref); }}),
        reclaim(state, durability, tombstones, writer, reader),
        superblocks(state, durability),
        flushes(state, durability, tombstones, writer),
        sweep(state) {
    state.uuid = opened.uuid;
    state.start_epoch(opened.epoch);
    missing = std::move(opened.missing);
    all_made = opened.all_made;
    superblocks.recovered(opened.drops, state.newest_life());
    recovery = std::make_unique<Recovery>(Recovery::Parts{state, tombstones, durability, !missing.empty()},
                                          opened.drops);
  }
  // The device has memory of every part.
  ~Impl() { state.io.drain(); }

  void condemn(StoredRef ref) { bury(ref, Loss::kCorrupt); }
  bool bury(StoredRef ref, Loss why);
  void path_failed(PathIndex path);
  void open_step();
  void opened();
  void kill_others(SpaceIndex space, bool unasked_only);
  void step();
  void close_step();
  bool idle() const;
  bool closed() const;

  const std::uint32_t unit;
  std::string missing;  // OpenedPaths::missing
  bool all_made = false;
  TimePoint names_at;  // when files are looked at again
  StoreState state;
  Tombstones tombstones;
  Durability durability;
  Writer writer;
  Scrub scrub;
  Reader reader;
  Reclaim reclaim;
  Superblocks superblocks;
  Flushes flushes;
  Sweep sweep;
  std::unique_ptr<Recovery> recovery;  // until it is ready
  OpenProgress progress;               // when it was
};

// Gone now, and after a restart: by a tombstone with its own sequence, so that a newer
// record of the key, accepted or to come, is not meant.
bool Store::Impl::bury(StoredRef ref, Loss why) {
  if (!state.index.live(ref)) return true;
  const IndexRecord record = state.index.at(ref.id);
  const Space& space = state.spaces.at(record.space);
  const bool kept = tombstones.bury({space.shape.digest, space.shape.group, record.hash, record.sequence},
                                    state.newest_life());
  state.forget(ref.id, why);
  return kept;
}

// Tombstones in segments that were being filled may not have become durable.
void Store::Impl::path_failed(PathIndex path) {
  for (std::uint32_t i = 0; i < state.segments.size(); ++i) {
    const Segment& segment = state.segments.at(SegmentIndex(i));
    const bool filled = segment.state == SegmentState::kOpen || segment.state == SegmentState::kSealing;
    if (segment.path == path && filled) tombstones.lost_with(SegmentIndex(i));
  }
}

// One for each poll(). Superblocks alone are written until all is read: what has not been read yet
// looks free.
void Store::Impl::open_step() {
  recovery->step();
  durability.step();
  if (recovery->state() == OpenState::kReady) opened();
}

void Store::Impl::opened() {
  progress = recovery->progress();
  recovery.reset();
  state.config.progress = nullptr;
  // Engines have asked for these; others of their names were found behind that.
  for (const SpaceIndex space : state.spaces.asked()) kill_others(space, true);
}

// Other bytes under this name are of no use to anybody.
void Store::Impl::kill_others(SpaceIndex space, bool unasked_only) {
  const SpaceShape& shape = state.spaces.at(space).shape;
  for (const SpaceIndex other : state.spaces.of(shape.digest, shape.group)) {
    if (other == space || (unasked_only && state.spaces.at(other).asked)) continue;
    sweep.kill(other, state.next_record());
  }
}

void Store::Impl::step() {
  if (recovery) {
    superblocks.step();
    return durability.step();
  }
  if (state.now >= names_at) {
    state.look_for_names();
    names_at = state.now + kBetweenLooks;
  }
  superblocks.step();
  sweep.step();
  reclaim.step();
  writer.step();
  const bool any =
      std::any_of(state.paths.begin(), state.paths.end(), [](const Path& p) { return p.writable(); });
  if (!any) {
    writer.queue().refuse_all(Refusal::kWriteStopped);
  } else if (writer.stuck() && !reclaim.may_yield()) {
    writer.queue().refuse_all(Refusal::kNoSpace);
  }
  flushes.step();
  if (state.closing) close_step();
  durability.step();
}

// Copies forward have their original; the rest is written, then every segment gets its footer.
void Store::Impl::close_step() {
  writer.drop_forwards();
  if (writer.idle() && reader.idle() && reclaim.idle()) writer.open_segments().retire_all();
}

bool Store::Impl::idle() const {
  return state.io.idle() && writer.idle() && reader.idle() && reclaim.idle() && superblocks.idle() &&
         flushes.idle() && durability.idle() && scrub.idle() && sweep.idle() && writer.open_segments().idle();
}

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::~Store() = default;

Result<std::unique_ptr<Store>> Store::begin_open(const StoreConfig& config, Io& io) {
  ORBITKV_ASSIGN_OR_RETURN(OpenedPaths opened, open_paths(config, io));
  StoreConfig actual = config;
  actual.segment = opened.segment;
  actual.max_records = opened.max_records;
  return std::unique_ptr<Store>(new Store(std::make_unique<Impl>(actual, io, std::move(opened))));
}

Result<std::unique_ptr<Store>> Store::open(const StoreConfig& config, Io& io) {
  ORBITKV_ASSIGN_OR_RETURN(auto store, begin_open(config, io));
  Impl& impl = *store->impl_;
  while (!store->ready()) {
    if (is_readable(config.stop_fd))
      return busy("recovery of the SSD store was given up because the Manager is to stop");
    impl.open_step();
    impl.state.io.pump_waiting(impl.recovery && impl.recovery->rests() ? kOpenWait : Duration{});
  }
  return store;
}

bool Store::ready() const {
  return !impl_->recovery;
}

OpenProgress Store::opening() const {
  return impl_->recovery ? impl_->recovery->progress() : impl_->progress;
}

void Store::begin_close() {
  if (impl_->state.closing) return;
  impl_->state.closing = true;
  if (impl_->recovery) impl_->recovery->close();
}

// While it opens: what it found lies as it lay, and superblocks are whole.
bool Store::Impl::closed() const {
  if (!state.closing) return false;
  if (recovery) return recovery->state() == OpenState::kGivenUp && state.io.idle() && superblocks.idle();
  return idle() && writer.open_segments().none_open();
}

bool Store::closed() const {
  return impl_->closed();
}

std::uint32_t Store::unit() const {
  return impl_->unit;
}

Result<SpaceIndex> Store::intern(const SpaceShape& shape) {
  StoreState& state = impl_->state;
  ORBITKV_RETURN_IF_ERROR(validate_shape(shape));
  if (!fits_segment(shape, state.segment_pages())) {
    const std::uint64_t block = std::uint64_t{image_pages(shape)} * kPageBytes * shape.shards;
    return reject("a block of " + std::to_string(block) + " bytes does not fit an SSD segment of " +
                  std::to_string(state.config.segment.value) +
                  ": use smaller blocks, or make the store anew with larger segments");
  }
  ORBITKV_ASSIGN_OR_RETURN(const SpaceIndex index, state.spaces.enter(shape));
  Space& space = state.spaces.at(index);
  ++space.uses;
  space.asked = true;
  impl_->kill_others(index, false);
  return index;
}

std::optional<SpaceIndex> Store::reopen(const SpaceShape& like) {
  if (!ready()) return std::nullopt;
  const auto found = impl_->state.spaces.like(like, unit());
  if (found) ++impl_->state.spaces.at(*found).uses;
  return found;
}

void Store::release(SpaceIndex space) {
  StoreState& state = impl_->state;
  ORBITKV_CHECK(state.spaces.known(space) && state.spaces.at(space).uses > 0,
                "a space released once too often");
  --state.spaces.at(space).uses;
  state.spaces.let_go(space);
}

StoredRef Store::find(SpaceIndex space, const BlockHash& hash) const {
  if (!ready()) return {};
  const StoredRef ref = impl_->state.index.find(space, hash);
  return ref && impl_->state.visible(ref) ? ref : StoredRef{};
}

void Store::find_batch(SpaceIndex space, std::span<const BlockHash> hashes, std::span<StoredRef> out) const {
  if (!ready())
    return std::fill(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(hashes.size()), StoredRef{});
  impl_->state.index.find_batch(space, hashes, out);
  if (impl_->state.spaces.at(space).killed_records == 0) return;
  for (StoredRef& ref : out) {
    if (ref && !impl_->state.visible(ref)) ref = StoredRef{};
  }
}

void Store::touch(StoredRef record) {
  if (impl_->state.index.live(record)) impl_->state.index.flags(record.id) |= kHot;
}

void Store::suspect(SpaceIndex space, const BlockHash& hash, const ImageMark& first_shard) {
  impl_->writer.fence(space, hash, first_shard);
  const StoredRef ref = find(space, hash);
  if (!ref) return;
  const ImageMark mark = impl_->state.index.first_mark(ref.id);
  if (mark.digest == first_shard.digest && mark.revision == first_shard.revision) impl_->scrub.suspect(ref);
}

Result<Store::Dropped> Store::drop_space(const model::NamespaceDigest& digest) {
  StoreState& state = impl_->state;
  if (state.closing) return busy("the SSD store is closing");
  const RecordSequence sequence = state.next_record();
  Dropped out;
  out.flushed = state.next_transfer();
  const Status listed = impl_->superblocks.drop({digest, sequence}, out.flushed);
  if (!listed.ok()) {
    // The list of the superblocks is full: the log takes it.
    if (impl_->tombstones.full()) return listed.error();
    ORBITKV_ASSIGN_OR_RETURN(out.flushed, impl_->flushes.begin());
    impl_->tombstones.bury({digest, kAllGroups, {}, sequence}, state.newest_life());
  }
  if (impl_->recovery) impl_->recovery->drop({digest, sequence});
  for (const SpaceIndex space : state.spaces.of(digest)) {
    out.records += impl_->sweep.kill(space, sequence);
    impl_->writer.queue().drop(space);
  }
  return out;
}

UnusedDrop Store::begin_unused(std::span<const model::NamespaceDigest> digests, Duration least,
                               UnusedRun run) const {
  ORBITKV_CHECK(ready(), "a drop by age of a store that has not been read");
  return {impl_->state, digests, least, run};
}

bool Store::go_on(UnusedDrop& drop) {
  struct Ends final : UnusedDrop::Ends {
    explicit Ends(Store& of) : store(of) {}
    Result<Dropped> drop_space(const model::NamespaceDigest& digest) override {
      return store.drop_space(digest);
    }
    Result<TransferId> flush() override { return store.flush(); }
    bool bury(StoredRef record) override {
      if (store.impl_->tombstones.full()) return false;
      store.impl_->bury(record, Loss::kUnused);
      return true;
    }
    Store& store;
  } ends(*this);
  return drop.go_on(impl_->state, ends);
}

std::vector<SpaceStatus> Store::spaces() const {
  return impl_->state.spaces.list();
}

Result<TransferId> Store::flush() {
  return impl_->flushes.begin();
}

Result<TransferId> Store::read(StoredRef record, std::span<SlotMemory> slots) {
  auto transfer = impl_->reader.read(record, slots);
  if (transfer.ok()) impl_->state.io.hand_over();
  return transfer;
}

Result<TransferId> Store::write(SpaceIndex space, const BlockHash& hash, std::span<const SlotMemory> slots) {
  if (!ready()) return impl_->state.refuse(Refusal::kOpening);
  return impl_->writer.queue().accept(space, hash, slots);
}

void Store::poll(TimePoint now, std::vector<StoreEvent>& events) {
  StoreState& state = impl_->state;
  state.now = std::max(state.now, now);
  if (state.begun.ns == 0) state.begun = state.now;
  if (ready()) impl_->scrub.step();
  for (int round = 0; round < kRoundsAPoll; ++round) {
    const std::size_t ended = state.io.pump(kResultsAPoll);
    impl_->step();
    if (ended == 0 && round > 0) break;
  }
  if (impl_->recovery) impl_->open_step();
  state.io.hand_over();
  events.insert(events.end(), state.events.begin(), state.events.end());
  state.events.clear();
}

bool Store::active() const {
  if (!impl_->state.events.empty()) return true;
  return impl_->recovery ? !impl_->closed() : !impl_->idle();
}

TimePoint Store::due() const {
  const Impl& impl = *impl_;
  if (impl.recovery && !impl.closed()) {
    if (!impl.state.events.empty() || !impl.recovery->rests()) return impl.state.now;
    return std::min(impl.durability.due(), impl.superblocks.due());
  }
  if (!impl.state.events.empty() || !impl.sweep.idle()) return impl.state.now;
  if (impl.state.closing && impl.state.io.idle() && !closed()) return impl.state.now;
  return std::min({impl.writer.due(), impl.durability.due(), impl.scrub.due(), impl.superblocks.due()});
}

bool Store::uses(std::span<const std::byte> memory) const {
  return impl_->writer.uses(memory) || impl_->reader.uses(memory);
}

StoreStats Store::stats() const {
  StoreStats out = impl_->state.stats;
  out.records = impl_->state.index.size() - impl_->state.killed_records;
  out.index = impl_->state.index.memory();
  return out;
}

ByteCount Store::reinserted() const {
  return impl_->state.stats.reinserted;
}

std::vector<Io::FileIdentity> Store::files() const {
  std::vector<Io::FileIdentity> out;
  for (const Path& path : impl_->state.paths) out.push_back(impl_->state.device.identity(path.file));
  return out;
}

bool Store::all_made() const {
  return impl_->all_made;
}

std::vector<PathStatus> Store::paths() const {
  const StoreState& state = impl_->state;
  std::vector<PathStatus> out;
  for (std::uint32_t i = 0; i < state.paths.size(); ++i) {
    const Path& path = state.paths[i];
    PathStatus& status = out.emplace_back();
    status.path = path.name;
    status.state = path.state;
    status.why = path.why;
    status.note = i == 0 ? impl_->missing : "";
    if (path.named && !state.device.linked(path.file)) {
      status.note =
          "its file was deleted or replaced while in use; what it holds is lost when the Manager ends: "
          "restart it "
          "to begin a new file";
    }
    status.segments = path.superblock.segments;
    status.capacity = path.superblock.segments * path.superblock.segment;
    status.free_segments = state.segments.count(PathIndex(i), SegmentState::kFree);
    for (std::uint32_t n = 0; n < path.superblock.segments; ++n) {
      const SegmentIndex segment = state.segments.of(PathIndex(i), SegmentNumber(n));
      status.used += ByteCount(state.segments.at(segment).bytes);
      status.records += state.index.count_in(segment);
    }
  }
  return out;
}

}  // namespace orbitkv::ssd
