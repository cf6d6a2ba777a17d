#include "bindings/prefix_group.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings/block_hashes.h"
#include "bindings/outcome.h"
#include "orbitkv/interests.h"

namespace orbitkv::python {
namespace {

using client::Client;
using client::PrefixGroup;

// The clients outlive the group: the list keeps them.
class Group {
 public:
  // participants: [(instance, [rank])], one a client
  Group(nb::list clients, nb::list participants, std::uint32_t timeout_ms, std::uint32_t restore_ms)
      : kept_(clients) {
    std::vector<Client*> carried;
    for (nb::handle each : clients) carried.push_back(nb::cast<Client*>(each));
    if (carried.size() != participants.size()) throw nb::value_error("one client a participant");
    std::vector<client::Participant> seats;
    for (nb::handle item : participants) {
      auto entry = nb::cast<nb::tuple>(item);
      client::Participant seat{to_id<InstanceId>(nb::cast<nb::bytes>(entry[0])), {}};
      for (nb::handle rank : nb::cast<nb::list>(entry[1]))
        seat.ranks.push_back(nb::cast<std::uint16_t>(rank));
      seats.push_back(std::move(seat));
    }
    PrefixGroup::Options options;
    options.timeout_ms = timeout_ms;
    options.restore_ms = restore_ms;
    without_gil([&] {
      client::Outcome outcome;
      auto carrier = client::carry_over(std::move(carried), outcome);
      if (outcome.ok()) group_ = PrefixGroup::open(options, std::move(seats), std::move(carrier), outcome);
      return outcome;
    });
  }
  ~Group() { close(); }
  Group(const Group&) = delete;

  // Calls of other threads that wait end at once; whichever holds the group last ends it.
  void close() {
    std::shared_ptr<PrefixGroup> of = std::exchange(group_, nullptr);
    nb::gil_scoped_release release;
    if (of) of->stop();
    of.reset();
  }
  // A close() by another thread leaves the group to the calls that run.
  template <class F>
  void call(F what) {
    std::shared_ptr<PrefixGroup> of = group_;
    if (!of) check({client::Action::kReject, "the group is closed"});
    without_gil([&] {
      const client::Outcome outcome = what(*of);
      of.reset();
      return outcome;
    });
  }

 private:
  nb::list kept_;
  std::shared_ptr<PrefixGroup> group_;  // read and written with the GIL
};

std::uint64_t begin(Group& self, const BlockHashes& hashes, std::uint16_t group,
                    std::pair<std::uint64_t, std::uint64_t> tail) {
  std::uint64_t claim = 0;
  const client::CommonList list{hashes.view(), group, tail.first, tail.second};
  self.call([&](PrefixGroup& of) { return of.begin(list, claim); });
  return claim;
}

nb::tuple poll(Group& self, std::uint64_t claim, std::uint32_t timeout_ms) {
  client::CommonPrefix out;
  self.call([&](PrefixGroup& of) { return of.poll(claim, timeout_ms, out); });
  nb::list seats;
  for (const auto& seat : out.leases) {
    nb::list leases;
    for (const client::RecoveryLease& lease : seat)
      leases.append(nb::make_tuple(lease.group, lease.pages, from_lease(lease.lease)));
    seats.append(leases);
  }
  return nb::make_tuple(out.loading, out.blocks, seats, name_of(out.why), out.participant, out.message);
}

nb::tuple wait(Group& self, std::uint64_t claim, std::uint32_t timeout_ms) {
  client::CommonRestore out;
  self.call([&](PrefixGroup& of) { return of.wait(claim, timeout_ms, out); });
  return nb::make_tuple(out.done, out.success, out.quiet, out.message);
}

}  // namespace

void bind_prefix_group(nb::module_& m) {
  nb::class_<Group>(m, "PrefixGroup")
      .def(nb::init<nb::list, nb::list, std::uint32_t, std::uint32_t>(), nb::arg("clients"),
           nb::arg("participants"), nb::arg("timeout_ms"), nb::arg("restore_ms"))
      .def("begin", &begin, nb::arg("hashes"), nb::arg("group"), nb::arg("tail"))
      .def("poll", &poll, nb::arg("claim"), nb::arg("timeout_ms"))
      .def(
          "restored",
          [](Group& self, std::uint64_t claim, std::uint16_t rank, bool success) {
            self.call([&](PrefixGroup& of) { return of.restored(claim, rank, success); });
          },
          nb::arg("claim"), nb::arg("rank"), nb::arg("success"))
      .def("wait", &wait, nb::arg("claim"), nb::arg("timeout_ms"))
      .def(
          "close_claim",
          [](Group& self, std::uint64_t claim) {
            self.call([&](PrefixGroup& of) { return of.close(claim); });
          },
          nb::arg("claim"))
      .def("close", &Group::close);
}

}  // namespace orbitkv::python
