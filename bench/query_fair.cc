#include "bench/query_fair.h"

#include <fcntl.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "bench/core_rig.h"
#include "bench/manager.h"
#include "daemon/host.h"
#include "wire/lifecycle.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint32_t kFlooding = 7;
constexpr std::uint32_t kFloodHashes = 2000;  // about what a frame holds
constexpr std::uint32_t kHashes = 64;
constexpr std::uint32_t kQueries = 2000;

// A client's half of a session: its channel, and one request that it sends again and again.
class Seat {
 public:
  Seat(daemon::Session& session, shm::ClientChannel channel, const InstanceId& instance, std::uint32_t hashes)
      : session_(&session), channel_(std::move(channel)), list_(hashes_from(0, hashes, 1)) {
    wire::QueryRequest query;
    query.instance = instance;
    query.total = hashes;
    query.hashes = list_;
    wire::encode(query, frame_);
  }
  daemon::Session& session() { return *session_; }
  bool send(std::uint32_t slot) {
    std::memcpy(channel_.slot(slot), frame_.data(), frame_.size());
    const bool sent =
        channel_.push_command(wire::encode(wire::Command{wire::Opcode::kQuery, ++requests_, session_->epoch(),
                                                         slot, static_cast<std::uint32_t>(frame_.size())}));
    channel_.ring_manager();
    return sent;
  }
  // The slot of a reply that says ok.
  std::optional<std::uint32_t> receive() {
    const auto bytes = channel_.pop_reply();
    if (!bytes) return std::nullopt;
    const auto reply = wire::decode_reply(*bytes);
    failed_ = failed_ || !reply.ok() || reply->code != Code::kOk;
    return reply.ok() ? reply->slot : 0;
  }
  bool failed() const { return failed_; }

 private:
  daemon::Session* session_;
  shm::ClientChannel channel_;
  std::vector<BlockHash> list_;
  wire::Buffer frame_;
  std::uint64_t requests_ = 0;
  bool failed_ = false;
};

class FairBench : private daemon::Host::Owner {
 public:
  Status open() {
    mem::PoolConfig config;
    config.bytes = 16 * kMiB;
    config.huge_pages = mem::HugePages::kOff;
    config.prefault = false;
    ORBITKV_ASSIGN_OR_RETURN(pool_, mem::Pool::create(config));
    cache::CoreConfig core;
    core.max_blocks = 100'000;
    Host::Owner& owner = *this;
    host_ = std::make_unique<Host>(core, *pool_, owner, nullptr, Epoch(1));
    host_->tick(monotonic_now());
    for (std::uint32_t i = 0; i <= kFlooding; ++i)
      ORBITKV_RETURN_IF_ERROR(attach(i, i == 0 ? kHashes : kFloodHashes));
    return ok_status();
  }

  struct Figures {
    Run run;
    std::uint64_t flooded = 0;  // queries of the others meanwhile
  };
  // The one asks when the turn stands at each of the sessions in turn.
  Result<Figures> run(std::uint32_t flooding) {
    const std::uint32_t all = flooding + 1;
    for (std::uint32_t i = 1; i < all; ++i)
      for (std::uint32_t slot = 0; slot < limits::kDescriptorSlots; ++slot) seats_[i]->send(slot);
    Figures out;
    Samples samples;
    std::uint32_t at = 0;
    for (std::uint32_t q = 0; q < kQueries; ++q) {
      for (; at != q % all; at = (at + 1) % all) out.flooded += serve(at).second;
      if (!seats_[0]->send(0)) return bug("the ring of the session that asks is full");
      Duration waited;
      for (bool answered = false; !answered; at = (at + 1) % all) {
        const auto [took, replies] = serve(at);
        waited.ns += took.ns;
        answered = at == 0 && replies > 0;
        if (at != 0) out.flooded += replies;
      }
      samples.add(waited);
    }
    for (const auto& seat : seats_)
      if (seat->failed()) return bug("a query of the bench failed");
    for (std::uint32_t i = 1; i < all; ++i) drain(i);
    out.run.p50 = samples.percentile(0.5);
    out.run.p99 = samples.percentile(0.99);
    return out;
  }

 private:
  using Host = daemon::Host;

