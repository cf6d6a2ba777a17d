// The functions of orbitkv.h: each converts, calls client.h and writes the answer.
#include "orbitkv/orbitkv.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>

#include "base/limits.h"
#include "capi/convert.h"
#include "capi/guarded.h"

using orbitkv::capi::answer;
using orbitkv::capi::answer_without_memory;
using orbitkv::capi::check_out;
using orbitkv::capi::guarded;
using orbitkv::capi::Outcome;
using orbitkv::capi::reject;
using orbitkv::capi::with_client;
using orbitkv::client::Action;
using orbitkv::client::Client;
using orbitkv::client::OperationHandle;

namespace {

static_assert(static_cast<int>(Action::kBug) == ORBITKV_BUG &&
              static_cast<int>(Action::kRetry) == ORBITKV_RETRY);

Outcome write_status(const orbitkv::client::OperationStatus& status, orbitkv_operation_status* out) {
  orbitkv_operation_status value = ORBITKV_OPERATION_STATUS_INIT;
  value.done = status.done;
  value.success = status.success;
  value.blocks = status.blocks;
  value.resident = status.resident;
  value.dropped = status.dropped;
  orbitkv::capi::copy_text(status.message, value.message);
  orbitkv::capi::write_sized(value, out);
  return {};
}

void write_positions(const std::vector<std::uint32_t>& found, orbitkv_positions* out) {
  if (out == nullptr) return;
  out->count = found.size();
  std::copy_n(found.begin(), std::min(found.size(), out->capacity), out->positions);
}

// `run` asks; what it finds goes to the caller's struct, whose room was looked at before.
template <class Run>
Outcome with_recovery(const orbitkv_recovery* recovery, orbitkv_recovered* out, Run run) {
  Outcome outcome = orbitkv::capi::check_out(out);
  if (!outcome.ok()) return outcome;
  orbitkv_recovered value;
  outcome = orbitkv::capi::read_sized(out, value);
  if (!outcome.ok()) return outcome;
  orbitkv::capi::RecoveryQuery query;
  outcome = orbitkv::capi::to_recovery(recovery, query);
  if (!outcome.ok()) return outcome;
  if (value.leases == nullptr || value.lease_capacity < query.groups.size())
    return reject("leases has less room than there are groups");
  orbitkv::client::Recovered found;
  outcome = run(query, value.revision, found);
  if (outcome.ok()) outcome = orbitkv::capi::from_recovered(found, value);
  if (outcome.ok()) orbitkv::capi::write_sized(value, out);
  return outcome;
}

}  // namespace

extern "C" {

const char* orbitkv_action_name(orbitkv_action action) {
  switch (action) {
    case ORBITKV_OK: return "ok";
    case ORBITKV_RETRY: return "retry";
    case ORBITKV_RECOMPUTE: return "recompute";
    case ORBITKV_RECONNECT: return "reconnect";
    case ORBITKV_REJECT: return "reject";
    case ORBITKV_BUG: return "bug";
  }
  return "unknown";
}

const char* orbitkv_version(void) {
  return ORBITKV_VERSION;
}

uint32_t orbitkv_c_api_version(void) {
  return ORBITKV_C_API_VERSION;
}

void orbitkv_free(void* allocated) {
  std::free(allocated);
}

// ---- session ----

orbitkv_action orbitkv_open(const orbitkv_options* options, orbitkv_client** out, orbitkv_error* error) {
  return guarded(error, [&]() -> Outcome {
    if (out == nullptr) return reject("out is NULL");
    orbitkv::client::Options converted;
    Outcome outcome = orbitkv::capi::to_options(options, converted);
    if (!outcome.ok()) return outcome;
    auto made = std::make_unique<orbitkv_client>();
    made->client = Client::open(converted, outcome);
    if (made->client) *out = made.release();
    return outcome;
  });
}

void orbitkv_close(orbitkv_client* client) {
  (void)with_client(client, nullptr, [](Client& c) {
    c.close();
    return Outcome{};
  });
}

void orbitkv_destroy(orbitkv_client* client) {
  delete client;
}

orbitkv_action orbitkv_wait_connected(orbitkv_client* client, uint32_t timeout_ms, orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) { return c.wait_connected(timeout_ms); });
}

orbitkv_action orbitkv_ping(orbitkv_client* client, orbitkv_error* error) {
  return with_client(client, error, [](Client& c) { return c.ping(); });
}

