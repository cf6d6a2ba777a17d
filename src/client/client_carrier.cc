// A carrier over the clients of this process: a thread each, so that a Manager that hangs holds up
// nobody else's frames.
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/limits.h"
#include "base/text.h"
#include "orbitkv/interests.h"
#include "wire/messages.h"

namespace orbitkv::client {
namespace {

// A claim has one frame under way a participant, and what is sent again is in line already.
constexpr std::size_t kMostInLine = std::size_t{2} * limits::kInterestsPerInstance;
constexpr std::size_t kMostArrivals = kMostInLine * limits::kInterestGroup;

struct Parcel {
  std::uint64_t token = 0;
  std::vector<std::byte> frame;
};
std::uint64_t claim_of(std::uint64_t token) {
  return token >> 32;
}

wire::Buffer carry(const std::vector<std::byte>& frame, Client& client) {
  wire::Buffer answer;
  const Outcome carried = client.carry_interest(frame, answer);
  if (!carried.ok())
    wire::encode(wire::ErrorReply{static_cast<Code>(carried.action), carried.message}, answer);
  return answer;
}

class ClientCarrier final : public Carrier {
 public:
  explicit ClientCarrier(std::size_t participants) : lines_(participants) {}
  // Once. Where a thread cannot start the destructor ends those that did.
  void start(const std::vector<Client*>& clients) {
    for (std::uint32_t i = 0; i < clients.size(); ++i)
      threads_.emplace_back([this, i, client = clients[i]] { run(i, *client); });
  }
  ~ClientCarrier() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    sent_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // The newest frame of a claim is the one that counts: what waits of it still is out of date.
  void send(std::uint32_t participant, std::uint64_t token, std::vector<std::byte> frame) override {
    std::lock_guard lock(mutex_);
    std::deque<Parcel>& line = lines_.at(participant);
    std::erase_if(line, [&](const Parcel& p) { return claim_of(p.token) == claim_of(token); });
    if (line.size() == kMostInLine) return;
    line.push_back({token, std::move(frame)});
    sent_.notify_all();
  }

  bool receive(std::uint32_t timeout_ms, Arrival& out) override {
    std::unique_lock lock(mutex_);
    const auto some = [this] { return !arrivals_.empty(); };
    if (!arrived_.wait_for(lock, std::chrono::milliseconds(timeout_ms), some)) return false;
    out = std::move(arrivals_.front());
    arrivals_.pop_front();
    return true;
  }

 private:
  void run(std::uint32_t participant, Client& client) {
    std::unique_lock lock(mutex_);
    for (;;) {
      sent_.wait(lock, [&] { return stop_ || !lines_[participant].empty(); });
      if (stop_) return;
      Parcel parcel = std::move(lines_[participant].front());
      lines_[participant].pop_front();
      lock.unlock();
      Arrival arrival{participant, parcel.token, carry(parcel.frame, client)};
      lock.lock();
      if (arrivals_.size() < kMostArrivals) arrivals_.push_back(std::move(arrival));
      arrived_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable sent_, arrived_;
  std::vector<std::deque<Parcel>> lines_;  // by participant
  std::deque<Arrival> arrivals_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
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
