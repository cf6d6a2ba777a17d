#include "ssd/transfer.h"

#include <algorithm>
#include <cerrno>

namespace orbitkv::ssd {
namespace {

constexpr std::uint32_t kTriesWithoutProgress = 1000;

bool is_multiple(std::uint64_t value, std::uint32_t of) {
  return value % of == 0;
}

}  // namespace

ByteCount bytes_of(const IoRequest& request) {
  ByteCount sum;
  for (const auto& piece : request.pieces) sum += ByteCount(piece.size());
  return sum;
}

int check_request(const IoRequest& request, IoAlignment alignment) {
  if (request.op == IoOp::kSync) return request.pieces.empty() ? 0 : EINVAL;
  if (request.pieces.empty() || request.pieces.size() > kPieces) return EINVAL;
  if (!is_multiple(request.offset, alignment.offset)) return EINVAL;
  for (const auto& piece : request.pieces) {
    if (piece.empty() || !is_multiple(piece.size(), alignment.offset)) return EINVAL;
    if (!is_multiple(reinterpret_cast<std::uintptr_t>(piece.data()), alignment.memory)) return EINVAL;
  }
  constexpr std::uint64_t kMostOffset = std::uint64_t{1} << 62;
  return request.offset > kMostOffset || bytes_of(request) > kMostRequest ? EINVAL : 0;
}

Transfer::Step Transfer::next(IoFaults* faults, TimePoint now) {
  if (submissions_++ == 0) started_ = now;
  step_ = accepted_.bytes.value - done_;
  fault_error_ = 0;
  skipped_ = false;
  Duration delay;
  if (faults != nullptr) {
    const IoFault fault = faults->next(accepted_.request);
    if (fault.kind == IoFault::Kind::kDelay) delay = fault.delay;
    if (fault.kind == IoFault::Kind::kError) fault_error_ = fault.error;
    if (fault.kind == IoFault::Kind::kError || fault.kind == IoFault::Kind::kShort) {
      step_ = std::min(step_, fault.bytes);
      skipped_ = step_ == 0;
    }
  }
  return {step_, delay, skipped_};
}

bool Transfer::ended(std::int64_t result) {
  if (skipped_ && fault_error_ == 0) result = -EAGAIN;
  if (result == -EAGAIN || result == -EINTR)
    return ++stuck_ > kTriesWithoutProgress && fail(static_cast<int>(-result));
  if (result < 0) return fail(static_cast<int>(-result));
  return go_on(static_cast<std::uint64_t>(result));
}

bool Transfer::go_on(std::uint64_t moved) {
  if (accepted_.request.op == IoOp::kSync) return fault_error_ == 0 || fail(fault_error_);
  if (moved < step_) {
    const std::uint64_t tail = moved % accepted_.alignment.offset;
    // A file ends where a read ends off its grid; a device that writes nothing is broken.
    if (moved == tail || (tail != 0 && accepted_.request.op == IoOp::kRead)) return fail(EIO);
    moved -= tail;
  } else if (fault_error_ != 0) {
    return fail(fault_error_);
  }
  stuck_ = 0;
  done_ += moved;
  return done_ == accepted_.bytes.value;
}

bool Transfer::fail(int error) {
  error_ = error;
  return true;
}

Finished Transfer::finished(TimePoint now) const {
  return {{accepted_.request.tag, error_, now - started_},
          accepted_.request.op,
          accepted_.bytes,
          submissions_ - 1,
          accepted_.order};
}

std::size_t Transfer::memory_of(std::uint64_t begin, std::uint64_t bytes, std::span<iovec> out) const {
  std::size_t count = 0;
  for (const auto& piece : accepted_.request.pieces) {
    if (bytes == 0 || count == out.size()) break;
    if (begin >= piece.size()) {
      begin -= piece.size();
      continue;
    }
    const std::uint64_t length = std::min<std::uint64_t>(piece.size() - begin, bytes);
    out[count++] = {piece.data() + begin, length};
    bytes -= length;
    begin = 0;
  }
  return count;
}

}  // namespace orbitkv::ssd
