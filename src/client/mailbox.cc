// A carrier of which the transport is elsewhere: it fetches and leaves frames.
#include <algorithm>
#include <mutex>
#include <utility>

#include "base/limits.h"
#include "base/text.h"
#include "client/frame_queues.h"
#include "orbitkv/interests.h"

namespace orbitkv::client {

namespace {

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
  explicit Impl(std::size_t participants)
      : queues(std::min<std::size_t>(participants, limits::kInterestGroup)),
        troubles(queues.participants()) {}
  FrameQueues queues;
  std::mutex mutex;                   // of what follows
  std::vector<std::string> troubles;  // by participant
  bool carries = false;               // for a group
};

Mailbox::Mailbox(std::size_t participants) : impl_(std::make_unique<Impl>(participants)) {}

Mailbox::~Mailbox() {
  if (impl_->queues.here()) return;
  [[maybe_unused]] const auto* left = impl_.release();
}

bool Mailbox::take(std::uint32_t timeout_ms, Parcel& out) {
  return impl_->queues.here() && impl_->queues.take(std::chrono::milliseconds(timeout_ms), std::nullopt, out);
}

Outcome Mailbox::arrived(ParticipantIndex participant, FrameToken token, std::span<const std::byte> frame) {
  const std::size_t participants = impl_->queues.participants();
  if (participant.value >= participants)
    return {Action::kReject,
            format_text("an answer of participant %u, and there are %zu", participant.value, participants)};
  if (frame.size() > limits::kInterestFrameBytes)
    return {Action::kReject, format_text("an answer of %zu bytes; a frame has at most %u", frame.size(),
                                         limits::kInterestFrameBytes)};
  if (impl_->queues.here()) impl_->queues.arrived({participant, token, {frame.begin(), frame.end()}});
  return {};
}

void Mailbox::hindered(std::string why) {
  if (!impl_->queues.here()) return;
  std::lock_guard lock(impl_->mutex);
  std::fill(impl_->troubles.begin(), impl_->troubles.end(), cut(std::move(why)));
}

void Mailbox::hindered(ParticipantIndex participant, std::string why) {
  if (!impl_->queues.here()) return;
  std::lock_guard lock(impl_->mutex);
  if (participant.value < impl_->troubles.size()) impl_->troubles[participant.value] = cut(std::move(why));
}

void Mailbox::stop() {
  if (impl_->queues.here()) impl_->queues.stop();
}

bool Mailbox::stopped() const {
  return !impl_->queues.here() || impl_->queues.stopped();
}

namespace {

class MailboxCarrier final : public Carrier {
 public:
  MailboxCarrier(std::shared_ptr<Mailbox> mailbox, Mailbox::Impl& impl)
      : mailbox_(std::move(mailbox)), impl_(impl) {}
  ~MailboxCarrier() override { mailbox_->stop(); }

  void send(ParticipantIndex participant, FrameToken token, std::vector<std::byte> frame) override {
    if (participant.value < impl_.queues.participants())
      impl_.queues.send({participant, token, std::move(frame)});
  }

  bool receive(std::uint32_t timeout_ms, Arrival& out) override {
    Mailbox::Parcel parcel;
    if (!impl_.queues.receive(std::chrono::milliseconds(timeout_ms), parcel)) return false;
    out = {parcel.participant, parcel.token, std::move(parcel.frame)};
    return true;
  }

  std::string trouble(ParticipantIndex participant) const override {
    std::lock_guard lock(impl_.mutex);
    return participant.value < impl_.troubles.size() ? impl_.troubles[participant.value] : std::string();
  }

  void heard(ParticipantIndex participant) override {
    std::lock_guard lock(impl_.mutex);
    if (participant.value < impl_.troubles.size()) impl_.troubles[participant.value].clear();
  }

  bool over() const override { return impl_.queues.over(); }

 private:
  std::shared_ptr<Mailbox> mailbox_;
  Mailbox::Impl& impl_;
};

}  // namespace

std::unique_ptr<Carrier> carry_by(std::shared_ptr<Mailbox> mailbox, Outcome& outcome) {
  outcome = {};
  if (mailbox == nullptr) {
    outcome = {Action::kReject, "a carrier without a mailbox"};
    return nullptr;
  }
  Mailbox::Impl& impl = *mailbox->impl_;
  if (!impl.queues.here()) {
    outcome = {Action::kReject, "the mailbox is another process's, which forked this one; make one here"};
    return nullptr;
  }
  std::lock_guard lock(impl.mutex);
  if (std::exchange(impl.carries, true)) {
    outcome = {Action::kReject, "the mailbox carries for a group already; each needs one of its own"};
    return nullptr;
  }
  return std::make_unique<MailboxCarrier>(std::move(mailbox), impl);
}

}  // namespace orbitkv::client