orbitkv_action orbitkv_health(orbitkv_client* client, orbitkv_health_info* out, orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    Outcome outcome = check_out(out);
    if (!outcome.ok()) return outcome;
    const auto health = c.health();
    orbitkv_health_info value = ORBITKV_HEALTH_INIT;
    value.connected = health.connected;
    value.open_operations = health.open_operations;
    value.incarnation = health.incarnation;
    value.reconnects = health.reconnects;
    orbitkv::capi::copy_text(health.message, value.message);
    orbitkv::capi::write_sized(value, out);
    return outcome;
  });
}

orbitkv_action orbitkv_publish_activity(orbitkv_client* client, const orbitkv_instance* instance,
                                        orbitkv_publish_activity_info* out, orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    Outcome outcome = check_out(out);
    if (!outcome.ok()) return outcome;
    if (instance == nullptr) return orbitkv::capi::reject("instance is NULL");
    orbitkv::InstanceId id;
    std::memcpy(id.bytes.data(), instance->bytes, sizeof instance->bytes);
    orbitkv::client::PublishActivity found;
    outcome = c.publish_activity(id, found);
    if (!outcome.ok()) return outcome;
    orbitkv_publish_activity_info value = ORBITKV_PUBLISH_ACTIVITY_INIT;
    value.open = found.open;
    value.waiting = found.waiting;
    value.lent_bytes = found.lent_bytes;
    value.dropped = found.dropped;
    value.oldest_ns = found.oldest_ns;
    orbitkv::capi::write_sized(value, out);
    return outcome;
  });
}

bool orbitkv_peer_alive(orbitkv_client* client) {
  bool alive = false;
  (void)with_client(client, nullptr, [&](Client& c) {
    alive = c.peer_alive();
    return Outcome{};
  });
  return alive;
}

orbitkv_action orbitkv_status_json(orbitkv_client* client, char** out, orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    if (out == nullptr) return reject("out is NULL");
    std::string json;
    Outcome outcome = c.status(json);
    if (!outcome.ok()) return outcome;
    auto* text = static_cast<char*>(std::malloc(json.size() + 1));
    if (text == nullptr) throw std::bad_alloc();
    std::memcpy(text, json.c_str(), json.size() + 1);
    *out = text;
    return outcome;
  });
}

// ---- memory ----

orbitkv_action orbitkv_register(orbitkv_client* client, const orbitkv_memory* memory,
                                orbitkv_registration* out, orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    if (out == nullptr) return reject("out is NULL");
    orbitkv::client::Registration registration;
    Outcome outcome = orbitkv::capi::to_registration(memory, registration);
    if (!outcome.ok()) return outcome;
    orbitkv::client::RegistrationHandle handle;
    outcome = c.register_rank(registration, handle);
    if (outcome.ok()) out->value = handle.value;
    return outcome;
  });
}

orbitkv_action orbitkv_unregister(orbitkv_client* client, orbitkv_registration registration,
                                  orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) { return c.unregister({registration.value}); });
}

// ---- lookup ----

orbitkv_action orbitkv_query_candidates(orbitkv_client* client, const orbitkv_query* query,
                                        uint32_t* hit_blocks, orbitkv_positions* positions,
                                        orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    if (positions && positions->capacity > 0 && positions->positions == nullptr)
      return reject("positions is NULL but has a capacity");
    orbitkv::capi::Query q;
    Outcome outcome = orbitkv::capi::to_query(query, q);
    if (!outcome.ok()) return outcome;
    orbitkv::client::Candidates found;
    outcome = c.query_candidates(q.instance, q.hashes, q.request_id, q.group, found);
    if (!outcome.ok()) return outcome;
    if (hit_blocks) *hit_blocks = found.hit_blocks;
    write_positions(found.hit_positions, positions);
    return outcome;
  });
}

orbitkv_action orbitkv_query_prefetch(orbitkv_client* client, const orbitkv_query* query, orbitkv_hit* hit,
                                      orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    Outcome outcome = orbitkv::capi::check_out(hit);
    if (!outcome.ok()) return outcome;
    orbitkv::capi::Query q;
    outcome = orbitkv::capi::to_query(query, q);
    if (!outcome.ok()) return outcome;
    orbitkv::client::Ready ready;
    outcome = c.query_prefetch(q, ready);
    if (!outcome.ok()) return outcome;
    orbitkv::capi::write_sized(orbitkv::capi::from_ready(ready), hit);
    return outcome;
  });
}

