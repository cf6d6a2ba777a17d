#include "client/registry.h"

#include <algorithm>

#include "base/limits.h"
#include "base/text.h"
#include "client/devices.h"
#include "mem/placement.h"

namespace orbitkv::client {
namespace {

// Last byte that the fragment geometry can touch, plus one; nullopt on overflow.
std::optional<std::uint64_t> span_bytes(const Layer& layer, std::uint32_t num_blocks) {
  std::uint64_t rows = 0, blocks = 0, total = 0;
  if (__builtin_mul_overflow(std::uint64_t{layer.rows - 1}, layer.row_stride, &rows)) return std::nullopt;
  if (__builtin_mul_overflow(std::uint64_t{num_blocks - 1}, layer.block_stride, &blocks)) return std::nullopt;
  if (__builtin_add_overflow(rows, blocks, &total)) return std::nullopt;
  if (__builtin_add_overflow(total, layer.row_bytes, &total)) return std::nullopt;
  return total;
}

Status check_range(const Layer& layer, std::uint32_t num_blocks) {
  if (layer.base == nullptr || layer.rows == 0 || layer.row_bytes == 0 || num_blocks == 0)
    return reject(
        format_text("layer '%s': base, rows, row_bytes and num_blocks are all needed", layer.name.c_str()));
  const auto bytes = span_bytes(layer, num_blocks);
  if (!bytes || *bytes > layer.bytes)
    return reject(format_text("layer '%s': %u blocks reach beyond the %llu bytes of its allocation",
                              layer.name.c_str(), num_blocks, static_cast<unsigned long long>(layer.bytes)));
  if (std::uint64_t{layer.rows} * layer.row_bytes % 8 != 0)
    return reject(format_text("layer '%s': %u rows of %llu bytes are no multiple of 8", layer.name.c_str(),
                              layer.rows, static_cast<unsigned long long>(layer.row_bytes)));
  return ok_status();
}

// A layer that is split over components appears once a component under one name.
std::uint16_t layer_number(std::vector<std::string>& names, const std::string& name) {
  auto it = std::find(names.begin(), names.end(), name);
  if (it == names.end()) it = names.insert(names.end(), name);
  return static_cast<std::uint16_t>(it - names.begin());
}

Result<RegisteredGroup> make_group(const Registration& registration, const Group& group, const Entry& entry) {
  RegisteredGroup made;
  made.geometry.num_blocks = registration.num_blocks;
  auto& shape = made.geometry.shape;
  shape.group = GroupId(group.id);
  shape.rule = group.rule;
  shape.window_tokens = group.window_tokens;
  shape.shard = ShardId(group.shard);
  shape.shards = group.shards;
  shape.writer = group.writer;
  std::vector<std::string> names;
  for (const Layer& layer : registration.layers) {
    if (layer.group != group.id) continue;
    ORBITKV_RETURN_IF_ERROR(check_range(layer, registration.num_blocks));
    const std::uint16_t number = layer_number(names, layer.name);
    made.geometry.fragments.push_back({number, layer.component, entry.turns.at(layer.name), layer.base,
                                       layer.block_stride, layer.rows, layer.row_bytes, layer.row_stride});
  }
  if (made.geometry.fragments.empty())
    return reject(format_text("group %u has no layer; list its layers or leave the group out", group.id));
  std::stable_sort(made.geometry.fragments.begin(), made.geometry.fragments.end(),
                   [](const auto& a, const auto& b) {
                     return std::pair(a.layer, a.component) < std::pair(b.layer, b.component);
                   });
  for (const auto& fragment : made.geometry.fragments)
    shape.fragments.push_back({fragment.layer, fragment.component, ByteCount(fragment.bytes())});
  return made;
}
Status check_memory(const Registration& registration, const device::Device& device) {
  for (const Layer& layer : registration.layers) {
    const Status known = device.check_memory({layer.base, layer.bytes});
    if (!known.ok())
      return Error(known.error().code(), "layer '" + layer.name + "': " + known.error().message());
  }
  return ok_status();
}

// Of pages in CPU memory: the largest layer's, which stands for the rest.
NodeId node_of_layers(const std::vector<Layer>& layers) {
  const auto largest = std::max_element(layers.begin(), layers.end(),
                                        [](const Layer& a, const Layer& b) { return a.bytes < b.bytes; });
  if (largest == layers.end()) return kAnyNode;
  return mem::node_of_pages({static_cast<const std::byte*>(largest->base), largest->bytes});
}
}  // namespace

const RegisteredGroup* Entry::group(GroupId id) const {
  for (const RegisteredGroup& group : groups)
    if (group.geometry.shape.group == id) return &group;
  return nullptr;
}

Result<std::unique_ptr<Entry>> make_entry(const Registration& registration, std::uint64_t handle,
                                          device::Device& device) {
  auto entry = std::make_unique<Entry>();
  entry->handle = handle;
  entry->device = &device;
  entry->gpu = Devices::is_gpu(device);
  auto& rank = entry->rank;
  rank.instance = registration.instance;
  rank.name_space = registration.name_space;
  rank.rank = registration.rank;
  rank.world_size = registration.world_size;
  rank.device = device.identity();
  rank.num_blocks = registration.num_blocks;
  rank.block_tokens = registration.block_tokens;
  for (const Layer& layer : registration.layers)
    entry->turns.emplace(layer.name, static_cast<std::uint16_t>(entry->turns.size()));
  if (entry->turns.size() > limits::kLayers)
    return reject(
        format_text("%zu layer names; at most %u are allowed", entry->turns.size(), limits::kLayers));
  for (const Group& group : registration.groups) {
    ORBITKV_ASSIGN_OR_RETURN(auto made, make_group(registration, group, *entry));
    rank.groups.push_back(made.geometry.shape);
    entry->groups.push_back(std::move(made));
  }
  ORBITKV_RETURN_IF_ERROR(model::validate(rank));
  for (RegisteredGroup& group : entry->groups) {
    ORBITKV_RETURN_IF_ERROR(device::validate(group.geometry));
    group.layout = model::slot_layout(group.geometry.shape);
  }
  for (const Layer& layer : registration.layers)
    if (!entry->group(GroupId(layer.group)))
      return reject(
          format_text("layer '%s' names group %u, which is not registered", layer.name.c_str(), layer.group));
  ORBITKV_RETURN_IF_ERROR(check_memory(registration, device));
  rank.node = entry->gpu ? device.node() : node_of_layers(registration.layers);
  return entry;
}

Result<std::vector<device::LayerEvent>> events_by_turn(const Entry& entry,
                                                       std::span<const LayerEvent> events) {
  std::vector<device::LayerEvent> made;
  if (events.empty()) return made;
  if (!entry.gpu) return reject("pages in CPU memory have no streams; layer events need a GPU registration");
  made.reserve(events.size());
  for (const LayerEvent& event : events) {
    const std::string name(event.layer);
    const auto turn = entry.turns.find(event.layer);
    if (turn == entry.turns.end())
      return reject("a layer event names '" + name + "', which no registered layer is called");
    if (event.event == 0)
      return reject("the event of layer '" + name + "' is null; create it before the restore is started");
    made.push_back({turn->second, {event.event}});
  }
  std::sort(made.begin(), made.end(), [](auto& a, auto& b) { return a.event.value < b.event.value; });
  for (std::size_t i = 1; i < made.size(); ++i)
    if (made[i].event == made[i - 1].event)
      return reject("one event is given for two layers; use one a layer");
  std::sort(made.begin(), made.end(), [](auto& a, auto& b) { return a.turn < b.turn; });
  for (std::size_t i = 1; i < made.size(); ++i)
    if (made[i].turn == made[i - 1].turn)
      return reject("two events are given for one layer; use one, it is recorded after all its bytes");
  return made;
}

}  // namespace orbitkv::client
