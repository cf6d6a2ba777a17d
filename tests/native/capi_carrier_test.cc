// A group in C whose frames go over TCP to the hosts of its Managers: some are lost, some doubled, some
// spoilt, and the channel breaks. Real Managers, and pages that are compared byte for byte.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "orbitkv/orbitkv.h"
#include "tests/native/engine.h"
#include "tests/native/processes.h"

namespace orbitkv::test {
namespace {

// Two ends of a connection over the loopback.
std::array<UniqueFd, 2> connection() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* at = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(listener.get(), at, size), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), at, &size), 0);
  UniqueFd near(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(near.get(), at, size), 0);
  return {std::move(near), UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC))};
}

bool read_all(int fd, void* into, std::size_t bytes) {
  auto* at = static_cast<char*>(into);
  for (ssize_t n = 0; bytes > 0; at += n, bytes -= static_cast<std::size_t>(n))
    if ((n = ::recv(fd, at, bytes, 0)) <= 0) return false;
  return true;
}
bool write_all(int fd, const void* from, std::size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  for (ssize_t n = 0; bytes > 0; at += n, bytes -= static_cast<std::size_t>(n))
    if ((n = ::send(fd, at, bytes, MSG_NOSIGNAL)) <= 0) return false;
  return true;
}

struct Head {
  std::uint64_t token = 0, bytes = 0;
};
bool put(int fd, std::uint64_t token, const void* frame, std::size_t bytes) {
  const Head head{token, bytes};
  return write_all(fd, &head, sizeof head) && write_all(fd, frame, bytes);
}

// The far end: one client for the coordinator, which ends with its channel.
class Agent {
 public:
  Agent(UniqueFd socket, const Manager& manager) : socket_(std::move(socket)) {
    orbitkv_options options = ORBITKV_OPTIONS_INIT;
    options.bootstrap_socket = manager.socket().c_str();
    EXPECT_EQ(orbitkv_open(&options, &client, nullptr), ORBITKV_OK);
    EXPECT_EQ(orbitkv_wait_connected(client, kDoneWithinMs, nullptr), ORBITKV_OK);
    thread_ = std::thread([this] { serve(); });
  }
  ~Agent() {
    ::shutdown(socket_.get(), SHUT_RDWR);
    thread_.join();
    orbitkv_destroy(client);
  }
  orbitkv_client* client = nullptr;
  std::atomic<std::uint32_t> refused = 0;

 private:
  void serve() {
    Head head;
    std::vector<char> frame(ORBITKV_INTEREST_FRAME_BYTES);
    while (read_all(socket_.get(), &head, sizeof head) && head.bytes <= frame.size() &&
           read_all(socket_.get(), frame.data(), head.bytes)) {
      void* answer = nullptr;
      size_t bytes = 0;
      if (orbitkv_carry_interest(client, frame.data(), head.bytes, &answer, &bytes, nullptr) != ORBITKV_OK) {
        ++refused;
        continue;
      }
      const bool sent = put(socket_.get(), head.token, answer, bytes);
      orbitkv_free(answer);
      if (!sent) return;
    }
  }
  UniqueFd socket_;
  std::thread thread_;
};

// The near end: what `ctx` points to. Each callback is one thread's.
struct Channel {
  std::vector<UniqueFd> sockets;  // by participant
  std::mt19937 sends{1}, receives{2};
  std::atomic<std::uint32_t> lost = 0, doubled = 0, spoilt = 0, calls = 0;

