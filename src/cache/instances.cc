#include "cache/instances.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/limits.h"
#include "base/text.h"

namespace orbitkv::cache {

std::string short_hex(std::span<const std::byte> bytes) {
  std::string out;
  for (std::size_t i = 0; i < std::min<std::size_t>(bytes.size(), 6); ++i) {
    out += format_text("%02x", static_cast<unsigned>(bytes[i]));
  }
  return out;
}

const RegisteredGroup* Registration::find_group(GroupId group) const {
  for (const RegisteredGroup& g : groups) {
    if (g.group == group) return &g;
  }
  return nullptr;
}

// ---- devices ----

DeviceIndex Devices::intern(const std::string& name) {
  std::size_t unused = devices_.size();
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    Device& d = devices_[i];
    const bool used = d.registrations + d.restores > 0;
    if (used && d.name == name) {
      ++d.registrations;
      return DeviceIndex(static_cast<std::uint32_t>(i));
    }
    if (!used) unused = i;
  }
  if (unused == devices_.size()) devices_.emplace_back();
  devices_[unused] = {name, 1, 0};
  return DeviceIndex(static_cast<std::uint32_t>(unused));
}

void Devices::forget(DeviceIndex device) {
  --devices_.at(device.value).registrations;
}

bool Devices::admit_restore(DeviceIndex device) {
  Device& d = devices_.at(device.value);
  if (d.restores == limits::kRestoresPerDevice) return false;
  ++d.restores;
  return true;
}

void Devices::end_restore(DeviceIndex device) {
  ORBITKV_CHECK(devices_.at(device.value).restores > 0, "restore ended twice");
  --devices_[device.value].restores;
}

// ---- registrations ----

Registration* Instances::find(RegistrationId id) {
  const auto it = registrations_.find(id);
  return it == registrations_.end() ? nullptr : &it->second;
}

Instance* Instances::find_instance(const InstanceId& id) {
  const auto it = instances_.find(id);
  return it == instances_.end() ? nullptr : &it->second;
}

const Registration& Instances::any_rank(const Instance& instance) const {
  for (const RegistrationId id : instance.ranks) {
    if (id.value != 0) return registrations_.at(id);
  }
  ORBITKV_CHECK(false, "an instance without a rank does not exist");
}

Result<std::vector<RegisteredGroup>> Instances::groups_of(const model::RankRegistration& rank) const {
  std::vector<RegisteredGroup> out;
  for (const model::GroupShape& g : rank.groups) {
    const ByteCount bytes(model::slot_layout(g).slot_bytes);
    if (largest_slab_.value > 0 && bytes > largest_slab_) {
      return reject(
          format_text("one block of group %u takes %llu bytes, more than the largest slab of the pool "
                      "(%llu); start the Manager with a larger --pool-size",
                      g.group.value, static_cast<unsigned long long>(bytes.value),
                      static_cast<unsigned long long>(largest_slab_.value)));
    }
    out.push_back({g.group, g.shard, g.shards, g.writer, bytes});
  }
  return out;
}

Status Instances::check_joins(const Instance& instance, const model::RankRegistration& rank,
                              SessionId session) {
  if (rank.world_size != instance.ranks.size()) {
    return reject(format_text("rank %u says world size %u, the instance's other ranks say %zu", rank.rank,
                              rank.world_size, instance.ranks.size()));
  }
  const model::NamespaceDigest digest = model::namespace_digest(rank);
  const model::NamespaceDigest& other = namespaces_.digest(instance.name_space);
  if (digest != other) {
    return reject(
        format_text("rank %u has namespace and shapes %s, the instance's other ranks %s; all ranks of "
                    "an instance must agree",
                    rank.rank, short_hex(digest.bytes).c_str(), short_hex(other.bytes).c_str()));
  }
  const Registration* held = find(instance.ranks.at(rank.rank));
  if (held == nullptr) return ok_status();
  if (held->session == session) {
    return reject(
        format_text("rank %u is registered already in this session; unregister it first", rank.rank));
  }
  return busy(
      format_text("rank %u of this instance is registered by session %u; it leaves when that session ends "
                  "(another engine needs an instance id of its own)",
                  rank.rank, held->session.value));
}

