#include "shm/bootstrap.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/limits.h"
#include "base/time.h"

namespace {
bool g_listen_fails = false;
}
// In the place of the C library's, which only fails where a socket file cannot even be made.
extern "C" int listen(int fd, int backlog) noexcept {
  if (!g_listen_fails) return static_cast<int>(::syscall(SYS_listen, fd, backlog));
  errno = EADDRINUSE;
  return -1;
}

namespace orbitkv::shm {
namespace {

std::vector<std::byte> pattern(std::size_t n) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251);
  return bytes;
}

unsigned mode_of(const std::string& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0 ? status.st_mode & 07777u : 0;
}

std::size_t open_descriptors() {
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++n;
  return n;
}

// ---- messages ----

class SocketPair : public ::testing::Test {
 protected:
  SocketPair() : SocketPair(Socket::pair()) {}
  Socket a, b;

 private:
  explicit SocketPair(Result<std::pair<Socket, Socket>> ends)
      : a(std::move(ends->first)), b(std::move(ends->second)) {}
};

TEST_F(SocketPair, AFullFrameArrivesWhole) {
  const auto frame = pattern(limits::kSocketFrameBytes);
  ASSERT_TRUE(a.send(frame).ok());
  const auto got = b.receive();
  ASSERT_TRUE(got.ok() && got->has_value());
  EXPECT_EQ((*got)->frame, frame);
  EXPECT_TRUE((*got)->fds.empty());
  const auto nothing = b.receive();
  ASSERT_TRUE(nothing.ok());
  EXPECT_FALSE(nothing->has_value());
}

TEST_F(SocketPair, FramesKeepTheirBoundsAndOrder) {
  for (std::size_t n = 1; n <= 5; ++n) ASSERT_TRUE(a.send(pattern(n * 100)).ok());
  for (std::size_t n = 1; n <= 5; ++n) EXPECT_EQ(b.receive_within(1000)->frame, pattern(n * 100));
}

TEST_F(SocketPair, DescriptorsComeAlongInOrderAndCloseOnExec) {
  std::vector<int> raw(limits::kFdsPerMessage);
  std::vector<UniqueFd> files;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    files.emplace_back(::memfd_create("f", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(files.back().get(), static_cast<off_t>(i + 1)), 0);
    raw[i] = files.back().get();
  }
  ASSERT_TRUE(a.send(pattern(1), raw).ok());
  auto got = b.receive_within(1000);
  ASSERT_TRUE(got.ok());
  ASSERT_EQ(got->fds.size(), raw.size());
  for (std::size_t i = 0; i < raw.size(); ++i) {
    struct stat status{};
    ASSERT_EQ(::fstat(got->fds[i].get(), &status), 0);
    EXPECT_EQ(status.st_size, static_cast<off_t>(i + 1));
    EXPECT_EQ(::fcntl(got->fds[i].get(), F_GETFD), FD_CLOEXEC);
  }
}

TEST_F(SocketPair, WhatIsOverTheLimitsIsRefusedByTheSender) {
  const std::vector<int> many(limits::kFdsPerMessage + 1, a.fd());
  EXPECT_EQ(a.send(pattern(limits::kSocketFrameBytes + 1)).error().code(), Code::kReject);
  EXPECT_EQ(a.send(pattern(1), many).error().code(), Code::kReject);
  EXPECT_EQ(a.send({}).error().code(), Code::kReject);
  EXPECT_FALSE(b.receive()->has_value());
}

