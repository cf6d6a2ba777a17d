#include "ssd/memory_io.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <vector>

#include "base/check.h"
#include "base/text.h"

namespace orbitkv::ssd {
namespace {

constexpr int kPoison = 0xDB;

using Memory = std::array<iovec, kPieces>;

std::vector<std::byte> bytes_of_pieces(const IoRequest& request) {
  std::vector<std::byte> out;
  for (const auto& piece : request.pieces) out.insert(out.end(), piece.begin(), piece.end());
  return out;
}

}  // namespace

Latency seeded_latency(std::uint64_t seed, LatencyRange range) {
  return [random = std::mt19937_64(seed), range](const IoRequest&) mutable {
    std::uniform_int_distribution<std::int64_t> between(range.least.ns, range.most.ns);
    return nanoseconds(between(random));
  };
}

MemoryIo::MemoryIo(MemoryDisk& disk, const IoOptions& options, Latency latency)
    : QueuedFront(options), disk_(disk), latency_(std::move(latency)) {
  gauges().depth = this->options().depth;
}

MemoryIo::~MemoryIo() {
  while (!running_.empty()) end_first();
  for (const std::string& path : paths_) disk_.close(path);
}

Result<OpenFile> MemoryIo::open_file(const std::string& path, ByteCount bytes) {
  const auto found = disk_.open(path);
  if (!found.ok()) return found.error();
  paths_.push_back(path);
  const Status status = grow(FileIndex(static_cast<std::uint32_t>(paths_.size() - 1)), bytes);
  if (!status.ok()) {
    disk_.close(path);
    paths_.pop_back();
    return status.error();
  }
  OpenFile file;
  file.bytes = disk_.size(path).value;
  file.made = found->made;
  return file;
}

Status MemoryIo::grow(FileIndex file, ByteCount bytes) {
  const std::string& path = paths_.at(file.value);
  const ByteCount now = disk_.size(path);
  if (bytes <= now) return ok_status();
  if (bytes - now > disk_.free_space)
    return reject(format_text("SSD path %s: no space left; ask for fewer bytes", path.c_str()));
  disk_.free_space -= bytes - now;
  disk_.resize(path, bytes);
  return ok_status();
}

void MemoryIo::hand_over(const Accepted& accepted) {
  const IoRequest& request = accepted.request;
  if (request.op == IoOp::kSync) logged_[accepted.order] = disk_.sync_submitted(path_of(accepted));
  if (request.op == IoOp::kWrite) {
    logged_[accepted.order] =
        disk_.write_submitted(path_of(accepted), request.offset, bytes_of_pieces(request));
  }
  if (request.op == IoOp::kRead) {
    for (const auto& piece : request.pieces) std::memset(piece.data(), kPoison, piece.size());
  }
  turns_.push(accepted);
}

void MemoryIo::handed_over() {
  start_what_may();
  run_until(now_);
}

void MemoryIo::advance(Duration time) {
  run_until(now_ + time);
  now_ = now_ + time;
}

// Goes on to the first submission that brings a result, or to the end of the time.
void MemoryIo::wait_for_some(Duration wait) {
  const bool forever = wait < Duration{};
  const TimePoint end = now_ + wait;
  while (!running_.empty() && (forever || running_.begin()->first.first <= end.ns)) {
    now_.ns = std::max(now_.ns, running_.begin()->first.first);
    if (end_first()) return run_until(now_);
  }
  if (!forever) now_ = end;
}

void MemoryIo::run_until(TimePoint end) {
  const TimePoint start = now_;
  while (!running_.empty() && running_.begin()->first.first <= end.ns) {
    now_.ns = std::max(now_.ns, running_.begin()->first.first);
    end_first();
  }
  now_ = start;
}

void MemoryIo::reaped(const Finished& finished) {
  const auto logged = logged_.find(finished.order);
  if (logged == logged_.end()) return;
  if (finished.result.error == 0) disk_.reaped(logged->second);
  logged_.erase(logged);
}

void MemoryIo::start_what_may() {
  while (!turns_.empty() && in_flight_ < options().depth) {
    ++in_flight_;
    const Accepted accepted = turns_.front();
    turns_.pop();
    submit_step({Transfer(accepted), {}});
  }
  gauges().in_flight = in_flight_;
}

void MemoryIo::submit_step(Running running) {
  running.step = running.transfer.next(options().faults, now_);
  Duration time = running.step.delay;
  if (latency_) time.ns += latency_(running.transfer.accepted().request).ns;
  running_.emplace(Due{(now_ + time).ns, ++submissions_}, running);
}

bool MemoryIo::end_first() {
  now_.ns = std::max(now_.ns, running_.begin()->first.first);
  Running running = running_.begin()->second;
  running_.erase(running_.begin());
  if (!running.transfer.ended(running.step.skip ? 0 : perform(running))) {
    submit_step(running);
    return false;
  }
  const Finished finished = running.transfer.finished(now_);
  completions().push({&finished, 1});
  --in_flight_;
  start_what_may();
  return true;
}

std::int64_t MemoryIo::perform(const Running& running) {
  switch (running.transfer.accepted().request.op) {
    case IoOp::kRead: return read(running);
    case IoOp::kWrite: return write(running);
    case IoOp::kSync: return 0;
  }
  return -EINVAL;
}

std::int64_t MemoryIo::read(const Running& running) {
  const Transfer& transfer = running.transfer;
  const std::string& path = path_of(transfer.accepted());
  const std::uint64_t size = disk_.size(path).value;
  std::uint64_t at = transfer.file_offset();
  const std::uint64_t bytes = std::min(running.step.bytes, size > at ? size - at : 0);
  Memory memory;
  const std::size_t count = transfer.memory_of(transfer.done(), bytes, memory);
  for (const iovec& piece : std::span(memory).first(count)) {
    disk_.peek(path, at, {static_cast<std::byte*>(piece.iov_base), piece.iov_len});
    at += piece.iov_len;
  }
  return static_cast<std::int64_t>(bytes);
}

std::int64_t MemoryIo::write(const Running& running) {
  const Transfer& transfer = running.transfer;
  const Accepted& accepted = transfer.accepted();
  const auto& data = disk_.data_of(logged_.at(accepted.order));
  ORBITKV_CHECK(data == bytes_of_pieces(accepted.request),
                "memory of a write was changed while the device had it");
  disk_.poke(path_of(accepted), transfer.file_offset(),
             std::span(data).subspan(transfer.done(), running.step.bytes));
  return static_cast<std::int64_t>(running.step.bytes);
}

}  // namespace orbitkv::ssd