// Once all ranks are there, every shard of every group must have one, or no block
// would ever become visible.
Status Instances::check_shards(const Instance& instance, const Registration& last) const {
  for (const RegisteredGroup& g : last.groups) {
    std::uint64_t written = g.writer ? std::uint64_t{1} << g.shard.value : 0;
    for (const RegistrationId id : instance.ranks) {
      if (id.value == 0) continue;
      const RegisteredGroup* other = registrations_.at(id).find_group(g.group);
      if (other != nullptr && other->writer) written |= std::uint64_t{1} << other->shard.value;
    }
    const auto covered = std::popcount(written);
    if (covered != g.shards) {
      return reject(format_text("group %u has %u shards, but the ranks write only %d of them", g.group.value,
                                g.shards, covered));
    }
  }
  return ok_status();
}

// A shard that several ranks read is near to the one that writes it.
void Instances::note_nodes(Instance& instance, const Registration& joined) {
  for (const RegisteredGroup& g : joined.groups) {
    ShardNodes& nodes = instance.nodes[g.group];
    if (g.writer || nodes.of(g.shard) == kAnyNode) nodes.set(g.shard, joined.node);
  }
}

Result<RegistrationId> Instances::add(SessionId session, const model::RankRegistration& rank) {
  ORBITKV_RETURN_IF_ERROR(model::validate(rank));
  ORBITKV_ASSIGN_OR_RETURN(auto groups, groups_of(rank));
  Instance* instance = find_instance(rank.instance);
  if (instance != nullptr) {
    ORBITKV_RETURN_IF_ERROR(check_joins(*instance, rank, session));
  } else if (instances_.size() == limits::kInstances) {
    return busy(format_text("%u instances are registered; stop one", limits::kInstances));
  }
  auto contract = model::recovery_contract(rank);
  if (!contract.ok()) return contract.error();
  Registration r;
  r.groups = std::move(groups);
  const Instance alone{rank.instance, {}, 0, std::vector<RegistrationId>(rank.world_size), {}, {}, 0};
  const Instance& joined = instance != nullptr ? *instance : alone;
  if (joined.present + 1u == joined.ranks.size()) ORBITKV_RETURN_IF_ERROR(check_shards(joined, r));
  const auto name_space = namespaces_.intern(model::namespace_digest(rank), rank.name_space);
  if (!name_space) return busy(format_text("%u namespaces are in use", limits::kNamespaces));
  if (instance == nullptr) {
    instance = &instances_.emplace(rank.instance, alone).first->second;
    instance->name_space = *name_space;
    instance->contract = std::move(*contract);
  }
  r.id = RegistrationId(++last_id_);
  r.session = session;
  r.instance = rank.instance;
  r.name_space = *name_space;
  r.rank = rank.rank;
  r.device = devices_.intern(rank.device);
  r.node = rank.node;
  r.num_blocks = rank.num_blocks;
  instance->ranks[rank.rank] = r.id;
  ++instance->present;
  note_nodes(*instance, r);
  const RegistrationId id = r.id;
  registrations_.emplace(id, std::move(r));
  return id;
}

void Instances::count_dropped(RegistrationId id) {
  const Registration* registration = find(id);
  if (registration != nullptr) ++instances_.at(registration->instance).dropped;
}

bool Instances::remove(RegistrationId id) {
  const auto it = registrations_.find(id);
  ORBITKV_CHECK(it != registrations_.end(), "registration is not there");
  const Registration& r = it->second;
  Instance& instance = instances_.at(r.instance);
  instance.ranks[r.rank] = RegistrationId(0);
  --instance.present;
  namespaces_.release(r.name_space);
  devices_.forget(r.device);
  const bool ended = instance.present == 0;
  if (ended) instances_.erase(r.instance);
  registrations_.erase(it);
  return ended;
}

}  // namespace orbitkv::cache
