// A carrier over the clients of this process: a thread each, so that a Manager that hangs holds up
// nobody else's frames.
#include <system_error>
#include <thread>

#include "base/limits.h"
#include "base/text.h"
#include "client/frame_queues.h"
#include "orbitkv/interests.h"
#include "wire/messages.h"

namespace orbitkv::client {
namespace {

wire::Buffer carry(const std::vector<std::byte>& frame, Client& client) {
  wire::Buffer answer;
  const Outcome carried = client.carry_interest(frame, answer);
  if (!carried.ok())
    wire::encode(wire::ErrorReply{static_cast<Code>(carried.action), carried.message}, answer);
  return answer;
}

class ClientCarrier final : public Carrier {
 public:
  explicit ClientCarrier(std::size_t participants) : state_(std::make_unique<State>(participants)) {}
  // Once. Where a thread cannot start the destructor ends those that did.
  void start(const std::vector<Client*>& clients) {
    for (std::uint32_t i = 0; i < clients.size(); ++i)
      state_->threads.emplace_back([&queues = state_->queues, at = ParticipantIndex{i}, client = clients[i]] {
        FrameQueues::Parcel out;
        while (queues.take(std::nullopt, at, out)) queues.arrived({at, out.token, carry(out.frame, *client)});
      });
  }
  ~ClientCarrier() override {
    if (!state_->queues.here()) {  // the threads are the parent's, and wait on what is here
      [[maybe_unused]] const auto* left = state_.release();
      return;
    }
    state_->queues.stop();
    for (std::thread& thread : state_->threads) thread.join();
  }

  void send(ParticipantIndex participant, FrameToken token, std::vector<std::byte> frame) override {
    state_->queues.send({participant, token, std::move(frame)});
  }

  bool receive(std::uint32_t timeout_ms, Arrival& out) override {
    FrameQueues::Parcel parcel;
    if (!state_->queues.receive(std::chrono::milliseconds(timeout_ms), parcel)) return false;
    out = {parcel.participant, parcel.token, std::move(parcel.frame)};
    return true;
  }

 private:
  struct State {
    explicit State(std::size_t participants) : queues(participants) {}
    FrameQueues queues;
    std::vector<std::thread> threads;
  };
  std::unique_ptr<State> state_;
};

}  // namespace

std::unique_ptr<Carrier> carry_over(std::vector<Client*> clients, Outcome& outcome) {
  outcome = {};
  for (const Client* client : clients)
    if (client == nullptr) outcome = {Action::kReject, "a participant without a client"};
  if (clients.size() > limits::kInterestGroup)
    outcome = {Action::kReject, format_text("a group has at most %u participants", limits::kInterestGroup)};
  if (!outcome.ok()) return nullptr;
  try {
    auto carrier = std::make_unique<ClientCarrier>(clients.size());
    carrier->start(clients);
    return carrier;
  } catch (const std::system_error& error) {
    outcome = {Action::kRetry, format_text("the carrier's threads cannot start: %s", error.what())};
    return nullptr;
  }
}

}  // namespace orbitkv::client
