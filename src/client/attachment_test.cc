#include "client/attachment.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <utility>

#include "base/limits.h"
#include "client/fake_manager_suite.h"

namespace orbitkv::client {
namespace {
using shm::RecordState;

// Answers commands as the test says, in a thread.
class Server {
 public:
  explicit Server(FakeManager& manager, bool starts_silent = false)
      : silent(starts_silent), manager_(manager), thread_([this] { run(); }) {}
  ~Server() {
    stop_ = true;
    thread_.join();
  }
  // Nothing is answered from now on, not even what is being looked for now.
  void hush() {
    silent = true;
    for (const std::uint64_t seen = rounds_; rounds_ < seen + 2;) std::this_thread::yield();
  }
  std::atomic<bool> silent;
  std::atomic<bool> refuse{false};
  std::atomic<int> released{0};
  static constexpr LeaseId kLease{{std::byte{9}}};

 private:
  void run() {
    for (; !stop_; ++rounds_) {
      if (silent) continue;
      const auto bytes = manager_.channel().pop_command();
      if (!bytes) continue;
      const auto command = *wire::decode_command(*bytes);
      wire::Reply reply{command.opcode, command.request, command.epoch, command.slot, 0, Code::kOk};
      if (refuse) {
        wire::Buffer frame;
        wire::encode(wire::ErrorReply{Code::kReconnect, "going"}, frame);
        manager_.channel().write_slot(command.slot, frame);
        reply.code = Code::kReconnect;
        reply.length = static_cast<std::uint32_t>(frame.size());
      }
      if (command.opcode == wire::Opcode::kQuery) {
        wire::Buffer frame;
        wire::QueryReply answer{0, 1, 1, Revision(5), kLease, {1}};
        answer.again = std::exchange(told_, true);
        wire::encode(answer, frame);
        manager_.channel().write_slot(command.slot, frame);
        reply.length = static_cast<std::uint32_t>(frame.size());
      }
      if (command.opcode == wire::Opcode::kRelease) ++released;
      manager_.channel().push_reply(wire::encode(reply));
      manager_.channel().ring_client();
    }
  }
  FakeManager& manager_;
  bool told_ = false;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> rounds_{0};
  std::thread thread_;
};

const Attachment::Encode kRelease = [](wire::Buffer& out) {
  wire::encode(wire::ReleaseRequest{LeaseId{{std::byte{1}}}}, out);
};

TEST(Attachment, AnAnsweredRefusalKeepsNoSlot) {
  FakeManager manager;
  auto link = manager.attach();
  Server server(manager);
  server.refuse = true;
  for (std::uint32_t i = 0; i < 3 * limits::kDescriptorSlots; ++i) {
    const auto reply = link->call(wire::Opcode::kRelease, kRelease, 5000);
    ASSERT_FALSE(reply.ok());
    ASSERT_EQ(reply.error().message(), "going");
  }
}

TEST(Attachment, ACallInPartsIsTheSameCall) {
  FakeManager manager;
  auto link = manager.attach();
  const auto call = link->begin_call(wire::Opcode::kRelease, kRelease);
  ASSERT_TRUE(call.ok());
  EXPECT_FALSE(link->poll_call(*call));
  {
    Server server(manager);
    std::optional<Result<wire::Buffer>> reply;
    while (!(reply = link->poll_call(*call))) std::this_thread::yield();
    EXPECT_TRUE(reply->ok());
  }
  // Given up, its slot comes back with the late reply.
  const auto given_up = link->begin_call(wire::Opcode::kRelease, kRelease);
  EXPECT_EQ(link->give_up_call(*given_up).code(), Code::kReconnect);
  Server server(manager);
  for (std::uint32_t i = 0; i < 2 * limits::kDescriptorSlots; ++i)
    ASSERT_TRUE(link->call(wire::Opcode::kRelease, kRelease, 5000).ok());
}

TEST(Attachment, AQueueOfCallersWaitsOneDeadlineForASilentManager) {
  FakeManager manager;
  auto link = manager.attach();
  const TimePoint before = monotonic_now();
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i)
    callers.emplace_back([&] {
      const auto reply = link->call(wire::Opcode::kRelease, kRelease, 300);
      EXPECT_EQ(reply.error().code(), Code::kReconnect);
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_LT((monotonic_now() - before).ns, milliseconds(1500).ns);
}

// A forked child of the engine keeps a copy of the socket for as long as it lives.
TEST(Attachment, TheManagerSeesTheEndThoughTheSocketWasCopied) {
  FakeManager manager;
  auto link = manager.attach();
  const int copy = ::dup(link->socket().fd());
  link.reset();
  EXPECT_EQ(manager.peer().receive_within(5000).error().code(), Code::kReconnect);
  ::close(copy);
}

TEST(Attachment, SlotsOfTimedOutCallsComeBackWithTheirLateReplies) {
  FakeManager manager;
  auto link = manager.attach();
  Server server(manager, true);
  for (std::uint32_t i = 0; i < limits::kDescriptorSlots; ++i)
    ASSERT_EQ(link->call(wire::Opcode::kRelease, kRelease, 1).error().code(), Code::kReconnect);
  EXPECT_EQ(link->call(wire::Opcode::kRelease, kRelease, 1).error().code(), Code::kBusy);
  server.silent = false;
  for (int i = 0; i < 500; ++i) {
    auto reply = link->call(wire::Opcode::kRelease, kRelease, 5000);
    if (reply.ok()) return;
    ASSERT_EQ(reply.error().code(), Code::kBusy);
    ::usleep(10'000);
  }
  FAIL() << "the late replies gave nothing back";
}

const Attachment::Encode kQuery = [](wire::Buffer& out) {
  static const BlockHash hash{};
  wire::encode(wire::QueryRequest{{}, GroupId(0), wire::QueryMode::kRead, "r", 0, 1, {&hash, 1}}, out);
};

// Until `so`, with pings, which take what has come.
bool soon(Attachment& link, const std::function<bool()>& so) {
  for (int i = 0; i < 500 && !so(); ++i) {
    (void)link.call(wire::Opcode::kPing, nullptr, 5000).ok();
    ::usleep(1000);
  }
  return so();
}

TEST(Attachment, ALeaseInALateReplyIsReleased) {
  FakeManager manager;
  auto link = manager.attach();
  Server server(manager, true);
  ASSERT_EQ(link->call(wire::Opcode::kQuery, kQuery, 1).error().code(), Code::kReconnect);
  ASSERT_EQ(link->call(wire::Opcode::kQuery, kQuery, 1).error().code(), Code::kReconnect);
  server.silent = false;
  EXPECT_TRUE(soon(*link, [&] { return server.released == 1; })) << "both had the same one";
}

TEST(Attachment, ALeaseThatIsAskedForAgainIsKept) {
  FakeManager manager;
  auto link = manager.attach();
  Server server(manager, true);
  ASSERT_EQ(link->call(wire::Opcode::kQuery, kQuery, 1).error().code(), Code::kReconnect);
  std::thread later([&] {
    ::usleep(20'000);
    server.silent = false;
  });
  ASSERT_TRUE(link->call(wire::Opcode::kQuery, kQuery, 5000).ok());
  later.join();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(link->call(wire::Opcode::kPing, nullptr, 5000).ok());
  EXPECT_EQ(server.released, 0);
}

// Its caller has it from an answer that was in time.
TEST(Attachment, ALeaseThatWasToldInTimeOutlivesALateAnswer) {
  FakeManager manager;
  auto link = manager.attach();
  Server server(manager);
  ASSERT_TRUE(link->call(wire::Opcode::kQuery, kQuery, 5000).ok());
  server.hush();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(link->call(wire::Opcode::kQuery, kQuery, 1).error().code(), Code::kReconnect);
  }
  server.silent = false;
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(link->call(wire::Opcode::kPing, nullptr, 5000).ok());
  EXPECT_EQ(server.released, 0);
}

TEST(Attachment, ALostSessionAnswersAtOnce) {
  FakeManager manager;
  auto link = manager.attach();
  std::thread other([&] {
    ::usleep(20'000);
    link->lose();
  });
  const TimePoint start = monotonic_now();
  EXPECT_EQ(link->call(wire::Opcode::kPing, nullptr, 60'000).error().code(), Code::kReconnect);
  EXPECT_LT((monotonic_now() - start).ns, seconds(30).ns);
  other.join();
  EXPECT_EQ(link->reserve(1).error().code(), Code::kReconnect);
}

TEST(Attachment, ADamagedReplyEndsTheSession) {
  FakeManager manager;
  auto link = manager.attach();
  manager.channel().push_reply({});
  EXPECT_FALSE(link->call(wire::Opcode::kPing, nullptr, 5000).ok());
  EXPECT_TRUE(link->lost());
}

TEST(Attachment, RecordsAreTakenAllOrNone) {
  FakeManager manager;
  auto link = manager.attach();
  const auto most = link->reserve(limits::kRecords - 1);
  ASSERT_TRUE(most.ok());
  EXPECT_EQ(link->reserve(2).error().code(), Code::kBusy);
  EXPECT_TRUE(link->reserve(1).ok());
  EXPECT_EQ(link->reserve(1).error().code(), Code::kBusy);
  ASSERT_TRUE(link->withdraw(most->front()));
  const auto again = link->reserve(1);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->front().record, most->front().record);
  EXPECT_GT(again->front().operation, most->back().operation);  // ids never repeat
}

TEST(Attachment, ARetiredRecordIsReusedOnlyAfterTheManagerLetGo) {
  FakeManager manager;
  auto link = manager.attach();
  const auto all = *link->reserve(limits::kRecords);
  const RecordRef ref = all[5];
  manager.grant(ref, {model::PlanKind::kSave,
                      ref.operation,
                      RegistrationId(1),
                      GroupId(0),
                      ShardId(0),
                      model::Encoding::kRaw,
                      128,
                      {{SlabId(0), 0, 0, AllocationId(1), 1, 0}}});
  link->retire(ref);
  EXPECT_FALSE(link->withdraw(ref));  // the Manager has it
  EXPECT_FALSE(link->reserve(1).ok());
  manager.channel().write_failure(ref.record, Code::kBusy, "");
  manager.channel().exchange(ref.record, {ref.operation, RecordState::kGranted},
                             {ref.operation, RecordState::kRevoked});
  const auto again = link->reserve(1);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->front().record, ref.record);
}

TEST(Attachment, AnOfferWithoutItsDescriptorsIsRefused) {
  FakeManager manager;
  auto link = manager.attach();
  shm::Message message;
  wire::encode(wire::SlabOffer{1, {{SlabId(1), ByteCount(4096), false}}}, message.frame);
  EXPECT_FALSE(link->map_offer(message).ok());
  EXPECT_FALSE(link->slabs().has(SlabId(1)));
}

// A device that copies from memory which is not there any more takes the process along.
TEST(Attachment, SlabsAreUsableFromAddToRemove) {
  struct User final : SlabUser {
    std::vector<std::byte*> slabs;
    void add_slab(std::span<std::byte> slab) override {
      EXPECT_EQ(slab.size(), FakeManager::kSlabBytes);
      slab.back() = std::byte{7};
      slabs.push_back(slab.data());
    }
    void remove_slab(std::span<std::byte> slab) override {
      EXPECT_EQ(slab.back(), std::byte{7}) << "unmapped already";
      EXPECT_EQ(std::erase(slabs, slab.data()), 1u);
    }
  } user;
  FakeManager manager;
  auto link = manager.attach(&user);
  manager.offer(*link, SlabId(1));
  manager.offer(*link, SlabId(2));
  manager.offer(*link, SlabId(2));
  ASSERT_EQ(user.slabs.size(), 2u) << "an offer that comes twice is mapped once";
  {
    SlabTable::Use use;
    ASSERT_EQ(link->slabs().use(SlabId(1), use), SlabTable::Found::kMapped);
    EXPECT_EQ(user.slabs[0], use->base());
  }
  link.reset();
  EXPECT_TRUE(user.slabs.empty());
}

// Bye is the word that nothing of this process reaches the slabs any more.
TEST(Attachment, GoodbyeComesAfterTheLastMapping) {
  struct User final : SlabUser {
    FakeManager* manager = nullptr;
    int removed = 0;
    void add_slab(std::span<std::byte>) override {}
    void remove_slab(std::span<std::byte>) override {
      auto early = manager->peer().receive();
      EXPECT_TRUE(early.ok() && !early->has_value()) << "said goodbye before";
      ++removed;
    }
  } user;
  FakeManager manager;
  user.manager = &manager;
  auto link = manager.attach(&user);
  manager.offer(*link, SlabId(1));
  link->say_goodbye();
  EXPECT_EQ(user.removed, 1);
  auto bye = manager.peer().receive_within(5000);
  ASSERT_TRUE(bye.ok());
  EXPECT_TRUE(wire::decode_bye(bye->frame).ok());
}

}  // namespace
}  // namespace orbitkv::client