  static bool percent(std::mt19937& random, unsigned of) { return random() % 100 < of; }
  static int32_t send(void* ctx, uint32_t participant, uint64_t token, const void* frame, size_t bytes) {
    auto& self = *static_cast<Channel*>(ctx);
    const int fd = self.sockets.at(participant).get();
    if (percent(self.sends, 15)) return ++self.lost, 0;
    if (percent(self.sends, 10)) {
      std::vector<char> other(static_cast<const char*>(frame), static_cast<const char*>(frame) + bytes);
      other[self.sends() % bytes] ^= 1;
      ++self.spoilt;
      if (!put(fd, token, other.data(), bytes)) return 1;
    }
    if (percent(self.sends, 25)) ++self.doubled, put(fd, token, frame, bytes);
    return put(fd, token, frame, bytes) ? 0 : 1;
  }
  static int64_t receive(void* ctx, uint32_t timeout_ms, void* frame, uint32_t* participant,
                         uint64_t* token) {
    auto& self = *static_cast<Channel*>(ctx);
    std::vector<pollfd> fds;
    for (const UniqueFd& each : self.sockets) fds.push_back({each.get(), POLLIN, 0});
    ::poll(fds.data(), fds.size(), static_cast<int>(timeout_ms));
    const auto first = static_cast<std::uint32_t>(self.receives() % fds.size());
    for (std::uint32_t i = 0; i < fds.size(); ++i) {
      *participant = (first + i) % static_cast<std::uint32_t>(fds.size());
      if (fds[*participant].revents == 0) continue;
      Head head;
      if (!read_all(fds[*participant].fd, &head, sizeof head) || head.bytes > ORBITKV_INTEREST_FRAME_BYTES)
        return -1;
      if (!read_all(fds[*participant].fd, frame, head.bytes)) return -1;
      *token = head.token;
      return self.spoil(static_cast<char*>(frame), head.bytes, participant, token);
    }
    return 0;
  }
  // Lost, or what a hostile channel might make of it.
  int64_t spoil(char* frame, std::uint64_t bytes, uint32_t* participant, uint64_t* token) {
    const auto chance = static_cast<std::uint32_t>(receives() % 100);
    if (chance < 12) return ++lost, 0;
    if (chance >= 36) return static_cast<int64_t>(bytes);
    ++spoilt;
    if (chance < 16) frame[receives() % bytes] ^= 1;
    if (chance < 20) *token += 1;
    if (chance < 24) *participant = 77;
    if (chance < 28) *participant = 1 - std::min(*participant, 1u);
    if (chance < 32) return 1;
    return ORBITKV_INTEREST_FRAME_BYTES + 1;
  }
};

orbitkv_instance instance_in_c() {
  orbitkv_instance out = {};
  std::memcpy(out.bytes, instance_of(1).bytes.data(), sizeof out.bytes);
  return out;
}

