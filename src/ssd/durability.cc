#include "ssd/durability.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

namespace orbitkv::ssd {

void Durability::sync(PathIndex path, Done done) {
  lanes_[path.value].waiting.push_back(std::move(done));
}

void Durability::sync_all(Done done) {
  struct All {
    std::size_t left = 1;
    bool ok = true;
    Done done;
    void one(bool result) {
      ok = ok && result;
      if (--left == 0) done(ok);
    }
  };
  const auto all = std::make_shared<All>();
  all->done = std::move(done);
  const auto one = [all](bool ok) { all->one(ok); };
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    // What a sync in flight covers may yet turn out not to be durable.
    if (!lanes_[i].dirty && !lanes_[i].in_flight) continue;
    ++all->left;
    sync(PathIndex(i), one);
  }
  all->one(true);
}

void Durability::written(PathIndex path, std::span<const StoredRef> records) {
  Lane& lane = lanes_[path.value];
  if (!lane.dirty) lane.since = state_.now;
  lane.dirty = true;
  lane.written.insert(lane.written.end(), records.begin(), records.end());
}

void Durability::step() {
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    if (lane.in_flight) continue;
    if (state_.paths[i].until_restart) {
      lane.dirty = false;
      for (const Done& done : std::exchange(lane.waiting, {})) done(false);
      continue;
    }
    const bool old = lane.dirty && state_.now - lane.since >= state_.config.flush;
    if (old || !lane.waiting.empty()) start(PathIndex(i));
  }
}

void Durability::start(PathIndex path) {
  Lane& lane = lanes_[path.value];
  lane.running = std::exchange(lane.waiting, {});
  lane.syncing = std::exchange(lane.written, {});
  lane.dirty = false;
  lane.in_flight = true;
  state_.io.submit({IoOp::kSync, state_.paths[path.value].file, 0, {}},
                   [this, path](int error) { ended(path, error); });
}

void Durability::ended(PathIndex path, int error) {
  Lane& lane = lanes_[path.value];
  lane.in_flight = false;
  if (error != 0) fail(path, error);
  lane.syncing.clear();
  for (const Done& done : std::exchange(lane.running, {})) done(error == 0);
}

// The kernel forgets pages that it could not write: none of them is known to be there.
void Durability::fail(PathIndex path, int error) {
  state_.stop(path, error, StoreState::Stop::kUntilRestart);
  Lane& lane = lanes_[path.value];
  for (auto* list : {&lane.syncing, &lane.written}) {
    for (const StoredRef record : std::exchange(*list, {})) {
      if (!state_.index.live(record)) continue;
      const SegmentIndex segment = state_.index.at(record.id).segment;
      if (state_.segments.at(segment).path == path) state_.forget(record.id, Loss::kDeviceError);
    }
  }
  failed_(path);
}

bool Durability::idle() const {
  for (const Lane& lane : lanes_) {
    if (lane.dirty || lane.in_flight || !lane.waiting.empty()) return false;
  }
  return true;
}

TimePoint Durability::due() const {
  TimePoint due{std::numeric_limits<std::int64_t>::max()};
  for (const Lane& lane : lanes_) {
    if (lane.in_flight) continue;  // its end brings the next one
    if (!lane.waiting.empty()) return state_.now;
    if (lane.dirty) due = std::min(due, lane.since + state_.config.flush);
  }
  return due;
}

}  // namespace orbitkv::ssd
