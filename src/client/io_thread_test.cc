// What a client keeps mapped between two Managers, and when it lets go: against Managers that are
// driven by hand.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "base/log.h"
#include "base/time.h"
#include "client/fake_manager_suite.h"
#include "mem/slab.h"
#include "orbitkv/client.h"

namespace orbitkv::client {
namespace {

constexpr std::uint32_t kTimeoutMs = 20'000;

// Mappings of slab `name` in this process.
std::size_t mapped(const char* name) {
  std::ifstream maps("/proc/self/maps");
  std::size_t n = 0;
  for (std::string line; std::getline(maps, line);) n += line.find(name) != line.npos ? 1 : 0;
  return n;
}
// 20 s at most: well below the half minute for which slabs are kept without a Manager.
bool becomes(const char* name, std::size_t count) {
  const TimePoint deadline = monotonic_now() + seconds(20);
  for (; mapped(name) != count; ::usleep(2000))
    if (monotonic_now() > deadline) return false;
  return true;
}

// Managers at one path, one connection after the other.
class Managers {
 public:
  Managers() {
    char path[] = "/tmp/okv-io-XXXXXX";
    directory_ = ::mkdtemp(path);
    listener_ = std::make_unique<shm::Listener>(std::move(*shm::Listener::open(socket())));
  }
  ~Managers() {
    listener_.reset();
    ::unlink((socket() + ".lock").c_str());
    ::rmdir((directory_ + "/s").c_str());
    ::rmdir(directory_.c_str());
  }
  std::string socket() const { return directory_ + "/s/m.sock"; }

  // The next client's Hello.
  shm::Socket accept() {
    const TimePoint deadline = monotonic_now() + milliseconds(kTimeoutMs);
    for (; monotonic_now() < deadline; ::usleep(1000)) {
      auto got = listener_->accept();
      if (!got.ok() || !got->has_value()) continue;
      EXPECT_TRUE((*got)->receive_within(kTimeoutMs).ok());
      return std::move(**got);
    }
    ADD_FAILURE() << "no client comes";
    return shm::Socket(UniqueFd());
  }
  static void refuse(shm::Socket& socket, Code code, std::uint64_t request = 0) {
    wire::Buffer out;
    wire::encode(wire::SocketError{request, code, "refused by a test"}, out);
    EXPECT_TRUE(socket.send(out).ok());
  }
  void greet(shm::Socket& socket) {
    channel_.reset();
    auto memory = shm::SessionMemory::create(SessionId(1), Epoch(++epoch_));
    auto bell = shm::make_bell();
    wire::Buffer out;
    wire::encode(wire::HelloReply{SessionId(1), Epoch(epoch_), Incarnation(epoch_),
                                  shm::SessionLayout::kBytes, "by hand"},
                 out);
    const int fds[] = {memory->fd(), bell->get()};
    EXPECT_TRUE(socket.send(out, fds).ok());
    channel_ = std::make_unique<shm::ManagerChannel>(std::move(*memory), std::move(*bell));
  }
  // A slab whose memory outlives its Manager.
  static void offer(shm::Socket& socket, std::uint64_t pool, SlabId name) {
    auto memory = mem::make_slab_memory(name, kMiB, mem::PageSource::kShared);
    ASSERT_TRUE(memory.ok());
    wire::Buffer out;
    wire::encode(wire::SlabOffer{pool, {{name, kMiB, false, true}}}, out);
    const int fds[] = {memory->get()};
    EXPECT_TRUE(socket.send(out, fds).ok());
  }
  // The request of the next Register.
  static std::uint64_t registration(shm::Socket& socket) {
    const auto message = socket.receive_within(kTimeoutMs);
    if (!message.ok()) return 0;
    const auto asked = wire::decode_register(message->frame);
    EXPECT_TRUE(asked.ok());
    return asked.ok() ? asked->request : 0;
  }
  static void accept_rank(shm::Socket& socket, std::uint64_t request) {
    wire::Buffer out;
    wire::encode(wire::RegisterReply{request, RegistrationId(1), 1}, out);
    EXPECT_TRUE(socket.send(out).ok());
  }

 private:
  std::string directory_;
  std::unique_ptr<shm::Listener> listener_;
  std::unique_ptr<shm::ManagerChannel> channel_;
  std::uint64_t epoch_ = 0;
};

// A client with a rank and one slab, whose Manager has just gone.
class Orphan : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kOff);
    Outcome outcome;
    Options options;
    options.bootstrap_socket = managers.socket();
    std::thread manager([&] {
      shm::Socket socket = managers.accept();
      managers.greet(socket);
      Managers::offer(socket, 1, SlabId(71));
      Managers::accept_rank(socket, Managers::registration(socket));
      EXPECT_TRUE(becomes("orbitkv-slab-71", 1));
    });
    client = Client::open(options, outcome);
    EXPECT_TRUE(outcome.ok()) << outcome.message;
    RegistrationHandle handle;
    const bool registered = client && client->register_rank(one_layer(pages), handle).ok();
    manager.join();
    ASSERT_TRUE(registered);
  }
  void TearDown() override { set_log_level(before); }
  const LogLevel before = log_level();
  Managers managers;
  std::vector<std::byte> pages = std::vector<std::byte>(4096);
  std::unique_ptr<Client> client;
};

TEST_F(Orphan, KeepsItsSlabsForTheNextManager) {
  shm::Socket next = managers.accept();
  EXPECT_EQ(mapped("orbitkv-slab-71"), 1u);
  Managers::refuse(next, Code::kBusy);
  next = managers.accept();
  EXPECT_EQ(mapped("orbitkv-slab-71"), 1u) << "one that is busy may offer them yet";
  managers.greet(next);
  Managers::offer(next, 2, SlabId(72));
  const std::uint64_t request = Managers::registration(next);
  EXPECT_TRUE(becomes("orbitkv-slab-72", 1));
  EXPECT_EQ(mapped("orbitkv-slab-71"), 1u);
  Managers::accept_rank(next, request);
  EXPECT_TRUE(becomes("orbitkv-slab-71", 0)) << "not among the offers";
}

TEST_F(Orphan, LetsGoAtOnceWhenTheNextBeginsAnew) {
  shm::Socket next = managers.accept();
  Managers::refuse(next, Code::kRecompute);
  EXPECT_TRUE(becomes("orbitkv-slab-71", 0));
}

// Else it would hold the old memory and the new for as long as it is refused.
TEST_F(Orphan, LetsGoOfWhatIsNotOfferedWhereItsRankIsRefused) {
  for (int i = 0; i < 3; ++i) {
    shm::Socket next = managers.accept();
    managers.greet(next);
    Managers::offer(next, 2, SlabId(72));
    Managers::refuse(next, Code::kReject, Managers::registration(next));
    EXPECT_TRUE(becomes("orbitkv-slab-71", 0)) << i;
  }
}

}  // namespace
}  // namespace orbitkv::client
