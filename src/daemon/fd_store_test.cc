// Both stores of descriptors against their other sides, and each one's own ways to fail.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "base/log.h"
#include "base/text.h"
#include "daemon/fd_message.h"
#include "daemon/fd_store_suite.h"
#include "daemon/keeper_store.h"
#include "daemon/shelf.h"
#include "daemon/systemd_store.h"

namespace orbitkv::daemon {
namespace {

using suite::some_file;

// The keeper's side without a process: its shelf, and a thread that answers while a life takes.
class KeeperBed {
 public:
  explicit KeeperBed(std::uint32_t most) : shelf_(std::make_unique<Shelf>(most)) {
    set_log_level(LogLevel::kOff);
  }
  ~KeeperBed() { stop(); }

  // take() waits for answers, so a thread gives them until the first call of work().
  std::unique_ptr<FdStore> life() {
    stop();
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    ours_ = UniqueFd(ends[0]);
    shelf_->begin_life();
    auto store = std::make_unique<Taken>(*this, UniqueFd(ends[1]));
    return store;
  }
  void work() {
    while (step()) {
    }
  }
  bool step() {
    std::array<std::byte, 4096> bytes;
    UniqueFd fd;
    const ssize_t got = receive_with_fd(ours_.get(), bytes, fd);
    if (got <= 0) return false;
    const Shelf::Answer answer =
        shelf_->handle(std::span(bytes).first(static_cast<std::size_t>(got)), std::move(fd));
    if (answer.send)
      send_with_fd(ours_.get(), std::as_bytes(std::span(&answer.message, 1)).first(answer.message.size()),
                   answer.fd);
    return !answer.broken;
  }
  Shelf& shelf() { return *shelf_; }
  UniqueFd& end() { return ours_; }

 private:
  // The store, with somebody who answers while it waits.
  class Taken final : public FdStore {
    template <class F>
    auto with_answers(F&& call) {
      std::atomic<bool> done{false};
      std::thread answers([&] {
        while (!done) {
          pollfd ready{bed_.ours_.get(), POLLIN, 0};
          if (::poll(&ready, 1, 5) == 1 && !bed_.step()) return;
        }
      });
      auto result = call();
      done = true;
      answers.join();
      return result;
    }

   public:
    Taken(KeeperBed& bed, UniqueFd socket) : bed_(bed), store_(std::move(socket)) {}
    const char* kind() const override { return store_.kind(); }
    Result<std::vector<Named>> take() override {
      return with_answers([&] { return store_.take(); });
    }
    Status put(const std::string& name, const UniqueFd& fd) override { return store_.put(name, fd); }
    Ticket remove(const std::string& name) override { return store_.remove(name); }
    void forget(const std::string& name) override { store_.forget(name); }
    bool removed(Ticket ticket) override { return store_.removed(ticket); }
    void poll() override { store_.poll(); }
    std::vector<std::string> refused() override { return store_.refused(); }
    int fd() const override { return store_.fd(); }
    bool alive() const override { return store_.alive(); }
    void starting(std::string_view what) override { store_.starting(what); }
    void fails(std::string_view why) override { store_.fails(why); }
    void ready() override { store_.ready(); }
    bool leave_asked() override { return store_.leave_asked(); }
    Status succeed(const Successor& successor) override { return store_.succeed(successor); }
    std::optional<Status> succeeded() override { return store_.succeeded(); }

   private:
    KeeperBed& bed_;
    KeeperStore store_;
  };
  void stop() { ours_.reset(); }