// Sends as a peer that keeps no limit.
void send_raw(int fd, std::size_t bytes, std::size_t descriptors) {
  const auto frame = pattern(bytes);
  iovec part{const_cast<std::byte*>(frame.data()), frame.size()};
  std::vector<char> control(CMSG_SPACE(sizeof(int) * descriptors));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptors > 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors);
    const std::vector<int> fds(descriptors, fd);
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * descriptors);
  }
  ASSERT_EQ(::sendmsg(fd, &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
}

TEST_F(SocketPair, WhatIsOverTheLimitsIsRefusedByTheReceiverAndLeaksNothing) {
  const std::size_t before = open_descriptors();
  send_raw(a.fd(), limits::kSocketFrameBytes + 1, 3);
  EXPECT_EQ(b.receive().error().code(), Code::kReject);
  send_raw(a.fd(), 10, limits::kFdsPerMessage + 5);
  EXPECT_EQ(b.receive().error().code(), Code::kReject);
  EXPECT_EQ(open_descriptors(), before);
  send_raw(a.fd(), 10, 1);
  EXPECT_EQ(b.receive_within(1000)->frame, pattern(10)) << "the next message is whole again";
}

TEST_F(SocketPair, APeerThatDoesNotReadIsBusyNotAWait) {
  Status sent = ok_status();
  int messages = 0;
  while (sent.ok() && messages < 1000) sent = a.send(pattern(limits::kSocketFrameBytes)), ++messages;
  ASSERT_FALSE(sent.ok());
  EXPECT_EQ(sent.error().code(), Code::kBusy);
  const TimePoint start = monotonic_now();
  EXPECT_EQ(a.send_within(pattern(limits::kSocketFrameBytes), {}, 20).error().code(), Code::kBusy);
  EXPECT_GE(monotonic_now() - start, milliseconds(20));
  for (int i = 1; i < messages; ++i) ASSERT_TRUE(b.receive_within(1000).ok());
  EXPECT_TRUE(a.send_within(pattern(limits::kSocketFrameBytes), {}, 1000).ok());
}

TEST_F(SocketPair, AReceiveEndsAtItsDeadline) {
  const TimePoint start = monotonic_now();
  EXPECT_EQ(b.receive_within(20).error().code(), Code::kBusy);
  EXPECT_GE(monotonic_now() - start, milliseconds(20));
}

TEST_F(SocketPair, AClosedPeerAsksForANewConnection) {
  ASSERT_TRUE(a.send(pattern(5)).ok());
  a.close();
  EXPECT_EQ(b.receive_within(1000)->frame, pattern(5)) << "what was sent before still arrives";
  EXPECT_EQ(b.receive().error().code(), Code::kReconnect);
  EXPECT_EQ(b.send(pattern(5)).error().code(), Code::kReconnect);
}

// ---- peers ----

TEST_F(SocketPair, TheOwnUserIsAuthenticated) {
  const auto peer = authenticate_peer(a);
  ASSERT_TRUE(peer.ok()) << peer.error().to_string();
  EXPECT_EQ(peer->pid, ::getpid());
  EXPECT_EQ(peer->uid, ::geteuid());
  EXPECT_FALSE(process_ended(peer->pidfd));
  EXPECT_EQ(::fcntl(peer->pidfd.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

// A path in a directory of its own, removed afterwards.
class SocketPath : public ::testing::Test {
 protected:
  SocketPath() {
    char name[] = "/tmp/orbitkv-shm-XXXXXX";
    root = ::mkdtemp(name);
    directory = root + "/run/orbitkv";
    path = directory + "/manager.sock";
  }
  ~SocketPath() override { std::filesystem::remove_all(root); }
  std::string refusal() const {
    auto listener = Listener::open(path);
    EXPECT_FALSE(listener.ok());
    return listener.ok() ? "" : listener.error().message();
  }
  std::string root, directory, path;
};

// Runs `body` in a child and returns its exit status.
template <class F>
int in_child(F body) {
  const int pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_F(SocketPath, AnotherUserIsRefusedByBothSides) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  auto listener = Listener::open(path);
  ASSERT_TRUE(listener.ok());
  // Others may not even reach the socket; here the door is opened for them.
  for (const std::string& open : {root, root + "/run", directory}) ASSERT_EQ(::chmod(open.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  const int status = in_child([&] {
    if (::setresuid(65533, 65533, 65533) != 0) return 1;
    auto socket = connect_to(path, 1000);
    if (!socket.ok()) return 2;
    const auto server = authenticate_peer(*socket);
    if (server.ok() || server.error().code() != Code::kReject) return 3;
    return server.error().message().find("65533") != std::string::npos ? 0 : 4;
  });
  EXPECT_EQ(status, 0);
  auto client = listener->accept();
  ASSERT_TRUE(client.ok() && client->has_value());
  const auto peer = authenticate_peer(**client);
  ASSERT_FALSE(peer.ok());
  EXPECT_NE(peer.error().message().find("uid 65533"), std::string::npos);
}

TEST_F(SocketPath, LivenessIsTheProcessNotTheConnection) {
  auto listener = Listener::open(path);
  ASSERT_TRUE(listener.ok());
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const int pid = ::fork();
  if (pid == 0) {
    {
      auto socket = connect_to(path, 1000);
      if (!socket.ok()) ::_exit(1);
    }
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  auto client = listener->accept();
  ASSERT_TRUE(client.ok() && client->has_value());
  EXPECT_EQ((*client)->receive().error().code(), Code::kReconnect) << "the connection is closed";
  const auto peer = authenticate_peer(**client);
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer->pid, pid);
  EXPECT_FALSE(process_ended(peer->pidfd)) << "the process is not gone";
  ::kill(pid, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(process_ended(peer->pidfd));
  ::close(ready[0]);
  ::close(ready[1]);
}

// ---- the path ----

TEST_F(SocketPath, ListensInAClosedDirectoryAndCleansUp) {
  {
    auto listener = Listener::open(path);
    ASSERT_TRUE(listener.ok()) << listener.error().to_string();
    EXPECT_EQ(mode_of(directory), 0700u);
    EXPECT_EQ(mode_of(path), 0600u);
    EXPECT_FALSE(listener->accept()->has_value());
    auto client = connect_to(path, 1000);
    ASSERT_TRUE(client.ok());
    auto served = listener->accept();
    ASSERT_TRUE(served.ok() && served->has_value());
    ASSERT_TRUE(client->send(pattern(limits::kSocketFrameBytes)).ok());
    EXPECT_EQ((*served)->receive_within(1000)->frame.size(), limits::kSocketFrameBytes);
    ASSERT_TRUE((*served)->send(pattern(limits::kSocketFrameBytes)).ok());
    EXPECT_EQ(client->receive_within(1000)->frame.size(), limits::kSocketFrameBytes);
  }
  EXPECT_EQ(mode_of(path), 0u) << "removed";
}

TEST_F(SocketPath, ASecondManagerIsRefusedByThePidOfTheFirst) {
  auto first = Listener::open(path);
  ASSERT_TRUE(first.ok());
  EXPECT_NE(refusal().find("another Manager (pid " + std::to_string(::getpid()) + ")"), std::string::npos);
  EXPECT_TRUE(connect_to(path, 1000).ok()) << "the first one serves on";
}

// Between two Managers of a keeper the path is nobody else's.
TEST_F(SocketPath, AKeeperClaimsItWithoutAManager) {
  EXPECT_EQ(path_claimed_by(path), std::nullopt);
  {
    auto claim = claim_path(path);
    ASSERT_TRUE(claim.ok()) << claim.error().message();
    EXPECT_EQ(path_claimed_by(path), ::getpid());
    EXPECT_EQ(path_claimed_by(path), ::getpid()) << "to ask does not take it";
    EXPECT_NE(refusal().find("keeper (orbitkv serve --keep, pid " + std::to_string(::getpid())),
              std::string::npos)
        << refusal();
    EXPECT_EQ(claim_path(path).error().code(), Code::kBusy);
    EXPECT_TRUE(Listener::open(path, ::getpid()).ok()) << "its own child";
    EXPECT_FALSE(Listener::open(path, 1).ok()) << "another keeper's";
  }
  EXPECT_EQ(path_claimed_by(path), std::nullopt) << "it goes with its process";
  EXPECT_TRUE(Listener::open(path).ok());
}

// It lives as long as a descriptor of it does, whoever has that.
TEST_F(SocketPath, AClaimThatIsStoredOutlivesItsProcess) {
  UniqueFd stored;
  {
    const auto claim = claim_path(path, Claimant::kStore);
    ASSERT_TRUE(claim.ok()) << claim.error().message();
    stored = UniqueFd(::fcntl(claim->get(), F_DUPFD_CLOEXEC, 0));
  }
  EXPECT_EQ(path_claim(path)->pid, 0);
  EXPECT_NE(refusal().find("started by a service manager (a systemd unit"), std::string::npos) << refusal();
  EXPECT_NE(claim_path(path).error().message().find("a service manager"), std::string::npos);
  EXPECT_TRUE(holds_claim(stored, path));
  EXPECT_TRUE(Listener::open(path, {}, stored).ok()) << "who was handed it goes on";
  EXPECT_FALSE(holds_claim({}, path));
  EXPECT_FALSE(holds_claim(UniqueFd(::open((path + ".keeper").c_str(), O_RDWR | O_CLOEXEC)), path))
      << "another description of the same file";
  std::filesystem::remove(path + ".keeper");
  EXPECT_FALSE(holds_claim(stored, path)) << "its file is gone";
  EXPECT_TRUE(claim_path(path).ok());
  EXPECT_FALSE(holds_claim(stored, path)) << "and another one's";
}

TEST_F(SocketPath, AClaimSaysWhatGoesOn) {
  const auto claim = claim_path(path);
  ASSERT_TRUE(claim.ok());
  EXPECT_EQ(path_claim(path)->says, "");
  say_in_claim(*claim, "starts the next one");
  EXPECT_EQ(path_claim(path)->says, "starts the next one");
  say_in_claim(*claim, "waits");
  EXPECT_EQ(path_claim(path)->says, "waits");
  say_in_claim(*claim, std::string(5000, 'x'));
  EXPECT_EQ(path_claim(path)->says.size(), 1024u);
  say_in_claim(*claim, "");
  const auto last = path_claim(path);
  EXPECT_EQ(last->says, "");
  EXPECT_EQ(last->pid, ::getpid()) << "that stays";
  EXPECT_GT(last->said_ns, 0);
  say_in_claim({}, "no claim, no word");
}

TEST_F(SocketPath, OneOfWhichNoClaimCanBeToldIsNotTaken) {
  ASSERT_TRUE(claim_path(path).ok());
  const std::string claim = path + ".keeper";
  ASSERT_EQ(::unlink(claim.c_str()), 0);
  ASSERT_EQ(::symlink("/dev/null", claim.c_str()), 0);
  EXPECT_NE(refusal().find("cannot be told from " + claim), std::string::npos) << refusal();
  EXPECT_EQ(path_claimed_by(path), std::nullopt);
}

TEST_F(SocketPath, AStaleSocketIsReplaced) {
  const int status = in_child([&] {
    static std::optional<Result<Listener>> listener;
    // Not destroyed by _exit(), as in a killed Manager.
    listener.emplace(Listener::open(path));
    return listener->ok() ? 0 : 1;
  });
  ASSERT_EQ(status, 0);
  ASSERT_EQ(mode_of(path), 0600u) << "left behind";
  EXPECT_EQ(connect_to(path, 1000).error().code(), Code::kReconnect);
  auto listener = Listener::open(path);
  ASSERT_TRUE(listener.ok()) << listener.error().to_string();
  EXPECT_TRUE(connect_to(path, 1000).ok());
}

TEST_F(SocketPath, ASocketThatIsNotOursAnyMoreIsLeftAlone) {
  auto listener = Listener::open(path);
  ASSERT_TRUE(listener.ok());
  std::filesystem::remove(path);
  std::ofstream(path) << "another one's";
  {
    Listener gone = std::move(*listener);
  }
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(SocketPath, ASocketThatWasRemovedIsMadeAnew) {
  auto listener = Listener::open(path);
  ASSERT_TRUE(listener.ok());
  EXPECT_FALSE(listener->gone());
  for (const bool lock_too : {false, true}) {
    std::filesystem::remove(path);
    if (lock_too) std::filesystem::remove(path + ".lock");
    EXPECT_TRUE(listener->gone());
    EXPECT_FALSE(connect_to(path, 100).ok());
    ASSERT_TRUE(listener->renew().ok());
    EXPECT_FALSE(listener->gone());
    EXPECT_TRUE(connect_to(path, 1000).ok());
    EXPECT_FALSE(Listener::open(path).ok()) << "it is locked";
  }
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".lock");
  auto other = Listener::open(path);
  ASSERT_TRUE(other.ok()) << "nothing said that somebody serves there";
  EXPECT_FALSE(listener->renew().ok());
}

TEST_F(SocketPath, ASocketThatCannotBeListenedAtIsTakenAway) {
  g_listen_fails = true;
  EXPECT_NE(refusal().find("cannot listen at " + path), std::string::npos) << refusal();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(lock_of(path)));
  std::ofstream(lock_of(path)) << "of a Manager before";
  EXPECT_NE(refusal().find("cannot listen at " + path), std::string::npos) << refusal();
  EXPECT_TRUE(std::filesystem::exists(lock_of(path)));
  g_listen_fails = false;
  auto listener = Listener::open(path);
  ASSERT_TRUE(listener.ok());
  std::filesystem::remove(path);
  g_listen_fails = true;
  EXPECT_FALSE(listener->renew().ok());
  g_listen_fails = false;
  EXPECT_TRUE(listener->gone()) << "it is looked after again";
}

TEST_F(SocketPath, NeverRemovesWhatIsNoSocket) {
  std::filesystem::create_directories(directory);
  ASSERT_EQ(::chmod(directory.c_str(), 0700), 0);
  std::ofstream(path) << "precious";
  EXPECT_NE(refusal().find("no socket"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(SocketPath, ADirectoryThatOthersMayEnterIsRefused) {
  std::filesystem::create_directories(directory);
  ASSERT_EQ(::chmod(directory.c_str(), 0750), 0);
  EXPECT_NE(refusal().find("mode 0750"), std::string::npos);
}

TEST_F(SocketPath, ADirectoryThatOthersMayReplaceIsRefused) {
  std::filesystem::create_directories(directory);
  ASSERT_EQ(::chmod(directory.c_str(), 0700), 0);
  ASSERT_EQ(::chmod((root + "/run").c_str(), 0777), 0);
  EXPECT_NE(refusal().find("could replace"), std::string::npos);
}

TEST_F(SocketPath, ADirectoryOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give a directory away";
  std::filesystem::create_directories(directory);
  ASSERT_EQ(::chown(directory.c_str(), 65533, 65533), 0);
  EXPECT_NE(refusal().find("belongs to uid 65533"), std::string::npos);
}

TEST_F(SocketPath, ALinkInPlaceOfTheDirectoryIsRefused) {
  std::filesystem::create_directories(root + "/elsewhere");
  std::filesystem::create_directories(root + "/run");
  std::filesystem::create_directory_symlink(root + "/elsewhere", directory);
  EXPECT_NE(refusal().find("not a directory"), std::string::npos);
}

TEST_F(SocketPath, NobodyThereSaysWhatToStart) {
  const auto absent = connect_to(path, 1000);
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.error().code(), Code::kReconnect);
  EXPECT_NE(absent.error().message().find("orbitkv serve"), std::string::npos);
  EXPECT_NE(absent.error().message().find(path), std::string::npos);
}

TEST_F(SocketPath, APathThatDoesNotFitIsRefused) {
  path = root + "/" + std::string(200, 'x');
  EXPECT_EQ(connect_to(path, 10).error().code(), Code::kReject);
  EXPECT_NE(refusal().find("107 bytes"), std::string::npos);
}

TEST_F(SocketPath, AManagerThatDoesNotAcceptIsBusyAtTheDeadline) {
  auto listener = Listener::open(path);
  ASSERT_TRUE(listener.ok());
  std::vector<Socket> clients;
  for (;;) {
    auto client = connect_to(path, 20);
    if (!client.ok()) {
      EXPECT_EQ(client.error().code(), Code::kBusy);
      break;
    }
    clients.push_back(std::move(*client));
    ASSERT_LT(clients.size(), 5000u);
  }
  ASSERT_TRUE(listener->accept()->has_value());
  EXPECT_TRUE(connect_to(path, 1000).ok()) << "one place is free again";
}

TEST(DefaultSocketPath, FollowsTheRuntimeDirectory) {
  const int status = in_child([] {
    ::setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    if (default_socket_path() != "/run/user/7/orbitkv/manager.sock") return 1;
    ::unsetenv("XDG_RUNTIME_DIR");
    const std::string uid = std::to_string(::geteuid());
    return default_socket_path() == "/tmp/orbitkv-" + uid + "/orbitkv/manager.sock" ? 0 : 2;
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace orbitkv::shm