// Two hosts with a Manager and a rank each, and the group in C that spans them.
struct TwoHosts {
  explicit TwoHosts(std::uint16_t groups = 1) {
    for (std::uint16_t h = 0; h < 2; ++h) {
      managers.push_back(std::make_unique<Manager>(std::vector<std::string>{"--pool-size", "32MiB"}));
      engines.push_back(std::make_unique<Engine>(EngineOptions{.socket = managers[h]->socket(),
                                                               .shape = {.groups = groups},
                                                               .name_space = "part " + std::to_string(h)}));
      EXPECT_EQ(engines[h]->connect().message, "");
      auto [near, far] = connection();
      channel.sockets.push_back(std::move(near));
      agents.push_back(std::make_unique<Agent>(std::move(far), *managers[h]));
    }
  }
  ~TwoHosts() { orbitkv_group_destroy(group); }
  void save(std::size_t host, std::uint32_t count) {
    EXPECT_TRUE(engines[host]->save(0, 1, count).success);
    managers[host]->settle("blocks", count * engines[host]->description().groups.size());
  }
  void open(orbitkv_carrier carrier, uint32_t timeout_ms = kDoneWithinMs) {
    orbitkv_participant seats[2] = {ORBITKV_PARTICIPANT_INIT, ORBITKV_PARTICIPANT_INIT};
    const uint16_t ranks[2] = {0, 1};
    for (std::size_t h = 0; h < 2; ++h) {
      seats[h].instance = instance_in_c();
      seats[h].ranks = &ranks[h];
      seats[h].rank_count = 1;
      EXPECT_EQ(
          orbitkv_interest_authority(agents[h]->client, &seats[h].instance, &seats[h].authority, &error),
          ORBITKV_OK)
          << error.message;
      EXPECT_EQ(seats[h].authority.consumers, 1u);
    }
    orbitkv_group_options options = ORBITKV_GROUP_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    options.carrier = &carrier;
    ASSERT_EQ(orbitkv_group_open(seats, 2, &options, &group, &error), ORBITKV_OK) << error.message;
  }
  orbitkv_carrier over_tcp() {
    orbitkv_carrier carrier = ORBITKV_CARRIER_INIT;
    carrier.ctx = &channel;
    carrier.send = &Channel::send;
    carrier.receive = &Channel::receive;
    return carrier;
  }
  orbitkv_common_prefix claim(const std::vector<BlockHash>& hashes, std::uint64_t boundary = 0) {
    orbitkv_common_list list = ORBITKV_COMMON_LIST_INIT;
    std::vector<orbitkv_hash> given(hashes.size());
    for (std::size_t i = 0; i < hashes.size(); ++i)
      std::memcpy(given[i].bytes, hashes[i].bytes.data(), sizeof given[i].bytes);
    list.hashes = given.data();
    list.hash_count = given.size();
    list.boundary = boundary;
    orbitkv_common_prefix found = ORBITKV_COMMON_PREFIX_INIT;
    found.leases = leases.data();
    found.lease_capacity = leases.size();
    EXPECT_EQ(orbitkv_group_begin(group, &list, &number, &error), ORBITKV_OK) << error.message;
    EXPECT_EQ(orbitkv_group_poll(group, number, 2 * kDoneWithinMs, &found, &error), ORBITKV_OK)
        << error.message;
    EXPECT_FALSE(found.loading);
    return found;
  }
  // The carrier's threads may be called later than the claim's time is over.
  void poll_until(orbitkv_common_prefix& found, const std::string& told) {
    while (std::string(found.message).find(told) == std::string::npos) {
      ASSERT_NE(std::string(found.message).find("did not answer in time"), std::string::npos)
          << found.message;
      ASSERT_EQ(orbitkv_group_poll(group, number, 10, &found, &error), ORBITKV_OK) << error.message;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  // All that was leased for the rank of a host, at once.
  bool restore(std::uint32_t host, const orbitkv_common_prefix& found) {
    std::vector<client::Load> loads;
    std::vector<std::uint32_t> targets;
    for (std::size_t i = 0; i < found.lease_count; ++i) {
      if (leases[i].participant != host) continue;
      LeaseId lease;
      std::memcpy(lease.bytes.data(), leases[i].lease.bytes, lease.bytes.size());
      targets = blocks_of(20, leases[i].blocks);
      loads.push_back({lease, leases[i].group, {}});
    }
    for (client::Load& load : loads) load.blocks = targets;
    Engine& engine = *engines[host];
    client::OperationHandle handle;
    if (!engine.client().start_restore(engine.registration(), loads, {}, handle).ok()) return false;
    if (!engine.client().wait(handle, kDoneWithinMs).success) return false;
    std::uint64_t wrong = 0;
    for (std::uint32_t i = 0; i < targets.size(); ++i)
      wrong += engine.wrong_bytes(targets[i], hash_of(1 + i));
    EXPECT_EQ(wrong, 0u);
    return true;
  }
  void restore_all_and_close(const orbitkv_common_prefix& found) {
    for (std::uint16_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(restore(rank, found));
      ASSERT_EQ(orbitkv_group_restored(group, number, rank, true, &error), ORBITKV_OK) << error.message;
    }
    orbitkv_common_restore end = ORBITKV_COMMON_RESTORE_INIT;
    ASSERT_EQ(orbitkv_group_wait(group, number, kDoneWithinMs, &end, &error), ORBITKV_OK) << error.message;
    EXPECT_TRUE(end.done && end.success && end.quiet) << end.message;
    EXPECT_EQ(orbitkv_group_close(group, number, &error), ORBITKV_OK);
  }
  void expect_nothing_held() {
    for (const auto& manager : managers) {
      EXPECT_EQ(manager->settle("leases", 0), 0u);
      EXPECT_EQ(manager->settle("interests.open", 0), 0u);
    }
  }

  std::vector<std::unique_ptr<Manager>> managers;
  std::vector<std::unique_ptr<Engine>> engines;
  Channel channel;
  std::vector<std::unique_ptr<Agent>> agents;
  orbitkv_group_of_managers* group = nullptr;
  orbitkv_error error = {};
  std::array<orbitkv_common_lease, 4> leases{};
  std::uint64_t number = 0;
};

TEST(CapiCarrier, what_goes_over_a_bad_channel_is_claimed_everywhere_and_restored) {
  TwoHosts hosts;
  hosts.save(0, 6);
  hosts.save(1, 4);
  hosts.open(hosts.over_tcp());
  for (int round = 0; round < 3; ++round) {
    const orbitkv_common_prefix found = hosts.claim(hashes_of(1, 8));
    ASSERT_EQ(found.blocks, 4u) << found.message;
    ASSERT_EQ(found.lease_count, 2u);
    hosts.restore_all_and_close(found);
  }
  orbitkv_group_destroy(std::exchange(hosts.group, nullptr));
  hosts.expect_nothing_held();
  EXPECT_GT(hosts.channel.doubled, 0u);
  EXPECT_GT(hosts.channel.lost + hosts.channel.spoilt, 5u);
}

TEST(CapiCarrier, a_boundary_and_a_list_of_several_parts_go_over_it_too) {
  TwoHosts hosts(2);
  hosts.save(0, 6);
  hosts.save(1, 3);
  hosts.open(hosts.over_tcp());
  auto list = hashes_of(1, 3);
  list.insert(list.end(), list.begin(), list.begin() + 3);
  const std::uint64_t tokens = std::uint64_t{3} * hosts.engines[0]->description().block_tokens;
  const orbitkv_common_prefix found = hosts.claim(list, tokens);
  ASSERT_EQ(found.blocks, 6u) << found.message;
  ASSERT_EQ(found.lease_count, 4u);
  hosts.restore_all_and_close(found);
  const orbitkv_common_prefix run = hosts.claim(hashes_of(1, 4500));
  ASSERT_EQ(run.blocks, 3u) << run.message;
  for (std::uint16_t rank = 0; rank < 2; ++rank)  // of the first group alone there is nothing to compare
    EXPECT_EQ(orbitkv_group_restored(hosts.group, hosts.number, rank, false, nullptr), ORBITKV_OK);
  EXPECT_EQ(orbitkv_group_close(hosts.group, hosts.number, nullptr), ORBITKV_OK);
  orbitkv_group_destroy(std::exchange(hosts.group, nullptr));
  hosts.expect_nothing_held();
}

TEST(CapiCarrier, a_channel_that_is_broken_is_named_when_the_time_is_over) {
  TwoHosts hosts;
  orbitkv_carrier carrier = hosts.over_tcp();
  carrier.send = [](void* ctx, uint32_t, uint64_t, const void*, size_t) -> int32_t {
    ++static_cast<Channel*>(ctx)->calls;
    return 5;
  };
  carrier.receive = [](void* ctx, uint32_t, void*, uint32_t*, uint64_t*) -> int64_t {
    ++static_cast<Channel*>(ctx)->calls;
    return 0;  // at once
  };
  hosts.open(carrier, 300);
  orbitkv_common_prefix found = hosts.claim(hashes_of(1, 2));
  EXPECT_EQ(found.blocks, 0u);
  EXPECT_EQ(found.missing, ORBITKV_MISSING_TIMEOUT);
  hosts.poll_until(found, "; its carrier says: send returned 5");
  EXPECT_NE(std::string(found.message).find("participant 0 did not answer in time: "), std::string::npos)
      << found.message;
  orbitkv_participant_stats stats = ORBITKV_PARTICIPANT_STATS_INIT;
  ASSERT_EQ(orbitkv_group_stats(hosts.group, 0, &stats, &hosts.error), ORBITKV_OK) << hosts.error.message;
  EXPECT_GE(stats.sent, 1u);
  EXPECT_EQ(stats.answered, 0u);
  EXPECT_EQ(stats.silent, 1u);
  EXPECT_EQ(orbitkv_group_stats(hosts.group, 2, &stats, &hosts.error), ORBITKV_REJECT);
  EXPECT_STREQ(hosts.error.message, "participant 2, and the group has 2");
  orbitkv_group_destroy(std::exchange(hosts.group, nullptr));
  const std::uint32_t calls = hosts.channel.calls;
  carrier.receive = [](void*, uint32_t, void*, uint32_t*, uint64_t*) -> int64_t { return -7; };
  hosts.open(carrier, 300);
  found = hosts.claim(hashes_of(1, 2));
  hosts.poll_until(found, "its carrier says: receive returned -7");
  while (hosts.channel.calls == calls) std::this_thread::yield();  // the second one sends, too
  orbitkv_group_destroy(std::exchange(hosts.group, nullptr));
}

// One participant with one rank, over the carrier.
orbitkv_action open_one(const orbitkv_carrier& carrier, orbitkv_group_of_managers*& group,
                        orbitkv_error& error) {
  orbitkv_participant seat = ORBITKV_PARTICIPANT_INIT;
  const uint16_t rank = 0;
  seat.ranks = &rank;
  seat.rank_count = 1;
  orbitkv_group_options options = ORBITKV_GROUP_OPTIONS_INIT;
  options.carrier = &carrier;
  return orbitkv_group_open(&seat, 1, &options, &group, &error);
}

// The pause is a sleep of the thread that asks: the kernel counts how often that one gave way by itself.
long own_waits() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

TEST(CapiCarrier, one_that_brings_junk_at_once_is_not_asked_without_a_pause) {
  struct Junk {
    std::atomic<long> asked = 0, unpaused = 0;
    long waits = -1;  // of the thread that receives, at its last call
  } junk;
  orbitkv_carrier carrier = ORBITKV_CARRIER_INIT;
  carrier.ctx = &junk;
  carrier.send = [](void*, uint32_t, uint64_t, const void*, size_t) -> int32_t { return 0; };
  carrier.receive = [](void* ctx, uint32_t, void*, uint32_t* participant, uint64_t*) -> int64_t {
    auto& self = *static_cast<Junk*>(ctx);
    const long waits = own_waits();
    if (waits == std::exchange(self.waits, waits)) ++self.unpaused;
    *participant = 9;
    return ++self.asked % 2 ? 1 : ORBITKV_INTEREST_FRAME_BYTES + 1;
  };
  orbitkv_group_of_managers* group = nullptr;
  orbitkv_error error = {};
  ASSERT_EQ(open_one(carrier, group, error), ORBITKV_OK) << error.message;
  while (junk.asked < 200) std::this_thread::yield();
  orbitkv_group_destroy(group);
  EXPECT_LT(junk.unpaused, junk.asked / 2) << "a pause is left out only where a call took as long itself";
}

TEST(CapiCarrier, a_forked_child_destroys_its_group_without_a_wait) {
  orbitkv_carrier carrier = ORBITKV_CARRIER_INIT;
  carrier.send = [](void*, uint32_t, uint64_t, const void*, size_t) -> int32_t { return 0; };
  carrier.receive = [](void*, uint32_t timeout_ms, void*, uint32_t*, uint64_t*) -> int64_t {
    std::this_thread::sleep_for(std::chrono::milliseconds(timeout_ms));
    return 0;
  };
  orbitkv_group_of_managers* group = nullptr;
  orbitkv_error error = {};
  ASSERT_EQ(open_one(carrier, group, error), ORBITKV_OK) << error.message;
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    const bool refused = orbitkv_group_close(group, 1, nullptr) == ORBITKV_REJECT;
    orbitkv_group_destroy(group);
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  orbitkv_group_destroy(group);
}

TEST(CapiCarrier, a_carrier_without_its_functions_is_refused) {
  orbitkv_carrier carrier = ORBITKV_CARRIER_INIT;
  orbitkv_group_of_managers* group = nullptr;
  orbitkv_error error = {};
  EXPECT_EQ(open_one(carrier, group, error), ORBITKV_REJECT);
  EXPECT_STREQ(error.message, "a carrier without send or receive; set both (ORBITKV_CARRIER_INIT)");
  carrier.size = 0;
  EXPECT_EQ(open_one(carrier, group, error), ORBITKV_REJECT);
  EXPECT_NE(std::string(error.message).find("ORBITKV_CARRIER_INIT"), std::string::npos) << error.message;
  EXPECT_EQ(orbitkv_interest_authority(nullptr, nullptr, nullptr, &error), ORBITKV_REJECT);
}

}  // namespace
}  // namespace orbitkv::test
