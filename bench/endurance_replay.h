// A trace of requests against DRAM of so many blocks (least recent leaves first, the end of
// a request before its beginning) and an SSD without end. Main thread of a bench; blocks are
// numbers, nothing is copied. Never looks at a later request; clairvoyant_choice() does.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "ssd/admission.h"

namespace orbitkv::bench {

using BlockNumber = std::uint64_t;
struct Request {
  TimePoint at;
  std::vector<BlockNumber> blocks;  // of the prompt; equal numbers: equal prefixes
};
// JSON lines with "timestamp" (milliseconds) and "hash_ids". kReject names the line.
Result<std::vector<Request>> read_requests(const std::string& path);

// Decides for each block without a copy on SSD; true: it has one from now on.
class Writer {
 public:
  virtual ~Writer() = default;
  virtual void asked(BlockNumber, const ssd::BlockContext&, bool /*found*/) {}
  virtual bool saved(BlockNumber, TimePoint) { return false; }
  virtual bool leaving(BlockNumber block, TimePoint now) = 0;
};

class PolicyWriter : public Writer {
 public:
  PolicyWriter(const ssd::AdmissionConfig& config, ByteCount block) : admission_(config), bytes_(block) {}
  void asked(BlockNumber block, const ssd::BlockContext& context, bool found) override;
  bool saved(BlockNumber block, TimePoint now) override;
  bool leaving(BlockNumber block, TimePoint now) override;
  ssd::AdmissionStats stats() const { return admission_.stats(); }

 private:
  ssd::Admission admission_;
  ByteCount bytes_;
};

class ChosenWriter : public Writer {
 public:
  explicit ChosenWriter(std::unordered_set<BlockNumber> chosen) : chosen_(std::move(chosen)) {}
  bool leaving(BlockNumber block, TimePoint) override { return chosen_.contains(block); }

 private:
  std::unordered_set<BlockNumber> chosen_;
};

struct ReplayCounts {
  std::uint64_t asked = 0, found = 0, read = 0, written = 0;  // blocks; read: from SSD
  double hit_rate() const { return asked == 0 ? 0 : static_cast<double>(found) / static_cast<double>(asked); }
};

class EnduranceReplay {
 public:
  EnduranceReplay(std::uint32_t dram_blocks, Writer& writer) : room_(dram_blocks), writer_(writer) {}
  void request(const Request& request);
  const ReplayCounts& counts() const { return counts_; }
  // Blocks that the last request read from SSD, in its order.
  const std::vector<BlockNumber>& last_read() const { return last_read_; }

 private:
  struct Block {
    bool in_dram = false, on_ssd = false;
    std::list<BlockNumber>::iterator place;
  };
  std::uint32_t found_of(const Request& request);
  void save_rest(const Request& request, std::uint32_t found);
  void evict(TimePoint now);

  std::uint32_t room_;
  Writer& writer_;
  std::unordered_map<BlockNumber, Block> blocks_;
  std::list<BlockNumber> dram_;  // least recent first
  std::vector<BlockNumber> last_read_;
  ReplayCounts counts_;
};

// What a writer that knows the trace writes: all that is read back from SSD, less the ends
// of requests that nobody else reads, up to this share of all hits.
struct Spared {
  double share = 0.01;
};
std::unordered_set<BlockNumber> clairvoyant_choice(const std::vector<Request>& trace,
                                                   std::uint32_t dram_blocks, Spared spared);

}  // namespace orbitkv::bench