  std::unique_ptr<Shelf> shelf_;
  UniqueFd ours_;
};

// A notification socket that does with FDSTORE, FDSTOREREMOVE and BARRIER what sd_notify(3) says.
class SystemdBed {
 public:
  explicit SystemdBed(std::uint32_t most) : most_(most) {
    socket_ = UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const socklen_t any = sizeof address.sun_family;
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), any), 0);
    socklen_t length = sizeof address;
    EXPECT_EQ(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    path_ = "@" + std::string(address.sun_path + 1, length - any - 1);
  }
  std::unique_ptr<FdStore> life(Duration silence = {}) {
    SystemdStore::Given given{path_, most_, {}};
    for (const auto& [name, fd] : stored_)
      given.stored.push_back({name, UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0))});
    return std::move(SystemdStore::open(std::move(given), silence)).value();
  }
  void work() {
    for (;;) {
      std::array<std::byte, 4096> bytes;
      UniqueFd fd;
      const ssize_t got = receive_with_fd(socket_.get(), bytes, fd);
      if (got < 0) return;
      handle(std::string(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(got)),
             std::move(fd));
    }
  }
  const std::vector<std::string>& said() const { return said_; }

 private:
  void handle(const std::string& text, UniqueFd fd) {
    said_.push_back(text);
    const auto has = [&](const std::string& line) {
      return ("\n" + text + "\n").find("\n" + line + "\n") != std::string::npos;
    };
    std::string name = "stored";
    if (const auto at = text.find("FDNAME="); at != std::string::npos)
      name = text.substr(at + 7, text.find('\n', at) - at - 7);
    if (has("FDSTOREREMOVE=1")) {
      stored_.erase(name);
    } else if (has("FDSTORE=1") && fd.valid() && stored_.size() < most_) {
      EXPECT_TRUE(has("FDPOLL=0")) << "a pidfd would be dropped when its process ends";
      stored_.emplace(name, std::move(fd));
    }
    // A barrier's descriptor is closed with the message.
  }
  std::uint32_t most_;
  UniqueFd socket_;
  std::string path_;
  std::multimap<std::string, UniqueFd> stored_;
  std::vector<std::string> said_;
};

}  // namespace
namespace suite {
using Beds = ::testing::Types<KeeperBed, SystemdBed>;
INSTANTIATE_TYPED_TEST_SUITE_P(Stores, FdStoreSuite, Beds);
}  // namespace suite
namespace {

KeeperMessage message_of(KeeperVerb verb, std::string_view text = {}, std::uint32_t value = 0) {
  KeeperMessage m;
  m.verb = verb;
  m.value = value;
  m.request = 7;
  m.set_text(text);
  return m;
}
std::vector<std::byte> bytes_of(const KeeperMessage& m) {
  const auto bytes = std::as_bytes(std::span(&m, 1)).first(m.size());
  return {bytes.begin(), bytes.end()};
}

TEST(KeeperShelf, ShortAndForeignMessagesBreakTheConnectionAndKeepNothing) {
  Shelf shelf(8);
  const auto good = bytes_of(message_of(KeeperVerb::kPut, "slab-1"));
  for (std::size_t n = 0; n < good.size(); ++n)
    EXPECT_TRUE(shelf.handle(std::span(good).first(n), some_file()).broken) << n;
  auto longer = good;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(shelf.handle(longer, some_file()).broken);
  auto foreign = good;
  foreign[0] ^= std::byte{1};
  EXPECT_TRUE(shelf.handle(foreign, some_file()).broken);
  EXPECT_EQ(shelf.count(), 0u);
  EXPECT_FALSE(shelf.handle(good, some_file()).broken);
  EXPECT_EQ(shelf.count(), 1u);
}

// A keeper lives longer than the Managers that it starts: what changes here is another kKeeperVersion.
TEST(KeeperProtocol, BytesAreThoseOfTheVersion) {
  const auto hex = [](const KeeperMessage& m) {
    std::string text;
    for (const std::byte b : std::as_bytes(std::span(&m, 1)).first(m.size()))
      text += format_text("%02x", static_cast<unsigned>(b));
    return text;
  };
  KeeperMessage m = message_of(KeeperVerb::kPut, "slab-1", 5);
  m.code = 3;
  ASSERT_EQ(kKeeperVersion, 1);
  EXPECT_EQ(hex(m), "4f424b500100010007000000000000000500000003000600736c61622d31");
  constexpr std::array kVerbs = {KeeperVerb::kPut,     KeeperVerb::kRemove,   KeeperVerb::kGet,
                                 KeeperVerb::kSucceed, KeeperVerb::kReady,    KeeperVerb::kReply,
                                 KeeperVerb::kLeave,   KeeperVerb::kStarting, KeeperVerb::kFails};
  static_assert(kVerbs.size() + 1 == static_cast<std::size_t>(KeeperVerb::kCount));
  for (std::size_t i = 0; i < kVerbs.size(); ++i) EXPECT_EQ(static_cast<std::size_t>(kVerbs[i]), i + 1);
}

TEST(KeeperShelf, AnotherVersionIsAnsweredWithOurs) {
  Shelf shelf(8);
  KeeperMessage m = message_of(KeeperVerb::kPut, "slab-1");
  m.version = kKeeperVersion + 1;
  const Shelf::Answer answer = shelf.handle(bytes_of(m), some_file());
  EXPECT_FALSE(answer.broken);
  EXPECT_EQ(answer.message.version, kKeeperVersion);
  EXPECT_EQ(answer.message.request, 7u);
  EXPECT_NE(answer.message.code, 0u);
  EXPECT_EQ(shelf.count(), 0u);
}

TEST(KeeperShelf, NamesAreUniqueAndADescriptorIsNeeded) {
  Shelf shelf(8);
  const auto put = [&](std::string_view name, UniqueFd fd) {
    return shelf.handle(bytes_of(message_of(KeeperVerb::kPut, name)), std::move(fd)).message.code;
  };
  EXPECT_EQ(put("a", some_file()), 0u);
  EXPECT_NE(put("a", some_file()), 0u);
  EXPECT_NE(put("b", UniqueFd()), 0u);
  EXPECT_NE(put("", some_file()), 0u);
  EXPECT_NE(put("a b", some_file()), 0u);
  EXPECT_EQ(shelf.count(), 1u);
}

TEST(KeeperShelf, HostileBytesNeverDoMoreThanFillIt) {
  Shelf shelf(16);
  std::mt19937_64 random(4);
  for (int i = 0; i < 20'000; ++i) {
    KeeperMessage m =
        message_of(static_cast<KeeperVerb>(random() % 11), "slab-" + std::to_string(random() % 40),
                   static_cast<std::uint32_t>(random() % 20));
    auto bytes = bytes_of(m);
    for (std::uint64_t flips = random() % 3; flips > 0; --flips)
      bytes[random() % bytes.size()] ^= static_cast<std::byte>(1u << random() % 8);
    if (random() % 10 == 0) bytes.resize(random() % (2 * sizeof m));
    const Shelf::Answer answer = shelf.handle(bytes, random() % 2 == 0 ? some_file() : UniqueFd());
    ASSERT_LE(shelf.count(), 16u);
    ASSERT_LE(answer.message.text_bytes, sizeof m.text);
  }
}

TEST(KeeperShelf, OnlyAProgramSucceeds) {
  Shelf shelf(8);
  const auto succeed = [&](std::string_view path, std::uint32_t cold = 0) {
    return shelf.handle(bytes_of(message_of(KeeperVerb::kSucceed, path, cold)), {}).message.code;
  };
  EXPECT_NE(succeed("/dev/null"), 0u);
  EXPECT_NE(succeed("bin/true"), 0u);
  EXPECT_NE(succeed("/no/such/program"), 0u);
  EXPECT_FALSE(shelf.succession());
  EXPECT_EQ(succeed("/bin/sh"), 0u);
  EXPECT_TRUE(shelf.succession());
  EXPECT_EQ(shelf.successor(), "/bin/sh");
  EXPECT_FALSE(shelf.cold());
  EXPECT_EQ(succeed("/bin/sh", 1), 0u);
  EXPECT_TRUE(shelf.cold());
  EXPECT_EQ(succeed(""), 0u);
  EXPECT_EQ(shelf.successor(), "");
  shelf.begin_life();
  EXPECT_FALSE(shelf.succession());
}

TEST(KeeperStore, AKeeperThatEndsHasClosedEverything) {
  KeeperBed bed(8);
  auto store = bed.life();
  ASSERT_TRUE(store->take().ok());
  ASSERT_TRUE(store->put("slab-1", some_file()).ok());
  const auto ticket = store->remove("slab-1");
  EXPECT_FALSE(store->removed(ticket));
  bed.end().reset();
  EXPECT_TRUE(store->removed(ticket));
  EXPECT_FALSE(store->alive());
  EXPECT_FALSE(store->put("slab-2", some_file()).ok());
  EXPECT_TRUE(store->removed(store->remove("slab-3")));
}

TEST(KeeperStore, WhatAStartDoesAndWhyItFailsIsOneLineEach) {
  KeeperBed bed(8);
  auto store = bed.life();
  ASSERT_TRUE(store->take().ok());
  store->starting("reads\nsomething \x1b[31m");
  bed.work();
  EXPECT_EQ(bed.shelf().said(), "reads something  [31m");
  EXPECT_EQ(bed.shelf().why(), "");
  store->fails(std::string(2 * kKeeperPathBytes, 'w'));
  bed.work();
  EXPECT_EQ(bed.shelf().why(), std::string(kKeeperSaidBytes, 'w'));
  EXPECT_EQ(bed.shelf().said(), "reads something  [31m");
  bed.shelf().begin_life();
  EXPECT_EQ(bed.shelf().said(), "");
  EXPECT_EQ(bed.shelf().why(), "");
}

// Answers that the Manager has not read yet keep the keeper from reading on.
TEST(KeeperStore, ASignIsHeardBehindManyAnswers) {
  KeeperBed bed(limits::kKeptDescriptors);
  auto store = bed.life();
  ASSERT_TRUE(store->take().ok());
  for (int i = 0; i < 2000; ++i) store->forget("slab-" + std::to_string(i));
  for (int i = 0; i < 100 && bed.shelf().said().empty(); ++i) {
    store->starting("goes on");
    bed.work();
  }
  EXPECT_EQ(bed.shelf().said(), "goes on");
}

TEST(SystemdStore, AStartThatGoesOnMayTakeLonger) {
  SystemdBed bed(8);
  auto store = bed.life(seconds(30));
  ASSERT_TRUE(store->take().ok());
  store->starting("reads\nREADY=1");
  bed.life()->starting("has no bound");
  store->fails("no\nmemory");
  bed.work();
  const std::vector<std::string> expected = {"STATUS=starts: reads READY=1\nEXTEND_TIMEOUT_USEC=30000000",
                                             "STATUS=starts: has no bound\nEXTEND_TIMEOUT_USEC=86400000000",
                                             "STATUS=failed: no memory"};
  EXPECT_EQ(bed.said(), expected);
}

TEST(KeeperStore, AKeeperThatDoesNotReadLosesNothing) {
  KeeperBed bed(limits::kKeptDescriptors);
  auto store = bed.life();
  ASSERT_TRUE(store->take().ok());
  const UniqueFd fd = some_file();
  std::vector<FdStore::Ticket> tickets;
  for (int i = 0; i < 600; ++i) {
    ASSERT_TRUE(store->put("slab-" + std::to_string(i), fd).ok());
    if (i % 2 == 0) tickets.push_back(store->remove("slab-" + std::to_string(i)));
  }
  for (int i = 0; i < 100; ++i) {
    bed.work();
    store->poll();
  }
  for (const auto ticket : tickets) EXPECT_TRUE(store->removed(ticket));
  EXPECT_TRUE(store->refused().empty());
  EXPECT_EQ(bed.shelf().count(), 300u);
}

TEST(KeeperStore, ReadyLeaveAndSuccession) {
  KeeperBed bed(8);
  auto store = bed.life();
  ASSERT_TRUE(store->take().ok());
  EXPECT_FALSE(bed.shelf().ready());
  store->ready();
  bed.work();
  EXPECT_TRUE(bed.shelf().ready());
  EXPECT_EQ(bed.shelf().manager(), static_cast<std::uint32_t>(::getpid()));
  const auto leave = bytes_of(message_of(KeeperVerb::kLeave));
  ASSERT_GT(send_with_fd(bed.end().get(), leave, -1), 0);
  store->poll();
  EXPECT_TRUE(store->leave_asked());
  EXPECT_FALSE(store->leave_asked());
  EXPECT_TRUE(bed.shelf().took());
  // Whether it may be is said later, and nobody waits.
  const auto answer = [&](const FdStore::Successor& successor) {
    EXPECT_TRUE(store->succeed(successor).ok());
    EXPECT_FALSE(store->succeeded());
    bed.work();
    store->poll();
    auto told = store->succeeded();
    EXPECT_FALSE(store->succeeded()) << "told once";
    return told;
  };
  const auto absent = answer({"/no/such", false});
  EXPECT_NE(absent->error().message().find("No such file"), std::string::npos) << absent->error().message();
  EXPECT_NE(answer({"such", false})->error().message().find("absolute path"), std::string::npos);
  EXPECT_NE(answer({"/tmp", false})->error().message().find("no file"), std::string::npos);
  EXPECT_TRUE(answer({"/bin/sh", true}).value().ok());
  EXPECT_TRUE(bed.shelf().succession());
  EXPECT_TRUE(bed.shelf().cold());
  EXPECT_FALSE(store->succeed({std::string(kKeeperPathBytes + 1, '/'), false}).ok());
}

TEST(KeeperStore, TablesTakeNoPlaceOfTheOthers) {
  KeeperBed bed(3);
  auto store = bed.life();
  ASSERT_TRUE(store->take().ok());
  const auto file = some_file();
  for (const char* name : {"table-1", "slab-0", "slab-1", "table-2", "slab-2", "slab-3", "table-3"})
    ASSERT_TRUE(store->put(name, file).ok());
  bed.work();
  store->poll();
  EXPECT_EQ(store->refused(), (std::vector<std::string>{"slab-3", "table-3"}));
  for (const char* name : {"table-1", "slab-0"}) store->forget(name);
  for (const char* name : {"table-4", "slab-4", "slab-5"}) ASSERT_TRUE(store->put(name, file).ok());
  bed.work();
  store->poll();
  EXPECT_EQ(store->refused(), (std::vector<std::string>{"slab-5"}))
      << "what is removed makes room for its kind";
}

TEST(KeeperStore, ATableFindsAPlaceWhereNothingElseDoes) {
  KeeperBed bed(3);
  auto store = bed.life();
  ASSERT_TRUE(store->take().ok());
  const auto file = some_file();
  for (const char* name : {"slab-0", "slab-1", "session-0-1", "slab-2", "table-1", "table-2", "table-3"})
    ASSERT_TRUE(store->put(name, file).ok());
  bed.work();
  store->poll();
  EXPECT_EQ(store->refused(), (std::vector<std::string>{"slab-2", "table-3"}));
  store.reset();
  EXPECT_EQ(bed.life()->take().value().size(), 5u);
}

// An answer to a request that was given up is not one to the next.
TEST(KeeperStore, OnlyTheLastSuccessionIsAnswered) {
  KeeperBed bed(8);
  auto store = bed.life();
  ASSERT_TRUE(store->take().ok());
  ASSERT_TRUE(store->succeed({"/bin/sh", false}).ok());
  ASSERT_TRUE(store->succeed({"/no/such", false}).ok());
  bed.work();
  store->poll();
  EXPECT_FALSE(store->succeeded().value().ok());
  ASSERT_TRUE(store->succeed({"/bin/sh", false}).ok());
  bed.end().reset();
  store->poll();
  EXPECT_FALSE(store->succeeded().value().ok()) << "the keeper is gone";
  EXPECT_FALSE(store->succeed({}).ok());
}

TEST(KeeperStore, AKeeperOfAnotherVersionIsToldApart) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd other(ends[0]);
  KeeperStore store{UniqueFd(ends[1])};
  KeeperMessage answer;
  answer.version = kKeeperVersion + 3;
  answer.request = 1;
  ASSERT_GT(send_with_fd(other.get(), bytes_of(answer), -1), 0);
  const auto taken = store.take();
  ASSERT_FALSE(taken.ok());
  EXPECT_NE(taken.error().message().find("version"), std::string::npos);
}