orbitkv_action orbitkv_poll_query(orbitkv_client* client, const orbitkv_query* query, orbitkv_hit* hit,
                                  orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    Outcome outcome = orbitkv::capi::check_out(hit);
    if (!outcome.ok()) return outcome;
    orbitkv_hit asked;
    outcome = orbitkv::capi::read_sized(hit, asked);
    if (!outcome.ok()) return outcome;
    orbitkv::capi::Query q;
    outcome = orbitkv::capi::to_query(query, q);
    if (!outcome.ok()) return outcome;
    orbitkv::client::Ready ready;
    outcome = c.poll_query(q.instance, q.request_id, {q.group, asked.revision}, ready);
    if (!outcome.ok()) return outcome;
    orbitkv::capi::write_sized(orbitkv::capi::from_ready(ready), hit);
    return outcome;
  });
}

orbitkv_action orbitkv_prepare_prefix(orbitkv_client* client, const orbitkv_query* query, bool* begun,
                                      orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    if (begun == nullptr) return reject("begun is NULL");
    orbitkv::capi::Query q;
    Outcome outcome = orbitkv::capi::to_query(query, q);
    return outcome.ok() ? c.prepare_prefix(q, *begun) : outcome;
  });
}

orbitkv_action orbitkv_warm_prefix(orbitkv_client* client, const orbitkv_query* query,
                                   const orbitkv_warm_hint* hint, orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    orbitkv::capi::Query q;
    orbitkv::client::WarmHint converted;
    Outcome outcome = orbitkv::capi::to_query(query, q);
    if (outcome.ok()) outcome = orbitkv::capi::to_hint(hint, converted);
    return outcome.ok() ? c.warm_prefix(q, converted) : outcome;
  });
}

orbitkv_action orbitkv_cancel_warm(orbitkv_client* client, const orbitkv_query* query, orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    orbitkv::capi::Query q;
    Outcome outcome = orbitkv::capi::to_query(query, q);
    return outcome.ok() ? c.cancel_warm(q.instance, q.request_id, q.group) : outcome;
  });
}

orbitkv_action orbitkv_prepare_recovery(orbitkv_client* client, const orbitkv_recovery* recovery, bool* begun,
                                        orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    if (begun == nullptr) return reject("begun is NULL");
    orbitkv::capi::RecoveryQuery query;
    Outcome outcome = orbitkv::capi::to_recovery(recovery, query);
    return outcome.ok() ? c.prepare_recovery(query.instance, query.request_id, query.set, *begun) : outcome;
  });
}

orbitkv_action orbitkv_read_recovery(orbitkv_client* client, const orbitkv_recovery* recovery,
                                     orbitkv_recovered* out, orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    return with_recovery(recovery, out, [&](const auto& query, std::uint64_t, auto& found) {
      return c.read_recovery(query.instance, query.request_id, query.set, found);
    });
  });
}

orbitkv_action orbitkv_poll_recovery(orbitkv_client* client, const orbitkv_recovery* recovery,
                                     orbitkv_recovered* out, orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    return with_recovery(recovery, out, [&](const auto& query, std::uint64_t revision, auto& found) {
      return c.poll_recovery(query.instance, query.request_id, {0, revision}, found);
    });
  });
}

orbitkv_action orbitkv_cancel_recovery(orbitkv_client* client, const orbitkv_recovery* recovery,
                                       uint64_t revision, orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    orbitkv::capi::RecoveryQuery query;
    Outcome outcome = orbitkv::capi::to_recovery(recovery, query);
    return outcome.ok() ? c.cancel_recovery(query.instance, query.request_id, {0, revision}) : outcome;
  });
}

orbitkv_action orbitkv_release(orbitkv_client* client, const orbitkv_lease* lease, orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    return lease ? c.release(orbitkv::capi::to_lease(*lease)) : reject("lease is NULL");
  });
}

orbitkv_action orbitkv_cancel_query(orbitkv_client* client, const orbitkv_query* query,
                                    orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    orbitkv::capi::Query q;
    Outcome outcome = orbitkv::capi::to_query(query, q);
    return outcome.ok() ? c.cancel_query(q.instance, q.request_id, q.group) : outcome;
  });
}

// ---- save and restore ----

