// The functions of orbitkv.h that speak to several Managers.
#include <cstdlib>
#include <cstring>

#include "base/text.h"
#include "capi/carrier_pump.h"
#include "capi/guarded.h"
#include "orbitkv/interests.h"

using orbitkv::capi::Outcome;
using orbitkv::capi::reject;
using orbitkv::client::Carrier;
using orbitkv::client::PrefixGroup;

struct orbitkv_group_of_managers {
  orbitkv::capi::CarrierPump pump;  // ends after the group, which ends its mailbox
  std::unique_ptr<PrefixGroup> group;
};

namespace {

template <class F>
orbitkv_action with_group(orbitkv_group_of_managers* group, orbitkv_error* error, F call) noexcept {
  return orbitkv::capi::guarded(error, [&] { return group ? call(*group->group) : reject("group is NULL"); });
}

std::unique_ptr<Carrier> carrier_of(const orbitkv_group_options& options,
                                    const std::vector<orbitkv::capi::Seat>& seats,
                                    orbitkv::capi::CarrierPump& pump, Outcome& outcome) {
  if (options.carrier != nullptr) {
    orbitkv_carrier calls{};
    outcome = orbitkv::capi::to_carrier(options.carrier, calls);
    return outcome.ok() ? pump.start(calls, seats.size(), outcome) : nullptr;
  }
  std::vector<orbitkv::client::Client*> clients;
  for (const orbitkv::capi::Seat& seat : seats) clients.push_back(seat.client->client.get());
  return orbitkv::client::carry_over(std::move(clients), outcome);
}

}  // namespace

