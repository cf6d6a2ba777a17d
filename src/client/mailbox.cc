// A carrier of which the transport is elsewhere: two bounded queues.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "base/limits.h"
#include "base/text.h"
#include "orbitkv/interests.h"

namespace orbitkv::client {

namespace {

constexpr std::size_t kMostParcels = std::size_t{2} * limits::kInterestsPerInstance * limits::kInterestGroup;
constexpr std::size_t kMostTrouble = 256;  // bytes

// Not within a character.
std::string cut(std::string text) {
  if (text.size() <= kMostTrouble) return text;
  std::size_t end = kMostTrouble;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

}  // namespace

struct Mailbox::Impl {
  // Each way, oldest first.
  struct Queue {
    std::deque<Parcel> parcels;
    std::size_t bytes = 0;

    bool room(std::size_t more) const {
      return parcels.size() < kMostParcels && bytes + more <= limits::kCarriedBytes.value;
    }
    void push(Parcel parcel) {
      bytes += parcel.frame.size();
      parcels.push_back(std::move(parcel));
    }
    Parcel pop() {
      Parcel first = std::move(parcels.front());
      parcels.pop_front();
      bytes -= first.frame.size();
      return first;
    }
    template <class Which>
    void drop(Which which) {
      std::erase_if(parcels, [&](const Parcel& each) {
        const bool dropped = which(each);
        bytes -= dropped ? each.frame.size() : 0;
        return dropped;
      });
    }
  };

  explicit Impl(std::size_t participants)
      : troubles(std::min<std::size_t>(participants, limits::kInterestGroup)) {}
  mutable std::mutex mutex;
  std::condition_variable sent, came;
  Queue out, in;
  std::vector<std::string> troubles;  // by participant
  bool stop = false;
};

Mailbox::Mailbox(std::size_t participants) : impl_(std::make_unique<Impl>(participants)) {}
Mailbox::~Mailbox() = default;

bool Mailbox::take(std::uint32_t timeout_ms, Parcel& out) {
  std::unique_lock lock(impl_->mutex);
  const auto some = [this] { return impl_->stop || !impl_->out.parcels.empty(); };
  if (!impl_->sent.wait_for(lock, std::chrono::milliseconds(timeout_ms), some) || impl_->stop) return false;
  out = impl_->out.pop();
  return true;
}

Outcome Mailbox::arrived(std::uint32_t participant, std::uint64_t token, std::span<const std::byte> frame) {
  if (participant >= impl_->troubles.size())
    return {Action::kReject, format_text("an answer of participant %u, and there are %zu", participant,
                                         impl_->troubles.size())};
  if (frame.size() > limits::kInterestFrameBytes)
    return {Action::kReject, format_text("an answer of %zu bytes; a frame has at most %u", frame.size(),
                                         limits::kInterestFrameBytes)};
  std::lock_guard lock(impl_->mutex);
  if (impl_->stop || !impl_->in.room(frame.size())) return {};
  impl_->in.push({participant, token, {frame.begin(), frame.end()}});
  impl_->came.notify_one();
  return {};
}

void Mailbox::hindered(std::string why) {
  std::lock_guard lock(impl_->mutex);
  std::fill(impl_->troubles.begin(), impl_->troubles.end(), cut(std::move(why)));
}

void Mailbox::hindered(std::uint32_t participant, std::string why) {
  std::lock_guard lock(impl_->mutex);
  if (participant < impl_->troubles.size()) impl_->troubles[participant] = cut(std::move(why));
}

void Mailbox::stop() {
  std::lock_guard lock(impl_->mutex);
  impl_->stop = true;
  impl_->sent.notify_all();
}

bool Mailbox::stopped() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->stop;
}

namespace {

class MailboxCarrier final : public Carrier {
 public:
  MailboxCarrier(std::shared_ptr<Mailbox> mailbox, Mailbox::Impl& impl)
      : mailbox_(std::move(mailbox)), impl_(impl) {}
  ~MailboxCarrier() override { mailbox_->stop(); }

  // The newest frame of a claim is the one that counts: what waits of it still is out of date.
  void send(std::uint32_t participant, std::uint64_t token, std::vector<std::byte> frame) override {
    std::lock_guard lock(impl_.mutex);
    impl_.out.drop([&](const Mailbox::Parcel& each) {
      return each.participant == participant && each.token >> 32 == token >> 32;
    });
    if (!impl_.out.room(frame.size())) return;
    impl_.out.push({participant, token, std::move(frame)});
    impl_.sent.notify_one();
  }

  // Also once it is stopped it takes the time: whoever asks again and again must not spin.
  bool receive(std::uint32_t timeout_ms, Arrival& out) override {
    std::unique_lock lock(impl_.mutex);
    const auto some = [this] { return !impl_.in.parcels.empty(); };
    if (!impl_.came.wait_for(lock, std::chrono::milliseconds(timeout_ms), some)) return false;
    Mailbox::Parcel parcel = impl_.in.pop();
    out = {parcel.participant, parcel.token, std::move(parcel.frame)};
    return true;
  }

  std::string trouble(std::uint32_t participant) const override {
    std::lock_guard lock(impl_.mutex);
    return participant < impl_.troubles.size() ? impl_.troubles[participant] : std::string();
  }

  void heard(std::uint32_t participant) override {
    std::lock_guard lock(impl_.mutex);
    if (participant < impl_.troubles.size()) impl_.troubles[participant].clear();
  }

  bool over() const override {
    std::lock_guard lock(impl_.mutex);
    return impl_.stop && impl_.in.parcels.empty();
  }

 private:
  std::shared_ptr<Mailbox> mailbox_;
  Mailbox::Impl& impl_;
};

}  // namespace

std::unique_ptr<Carrier> carry_by(std::shared_ptr<Mailbox> mailbox) {
  Mailbox::Impl& impl = *mailbox->impl_;
  return std::make_unique<MailboxCarrier>(std::move(mailbox), impl);
}

}  // namespace orbitkv::client
