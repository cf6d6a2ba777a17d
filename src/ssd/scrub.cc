#include "ssd/scrub.h"

#include <algorithm>
#include <limits>

#include "base/limits.h"
#include "base/log.h"

namespace orbitkv::ssd {
namespace {

constexpr std::uint64_t kSlice = 256 * std::uint64_t{1024};
constexpr std::uint32_t kSegmentsAStep = 64;  // that are asked for records
constexpr Duration kSayEvery = seconds(60);   // what is damaged
constexpr Duration kLookAgain = milliseconds(100), kLeastWait = milliseconds(1);

}  // namespace

void Scrub::suspect(StoredRef record) {
  const auto same = [record](StoredRef other) {
    return other.id == record.id && other.generation == record.generation;
  };
  if (!state_.visible(record) || suspects_.size() >= limits::kSuspects) return;
  if (job_ && same(job_->ref) && job_->suspected) return;
  if (std::none_of(suspects_.begin(), suspects_.end(), same)) suspects_.push_back(record);
}

void Scrub::refill() {
  const auto rate = static_cast<std::int64_t>(state_.config.scrub_per_second.value);
  if (refilled_ == TimePoint{}) refilled_ = state_.now;
  // No more than a second's worth is saved up, so that the product cannot overflow.
  const std::int64_t passed = std::min<std::int64_t>((state_.now - refilled_).ns, seconds(1).ns);
  const std::int64_t earned =
      static_cast<std::int64_t>(static_cast<double>(rate) * static_cast<double>(passed) * 1e-9);
  if (earned == 0) return;
  refilled_ = state_.now;
  credit_ = std::min<std::int64_t>(credit_ + earned, std::max<std::int64_t>(rate, kSlice));
}

void Scrub::step() {
  if (state_.config.scrub_per_second > ByteCount()) refill();
  if (state_.closing) {
    suspects_.clear();
    if (job_ && job_->paced) end(ImageCheck::State::kMore);
  }
  if (job_ && job_->paced) go_on();
  if (job_ && job_->landed) look();
  if (!job_ && !state_.closing) pick();
}

bool Scrub::pick() {
  while (!suspects_.empty()) {
    const StoredRef ref = suspects_.front();
    suspects_.pop_front();
    if (!state_.visible(ref)) continue;
    begin(ref, true);
    return true;
  }
  return state_.config.scrub_per_second > ByteCount() && credit_ > 0 && pick_in_turn();
}

bool Scrub::pick_in_turn() {
  for (std::uint32_t i = 0; i < kSegmentsAStep; ++i) {
    while (!turn_.empty()) {
      const StoredRef ref = turn_.back();
      turn_.pop_back();
      if (!state_.visible(ref)) continue;
      begin(ref, false);
      return true;
    }
    next_segment_ = (next_segment_ + 1) % state_.segments.size();
    const SegmentIndex segment(next_segment_);
    if (state_.segments.at(segment).state != SegmentState::kSealed) continue;
    for (StoredId id = state_.index.first_in(segment); id != kNotStored; id = state_.index.next_in(id)) {
      turn_.push_back(state_.index.ref(id));
    }
  }
  return false;
}

void Scrub::begin(StoredRef ref, bool suspected) {
  const IndexRecord record = state_.index.at(ref.id);
  Space& space = state_.spaces.at(record.space);
  job_.emplace(
      Job{ref, record, {}, ImageCheck(space.shape, space.layout), 0, 0, 0, false, false, suspected, 0});
  job_->marks.resize(record.shards);
  state_.index.marks(ref.id, job_->marks);
  ++state_.segments.at(record.segment).readers;
  ++space.holds;
  if (buffer_.size() == 0) buffer_ = PageBuffer(kSlice);
  job_->check.begin(record.hash, ShardId(0), job_->marks[0]);
  read_slice();
}

void Scrub::read_slice() {
  Job& job = *job_;
  const std::uint64_t image = std::uint64_t{job.record.image_pages} * kPageBytes;
  job.slice = std::min(kSlice, image - job.offset);
  job.landed = false;
  const std::uint64_t at =
      state_.offset_of(job.record.segment, job.record.first_page) + job.shard * image + job.offset;
  state_.io.submit({IoOp::kRead, state_.path_of(job.record.segment).file, at, {buffer_.first(job.slice)}},
                   [this](int error) {
                     job_->landed = true;
                     job_->error = error;
                   });
}

void Scrub::look() {
  Job& job = *job_;
  if (!job.suspected) credit_ -= static_cast<std::int64_t>(job.slice);
  if (job.error != 0 || !state_.visible(job.ref) || state_.closing) return end(ImageCheck::State::kMore);
  const ImageCheck::State state = job.check.feed(buffer_.first(job.slice));
  if (state == ImageCheck::State::kBad) return end(state);
  job.offset += job.slice;
  if (job.offset == std::uint64_t{job.record.image_pages} * kPageBytes) {
    if (state != ImageCheck::State::kGood || ++job.shard == job.record.shards) return end(state);
    job.offset = 0;
    job.check.begin(job.record.hash, ShardId(job.shard), job.marks[job.shard]);
  }
  job.landed = false;
  job.paced = true;
  go_on();
}

// Whoever is under suspicion does not wait for the rate.
void Scrub::go_on() {
  if (!job_->suspected && credit_ <= 0 && suspects_.empty()) return;
  job_->paced = false;
  read_slice();
}

void Scrub::end(ImageCheck::State state) {
  const Job job = std::move(*job_);
  job_.reset();
  --state_.segments.at(job.record.segment).readers;
  ++state_.stats.scrubbed;
  if (job.error != 0) {
    device_failed_(job.ref);
  } else if (state != ImageCheck::State::kGood && state_.visible(job.ref) && !state_.closing) {
    ++state_.stats.scrub_errors;
    say_damaged(state_.path_of(job.record.segment).name);
    condemn_(job.ref);
  }
  --state_.spaces.at(job.record.space).holds;
  state_.spaces.let_go(job.record.space);
}

// A file that was cut has very many.
void Scrub::say_damaged(const std::string& path) {
  ++unsaid_;
  if (said_.ns != 0 && state_.now - said_ < kSayEvery) return;
  ORBITKV_WARN(
      "SSD store: a block on %s is not what was written; it is dropped, as were %llu others since "
      "this was said last",
      path.c_str(), static_cast<unsigned long long>(unsaid_ - 1));
  said_ = state_.now;
  unsaid_ = 0;
}

TimePoint Scrub::due() const {
  const TimePoint never{std::numeric_limits<std::int64_t>::max()};
  if (job_ && job_->landed) return state_.now;
  if (job_ && !job_->paced) return never;
  if (!suspects_.empty()) return state_.now;
  const std::uint64_t rate = state_.config.scrub_per_second.value;
  if (rate == 0 || state_.closing) return never;
  // With credit left there was nothing to look at.
  if (credit_ > 0) return state_.now + kLookAgain;
  const double wait = (1 - static_cast<double>(credit_)) / static_cast<double>(rate);
  return state_.now + std::max(nanoseconds(static_cast<std::int64_t>(wait * 1e9)), kLeastWait);
}

}  // namespace orbitkv::ssd
