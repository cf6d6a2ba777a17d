#include "bindings/prefix_group.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/block_hashes.h"
#include "bindings/outcome.h"
#include "orbitkv/interests.h"

namespace orbitkv::python {
namespace {

using client::Client;
using client::PrefixGroup;

using client::Mailbox;

// Of frames that Python threads bring to their places. Native code never calls Python.
struct Box {
  explicit Box(std::uint32_t participants) : of(std::make_shared<Mailbox>(participants)) {}
  using Threads = std::vector<std::thread::id>;
  std::shared_ptr<Mailbox> of;
  // That bring its frames; with the GIL.
  std::shared_ptr<Threads> threads = std::make_shared<Threads>();
};

std::vector<client::Participant> seats_of(nb::list participants) {
  std::vector<client::Participant> seats;
  for (nb::handle item : participants) {
    auto entry = nb::cast<nb::tuple>(item);
    client::Participant seat{to_id<InstanceId>(nb::cast<nb::bytes>(entry[0])), {}};
    for (nb::handle rank : nb::cast<nb::list>(entry[1])) seat.ranks.push_back(nb::cast<std::uint16_t>(rank));
    if (!entry[2].is_none()) seat.authority = to_authority(nb::cast<nb::tuple>(entry[2]));
    seats.push_back(std::move(seat));
  }
  return seats;
}

// The clients outlive the group: the list keeps them.
class Group {
 public:
  // participants: [(instance, [rank], authority or None)]; one a client, or a mailbox for all
  Group(nb::list clients, nb::list participants, std::pair<std::uint32_t, std::uint32_t> times, Box* box)
      : kept_(clients) {
    std::vector<Client*> carried;
    for (nb::handle each : clients) carried.push_back(nb::cast<Client*>(each));
    if (box == nullptr && carried.size() != participants.size())
      throw nb::value_error("one client a participant");
    std::vector<client::Participant> seats = seats_of(participants);
    const std::shared_ptr<Mailbox> mailbox = box ? box->of : nullptr;
    if (box) carrier_ = *box;
    PrefixGroup::Options options;
    options.timeout_ms = times.first;
    options.restore_ms = times.second;
    without_gil([&] {
      client::Outcome outcome;
      auto carrier =
          mailbox ? client::carry_by(mailbox, outcome) : client::carry_over(std::move(carried), outcome);
      if (outcome.ok()) group_ = PrefixGroup::open(options, std::move(seats), std::move(carrier), outcome);
      return outcome;
    });
  }
  // By a thread that brings its frames nobody can be told, so it does not wait for that.
  ~Group() {
    if (within_carrier()) carrier_->of->stop();
    closed_ = true;
    const std::shared_ptr<PrefixGroup> of = group_;
    if (!of) return;
    bool finished = false;
    {
      nb::gil_scoped_release release;
      finished = of->finish();
    }
    if (finished) let_go(of);
  }
  Group(const Group&) = delete;

  void stop() {
    closed_ = true;
    const std::shared_ptr<PrefixGroup> of = group_;
    nb::gil_scoped_release release;
    if (of) of->stop();
  }
  // Calls of other threads that wait end at once. All that close it wait until all is given back.
  void close(std::optional<std::uint32_t> timeout_ms) {
    if (group_ && within_carrier())
      check({client::Action::kReject,
             "close() within send() or receive() of the group's carrier; close it from another thread"});
    closed_ = true;
    std::shared_ptr<PrefixGroup> of = group_;
    if (!of) return;
    bool finished = false;
    const bool heard = in_slices(timeout_ms.value_or(UINT32_MAX),
                                 [&](std::uint32_t slice) { return finished = of->finish(slice); });
    if (finished) return let_go(std::move(of));
    {
      nb::gil_scoped_release release;
      of.reset();
    }
    check_heard(heard);
  }
  // A close() by another thread leaves the group to the calls that run.
  template <class F>
  void call(F what) {
    std::shared_ptr<PrefixGroup> of = open_one();
    without_gil([&] {
      const client::Outcome outcome = what(*of);
      of.reset();
      return outcome;
    });
  }
  // call() of what waits: it gets milliseconds, and `over` says whether it is known.
  template <class F, class Over>
  void call_for(std::uint32_t timeout_ms, F what, Over over) {
    std::shared_ptr<PrefixGroup> of = open_one();
    client::Outcome outcome;
    const bool heard = in_slices(timeout_ms, [&](std::uint32_t slice) {
      outcome = what(*of, slice);
      return !outcome.ok() || over();
    });
    {
      nb::gil_scoped_release release;
      of.reset();
    }
    check_heard(heard);
    check(std::move(outcome));
  }

 private:
  bool within_carrier() const {
    if (!carrier_ || carrier_->of->stopped()) return false;
    const Box::Threads& threads = *carrier_->threads;
    return std::find(threads.begin(), threads.end(), std::this_thread::get_id()) != threads.end();
  }
  std::shared_ptr<PrefixGroup> open_one() const {
    if (closed_ || !group_) check({client::Action::kReject, "the group is closed"});
    return group_;
  }
  void let_go(std::shared_ptr<PrefixGroup> of) {
    std::shared_ptr<PrefixGroup> last = std::exchange(group_, nullptr);
    nb::gil_scoped_release release;
    of.reset();
    last.reset();
  }