  Status attach(std::uint32_t number, std::uint32_t hashes) {
    ORBITKV_ASSIGN_OR_RETURN(const Host::Place place, host_->place());
    ORBITKV_ASSIGN_OR_RETURN(auto memory, shm::SessionMemory::create(place.id, place.epoch));
    UniqueFd again(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0));
    ORBITKV_ASSIGN_OR_RETURN(auto mapped,
                             shm::SessionMemory::attach(std::move(again), place.id, place.epoch));
    ORBITKV_ASSIGN_OR_RETURN(auto bell, shm::make_bell());
    ORBITKV_ASSIGN_OR_RETURN(auto other, shm::make_bell());
    daemon::Session& session = host_->open(
        {place.id, place.epoch, "bench", 0, shm::ManagerChannel(std::move(memory), std::move(other))},
        monotonic_now());
    wire::Register message;
    message.rank = rank_of(number);
    wire::Buffer frame;
    wire::encode(message, frame);
    host_->on_frame(session, frame, monotonic_now());
    seats_.push_back(std::make_unique<Seat>(session, shm::ClientChannel(std::move(mapped), std::move(bell)),
                                            message.rank.instance, hashes));
    return ok_status();
  }
  static model::RankRegistration rank_of(std::uint32_t number) {
    model::GroupShape group;
    group.fragments = {{0, 0, ByteCount(64)}};
    model::RankRegistration rank;
    rank.instance.bytes[0] = static_cast<std::byte>(number + 1);
    rank.name_space = "bench";
    rank.device = "cpu:0";
    rank.num_blocks = 1;
    rank.block_tokens = 16;
    rank.groups = {group};
    return rank;
  }

  // A turn of one session: the host's time and the replies. Whoever floods asks again at once.
  std::pair<Duration, std::uint32_t> serve(std::uint32_t at) {
    Seat& seat = *seats_[at];
    const TimePoint begin = thread_cpu_now();
    if (Host::rung(seat.session())) host_->serve(seat.session(), false, monotonic_now());
    const Duration took = thread_cpu_now() - begin;
    std::uint32_t replies = 0;
    for (auto slot = seat.receive(); slot; slot = seat.receive()) {
      ++replies;
      if (at != 0) seat.send(*slot);
    }
    return {took, replies};
  }
  void drain(std::uint32_t at) {
    Seat& seat = *seats_[at];
    for (std::uint32_t left = limits::kDescriptorSlots; left > 0;) {
      host_->serve(seat.session(), false, monotonic_now());
      while (seat.receive()) --left;
    }
  }

  Status send(SessionId, std::vector<std::byte>, std::vector<int>) override { return ok_status(); }
  bool retract(SessionId, SlabId) override { return false; }
  void on_closed(daemon::Session&) override {}
  void on_gone(daemon::Session&) override {}
  std::string status_json() const override { return "{}"; }

  std::unique_ptr<mem::Pool> pool_;
  std::unique_ptr<Host> host_;
  std::vector<std::unique_ptr<Seat>> seats_;  // the first asks, the others flood
};

std::string microseconds_text(Duration d) {
  return std::to_string(static_cast<double>(d.ns) / 1000);
}

}  // namespace

Status run_fair_queries(const Options& options) {
  constexpr const char* kName = "fair_7_1";
  if (!options.wants(kName)) return ok_status();
  pin_thread(usable_cpus()[0]);
  FairBench bench;
  ORBITKV_RETURN_IF_ERROR(bench.open());
  std::vector<Run> runs;
  std::vector<double> idle, flooded;
  for (int i = 0; i < options.runs; ++i) {
    ORBITKV_ASSIGN_OR_RETURN(const auto alone, bench.run(0));
    ORBITKV_ASSIGN_OR_RETURN(const auto beside, bench.run(kFlooding));
    idle.push_back(static_cast<double>(alone.run.p99.ns));
    flooded.push_back(static_cast<double>(beside.flooded));
    runs.push_back(beside.run);
  }
  const auto idle_p99 = nanoseconds(static_cast<std::int64_t>(median(idle)));
  report({"query",
          kName,
          {},
          {},
          {},
          {},
          false,
          {{"idle_p99_us", microseconds_text(idle_p99)},
           {"flood_queries", std::to_string(static_cast<std::uint64_t>(median(flooded)))}}},
         runs, options);
  return ok_status();
}

}  // namespace orbitkv::bench
