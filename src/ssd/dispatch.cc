#include "ssd/dispatch.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "ssd/format.h"

namespace orbitkv::ssd {
namespace {

constexpr std::size_t kHandOver = 64;  // requests given to Io in one call
constexpr std::size_t kResults = 64;

}  // namespace

void PageBuffer::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

PageBuffer::PageBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes)));
  ORBITKV_CHECK(data_ != nullptr, "no memory for a buffer of the store");
  std::memset(data_.get(), 0, bytes);
}

std::span<std::byte> zero_page() {
  alignas(kPageBytes) static std::array<std::byte, kPageBytes> page{};
  return page;
}

void Dispatch::drain() {
  reads_.clear();
  others_.clear();
  std::array<IoResult, kResults> results;
  while (accepted_ > 0) {
    accepted_ -= static_cast<std::uint32_t>(io_.reap(results, milliseconds(100)));
  }
  // Not before: what they hold may be the memory of a transfer.
  slots_.clear();
  free_.clear();
  used_ = 0;
}

void Dispatch::submit(Request request, Done done) {
  std::uint32_t index;
  if (free_.empty()) {
    index = static_cast<std::uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  auto& waiting = request.op == IoOp::kRead ? reads_ : others_;
  slots_[index] = Slot{std::move(request), std::move(done), true};
  waiting.push_back(index);
  ++used_;
}

void Dispatch::hand_over() {
  hand_over(reads_);
  hand_over(others_);
}

// Io's bound of reads is not that of writes and syncs, and it shares out the device.
void Dispatch::hand_over(std::deque<std::uint32_t>& waiting) {
  while (!waiting.empty()) {
    std::array<IoRequest, kHandOver> batch;
    const std::size_t count = std::min(kHandOver, waiting.size());
    for (std::size_t i = 0; i < count; ++i) {
      const Request& request = slots_[waiting[i]].request;
      batch[i] = IoRequest{IoTag(waiting[i]), request.op, request.file, request.offset, request.pieces};
    }
    const std::size_t taken = io_.submit(std::span(batch).first(count));
    waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(taken));
    accepted_ += static_cast<std::uint32_t>(taken);
    if (taken < count) return;
  }
}

std::size_t Dispatch::take_results(std::size_t most, Duration wait) {
  std::size_t ended = 0;
  std::array<IoResult, kResults> results;
  while (ended < most) {
    const std::size_t wanted = std::min(most - ended, results.size());
    const std::size_t count = io_.reap(std::span(results).first(wanted), wait);
    accepted_ -= static_cast<std::uint32_t>(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto index = static_cast<std::uint32_t>(results[i].tag.value);
      ORBITKV_CHECK(index < slots_.size() && slots_[index].used, "a result of no request");
      const Done done = std::move(slots_[index].done);
      slots_[index] = Slot{};
      free_.push_back(index);
      --used_;
      if (done) done(results[i].error);
    }
    ended += count;
    wait = Duration{};
    if (count < wanted) break;
  }
  return ended;
}

std::size_t Dispatch::pump(std::size_t most) {
  hand_over();
  const std::size_t ended = take_results(most, Duration{});
  hand_over();
  return ended;
}

void Dispatch::pump_waiting(Duration wait) {
  hand_over();
  if (accepted_ > 0) take_results(kResults, wait);
  hand_over();
}

int Dispatch::wait(Request request) {
  std::optional<int> error;
  submit(std::move(request), [&error](int result) { error = result; });
  while (!error) pump_waiting(milliseconds(100));
  return *error;
}

}  // namespace orbitkv::ssd
