#include "bench/channel.h"

#include <unistd.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/log.h"
#include "bench/bare_ring.h"
#include "rt/event_loop.h"
#include "rt/spin.h"
#include "shm/bootstrap.h"
#include "wire/command.h"

namespace orbitkv::bench {
namespace {

constexpr SessionId kSession{0};
constexpr Epoch kEpoch{1};
constexpr Duration kFarSpin = microseconds(50);
constexpr std::size_t kWarmUp = 2'000;
constexpr std::size_t kSpinningPings = 100'000;
constexpr std::size_t kAsleepPings = 200;
constexpr Duration kAnswerWithin = seconds(1);
// Longer than the far side spins, so that it sleeps when the next ping comes.
constexpr unsigned kPauseUs = 1000;
constexpr std::uint32_t kClientSpins = 64;

// Answers pings as the Manager's core thread does: spin over the bell, then block.
class Echo final : public rt::Poller {
 public:
  explicit Echo(shm::ManagerChannel& channel) : channel_(channel) {}
  bool poll() override {
    if (!channel_.rung()) return false;
    while (auto bytes = channel_.pop_command()) {
      const auto command = wire::decode_command(*bytes);
      if (!command.ok()) continue;
      wire::Reply reply{command->opcode, command->request, command->epoch, 0, 0, Code::kOk};
      if (command->epoch != kEpoch) reply.code = Code::kReject;
      if (!channel_.push_reply(wire::encode(reply))) continue;
      channel_.ring_client();
    }
    return true;
  }
  Duration prepare_sleep() override {
    return channel_.prepare_sleep() ? milliseconds(shm::kRecheckMs) : Duration{0};
  }
  void cancel_sleep() override { channel_.cancel_sleep(); }

 private:
  shm::ManagerChannel& channel_;
};

// The far side: makes the session, hands it over, answers until the socket closes.
Status serve(shm::Socket& socket, int cpu) {
  pin_thread(cpu);
  ORBITKV_ASSIGN_OR_RETURN(auto memory, shm::SessionMemory::create(kSession, kEpoch));
  ORBITKV_ASSIGN_OR_RETURN(auto bell, shm::make_bell());
  const int fds[] = {memory.fd(), bell.get()};
  const std::byte hello{1};
  ORBITKV_RETURN_IF_ERROR(socket.send(std::span(&hello, 1), fds));
  shm::ManagerChannel channel(std::move(memory), std::move(bell));
  ORBITKV_ASSIGN_OR_RETURN(auto loop, rt::EventLoop::create());
  ORBITKV_RETURN_IF_ERROR(loop->add(channel.wake_fd(), rt::kReadableEdge, [](rt::Ready) {}));
  ORBITKV_RETURN_IF_ERROR(loop->add(socket.fd(), rt::kReadable, [&](rt::Ready) { loop->stop(); }));
  Echo echo(channel);
  loop->run(echo, kFarSpin);
  return ok_status();
}

struct FarSide {
  ChildProcess process;
  shm::Socket socket;
  shm::ClientChannel channel;
};

Result<FarSide> start_far_side(int cpu) {
  ORBITKV_ASSIGN_OR_RETURN(auto ends, shm::Socket::pair());
  ORBITKV_ASSIGN_OR_RETURN(auto child, ChildProcess::start([&] {
                             ends.first.close();
                             const Status served = serve(ends.second, cpu);
                             if (!served.ok()) ORBITKV_ERROR("echo: %s", served.error().message().c_str());
                             return served.ok() ? 0 : 1;
                           }));
  ends.second.close();
  ORBITKV_ASSIGN_OR_RETURN(auto hello, ends.first.receive_within(5000));
  if (hello.fds.size() != 2) return bug("the far side sent no session");
  ORBITKV_ASSIGN_OR_RETURN(auto memory,
                           shm::SessionMemory::attach(std::move(hello.fds[0]), kSession, kEpoch));
  return FarSide{std::move(child), std::move(ends.first),
                 shm::ClientChannel(std::move(memory), std::move(hello.fds[1]))};
}

class Pinger {
 public:
  Pinger(PingTarget target, PingMode mode) : target_(target), mode_(mode) {}

  Status ping() {
    const wire::Command command{wire::Opcode::kPing, ++request_, target_.epoch, 0, 0};
    if (!target_.channel.push_command(wire::encode(command))) return bug("the command ring is full");
    target_.channel.ring_manager();
    const auto bytes = await_reply();
    if (!bytes) return reconnect("the far side did not answer a ping within a second");
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
  ORBITKV_ASSIGN_OR_RETURN(auto far, start_far_side(cpus.far_cpu));
  pin_thread(cpus.near_cpu);
  const PingTarget target{far.channel, kEpoch};
  if (options.wants("ping")) ORBITKV_RETURN_IF_ERROR(run_case(target, PingMode::kSpinning, options));
  if (options.wants("ping_asleep")) ORBITKV_RETURN_IF_ERROR(run_case(target, PingMode::kAsleep, options));
  far.socket.close();
  if (const int status = far.process.wait(); status != 0) {
    return bug("the far side ended with status " + std::to_string(status));
  }
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