TEST(SystemdStore, NeedsRoomAndASocket) {
  EXPECT_FALSE(SystemdStore::open({}).ok());
  EXPECT_FALSE(SystemdStore::open({"@x", 0, {}}).ok());
  EXPECT_FALSE(SystemdStore::open({"", 8, {}}).ok());
  EXPECT_FALSE(SystemdStore::open({"/no/such/socket", 8, {}}).ok());
}

// It does not read while it reloads itself: nothing is lost, and nothing is said twice.
TEST(SystemdStore, WhatItDoesNotReadNowGoesLaterOnceAndInOrder) {
  SystemdBed bed(1000);
  auto store = bed.life();
  ASSERT_TRUE(store->take().ok());
  const UniqueFd fd = some_file();
  std::vector<FdStore::Ticket> tickets;
  for (int i = 0; i < 400; ++i) {
    ASSERT_TRUE(store->put("slab-" + std::to_string(i), fd).ok());
    if (i % 4 == 0) tickets.push_back(store->remove("slab-" + std::to_string(i)));
    if (i % 4 == 1) store->forget("slab-" + std::to_string(i));
  }
  for (int i = 0; i < 50; ++i) store->poll();
  for (const auto ticket : tickets) EXPECT_FALSE(store->removed(ticket));
  for (int i = 0; i < 1000; ++i) {
    bed.work();
    store->poll();
  }
  for (const auto ticket : tickets) EXPECT_TRUE(store->removed(ticket));
  EXPECT_TRUE(store->refused().empty());
  EXPECT_EQ(bed.said().size(), 400u + 100 + 100 + 100);
  EXPECT_EQ(bed.life()->take()->size(), 200u);
}