  nb::list kept_;
  std::optional<Box> carrier_;
  std::shared_ptr<PrefixGroup> group_;  // this and below: read and written with the GIL
  bool closed_ = false;
};

std::uint64_t begin(Group& self, const BlockHashes& hashes, std::uint16_t group,
                    std::pair<std::uint64_t, std::uint64_t> tail) {
  std::uint64_t claim = 0;
  const client::CommonList list{hashes.view(), group, tail.first, tail.second};
  self.call([&](PrefixGroup& of) { return of.begin(list, claim); });
  return claim;
}

// What came from another host may be anything.
nb::object text_of(const std::string& message) {
  const auto size = static_cast<Py_ssize_t>(message.size());
  return nb::steal(PyUnicode_DecodeUTF8(message.data(), size, "replace"));
}

nb::tuple poll(Group& self, std::uint64_t claim, std::uint32_t timeout_ms) {
  client::CommonPrefix out;
  self.call_for(
      timeout_ms, [&](PrefixGroup& of, std::uint32_t slice) { return of.poll(claim, slice, out); },
      [&] { return !out.loading; });
  nb::list seats;
  for (const auto& seat : out.leases) {
    nb::list leases;
    for (const client::RecoveryLease& lease : seat)
      leases.append(nb::make_tuple(lease.group, lease.pages, from_lease(lease.lease)));
    seats.append(leases);
  }
  return nb::make_tuple(out.loading, out.blocks, seats, name_of(out.why), out.participant.value,
                        text_of(out.message));
}

nb::tuple wait(Group& self, std::uint64_t claim, std::uint32_t timeout_ms) {
  client::CommonRestore out;
  self.call_for(
      timeout_ms, [&](PrefixGroup& of, std::uint32_t slice) { return of.wait(claim, slice, out); },
      [&] { return out.done && out.quiet; });
  return nb::make_tuple(out.done, out.success, out.quiet, text_of(out.message));
}

// By participant: (sent, answered, astray, silent).
nb::list stats(Group& self) {
  std::vector<client::ParticipantStats> found;
  self.call([&](PrefixGroup& of) { return of.stats(found); });
  nb::list out;
  for (const client::ParticipantStats& each : found)
    out.append(nb::make_tuple(each.sent, each.answered, each.astray, each.silent));
  return out;
}

nb::object take(const Box& self, std::uint32_t timeout_ms) {
  Mailbox::Parcel out;
  bool taken = false;
  {
    nb::gil_scoped_release release;
    taken = self.of->take(timeout_ms, out);
  }
  if (!taken) return nb::none();
  const nb::bytes frame(reinterpret_cast<const char*>(out.frame.data()), out.frame.size());
  return nb::make_tuple(out.participant.value, out.token.value, frame);
}

void arrived(const Box& self, std::uint32_t participant, std::uint64_t token, const nb::bytes& frame) {
  check(self.of->arrived({participant}, {token},
                         {reinterpret_cast<const std::byte*>(frame.c_str()), frame.size()}));
}

void bind_mailbox(nb::module_& m) {
  nb::class_<Box>(m, "Mailbox")
      .def(nb::init<std::uint32_t>(), nb::arg("participants"))
      .def("take", &take, nb::arg("timeout_ms"))
      .def("arrived", &arrived, nb::arg("participant"), nb::arg("token"), nb::arg("frame"))
      .def(
          "hindered",
          [](const Box& self, std::string why, std::optional<std::uint32_t> participant) {
            participant ? self.of->hindered({*participant}, std::move(why))
                        : self.of->hindered(std::move(why));
          },
          nb::arg("why"), nb::arg("participant") = nb::none())
      .def("brought_by_me", [](const Box& self) { self.threads->push_back(std::this_thread::get_id()); })
      .def("stop", [](const Box& self) { self.of->stop(); })
      .def("stopped", [](const Box& self) { return self.of->stopped(); });
}

}  // namespace

nb::tuple from_authority(const InterestAuthority& of) {
  const nb::bytes layout(reinterpret_cast<const char*>(of.layout.data()), of.layout.size());
  return nb::make_tuple(of.incarnation, of.generation, layout, of.consumers);
}

InterestAuthority to_authority(const nb::tuple& of) {
  InterestAuthority out;
  out.incarnation = nb::cast<std::uint64_t>(of[0]);
  out.generation = nb::cast<std::uint64_t>(of[1]);
  const auto layout = nb::cast<nb::bytes>(of[2]);
  if (layout.size() != out.layout.size()) throw nb::value_error("a layout has 16 bytes");
  std::memcpy(out.layout.data(), layout.c_str(), out.layout.size());
  out.consumers = nb::cast<std::uint16_t>(of[3]);
  return out;
}

void bind_prefix_group(nb::module_& m) {
  bind_mailbox(m);
  nb::class_<Group>(m, "PrefixGroup", nb::is_weak_referenceable())
      .def(nb::init<nb::list, nb::list, std::pair<std::uint32_t, std::uint32_t>, Box*>(), nb::arg("clients"),
           nb::arg("participants"), nb::arg("times_ms"), nb::arg("mailbox").none())
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
      .def("stats", &stats)
      .def("stop", &Group::stop)
      .def("close", &Group::close, nb::arg("timeout_ms") = nb::none());
}

}  // namespace orbitkv::python
