#include "capi/convert.h"

#include "base/limits.h"
#include "base/text.h"

namespace orbitkv::capi {
namespace {

static_assert(sizeof(orbitkv_hash) == sizeof(BlockHash) && alignof(BlockHash) == 1);
static_assert(ORBITKV_RULE_PREFIX == static_cast<int>(RecoveryRule::kPrefix) &&
              ORBITKV_RULE_WINDOW == static_cast<int>(RecoveryRule::kWindow) &&
              ORBITKV_RULE_CHECKPOINT == static_cast<int>(RecoveryRule::kCheckpoint));
static_assert(ORBITKV_HOLE == kHole && ORBITKV_NO_STREAM == client::kNoStream);

// Each load or save group takes a grant record, if it has blocks.
constexpr std::size_t kMostParts = limits::kRecords;
constexpr std::size_t kMostBlocks = limits::kMetadataPerOperation.value / sizeof(std::uint32_t);

InstanceId to_instance(const orbitkv_instance& in) {
  InstanceId id;
  std::memcpy(id.bytes.data(), in.bytes, sizeof(in.bytes));
  return id;
}

void set_text(const char* in, std::string& out) {
  if (in) out = in;
}

Outcome to_hashes(const orbitkv_hash* hashes, std::size_t count, std::span<const BlockHash>& out) {
  out = {reinterpret_cast<const BlockHash*>(hashes), count};
  return check_array({"hashes", kMostBlocks}, hashes, count);
}

Outcome to_blocks(const std::uint32_t* blocks, std::size_t count, std::span<const std::uint32_t>& out) {
  out = {blocks, count};
  return check_array({"blocks", kMostBlocks}, blocks, count);
}

Outcome add_group(const orbitkv_group& in, client::Registration& out) {
  if (in.rule < ORBITKV_RULE_PREFIX || in.rule > ORBITKV_RULE_CHECKPOINT)
    return reject(format_text("group %u has rule %d, which is none; start from ORBITKV_GROUP_INIT", in.id,
                              static_cast<int>(in.rule)));
  const auto rule = static_cast<RecoveryRule>(in.rule);
  out.groups.push_back({in.id, in.shard, in.shards, in.writer, rule, in.window_tokens});
  return {};
}

Outcome add_layer(const orbitkv_layer& in, client::Registration& out) {
  if (in.name == nullptr) return reject(format_text("layer %zu has no name", out.layers.size()));
  client::Layer layer;
  layer.name = in.name;
  layer.group = in.group;
  layer.component = in.component;
  layer.base = static_cast<std::byte*>(in.base);
  layer.bytes = in.bytes;
  layer.block_stride = in.block_stride;
  layer.rows = in.rows;
  layer.row_bytes = in.row_bytes;
  layer.row_stride = in.row_stride;
  out.layers.push_back(std::move(layer));
  return {};
}

}  // namespace

LeaseId to_lease(const orbitkv_lease& in) {
  LeaseId lease;
  std::memcpy(lease.bytes.data(), in.bytes, sizeof(in.bytes));
  return lease;
}

orbitkv_lease from_lease(const LeaseId& in) {
  orbitkv_lease lease;
  std::memcpy(lease.bytes, in.bytes.data(), sizeof(lease.bytes));
  return lease;
}

orbitkv_hit from_ready(const client::Ready& in) {
  orbitkv_hit hit = ORBITKV_HIT_INIT;
  hit.blocks = in.hit_blocks;
  hit.loading = in.loading ? 1 : 0;
  hit.lease = from_lease(in.lease);
  hit.revision = in.ticket.revision;
  hit.waits = in.admitted ? 0 : 1;
  return hit;
}

void copy_text(const std::string& text, std::span<char> field) {
  constexpr std::string_view kCut = "...";
  const std::size_t room = field.size() - 1;
  const std::size_t n = std::min(text.size(), room);
  std::memcpy(field.data(), text.data(), n);
  field[n] = 0;
  if (text.size() > room) std::memcpy(field.data() + room - kCut.size(), kCut.data(), kCut.size());
}

Outcome to_options(const orbitkv_options* in, client::Options& out) {
  if (in == nullptr) return {};
  orbitkv_options options{};
  Outcome outcome = read_sized(in, options);
  if (!outcome.ok()) return outcome;
  set_text(options.bootstrap_socket, out.bootstrap_socket);
  set_text(options.name, out.name);
  out.timeout_ms = options.timeout_ms;
  out.spin_iterations = options.spin_iterations;
  out.verify = options.verify;
  out.inline_copies = options.inline_copies;
  out.early_leases = options.early_leases;
  set_text(options.copy_method, out.copy_method);
  set_text(options.copy_pace, out.copy_pace);
  set_text(options.trace_file, out.trace_file);
  return {};
}

Outcome to_registration(const orbitkv_memory* in, client::Registration& out) {
  orbitkv_memory memory{};
  Outcome outcome = read_sized(in, memory);
  if (!outcome.ok()) return outcome;
  if (memory.name_space == nullptr) return reject("name_space is NULL");
  out.instance = to_instance(memory.instance);
  out.name_space = memory.name_space;
  out.rank = memory.rank;
  out.world_size = memory.world_size;
  set_text(memory.device, out.device);
  out.num_blocks = memory.num_blocks;
  out.block_tokens = memory.block_tokens;
  if (memory.group_count == 0) out.groups.emplace_back();
  outcome = each<orbitkv_group>({"groups", limits::kGroups}, {memory.groups, memory.group_count},
                                [&](const orbitkv_group& group) { return add_group(group, out); });
  if (!outcome.ok()) return outcome;
  return each<orbitkv_layer>({"layers", limits::kLayers}, {memory.layers, memory.layer_count},
                             [&](const orbitkv_layer& layer) { return add_layer(layer, out); });
}

Outcome to_query(const orbitkv_query* in, Query& out) {
  orbitkv_query query{};
  Outcome outcome = read_sized(in, query);
  if (!outcome.ok()) return outcome;
  if (query.request_id == nullptr) return reject("request_id is NULL");
  out.instance = to_instance(query.instance);
  out.request_id = query.request_id;
  out.group = query.group;
  if ((query.flags & ~std::uint64_t{ORBITKV_QUERY_WAIT_FOR_FULL_PREFIX}) != 0)
    return reject(
        format_text("flags of a query are 0x%llx; ORBITKV_QUERY_WAIT_FOR_FULL_PREFIX (0x1) is known, set the "
                    "others to 0",
                    static_cast<unsigned long long>(query.flags)));
  out.wait_for_full_prefix = query.flags != 0;
  return to_hashes(query.hashes, query.hash_count, out.hashes);
}

Outcome to_hint(const orbitkv_warm_hint* in, client::WarmHint& out) {
  constexpr std::uint32_t kSure = 100;
  orbitkv_warm_hint hint{};
  Outcome outcome = read_sized(in, hint);
  if (!outcome.ok()) return outcome;
  if (hint.confidence > kSure) return reject("confidence is 0 to 100");
  out = {hint.first_use_ms, hint.max_wait_ms, hint.priority, static_cast<std::uint8_t>(hint.confidence)};
  return outcome;
}

Outcome to_recovery(const orbitkv_recovery* in, RecoveryQuery& out) {
  orbitkv_recovery recovery{};
  Outcome outcome = read_sized(in, recovery);
  if (!outcome.ok()) return outcome;
  if (recovery.request_id == nullptr) return reject("request_id is NULL");
  out.instance = to_instance(recovery.instance);
  out.request_id = recovery.request_id;
  outcome = each<orbitkv_recovery_group>({"groups", limits::kGroups}, {recovery.groups, recovery.group_count},
                                         [&](const orbitkv_recovery_group& group) {
                                           auto& part = out.groups.emplace_back();
                                           part.group = group.group;
                                           return to_hashes(group.hashes, group.hash_count, part.hashes);
                                         });
  out.set = {recovery.origin, recovery.boundary, out.groups};
  return outcome;
}

Outcome from_recovered(const client::Recovered& in, orbitkv_recovered& out) {
  if (in.leases.size() > out.lease_capacity) return reject("leases has less room than there are groups");
  for (std::size_t i = 0; i < in.leases.size(); ++i) out.leases[i] = from_lease(in.leases[i].lease);
  out.lease_count = in.leases.size();
  out.loading = in.loading ? 1 : 0;
  out.missing = static_cast<int32_t>(in.why);
  out.revision = in.ticket.revision;
  return {};
}

namespace {

InterestAuthority to_authority(const orbitkv_authority& in) {
  InterestAuthority out;
  out.incarnation = in.incarnation;
  out.generation = in.generation;
  std::memcpy(out.layout.data(), in.layout, out.layout.size());
  out.consumers = in.consumers;
  return out;
}

}  // namespace

orbitkv_authority from_authority(const InterestAuthority& in) {
  orbitkv_authority out{};
  out.incarnation = in.incarnation;
  out.generation = in.generation;
  std::memcpy(out.layout, in.layout.data(), in.layout.size());
  out.consumers = in.consumers;
  return out;
}

Outcome to_carrier(const orbitkv_carrier* in, orbitkv_carrier& out) {
  const Outcome outcome = read_sized(in, out);
  if (outcome.ok() && (out.send == nullptr || out.receive == nullptr))
    return reject("a carrier without send or receive; set both (ORBITKV_CARRIER_INIT)");
  return outcome;
}

Outcome to_seats(const Seats& in, std::vector<Seat>& out) {
  return each<orbitkv_participant>(
      {"participants", limits::kInterestGroup}, in.given, [&](const orbitkv_participant& seat) {
        if (seat.client == nullptr && !in.carried)
          return reject(format_text("participant %zu has no client", out.size()));
        Outcome ranks = check_array({"ranks", limits::kShards}, seat.ranks, seat.rank_count);
        if (!ranks.ok()) return ranks;
        client::Participant participant{to_instance(seat.instance), {}, to_authority(seat.authority)};
        participant.ranks.assign(seat.ranks, seat.ranks + seat.rank_count);
        out.push_back({seat.client, std::move(participant)});
        return Outcome{};
      });
}

Outcome to_common_list(const orbitkv_common_list* in, client::CommonList& out) {
  orbitkv_common_list list{};
  Outcome outcome = read_sized(in, list);
  if (!outcome.ok()) return outcome;
  out.group = list.group;
  out.origin = list.origin;
  out.boundary = list.boundary;
  return to_hashes(list.hashes, list.hash_count, out.hashes);
}

Outcome from_common(const client::CommonPrefix& in, orbitkv_common_prefix& out) {
  std::size_t count = 0;
  for (const auto& seat : in.leases) count += seat.size();
  if (count > out.lease_capacity || (count > 0 && out.leases == nullptr))
    return reject(format_text("leases has less room than the %zu of all participants", count));
  std::size_t at = 0;
  for (std::uint32_t p = 0; p < in.leases.size(); ++p)
    for (const client::RecoveryLease& lease : in.leases[p])
      out.leases[at++] = {p, lease.group, 0, lease.pages, from_lease(lease.lease)};
  out.lease_count = count;
  out.loading = in.loading ? 1 : 0;
  out.blocks = in.blocks;
  out.missing = static_cast<int32_t>(in.why);
  out.participant = in.participant.value;
  copy_text(in.message, out.message);
  return {};
}

Outcome to_save(const orbitkv_save* in, Save& out) {
  orbitkv_save save{};
  Outcome outcome = read_sized(in, save);
  if (!outcome.ok()) return outcome;
  out.options.ready_stream = save.ready_stream;
  return each<orbitkv_save_group>(
      {"groups", kMostParts}, {save.groups, save.group_count}, [&](const orbitkv_save_group& group) {
        auto& part = out.groups.emplace_back();
        part.group = group.group;
        Outcome read = to_blocks(group.blocks, group.count, part.blocks);
        return read.ok() ? to_hashes(group.hashes, group.count, part.hashes) : read;
      });
}

Outcome to_restore(const orbitkv_restore* in, Restore& out) {
  orbitkv_restore restore{};
  Outcome outcome = read_sized(in, restore);
  if (!outcome.ok()) return outcome;
  outcome = each<orbitkv_load>({"loads", kMostParts}, {restore.loads, restore.load_count},
                               [&](const orbitkv_load& load) {
                                 auto& part = out.loads.emplace_back();
                                 part.lease = to_lease(load.lease);
                                 part.group = load.group;
                                 return to_blocks(load.blocks, load.block_count, part.blocks);
                               });
  if (!outcome.ok()) return outcome;
  outcome = each<orbitkv_layer_event>({"layer_events", limits::kLayers},
                                      {restore.layer_events, restore.layer_event_count},
                                      [&](const orbitkv_layer_event& event) {
                                        if (event.layer == nullptr)
                                          return reject("a layer event has no layer");
                                        out.events.push_back({event.layer, event.event});
                                        return Outcome{};
                                      });
  out.options = {restore.ready_stream, out.events};
  return outcome;
}

}  // namespace orbitkv::capi
