// Commands of the operator: one JSON object in, one out. {"command": "evict", "bytes": n},
// {"command": "ssd_list", "after": digest}, {"command": "ssd_drop", "digest": hex prefix | "unasked": true}.
// A drop is answered when it would survive a power loss; until then its question waits
// here. Owned by the Manager; core thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "cache/core.h"
#include "daemon/ssd_tier.h"

namespace orbitkv::daemon {

class Control {
 public:
  // tier: nullptr without an SSD.
  Control(cache::Core& core, const mem::Pool& pool, SsdTier* tier) : core_(core), pool_(pool), tier_(tier) {}

  // Called once, at once or in a later poll(): the answer's JSON or why not.
  using Answer = std::function<void(const Result<std::string>&)>;
  void ask(const std::string& question, TimePoint now, Answer answer);
  // Answers drops that have become durable.
  void poll();

 private:
  // A drop whose namespaces are not all durably gone.
  struct Drop {
    std::vector<ssd::TransferId> flushes;
    std::uint64_t namespaces = 0, records = 0, evicted = 0;
    std::uint64_t left = 0;  // namespaces that could not be dropped, and why
    std::string why_left;
    bool failed = false;
    Answer answer;
  };
  Result<std::string> evict(ByteCount bytes, TimePoint now);
  Result<std::string> list(const std::string& after) const;
  Result<std::vector<model::NamespaceDigest>> chosen(const std::string& prefix, bool unasked) const;
  void drop(const std::vector<model::NamespaceDigest>& digests, TimePoint now, Answer answer);

  cache::Core& core_;
  const mem::Pool& pool_;
  SsdTier* tier_;
  std::vector<Drop> drops_;
};

}  // namespace orbitkv::daemon
