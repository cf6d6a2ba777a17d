// What leases do ahead of need and for others: publishers that are waited for, pieces of hints.
#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "cache/leases.h"

namespace orbitkv::cache {

namespace {

constexpr std::size_t kPieceHashes = limits::kListSlice;

}  // namespace

// ---- other publishers ----

// The run could go on with a block that another instance is saving.
bool Leases::saved_next(const Lease& lease, TimePoint now) const {
  if (lease.kept == nullptr || !lease.kept->goes_on()) return false;
  const KeySpace& space = lease.kept->target.space;
  const RecordId record =
      images_.table().find({lease.kept->beyond[lease.kept->passed], space.name_space, space.group});
  return record != kNoRecord && publishing_->saved_by_others(record, lease.name.instance, now);
}

// Holds nothing, or the publisher might want for the memory.
void Leases::wait_for_publisher(std::uint32_t index) {
  Lease& lease = leases_[index];
  lease.awaits = true;
  awaiting_.push_back(index);
  step(lease.state, LeaseEvent::kLastWaits);
  ++stats_.publisher_waits;
  wait_until_end(index);
}

void Leases::stop_awaiting(std::uint32_t index) {
  if (!leases_[index].awaits) return;
  leases_[index].awaits = false;
  std::erase(awaiting_, index);
}

void Leases::look_at_publishers(TimePoint now) {
  if (awaiting_.empty()) return;
  std::size_t looks = config_.turn_hashes;
  const std::vector<std::uint32_t> all = awaiting_;
  for (const std::uint32_t index : all) {
    if (leases_[index].awaits && !saved_next(leases_[index], now)) publisher_ended(index, looks, now);
  }
}

// However it ended: the run goes as far as it can be had now, or on to the next publisher.
void Leases::publisher_ended(std::uint32_t index, std::size_t& looks, TimePoint now) {
  if (!extend_run(index, looks, now)) {
    extends_ = true;
    return;
  }
  if (saved_next(leases_[index], now)) return;
  stop_awaiting(index);
  cut_to_limit(index);
  Lease& lease = leases_[index];
  if (lease.hits == 0) return land(index, now);
  cut_kept(lease);
  stand_in_line(index);
  line_.run(now);
  pump(now);
}

// As far as `looks` hashes go. False: there is more to look at.
bool Leases::extend_run(std::uint32_t index, std::size_t& looks, TimePoint now) {
  Lease& lease = leases_[index];
  Lease::Kept& kept = *lease.kept;
  QueryPart part;
  QueryAnswer unused;
  bool all = true;
  while (all && looks > 0 && kept.goes_on()) {
    part.hashes = kept.beyond.from(kept.passed, std::min(kPieceHashes, looks));
    looks -= part.hashes.size();
    Seen seen{part, kept.target, now};
    look_up(seen, unused);
    ask_tier(seen, unused);
    const std::uint32_t more = seen.reach();
    all = more == part.hashes.size();
    kept.hashes.add(part.hashes.first(more));
    kept.passed += more;
    lease.hits += more;
    stats_.hits += more;
    stats_.misses -= more;
  }
  return !all || !kept.goes_on();
}

// The wait is over: what is in memory is what there is.
void Leases::give_up_on_publisher(std::uint32_t index, TimePoint now) {
  stop_awaiting(index);
  std::size_t looks = config_.turn_hashes;
  extend_run(index, looks, now);
  cut_to_limit(index);
  Lease& lease = leases_[index];
  lease.why = Missing::kTimeout;
  Full full = Full::kNothing;
  if (lease.hits == 0) return land(index, now);
  if (line_.count() > 0 || !charge(lease, full)) return end_wait(index, now);
  cut_kept(lease);
  count_late(lease);
  take_kept(index, now);
  if (lease.state == LeaseState::kLoading) time_out(index, now);
}

// ---- pieces of hints ----

Leases::Warmed Leases::warm(const Piece& piece) {
  Warmed done;
  const ByteCount block = piece.target.block_bytes();
  const std::uint64_t room = budgets_.room(piece.target.account, Use::kSpeculative).value / block.value;
  const std::uint64_t most = std::min<std::uint64_t>(room, limits::kWarmPieceBlocks);
  if (most == 0) return done;
  QueryPart part;
  QueryAnswer unused;
  part.hashes = piece.hashes.first(std::min(kPieceHashes, piece.hashes.size()));
  Seen seen{part, piece.target, piece.now};
  look_up(seen, unused);
  ask_tier(seen, unused);
  const std::uint32_t reach = seen.reach();
  std::vector<std::uint32_t> wanted;
  for (; done.next < reach && wanted.size() < most; ++done.next)
    if (seen.lookups[done.next].record == kNoRecord) wanted.push_back(done.next);
  done.over = done.next == reach && (reach < part.hashes.size() || reach == piece.hashes.size());
  if (!wanted.empty()) begin_piece(piece, seen, wanted, done);
  return done;
}

void Leases::begin_piece(const Piece& piece, const Seen& seen, std::span<const std::uint32_t> wanted,
                         Warmed& done) {
  const std::uint32_t index = take_object();
  Lease& lease = leases_[index];
  lease.begin();
  lease.name = {piece.instance, piece.group, QueryMode::kRead, {}};
  lease.session = piece.session;
  lease.state = LeaseState::kCollecting;
  lease.warm = lease.prepared = true;
  lease.account = piece.target.account;
  lease.block_bytes = piece.target.block_bytes();
  lease.hits = static_cast<std::uint32_t>(wanted.size());
  lease.charge = budgets_.take(lease.account, lease.hits * lease.block_bytes, Use::kSpeculative);
  loads_.lanes().open(LeaseIndex(index), {lease.account, Use::kSpeculative});
  const auto taken = std::find_if(wanted.begin(), wanted.end(),
                                  [&](std::uint32_t i) { return !want_block(index, i, seen); });
  done.over = done.over || taken != wanted.end();  // no room: not worth more
  shorten(lease, static_cast<std::uint32_t>(lease.records.size()));
  budgets_.shrink(lease.charge, lease.hits * lease.block_bytes);
  done.blocks = lease.pending;
  if (lease.pending == 0) return retire(index, LeaseEvent::kCancel);
  step(lease.state, LeaseEvent::kLastLoading);
  done.loads = LeaseIndex(index);
}

void Leases::end_warm(LeaseIndex piece) {
  ORBITKV_CHECK(leases_[piece.value].warm, "a lease is not a piece of a hint");
  retire(piece.value, LeaseEvent::kCancel);
}

}  // namespace orbitkv::cache
