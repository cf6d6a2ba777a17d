#include "sim/disk.h"

#include <cerrno>
#include <utility>

#include "sim/manager_node.h"
#include "sim/random.h"
#include "sim/world.h"

namespace orbitkv::sim {
namespace {
constexpr Duration kFarAway = seconds(1'000'000'000);
constexpr std::uint64_t kSector = 512;
}  // namespace

// What the store sees. Every request that names memory of the pool is in the ledger from
// its acceptance to its result.
class Disk::WatchedIo final : public ssd::Io {
 public:
  WatchedIo(Disk& disk, const ssd::IoOptions& options, ssd::Latency latency)
      : disk_(disk), below_(disk.disk_, options, std::move(latency)) {
    disk_.io_ = this;
  }
  ~WatchedIo() override {
    if (disk_.io_ == this) disk_.io_ = nullptr;
  }

  const char* name() const override { return below_.name(); }
  Result<Opened> open(const std::string& path, ByteCount bytes) override { return below_.open(path, bytes); }
  Status grow(ssd::FileIndex file, ByteCount bytes) override { return below_.grow(file, bytes); }
  bool linked(ssd::FileIndex) const override { return true; }
  // What a dead life asked of it has ended before the next opens it.
  FileIdentity identity(ssd::FileIndex file) const override { return {1, file.value + 1}; }
  ByteCount free_space(const std::string& path) const override { return below_.free_space(path); }
  void add_memory(std::span<std::byte> memory) override {
    if (disk_.pool_ != 0) {
      const auto known = [this](SlabId name) { return slabs_.contains(name); };
      slabs_.emplace(disk_.world_.manager().slab_to_map(known), memory);
    }
    below_.add_memory(memory);
  }
  void remove_memory(std::span<std::byte> memory) override {
    if (const auto place = place_of(memory)) {
      if (under_way(place->slab))
        disk_.world_.fail("slabs", "the Manager lets go of slab " + std::to_string(place->slab.value) +
                                       " under a transfer of the disk");
      slabs_.erase(place->slab);
    }
    below_.remove_memory(memory);
  }

  // What a Manager does that has died has not happened.
  std::size_t submit(std::span<const ssd::IoRequest> requests) override {
    if (disk_.crashed_ || disk_.world_.manager().doomed()) return 0;
    const std::size_t taken = below_.submit(requests);
    for (const ssd::IoRequest& request : requests.first(taken)) watch(request);
    return taken;
  }
  std::size_t reap(std::span<ssd::IoResult> results, Duration wait) override {
    if (!disk_.crashed_ && disk_.world_.manager().doomed()) return 0;
    const std::size_t count = below_.reap(results, wait);
    for (const ssd::IoResult& result : results.first(count)) unwatch(result);
    disk_.completions_ += count;
    return count;
  }
  int completion_fd() const override { return below_.completion_fd(); }
  ssd::IoStats stats() const override { return below_.stats(); }

  // Opening a store takes none of the world's time.
  void advance(TimePoint now) {
    if (!offset_) offset_ = now - below_.now();
    const Duration passed = now - (below_.now() + *offset_);
    if (passed.ns > 0) below_.advance(passed);
  }
  TimePoint next_result(TimePoint now) const {
    const auto next = below_.next_end();
    return next && offset_ ? *next + *offset_ : now + kFarAway;
  }
  std::vector<Place> writes() const {
    std::vector<Place> out;
    for (const auto& [tag, uses] : uses_)
      for (const auto& [place, use] : uses)
        if (use == Use::kWrite) out.push_back(place);
    return out;
  }
  void forget() {
    for (const auto& [tag, uses] : uses_)
      for (const auto& [place, use] : uses) disk_.world_.ledger().leave(place, use);
    uses_.clear();
  }

 private:
  std::optional<Place> place_of(std::span<const std::byte> memory) const {
    for (const auto& [name, slab] : slabs_) {
      const std::byte* base = slab.data();
      if (memory.data() < base || memory.data() >= base + slab.size()) continue;
      return Place{disk_.pool_, name, static_cast<std::uint64_t>(memory.data() - base),
                   ByteCount(memory.size())};
    }
    return std::nullopt;
  }
  bool under_way(SlabId slab) const {
    for (const auto& [tag, uses] : uses_)
      for (const auto& [place, use] : uses)
        if (place.slab == slab) return true;
    return false;
  }
  void watch(const ssd::IoRequest& request) {
    auto& uses = uses_[request.tag.value];
    const Use use = request.op == ssd::IoOp::kRead ? Use::kWrite : Use::kRead;
    for (const auto& piece : request.pieces) {
      const auto place = place_of(piece);
      if (!place) continue;
      uses.emplace_back(*place, use);
      if (use == Use::kRead && disk_.world_.ledger().damaged(*place)) disk_.suspect_ = true;
      if (const auto conflict = disk_.world_.ledger().take(*place, use, "the disk"))
        disk_.world_.fail("extents", *conflict);
    }
  }
  void unwatch(const ssd::IoResult& result) {
    auto uses = uses_.extract(result.tag.value);
    if (uses.empty()) return;
    for (const auto& [place, use] : uses.mapped()) {
      disk_.world_.ledger().leave(place, use);
      if (use == Use::kWrite && disk_.suspect_)
        disk_.world_.ledger().damage({place.pool, place.slab, place.offset, ByteCount(1)});
      if (use == Use::kWrite && result.error == 0 && disk_.fault_ == Fault::kFlip) flip(place);
    }
  }
  void flip(const Place& place) {
    const std::uint64_t at = place.offset + mix(disk_.fault_word_) % place.bytes.value;
    if (const auto slab = slabs_.find(place.slab); slab != slabs_.end()) slab->second[at] ^= std::byte{16};
    disk_.world_.ledger().damage({place.pool, place.slab, at, ByteCount(1)});
    disk_.fault_ = Fault::kNone;
  }