extern "C" {

orbitkv_action orbitkv_interest_authority(orbitkv_client* client, const orbitkv_instance* instance,
                                          orbitkv_authority* out, orbitkv_error* error) {
  return orbitkv::capi::with_client(client, error, [&](orbitkv::client::Client& c) {
    if (instance == nullptr || out == nullptr) return reject("instance or out is NULL");
    orbitkv::InterestAuthority found;
    orbitkv::InstanceId id;
    std::memcpy(id.bytes.data(), instance->bytes, id.bytes.size());
    const Outcome outcome = c.interest_authority(id, found);
    if (outcome.ok()) *out = orbitkv::capi::from_authority(found);
    return outcome;
  });
}

orbitkv_action orbitkv_carry_interest(orbitkv_client* client, const void* frame, size_t bytes, void** reply,
                                      size_t* reply_bytes, orbitkv_error* error) {
  return orbitkv::capi::with_client(client, error, [&](orbitkv::client::Client& c) {
    if (frame == nullptr || reply == nullptr || reply_bytes == nullptr)
      return reject("frame, reply or reply_bytes is NULL");
    std::vector<std::byte> answer;
    const Outcome outcome = c.carry_interest({static_cast<const std::byte*>(frame), bytes}, answer);
    if (!outcome.ok()) return outcome;
    void* copy = std::malloc(answer.size());
    if (copy == nullptr) throw std::bad_alloc();
    std::memcpy(copy, answer.data(), answer.size());
    *reply = copy;
    *reply_bytes = answer.size();
    return outcome;
  });
}

orbitkv_action orbitkv_group_open(const orbitkv_participant* participants, size_t count,
                                  const orbitkv_group_options* options, orbitkv_group_of_managers** out,
                                  orbitkv_error* error) {
  return orbitkv::capi::guarded(error, [&]() -> Outcome {
    if (out == nullptr) return reject("out is NULL");
    orbitkv_group_options read = ORBITKV_GROUP_OPTIONS_INIT;
    Outcome outcome = options ? orbitkv::capi::read_sized(options, read) : Outcome{};
    std::vector<orbitkv::capi::Seat> seats;
    if (outcome.ok())
      outcome = orbitkv::capi::to_seats({{participants, count}, read.carrier != nullptr}, seats);
    if (!outcome.ok()) return outcome;
    std::vector<orbitkv::client::Participant> given;
    for (orbitkv::capi::Seat& seat : seats) given.push_back(std::move(seat.participant));
    PrefixGroup::Options converted;
    converted.timeout_ms = read.timeout_ms;
    converted.restore_ms = read.restore_ms;
    auto made = std::make_unique<orbitkv_group_of_managers>();
    auto carrier = carrier_of(read, seats, made->pump, outcome);
    if (!outcome.ok()) return outcome;
    made->group = PrefixGroup::open(converted, std::move(given), std::move(carrier), outcome);
    if (made->group) *out = made.release();
    return outcome;
  });
}

void orbitkv_group_destroy(orbitkv_group_of_managers* group) {
  delete group;
}

orbitkv_action orbitkv_group_begin(orbitkv_group_of_managers* group, const orbitkv_common_list* list,
                                   uint64_t* claim, orbitkv_error* error) {
  return with_group(group, error, [&](PrefixGroup& g) {
    if (claim == nullptr) return reject("claim is NULL");
    orbitkv::client::CommonList converted;
    const Outcome outcome = orbitkv::capi::to_common_list(list, converted);
    return outcome.ok() ? g.begin(converted, *claim) : outcome;
  });
}

orbitkv_action orbitkv_group_poll(orbitkv_group_of_managers* group, uint64_t claim, uint32_t timeout_ms,
                                  orbitkv_common_prefix* out, orbitkv_error* error) {
  return with_group(group, error, [&](PrefixGroup& g) {
    Outcome outcome = orbitkv::capi::check_out(out);
    if (!outcome.ok()) return outcome;
    orbitkv_common_prefix value;
    outcome = orbitkv::capi::read_sized(out, value);
    if (!outcome.ok()) return outcome;
    orbitkv::client::CommonPrefix found;
    outcome = g.poll(claim, timeout_ms, found);
    if (outcome.ok()) outcome = orbitkv::capi::from_common(found, value);
    if (outcome.ok()) orbitkv::capi::write_sized(value, out);
    return outcome;
  });
}

orbitkv_action orbitkv_group_restored(orbitkv_group_of_managers* group, uint64_t claim, uint16_t rank,
                                      bool success, orbitkv_error* error) {
  return with_group(group, error, [&](PrefixGroup& g) { return g.restored(claim, rank, success); });
}

orbitkv_action orbitkv_group_wait(orbitkv_group_of_managers* group, uint64_t claim, uint32_t timeout_ms,
                                  orbitkv_common_restore* out, orbitkv_error* error) {
  return with_group(group, error, [&](PrefixGroup& g) {
    Outcome outcome = orbitkv::capi::check_out(out);
    if (!outcome.ok()) return outcome;
    orbitkv::client::CommonRestore end;
    outcome = g.wait(claim, timeout_ms, end);
    if (!outcome.ok()) return outcome;
    orbitkv_common_restore value = ORBITKV_COMMON_RESTORE_INIT;
    value.done = end.done;
    value.success = end.success;
    value.quiet = end.quiet;
    orbitkv::capi::copy_text(end.message, value.message);
    orbitkv::capi::write_sized(value, out);
    return outcome;
  });
}

orbitkv_action orbitkv_group_close(orbitkv_group_of_managers* group, uint64_t claim, orbitkv_error* error) {
  return with_group(group, error, [&](PrefixGroup& g) { return g.close(claim); });
}

orbitkv_action orbitkv_group_stats(orbitkv_group_of_managers* group, uint32_t participant,
                                   orbitkv_participant_stats* out, orbitkv_error* error) {
  return with_group(group, error, [&](PrefixGroup& g) {
    Outcome outcome = orbitkv::capi::check_out(out);
    if (!outcome.ok()) return outcome;
    std::vector<orbitkv::client::ParticipantStats> all;
    outcome = g.stats(all);
    if (!outcome.ok()) return outcome;
    if (participant >= all.size())
      return reject(orbitkv::format_text("participant %u, and the group has %zu", participant, all.size()));
    const orbitkv::client::ParticipantStats& of = all[participant];
    orbitkv::capi::write_sized(orbitkv_participant_stats{sizeof(orbitkv_participant_stats), of.sent,
                                                         of.answered, of.astray, of.silent},
                               out);
    return outcome;
  });
}

}  // extern "C"