// What is not stored takes no place, whoever removes it how often.
TEST(SystemdStore, ItCountsWhatIsStoredAndNothingElse) {
  SystemdBed bed(2);
  auto store = bed.life();
  ASSERT_TRUE(store->take().ok());
  for (int i = 0; i < 5; ++i) {
    store->forget("session-1-2");
    EXPECT_TRUE(store->removed(store->remove("slab-77")));
  }
  EXPECT_TRUE(store->put("slab-1", some_file()).ok());
  EXPECT_TRUE(store->put("slab-2", some_file()).ok());
  EXPECT_FALSE(store->put("slab-3", some_file()).ok());
  store->forget("slab-1");
  store->forget("slab-1");
  EXPECT_TRUE(store->put("slab-3", some_file()).ok());
  EXPECT_FALSE(store->put("slab-4", some_file()).ok());
  bed.work();
  EXPECT_EQ(bed.life()->take()->size(), 2u);
}

TEST(SystemdStore, ReadyIsSaidAndSuccessionIsSystemds) {
  SystemdBed bed(8);
  auto store = bed.life();
  store->ready();
  bed.work();
  EXPECT_EQ(bed.said(), (std::vector<std::string>{"STATUS=serves", "READY=1"}));
  EXPECT_NE(store->succeed({}).error().message().find("systemctl reload"), std::string::npos);
  EXPECT_FALSE(store->succeeded());
}

TEST(SystemdStore, TheEnvironmentIsReadOnceAndOnlyIfItIsForUs) {
  ::setenv("NOTIFY_SOCKET", "@x", 1);
  ::setenv("FDSTORE", "12", 1);
  ::setenv("LISTEN_PID", "1", 1);
  ::setenv("LISTEN_FDS", "3", 1);
  ::setenv("LISTEN_FDNAMES", "a:b:c", 1);
  const SystemdStore::Given given = SystemdStore::read_environment();
  EXPECT_EQ(given.notify_socket, "@x");
  EXPECT_EQ(given.most, 12u);
  EXPECT_TRUE(given.stored.empty()) << "they are another process's";
  EXPECT_EQ(::getenv("NOTIFY_SOCKET"), nullptr);
  EXPECT_EQ(SystemdStore::read_environment().most, 0u);
}

}  // namespace
}  // namespace orbitkv::daemon