orbitkv_action orbitkv_start_save(orbitkv_client* client, orbitkv_registration registration,
                                  const orbitkv_save* save, orbitkv_operation* out, orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    if (out == nullptr) return reject("out is NULL");
    orbitkv::capi::Save converted;
    Outcome outcome = orbitkv::capi::to_save(save, converted);
    if (!outcome.ok()) return outcome;
    OperationHandle handle;
    outcome = c.start_save({registration.value}, converted.groups, converted.options, handle);
    if (outcome.ok()) out->value = handle.value;
    return outcome;
  });
}

orbitkv_action orbitkv_start_restore(orbitkv_client* client, orbitkv_registration registration,
                                     const orbitkv_restore* restore, orbitkv_operation* out,
                                     orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    if (out == nullptr) return reject("out is NULL");
    orbitkv::capi::Restore converted;
    Outcome outcome = orbitkv::capi::to_restore(restore, converted);
    if (!outcome.ok()) return outcome;
    OperationHandle handle;
    outcome = c.start_restore({registration.value}, converted.loads, converted.options, handle);
    if (outcome.ok()) out->value = handle.value;
    return outcome;
  });
}

orbitkv_action orbitkv_wait_enqueued(orbitkv_client* client, orbitkv_operation operation, uint32_t timeout_ms,
                                     orbitkv_error* error) {
  return with_client(client, error,
                     [&](Client& c) { return c.wait_enqueued({operation.value}, timeout_ms); });
}

orbitkv_action orbitkv_poll(orbitkv_client* client, orbitkv_operation operation,
                            orbitkv_operation_status* out, orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    Outcome outcome = check_out(out);
    return outcome.ok() ? write_status(c.poll({operation.value}), out) : outcome;
  });
}

orbitkv_action orbitkv_wait(orbitkv_client* client, orbitkv_operation operation, uint32_t timeout_ms,
                            orbitkv_operation_status* out, orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    Outcome outcome = check_out(out);
    return outcome.ok() ? write_status(c.wait({operation.value}, timeout_ms), out) : outcome;
  });
}

int orbitkv_completion_fd(orbitkv_client* client) {
  return client ? client->client->completion_fd() : -1;
}

size_t orbitkv_take_completed(orbitkv_client* client, orbitkv_operation* out, size_t capacity) {
  std::size_t taken = 0;
  (void)with_client(client, nullptr, [&](Client& c) {
    if (out == nullptr || capacity == 0 || !client->here()) return Outcome{};
    std::lock_guard lock(client->mutex);
    auto& waiting = client->waiting;
    for (OperationHandle handle : c.take_completed()) waiting.push_back(handle);
    while (waiting.size() > orbitkv::limits::kHandlesKept) waiting.pop_front();
    for (; taken < capacity && !waiting.empty(); waiting.pop_front())
      out[taken++].value = waiting.front().value;
    if (!waiting.empty()) eventfd_write(c.completion_fd(), 1);
    return Outcome{};
  });
  return taken;
}

void orbitkv_drop(orbitkv_client* client, orbitkv_operation operation) {
  (void)with_client(client, nullptr, [&](Client& c) {
    if (!client->here()) return Outcome{};
    std::lock_guard lock(client->mutex);
    std::erase_if(client->waiting, [&](OperationHandle h) { return h.value == operation.value; });
    c.drop({operation.value});
    return Outcome{};
  });
}

orbitkv_action orbitkv_report(orbitkv_client* client, orbitkv_operation operation,
                              orbitkv_operation_report* out, orbitkv_error* error) {
  return with_client(client, error, [&](Client& c) {
    Outcome outcome = check_out(out);
    if (!outcome.ok()) return outcome;
    orbitkv::client::OperationReport report;
    outcome = c.report({operation.value}, report);
    if (!outcome.ok()) return outcome;
    orbitkv_operation_report value = ORBITKV_OPERATION_REPORT_INIT;
    value.readiness_ns = report.readiness_ns;
    value.dispatched_ns = report.dispatched_ns;
    value.dequeued_ns = report.dequeued_ns;
    value.claimed_ns = report.claimed_ns;
    value.enqueued_ns = report.enqueued_ns;
    value.drained_ns = report.drained_ns;
    value.bytes = report.bytes;
    value.fragments = report.fragments;
    orbitkv::capi::copy_text(report.method, value.method);
    orbitkv::capi::write_sized(value, out);
    return outcome;
  });
}

}  // extern "C"
