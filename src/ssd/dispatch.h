// The store's requests on their way to Io: keeps their pieces alive, holds back what Io
// does not take yet, and calls back with each result. Owned by the store; its thread only.
// Never forgets a request: what was handed in is called back, or drained at the end.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ssd/io.h"

namespace orbitkv::ssd {

// Page-aligned memory for what the store itself reads and writes.
class PageBuffer {
 public:
  PageBuffer() = default;
  explicit PageBuffer(std::size_t bytes);  // a multiple of 4096; zeroed
  std::span<std::byte> span() const { return {data_.get(), bytes_}; }
  std::span<std::byte> first(std::size_t bytes) const { return span().first(bytes); }
  std::size_t size() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_ = 0;
};

// A page of zeros, for gaps. Written to the device only.
std::span<std::byte> zero_page();

class Dispatch {
 public:
  using Done = std::function<void(int error)>;  // 0 or errno
  using Pieces = std::vector<std::span<std::byte>>;
  struct Request {
    IoOp op = IoOp::kRead;
    FileIndex file;
    std::uint64_t offset = 0;
    Pieces pieces;
  };

  explicit Dispatch(Io& io) : io_(io) {}
  ~Dispatch() { drain(); }
  // Waits for the device and calls nobody back, now or later.
  void drain();

  void submit(Request request, Done done);
  // Gives Io what it takes of what waits.
  void hand_over();
  // The same, and calls back what ended; returns how many ended.
  std::size_t pump(std::size_t most);
  // For open() only: one request, waited for; other results are called back meanwhile.
  int wait(Request request);
  // Waits until a result is there or the time is over, then pumps. For open() and ends.
  void pump_waiting(Duration wait);

  bool idle() const { return used_ == 0; }

 private:
  struct Slot {
    Request request;
    Done done;
    bool used = false;
  };

  void hand_over(std::deque<std::uint32_t>& waiting);
  std::size_t take_results(std::size_t most, Duration wait);

  Io& io_;
  std::deque<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::deque<std::uint32_t> reads_, others_;  // not taken by Io yet
  std::uint32_t used_ = 0, accepted_ = 0;
};

}  // namespace orbitkv::ssd
