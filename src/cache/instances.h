// Instances (engines) and the registrations of their ranks. An instance exists while
// a rank is registered; it is complete when all are. A registration id is never used
// again, so late work of an older one finds nothing. Owned by the core;
// single-threaded. Holds no engine address: geometry here is ids and byte counts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "cache/budgets.h"
#include "cache/namespaces.h"
#include "cache/shard_nodes.h"
#include "model/geometry.h"

namespace orbitkv::cache {

struct RegisteredGroup {
  GroupId group;
  ShardId shard;
  std::uint16_t shards = 1;
  bool writer = true;
  ByteCount slot_bytes;
  friend bool operator==(const RegisteredGroup&, const RegisteredGroup&) = default;
};

using DeviceIndex = Id<struct DeviceIndexTag, std::uint32_t>;

struct Registration {
  RegistrationId id;
  SessionId session;
  InstanceId instance;
  NamespaceIndex name_space;
  std::uint16_t rank = 0;
  DeviceIndex device;
  NodeId node = kAnyNode;  // that its device is nearest to
  std::uint32_t num_blocks = 0;
  std::uint32_t open_operations = 0;
  std::vector<RegisteredGroup> groups;
  const RegisteredGroup* find_group(GroupId group) const;
};

struct Instance {
  InstanceId id;
  NamespaceIndex name_space;
  std::uint16_t present = 0;                        // ranks that are registered
  std::vector<RegistrationId> ranks;                // world_size; 0: absent
  std::optional<model::RecoveryContract> contract;  // of all ranks; there from the first one on
  std::map<GroupId, ShardNodes> nodes = {};         // where the ranks of the shards are
  std::uint64_t dropped = 0;                        // blocks that it could not save for want of memory
  AccountIndex account = kNoAccount;                // of its queries
  bool complete() const { return present == ranks.size(); }
};

// Admitted restores of one device, by its name.
class Devices {
 public:
  DeviceIndex intern(const std::string& name);  // one registration more
  void forget(DeviceIndex device);              // one registration less
  bool admit_restore(DeviceIndex device);       // false: limits::kRestoresPerDevice are open
  void end_restore(DeviceIndex device);
  const std::string& name(DeviceIndex device) const { return devices_.at(device.value).name; }

 private:
  struct Device {
    std::string name;
    std::uint32_t registrations = 0, restores = 0;
  };
  std::vector<Device> devices_;
};

class Instances {
 public:
  explicit Instances(Namespaces& namespaces) : namespaces_(namespaces) {}
  // No group's slot may be larger from now on. 0: no slab is in use; whoever registers meanwhile finds no
  // memory until one is.
  void set_largest_slab(ByteCount largest) { largest_slab_ = largest; }

  // kReject: the shape is wrong or disagrees with the other ranks, both values named.
  // kBusy: a limit, or another session still holds the rank.
  Result<RegistrationId> add(SessionId session, const model::RankRegistration& rank);
  // A block of it found no memory.
  void count_dropped(RegistrationId id);
  // The rank leaves; true if the instance ended with it.
  bool remove(RegistrationId id);

  Registration* find(RegistrationId id);
  // nullptr where unknown.
  Instance* find_instance(const InstanceId& id);
  // Any registered rank of it: groups are equal but for shard and writer.
  const Registration& any_rank(const Instance& instance) const;
  const std::map<InstanceId, Instance>& all() const { return instances_; }
  Devices& devices() { return devices_; }

 private:
  Status check_joins(const Instance& instance, const model::RankRegistration& rank, SessionId session);
  Status check_shards(const Instance& instance, const Registration& last) const;
  static void note_nodes(Instance& instance, const Registration& joined);
  Result<std::vector<RegisteredGroup>> groups_of(const model::RankRegistration& rank) const;

  Namespaces& namespaces_;
  ByteCount largest_slab_;
  Devices devices_;
  std::map<InstanceId, Instance> instances_;
  std::unordered_map<RegistrationId, Registration> registrations_;
  std::uint64_t last_id_ = 0;
};

// "a1b2c3d4…": the first bytes of an id or digest, for messages.
std::string short_hex(std::span<const std::byte> bytes);

}  // namespace orbitkv::cache
