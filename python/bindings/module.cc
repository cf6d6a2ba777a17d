// orbitkv._core: client.h for Python, call by call. Everything that waits or copies
// runs without the GIL. Failing outcomes become the exceptions of orbitkv/errors.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/block_hashes.h"
#include "bindings/outcome.h"
#include "bindings/prefix_group.h"
#include "bindings/recovery.h"
#include "orbitkv/client.h"

namespace orbitkv::python {
namespace {

using client::Client;
using client::OperationHandle;
using client::Outcome;
using client::RegistrationHandle;
using Indices = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::uint32_t> view(const Indices& indices) {
  return {indices.data(), indices.size()};
}

Client* open(const client::Options& options) {
  std::unique_ptr<Client> result;
  without_gil([&] {
    Outcome outcome;
    result = Client::open(options, outcome);
    return outcome;
  });
  return result.release();  // Python's from here on
}

std::uint64_t register_rank(Client& self, const client::Registration& registration) {
  RegistrationHandle handle;
  without_gil([&] { return self.register_rank(registration, handle); });
  return handle.value;
}

nb::tuple query_candidates(Client& self, nb::bytes instance, const BlockHashes& hashes,
                           const std::string& request_id, std::uint16_t group) {
  client::Candidates out;
  const auto id = to_id<InstanceId>(instance);
  without_gil([&] { return self.query_candidates(id, hashes.view(), request_id, group, out); });
  return nb::make_tuple(out.hit_blocks, out.hit_positions, out.stored_positions);
}

nb::tuple to_tuple(const client::Ready& r) {
  return nb::make_tuple(r.hit_blocks, from_lease(r.lease), r.loading, r.ticket.revision, name_of(r.why),
                        r.admitted);
}

nb::tuple query_prefetch(Client& self, nb::bytes instance, const BlockHashes& hashes,
                         const std::string& request_id, std::uint16_t group, bool full_prefix) {
  client::Ready out;
  const client::PrefixQuery query{to_id<InstanceId>(instance), hashes.view(), request_id, group, full_prefix};
  without_gil([&] { return self.query_prefetch(query, out); });
  return to_tuple(out);
}

bool prepare_prefix(Client& self, nb::bytes instance, const BlockHashes& hashes,
                    const std::string& request_id, std::uint16_t group) {
  bool begun = false;
  const client::PrefixQuery query{to_id<InstanceId>(instance), hashes.view(), request_id, group};
  without_gil([&] { return self.prepare_prefix(query, begun); });
  return begun;
}

// hint: (ms until the first use, ms of the longest wait, priority, confidence)
void warm_prefix(Client& self, nb::bytes instance, const BlockHashes& hashes, const std::string& request_id,
                 std::uint16_t group,
                 std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint8_t> hint) {
  const client::PrefixQuery query{to_id<InstanceId>(instance), hashes.view(), request_id, group};
  const auto [first_use_ms, max_wait_ms, priority, confidence] = hint;
  const client::WarmHint converted{first_use_ms, max_wait_ms, priority, confidence};
  without_gil([&] { return self.warm_prefix(query, converted); });
}

nb::tuple poll_query(Client& self, nb::bytes instance, const std::string& request_id, std::uint16_t group,
                     std::uint64_t revision) {
  client::Ready out;
  const auto id = to_id<InstanceId>(instance);
  without_gil([&] { return self.poll_query(id, request_id, {group, revision}, out); });
  return to_tuple(out);
}

nb::tuple to_tuple(const client::Recovered& r) {
  nb::dict leases;
  for (const client::RecoveryLease& lease : r.leases)
    leases[nb::int_(lease.group)] = nb::make_tuple(lease.pages, from_lease(lease.lease));
  return nb::make_tuple(leases, r.loading, r.admitted, r.ticket.revision, name_of(r.why), r.missing_group);
}

// groups: [(group, BlockHashes)], ascending
std::vector<client::RecoveryGroup> recovery_groups(nb::list groups) {
  std::vector<client::RecoveryGroup> parts;
  for (nb::handle item : groups) {
    auto entry = nb::cast<nb::tuple>(item);
    parts.push_back({nb::cast<std::uint16_t>(entry[0]), nb::cast<const BlockHashes&>(entry[1]).view()});
  }
  return parts;
}

bool prepare_recovery(Client& self, nb::bytes instance, const std::string& request_id,
                      std::pair<std::uint64_t, std::uint64_t> tail, nb::list groups) {
  const auto parts = recovery_groups(groups);
  bool begun = false;
  const auto id = to_id<InstanceId>(instance);
  without_gil([&] { return self.prepare_recovery(id, request_id, {tail.first, tail.second, parts}, begun); });
  return begun;
}

nb::tuple read_recovery(Client& self, nb::bytes instance, const std::string& request_id,
                        std::pair<std::uint64_t, std::uint64_t> tail, nb::list groups) {
  const auto parts = recovery_groups(groups);
  client::Recovered out;
  const auto id = to_id<InstanceId>(instance);
  without_gil([&] { return self.read_recovery(id, request_id, {tail.first, tail.second, parts}, out); });
  return to_tuple(out);
}

nb::tuple poll_recovery(Client& self, nb::bytes instance, const std::string& request_id,
                        std::uint64_t revision) {
  client::Recovered out;
  const auto id = to_id<InstanceId>(instance);
  without_gil([&] { return self.poll_recovery(id, request_id, {0, revision}, out); });
  return to_tuple(out);
}

// groups: [(group, uint32 array of blocks, BlockHashes)]
std::uint64_t start_save(Client& self, std::uint64_t registration, nb::list groups,
                         std::uint64_t ready_stream) {
  std::vector<Indices> keep;
  std::vector<client::SaveGroup> parts;
  for (nb::handle item : groups) {
    auto entry = nb::cast<nb::tuple>(item);
    keep.push_back(nb::cast<Indices>(entry[1]));
    parts.push_back({nb::cast<std::uint16_t>(entry[0]), view(keep.back()),
                     nb::cast<const BlockHashes&>(entry[2]).view()});
  }
  OperationHandle handle;
  without_gil([&] { return self.start_save({registration}, parts, {ready_stream}, handle); });
  return handle.value;
}

// loads: [(lease, group, uint32 array of blocks)]; layer_events: [(layer, event)]
std::uint64_t start_restore(Client& self, std::uint64_t registration, nb::list loads,
                            std::uint64_t ready_stream, nb::list layer_events) {
  std::vector<Indices> keep;
  std::vector<client::Load> parts;
  for (nb::handle item : loads) {
    auto entry = nb::cast<nb::tuple>(item);
    keep.push_back(nb::cast<Indices>(entry[2]));
    parts.push_back({to_id<LeaseId>(nb::cast<nb::bytes>(entry[0])), nb::cast<std::uint16_t>(entry[1]),
                     view(keep.back())});
  }
  std::vector<client::LayerEvent> events;
  for (nb::handle item : layer_events) {
    auto entry = nb::cast<nb::tuple>(item);  // the list keeps the names while they are viewed
    events.push_back({nb::cast<std::string_view>(entry[0]), nb::cast<std::uint64_t>(entry[1])});
  }
  OperationHandle handle;
  without_gil([&] { return self.start_restore({registration}, parts, {ready_stream, events}, handle); });
  return handle.value;
}

nb::tuple report(Client& self, std::uint64_t handle) {
  client::OperationReport r;
  without_gil([&] { return self.report({handle}, r); });
  return nb::make_tuple(r.readiness_ns, r.dispatched_ns, r.dequeued_ns, r.claimed_ns, r.enqueued_ns,
                        r.drained_ns, r.bytes, r.fragments, r.method);
}

nb::tuple to_tuple(const client::OperationStatus& s) {
  return nb::make_tuple(s.done, s.success, s.blocks, s.message, s.resident, s.dropped);
}

nb::tuple wait(Client& self, std::uint64_t handle, std::uint32_t timeout_ms) {
  client::OperationStatus status;
  check_heard(in_slices(timeout_ms, [&](std::uint32_t slice) {
    status = self.wait({handle}, slice);
    return status.done;
  }));
  return to_tuple(status);
}

void wait_enqueued(Client& self, std::uint64_t handle, std::uint32_t timeout_ms) {
  Outcome outcome;
  check_heard(in_slices(timeout_ms, [&](std::uint32_t slice) {
    outcome = self.wait_enqueued({handle}, slice);
    return outcome.action != client::Action::kRetry;
  }));
  check(std::move(outcome));
}

void wait_connected(Client& self, std::uint32_t timeout_ms) {
  Outcome outcome;
  check_heard(in_slices(timeout_ms, [&](std::uint32_t slice) {
    outcome = self.wait_connected(slice);
    return outcome.ok();
  }));
  check(std::move(outcome));
}

std::vector<std::uint64_t> take_completed(Client& self) {
  std::vector<std::uint64_t> out;
  for (OperationHandle handle : self.take_completed()) out.push_back(handle.value);
  return out;
}

nb::tuple health(const Client& self) {
  const client::Health h = self.health();
  return nb::make_tuple(h.connected, h.incarnation, h.reconnects, h.open_operations, h.message);
}

nb::bytes carry_interest(Client& self, const nb::bytes& frame) {
  std::vector<std::byte> reply;
  const std::span given(reinterpret_cast<const std::byte*>(frame.c_str()), frame.size());
  without_gil([&] { return self.carry_interest(given, reply); });
  return nb::bytes(reinterpret_cast<const char*>(reply.data()), reply.size());
}

nb::tuple interest_authority(Client& self, const nb::bytes& instance) {
  InterestAuthority found;
  const InstanceId id = to_id<InstanceId>(instance);
  without_gil([&] { return self.interest_authority(id, found); });
  return from_authority(found);
}

nb::tuple publish_activity(Client& self, const nb::bytes& instance) {
  client::PublishActivity found;
  const InstanceId id = to_id<InstanceId>(instance);
  without_gil([&] { return self.publish_activity(id, found); });
  return nb::make_tuple(found.open, found.waiting, found.lent_bytes, found.dropped,
                        static_cast<double>(found.oldest_ns) / 1e9);
}

std::string status(Client& self) {
  std::string json;
  without_gil([&] { return self.status(json); });
  return json;
}

void bind_values(nb::module_& m) {
  nb::class_<client::Options>(m, "Options")
      .def(nb::init<>())
      .def_rw("bootstrap_socket", &client::Options::bootstrap_socket)
      .def_rw("name", &client::Options::name)
      .def_rw("timeout_ms", &client::Options::timeout_ms)
      .def_rw("spin_iterations", &client::Options::spin_iterations)
      .def_rw("verify", &client::Options::verify)
      .def_rw("inline_copies", &client::Options::inline_copies)
      .def_rw("copy_method", &client::Options::copy_method)
      .def_rw("copy_pace", &client::Options::copy_pace)
      .def_rw("early_leases", &client::Options::early_leases)
      .def_rw("trace_file", &client::Options::trace_file);
  nb::class_<client::Registration>(m, "RegistrationSpec")
      .def(nb::init<>())
      .def_prop_rw(
          "instance",
          [](const client::Registration& r) {
            return nb::bytes(reinterpret_cast<const char*>(r.instance.bytes.data()), r.instance.bytes.size());
          },
          [](client::Registration& r, nb::bytes id) { r.instance = to_id<InstanceId>(id); })
      .def_rw("name_space", &client::Registration::name_space)
      .def_rw("rank", &client::Registration::rank)
      .def_rw("world_size", &client::Registration::world_size)
      .def_rw("device", &client::Registration::device)
      .def_rw("num_blocks", &client::Registration::num_blocks)
      .def_rw("block_tokens", &client::Registration::block_tokens)
      .def(
          "add_group",
          [](client::Registration& r, std::uint16_t id, std::uint16_t shard, std::uint16_t shards,
             bool writer, const std::string& rule, std::uint32_t window_tokens) {
            r.groups.push_back({id, shard, shards, writer, to_rule(rule), window_tokens});
          },
          nb::arg("id"), nb::arg("shard"), nb::arg("shards"), nb::arg("writer"), nb::arg("rule"),
          nb::arg("window_tokens"))
      .def(
          "add_layer",
          [](client::Registration& r, client::Layer layer, std::uintptr_t address) {
            layer.base = reinterpret_cast<std::byte*>(address);
            r.layers.push_back(std::move(layer));
          },
          nb::arg("layer"), nb::arg("address"));
  nb::class_<client::Layer>(m, "LayerSpec")
      .def(nb::init<>())
      .def_rw("name", &client::Layer::name)
      .def_rw("group", &client::Layer::group)
      .def_rw("component", &client::Layer::component)
      .def_rw("bytes", &client::Layer::bytes)
      .def_rw("block_stride", &client::Layer::block_stride)
      .def_rw("rows", &client::Layer::rows)
      .def_rw("row_bytes", &client::Layer::row_bytes)
      .def_rw("row_stride", &client::Layer::row_stride);
}

void bind_recoveries(nb::class_<Client>& c) {
  c.def("prepare_recovery", &prepare_recovery, nb::arg("instance"), nb::arg("request_id"), nb::arg("tail"),
        nb::arg("groups"));
  c.def("read_recovery", &read_recovery, nb::arg("instance"), nb::arg("request_id"), nb::arg("tail"),
        nb::arg("groups"))
      .def("poll_recovery", &poll_recovery, nb::arg("instance"), nb::arg("request_id"), nb::arg("revision"))
      .def(
          "cancel_recovery",
          [](Client& self, nb::bytes instance, const std::string& request_id, std::uint64_t revision) {
            const auto id = to_id<InstanceId>(instance);
            without_gil([&] { return self.cancel_recovery(id, request_id, {0, revision}); });
          },
          nb::arg("instance"), nb::arg("request_id"), nb::arg("revision"));
}

void bind_queries(nb::class_<Client>& c) {
  c.def("query_candidates", &query_candidates, nb::arg("instance"), nb::arg("hashes"), nb::arg("request_id"),
        nb::arg("group"))
      .def("query_prefetch", &query_prefetch, nb::arg("instance"), nb::arg("hashes"), nb::arg("request_id"),
           nb::arg("group"), nb::arg("full_prefix"))
      .def("prepare_prefix", &prepare_prefix, nb::arg("instance"), nb::arg("hashes"), nb::arg("request_id"),
           nb::arg("group"))
      .def("warm_prefix", &warm_prefix, nb::arg("instance"), nb::arg("hashes"), nb::arg("request_id"),
           nb::arg("group"), nb::arg("hint"))
      .def(
          "cancel_warm",
          [](Client& self, nb::bytes instance, const std::string& request_id, std::uint16_t group) {
            const auto id = to_id<InstanceId>(instance);
            without_gil([&] { return self.cancel_warm(id, request_id, group); });
          },
          nb::arg("instance"), nb::arg("request_id"), nb::arg("group"))
      .def(
          "release",
          [](Client& self, nb::bytes lease) {
            const auto id = to_id<LeaseId>(lease);
            without_gil([&] { return self.release(id); });
          },
          nb::arg("lease"))
      .def(
          "cancel_query",
          [](Client& self, nb::bytes instance, const std::string& request_id, std::uint16_t group,
             std::uint64_t revision) {
            const auto id = to_id<InstanceId>(instance);
            without_gil([&] { return self.cancel_query(id, request_id, client::Ticket{group, revision}); });
          },
          nb::arg("instance"), nb::arg("request_id"), nb::arg("group"), nb::arg("revision"))
      .def("poll_query", &poll_query, nb::arg("instance"), nb::arg("request_id"), nb::arg("group"),
           nb::arg("revision"));
}

void bind_client(nb::module_& m) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Client> c(m, "Client");
  bind_queries(c);
  bind_recoveries(c);
  c.def(nb::new_(&open), nb::arg("options"))
      .def("wait_connected", &wait_connected, nb::arg("timeout_ms"))
      .def("register_rank", &register_rank, nb::arg("registration"))
      .def(
          "unregister",
          [](Client& self, std::uint64_t registration) {
            without_gil([&] { return self.unregister({registration}); });
          },
          nb::arg("registration"))
      .def("carry_interest", &carry_interest, nb::arg("frame"))
      .def("interest_authority", &interest_authority, nb::arg("instance"))
      .def("ping", [](Client& self) { without_gil([&] { return self.ping(); }); })
      .def("start_save", &start_save, nb::arg("registration"), nb::arg("groups"), nb::arg("ready_stream"))
      .def("start_restore", &start_restore, nb::arg("registration"), nb::arg("loads"),
           nb::arg("ready_stream"), nb::arg("layer_events"))
      .def("wait_enqueued", &wait_enqueued, nb::arg("handle"), nb::arg("timeout_ms"))
      .def("report", &report, nb::arg("handle"))
      .def(
          "poll", [](Client& self, std::uint64_t handle) { return to_tuple(self.poll({handle})); },
          nb::arg("handle"))
      .def("wait", &wait, nb::arg("handle"), nb::arg("timeout_ms"))
      .def("take_completed", &take_completed)
      .def("completion_fd", &Client::completion_fd)
      .def(
          "drop", [](Client& self, std::uint64_t handle) { self.drop({handle}); }, nb::arg("handle"))
      .def("health", &health)
      .def("publish_activity", &publish_activity, nb::arg("instance"))
      .def("peer_alive", &Client::peer_alive)
      .def("status", &status)
      .def("close", &Client::close, Release());
}

void raise_outcome(const std::exception_ptr& p, void*) {
  try {
    std::rethrow_exception(p);
  } catch (const OutcomeError& e) {
    try {
      nb::object error = nb::module_::import_("orbitkv.errors")
                             .attr("from_outcome")(static_cast<int>(e.outcome.action), e.outcome.message);
      PyErr_SetObject(error.type().ptr(), error.ptr());
    } catch (nb::python_error& signal) {
      signal.restore();  // Ctrl-C came during the call: Python's code hears it first, and it goes before
    }
  }
}

}  // namespace
}  // namespace orbitkv::python

NB_MODULE(_core, m) {
  m.doc() = "Native part of the orbitkv package; use orbitkv.CacheManagerClient.";
  m.attr("HOLE") = orbitkv::kHole;
  m.attr("NO_STREAM") = orbitkv::client::kNoStream;
  nanobind::register_exception_translator(orbitkv::python::raise_outcome);
  orbitkv::python::bind_block_hashes(m);
  orbitkv::python::bind_values(m);
  orbitkv::python::bind_client(m);
  orbitkv::python::bind_recovery(m);
  orbitkv::python::bind_prefix_group(m);
}
