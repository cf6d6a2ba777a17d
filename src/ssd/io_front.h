// What the implementations of Io share on the owner's side: files, the check of requests,
// the bound of accepted ones, results and statistics. An implementation derives from it
// and takes checked requests by hand_over(). Called by the owner's thread, but for
// gauges() and completions(). Never does I/O on a file.
#pragma once

#include <atomic>
#include <vector>

#include "ssd/completions.h"
#include "ssd/io.h"
#include "ssd/real_file.h"
#include "ssd/transfer.h"

namespace orbitkv::ssd {

// Written by the threads of an implementation, read by stats().
struct IoGauges {
  std::atomic<std::uint32_t> in_flight{0}, depth{0};
  std::atomic<std::uint64_t> window{0}, registered{0};
};

class IoFront : public Io {
 public:
  Result<Opened> open(const std::string& path, ByteCount bytes) final;
  Status grow(FileIndex file, ByteCount bytes) override;
  FileIdentity identity(FileIndex file) const override;
  bool linked(FileIndex file) const override;
  ByteCount free_space(const std::string& path) const override;
  std::size_t submit(std::span<const IoRequest> requests) final;
  std::size_t reap(std::span<IoResult> results, Duration wait) final;
  IoStats stats() const final;

 protected:
  explicit IoFront(const IoOptions& options);
  ~IoFront() override;  // after the implementation has waited for what was accepted

  virtual void hand_over(const Accepted& accepted) = 0;  // never refused
  virtual void handed_over() {}                          // a batch is complete
  virtual void reaped(const Finished&) {}                // not for one that was refused
  // Of real files.
  virtual Result<OpenFile> open_file(const std::string& path, ByteCount bytes) {
    return open_real(path, bytes);
  }
  virtual void file_opened(FileIndex, int) {}
  virtual void refused(const Finished& finished) = 0;  // comes out of take() too
  virtual std::size_t take(std::span<Finished> out) = 0;
  // Until take() may have some, or `wait` (negative: no end) is over.
  virtual void wait_for_some(Duration wait) = 0;
  virtual TimePoint time() const { return monotonic_now(); }

  const IoOptions& options() const { return options_; }
  IoGauges& gauges() { return gauges_; }

 private:
  std::uint32_t& outstanding(IoOp op) { return op == IoOp::kRead ? reads_ : writes_; }
  void accept(const IoRequest& request);
  std::size_t take_results(std::span<IoResult> results);
  void count(const Finished& finished);

  const IoOptions options_;
  std::vector<OpenFile> files_;
  std::uint32_t reads_ = 0, writes_ = 0;  // accepted and not reaped; syncs are writes
  std::uint64_t accepted_ = 0;
  IoStats stats_;
  IoGauges gauges_;
};

// With results that come from other threads, or none.
class QueuedFront : public IoFront {
 public:
  int completion_fd() const final { return completions_.fd(); }

 protected:
  explicit QueuedFront(const IoOptions& options)
      : IoFront(options), completions_(2 * this->options().queue) {}
  void refused(const Finished& finished) final { completions_.push({&finished, 1}); }
  std::size_t take(std::span<Finished> out) final { return completions_.pop(out); }
  void wait_for_some(Duration wait) override { completions_.wait(wait); }
  Completions& completions() { return completions_; }

 private:
  Completions completions_;
};

}  // namespace orbitkv::ssd