  Disk& disk_;
  std::map<SlabId, std::span<std::byte>> slabs_;
  std::map<std::uint64_t, std::vector<std::pair<Place, Use>>> uses_;
  std::optional<Duration> offset_;
  ssd::MemoryIo below_;
};

Disk::Disk(World& world) : world_(world) {}
Disk::~Disk() = default;

std::unique_ptr<ssd::Io> Disk::open(std::uint32_t life) {
  pool_ = 0;
  fault_ = Fault::kNone;  // a store that cannot read its own start is refused, and rightly
  deaf_ = world_.plant() == Plant::kDeafDisk && life > 1;
  ssd::IoOptions options;
  options.depth = world_.config().ssd.depth;
  options.tune_depth = false;
  options.queue = 256;
  options.faults = this;
  const DurationRange& time = world_.config().ssd.latency;
  const std::uint64_t seed = world_.random(0xD15Cu, life).next();
  return std::make_unique<WatchedIo>(*this, options, ssd::seeded_latency(seed, {time.least, time.most}));
}

void Disk::advance() {
  if (io_) io_->advance(world_.now());
}

TimePoint Disk::next_result() const {
  return io_ ? io_->next_result(world_.now()) : world_.now() + kFarAway;
}

// Most deaths are kills, after which what was reaped is there; some are losses of power.
void Disk::crash(std::uint64_t word, std::optional<std::size_t> log) {
  ssd::CrashRules rules;
  rules.seed = word;
  rules.killed_only = word % 4 != 0;
  suspect_ |= !rules.killed_only;
  kept_ = disk_.after_crash(rules, log.value_or(disk_.events()));
  if (io_) io_->forget();
  crashed_ = true;
}

std::vector<Place> Disk::writes() const {
  return io_ ? io_->writes() : std::vector<Place>{};
}

void Disk::after_crash() {
  if (kept_) disk_ = std::move(*kept_);
  kept_.reset();
  crashed_ = false;
}

void Disk::fault_next(Fault fault, std::uint64_t word) {
  fault_ = fault;
  fault_word_ = word;
  of_reads_ = (fault == Fault::kError || fault == Fault::kShort) && (word >> 40) % 2 == 0;
  faults_left_ = of_reads_ ? 1 + static_cast<std::uint32_t>(word >> 44) % 3 : 1;
}

Duration Disk::delay_next(std::uint64_t word) {
  fault_next(Fault::kDelay, word);
  return milliseconds(static_cast<std::int64_t>(word % 2000));
}

ssd::IoFault Disk::next(const ssd::IoRequest& request) {
  ssd::IoFault out;
  if (deaf_) return {ssd::IoFault::Kind::kError, 0, EIO, {}};
  if (of_reads_ && request.op != ssd::IoOp::kRead) return out;
  switch (fault_) {
    case Fault::kNone:
    case Fault::kFlip: return out;
    case Fault::kError:
      out.kind = ssd::IoFault::Kind::kError;
      out.error = EIO;
      break;
    case Fault::kFull:
      if (request.op != ssd::IoOp::kWrite) return out;
      out.kind = ssd::IoFault::Kind::kError;
      out.error = ENOSPC;
      break;
    case Fault::kShort:
      if (request.op == ssd::IoOp::kSync) return out;
      out.kind = ssd::IoFault::Kind::kShort;
      out.bytes = fault_word_ % 3 * kSector;
      break;
    case Fault::kDelay:
      out.kind = ssd::IoFault::Kind::kDelay;
      out.delay = milliseconds(static_cast<std::int64_t>(fault_word_ % 2000));
      break;
  }
  if (--faults_left_ == 0) fault_ = Fault::kNone;
  world_.note(World::Note::kFault, static_cast<std::uint64_t>(request.op), request.offset);
  return out;
}

}  // namespace orbitkv::sim
