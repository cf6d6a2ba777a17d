#include "bench/channel.h"

#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "bench/bare_ring.h"
#include "bench/manager.h"
#include "rt/spin.h"
#include "shm/bootstrap.h"
#include "wire/command.h"
#include "wire/lifecycle.h"

namespace orbitkv::bench {
namespace {

constexpr std::size_t kWarmUp = 2'000;
constexpr std::size_t kSpinningPings = 100'000;
constexpr std::size_t kAsleepPings = 200;
constexpr Duration kAnswerWithin = seconds(1);
constexpr int kAttachMs = 5000;
// Longer than the Manager spins, so that it sleeps when the next ping comes.
constexpr unsigned kPauseUs = 1000;
constexpr std::uint32_t kClientSpins = 64;

// A session with the channel in our hands; the product's client keeps it to itself.
struct Attached {
  shm::Socket socket;
  shm::ClientChannel channel;
  Epoch epoch;
};

Result<Attached> attach(const std::string& path) {
  ORBITKV_ASSIGN_OR_RETURN(auto socket, shm::connect_to(path, kAttachMs));
  std::vector<std::byte> frame;
  wire::encode(wire::Hello{.client = "orbitkv bench channel"}, frame);
  ORBITKV_RETURN_IF_ERROR(socket.send_within(frame, {}, kAttachMs));
  ORBITKV_ASSIGN_OR_RETURN(auto message, socket.receive_within(kAttachMs));
  ORBITKV_ASSIGN_OR_RETURN(const auto hello, wire::decode_hello_reply(message.frame));
  if (message.fds.size() != 2) return bug("the Manager sent no session");
  ORBITKV_ASSIGN_OR_RETURN(auto memory,
                           shm::SessionMemory::attach(std::move(message.fds[0]), hello.session, hello.epoch));
  return Attached{std::move(socket), shm::ClientChannel(std::move(memory), std::move(message.fds[1])),
                  hello.epoch};
}

class Pinger {
 public:
  Pinger(PingTarget target, PingMode mode) : target_(target), mode_(mode) {}

  Status ping() {
    const wire::Command command{wire::Opcode::kPing, ++request_, target_.epoch, 0, 0};
    if (!target_.channel.push_command(wire::encode(command))) return bug("the command ring is full");
    target_.channel.ring_manager();
    const auto bytes = await_reply();
    if (!bytes) return reconnect("the Manager did not answer a ping within a second");
    ORBITKV_ASSIGN_OR_RETURN(const auto reply, wire::decode_reply(*bytes));
    if (reply.request != request_ || reply.code != Code::kOk) return bug("a reply of another ping");
    return ok_status();
  }

 private:
  std::optional<wire::CommandBytes> await_reply() {
    std::optional<TimePoint> deadline;
    for (std::uint32_t turn = 1;; ++turn) {
      const std::uint64_t seen = target_.channel.bell();
      if (auto reply = target_.channel.pop_reply()) return reply;
      if (mode_ == PingMode::kSpinning) {
        rt::spin_pause();
        if (turn % 4096 != 0) continue;
      } else {
        target_.channel.wait(seen, kClientSpins, shm::kRecheckMs);
      }
      const TimePoint now = monotonic_now();
      if (!deadline) deadline = now + kAnswerWithin;
      if (now >= *deadline) return std::nullopt;
    }
  }

  PingTarget target_;
  PingMode mode_;
  std::uint64_t request_ = 0;
};

Status run_case(PingTarget target, PingMode mode, const Options& options) {
  ORBITKV_ASSIGN_OR_RETURN(const PinnedPair cpus, pinned_pair());
  std::vector<Run> runs;
  for (int i = 0; i < options.runs; ++i) {
    ORBITKV_ASSIGN_OR_RETURN(const Duration ceiling, bare_ring_ping(cpus, kSpinningPings));
    ORBITKV_ASSIGN_OR_RETURN(auto run, measure_pings(target, mode));
    run.ceiling = static_cast<double>(ceiling.ns) / 1000.0;
    runs.push_back(run);
  }
  const Case what{.bench = "channel",
                  .name = mode == PingMode::kSpinning ? "ping" : "ping_asleep",
                  .bytes = ByteCount(wire::kCommandBytes),
                  .fragments = std::nullopt,
                  .resident = std::nullopt,
                  .ceiling = Ceiling{"ring_ping", Ceiling::Unit::kMicroseconds}};
  report(what, std::move(runs), options);
  return ok_status();
}

Status run_all(const Options& options) {
  ORBITKV_ASSIGN_OR_RETURN(const PinnedPair cpus, pinned_pair());
  ORBITKV_ASSIGN_OR_RETURN(const auto manager, BenchManager::start(options, {"--pool-size", "64MiB"}));
  ORBITKV_ASSIGN_OR_RETURN(auto session, attach(manager->socket()));
  pin_thread(cpus.near_cpu);
  const PingTarget target{session.channel, session.epoch};
  if (options.wants("ping")) ORBITKV_RETURN_IF_ERROR(run_case(target, PingMode::kSpinning, options));
  if (options.wants("ping_asleep")) ORBITKV_RETURN_IF_ERROR(run_case(target, PingMode::kAsleep, options));
  return ok_status();
}

}  // namespace

Result<Run> measure_pings(PingTarget target, PingMode mode) {
  Pinger pinger(target, mode);
  const bool asleep = mode == PingMode::kAsleep;
  const std::size_t pings = asleep ? kAsleepPings : kSpinningPings;
  for (std::size_t i = 0; i < (asleep ? 1 : kWarmUp); ++i) ORBITKV_RETURN_IF_ERROR(pinger.ping());
  Samples samples;
  samples.reserve(pings);
  TimePoint before = monotonic_now();
  for (std::size_t i = 0; i < pings; ++i) {
    if (asleep) {
      ::usleep(kPauseUs);
      before = monotonic_now();
    }
    ORBITKV_RETURN_IF_ERROR(pinger.ping());
    const TimePoint after = monotonic_now();
    samples.add(after - before);
    before = after;
  }
  Run run;
  run.p50 = samples.percentile(0.5);
  run.p99 = samples.percentile(0.99);
  return run;
}

int run_channel_bench(const Options& options) {
  const Status done = run_all(options);
  if (done.ok()) return 0;
  ORBITKV_ERROR("bench channel: %s", done.error().message().c_str());
  return 1;
}

}  // namespace orbitkv::bench
