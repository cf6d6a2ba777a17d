// The keys of the last N saves, exactly. Owned by Admission, core thread. Never grows.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ssd/block_history.h"

namespace orbitkv::ssd {

class SaveHistory {
 public:
  explicit SaveHistory(std::uint32_t saves) : ring_(saves) { last_.reserve(saves); }

  // True: it is one of the last N saves before this one.
  bool save(AdmissionKey key) {
    Save& oldest = ring_[next_ % ring_.size()];
    const auto known = last_.find(key);
    const bool again = known != last_.end();
    if (oldest.used) forget(oldest.key, next_ - ring_.size());
    oldest = {key, true};
    last_[key] = next_++;
    return again;
  }
  std::size_t size() const { return last_.size(); }

 private:
  struct Save {
    AdmissionKey key;
    bool used = false;
  };
  // Unless it was saved later as well.
  void forget(AdmissionKey key, std::uint64_t number) {
    const auto known = last_.find(key);
    if (known != last_.end() && known->second == number) last_.erase(known);
  }

  std::vector<Save> ring_;
  std::unordered_map<AdmissionKey, std::uint64_t> last_;
  std::uint64_t next_ = 0;
};

}  // namespace orbitkv::ssd
