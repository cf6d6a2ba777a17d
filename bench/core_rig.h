// The core without a daemon around it, filled with blocks: what the benches of its calls begin with.
// One thread.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "cache/core.h"

namespace orbitkv::bench {

// CPU time of this thread: who else runs on the machine costs nothing of it.
TimePoint thread_cpu_now();

// Grants everything; the core's owner says when it was copied.
class InstantPorts final : public cache::Ports {
 public:
  struct Granted {
    cache::OperationKey op;
    std::size_t entries = 0;
  };
  std::vector<Granted> granted;

  Grant grant(const cache::OperationKey& op, const model::Plan& plan) override {
    granted.push_back({op, plan.entries.size()});
    return Grant::kGranted;
  }
  Revoke revoke(const cache::OperationKey&, const Error&) override { return Revoke::kAlreadyClaimed; }
  void fail(const cache::OperationKey&, const Error&) override {}
  void reap(const cache::OperationKey&) override {}
  void drop(const cache::OperationKey&, const Dropped&) override {}
};

class CoreRig {
 public:
  struct Shape {
    std::uint32_t engines = 1;  // a session and an instance each
    std::uint32_t blocks = 0;   // of an engine, hashes_from(engine * blocks) on, all in memory
    cache::CoreConfig core = {};
    cache::Tier* tier = nullptr;
  };
  Status open(const Shape& shape);
  cache::Core& core() { return *core_; }
  InstantPorts& ports() { return ports_; }
  RegistrationId registration(std::uint32_t engine) const { return registrations_[engine]; }
  static InstanceId instance(std::uint32_t engine);
  static ByteCount block_bytes();  // in memory
  // In a record that no operation of the session holds.
  cache::OperationKey next_operation(SessionId session, std::uint32_t record = 0) {
    return {session, RecordIndex(record), OperationId(++operations_)};
  }
  // All that is granted was copied.
  void drain(TimePoint now);
  static constexpr std::uint32_t kSlotBytes = 64;

 private:
  Status fill(std::uint32_t engine, std::uint32_t blocks, TimePoint now);

  InstantPorts ports_;
  std::unique_ptr<mem::Pool> pool_;
  std::unique_ptr<cache::Core> core_;
  std::vector<RegistrationId> registrations_;
  std::uint64_t operations_ = 0;
};

}  // namespace orbitkv::bench
