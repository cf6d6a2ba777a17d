#include "ssd/io_front.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/text.h"

namespace orbitkv::ssd {
namespace {

constexpr std::size_t kReapBatch = 64;

IoOptions bounded(IoOptions options) {
  options.depth = std::clamp(options.depth, 1u, 2048u);
  options.queue = std::clamp(options.queue, 1u, 1u << 16);
  return options;
}

}  // namespace

IoFront::IoFront(const IoOptions& options) : options_(bounded(options)) {
  files_.reserve(kIoFiles);
}

IoFront::~IoFront() {
  for (const OpenFile& file : files_)
    if (file.fd.valid()) unlock_real(file.fd.get());
}

Result<Io::Opened> IoFront::open(const std::string& path, ByteCount bytes) {
  if (files_.size() == kIoFiles)
    return busy(format_text("%zu files are open for I/O, %s would be one more; use fewer paths", kIoFiles,
                            path.c_str()));
  Result<OpenFile> file = open_file(path, bytes);
  if (!file.ok()) return file.error();
  const FileIndex index(static_cast<std::uint32_t>(files_.size()));
  const Opened opened{index, file->bytes, file->alignment, file->made};
  files_.push_back(std::move(*file));
  file_opened(index, files_.back().fd.get());
  return opened;
}

Status IoFront::grow(FileIndex file, ByteCount bytes) {
  ORBITKV_CHECK(file.value < files_.size(), "a file that was not opened cannot grow");
  return grow_real(files_[file.value].fd.get(), bytes);
}

Io::FileIdentity IoFront::identity(FileIndex file) const {
  return identity_real(files_[file.value].fd.get());
}

bool IoFront::linked(FileIndex file) const {
  return linked_real(files_[file.value].fd.get());
}

ByteCount IoFront::free_space(const std::string& path) const {
  return free_space_real(path);
}

std::size_t IoFront::submit(std::span<const IoRequest> requests) {
  std::size_t taken = 0;
  while (taken < requests.size() && outstanding(requests[taken].op) < options_.queue)
    accept(requests[taken++]);
  if (taken > 0) handed_over();
  return taken;
}

void IoFront::accept(const IoRequest& request) {
  ++outstanding(request.op);
  const bool known = request.file.value < files_.size();
  const int error = known ? check_request(request, files_[request.file.value].alignment) : EINVAL;
  if (error != 0) {
    return refused({{request.tag, error, {}}, request.op, {}, 0, 0});
  }
  const OpenFile& file = files_[request.file.value];
  hand_over({request, file.fd.get(), file.alignment, bytes_of(request), ++accepted_});
}

std::size_t IoFront::reap(std::span<IoResult> results, Duration wait) {
  std::size_t taken = take_results(results);
  if (taken > 0 || wait == Duration{} || reads_ + writes_ == 0 || results.empty()) return taken;
  const TimePoint end = time() + wait;
  Duration left = wait;
  while (taken == 0 && (wait < Duration{} || left > Duration{})) {
    wait_for_some(left);
    taken = take_results(results);
    if (wait > Duration{}) left = end - time();
  }
  return taken;
}

std::size_t IoFront::take_results(std::span<IoResult> results) {
  std::array<Finished, kReapBatch> batch;
  std::size_t taken = 0;
  while (taken < results.size()) {
    const std::size_t want = std::min(batch.size(), results.size() - taken);
    const std::size_t got = take(std::span(batch).first(want));
    for (std::size_t i = 0; i < got; ++i) {
      --outstanding(batch[i].op);
      count(batch[i]);
      if (batch[i].order != 0) reaped(batch[i]);
      results[taken + i] = batch[i].result;
    }
    taken += got;
    if (got < want) break;
  }
  return taken;
}

void IoFront::count(const Finished& finished) {
  stats_.continued += finished.continued;
  if (finished.result.error != 0) {
    ++stats_.errors;
    return;
  }
  if (finished.op == IoOp::kSync) ++stats_.syncs;
  if (finished.op == IoOp::kRead) {
    ++stats_.reads;
    stats_.read += finished.bytes;
  }
  if (finished.op == IoOp::kWrite) {
    ++stats_.writes;
    stats_.written += finished.bytes;
  }
}

IoStats IoFront::stats() const {
  IoStats stats = stats_;
  stats.in_flight = gauges_.in_flight.load(std::memory_order_relaxed);
  stats.depth = gauges_.depth.load(std::memory_order_relaxed);
  stats.window = ByteCount(gauges_.window.load(std::memory_order_relaxed));
  stats.registered = ByteCount(gauges_.registered.load(std::memory_order_relaxed));
  return stats;
}

}  // namespace orbitkv::ssd
