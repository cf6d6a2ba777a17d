#include "capi/carrier_pump.h"

#include <chrono>
#include <system_error>

#include "base/limits.h"
#include "base/text.h"

namespace orbitkv::capi {

namespace {

constexpr std::uint32_t kWaitMs = 100;                       // of one call
constexpr auto kAtLeast = std::chrono::milliseconds(1);      // between two that bring nothing of use
constexpr auto kAfterError = std::chrono::milliseconds(50);  // of a channel that is broken
static_assert(ORBITKV_INTEREST_FRAME_BYTES == limits::kInterestFrameBytes);

}  // namespace

std::unique_ptr<client::Carrier> CarrierPump::start(const orbitkv_carrier& calls, std::size_t participants,
                                                    Outcome& outcome) {
  calls_ = calls;
  mailbox_ = std::make_shared<client::Mailbox>(participants);
  try {
    threads_->sender = std::thread([this] { send_all(); });
    threads_->receiver = std::thread([this] { receive_all(); });
    return client::carry_by(mailbox_, outcome);
  } catch (const std::system_error& error) {
    outcome = {client::Action::kRetry, format_text("the carrier's threads cannot start: %s", error.what())};
    return nullptr;
  }
}

CarrierPump::~CarrierPump() {
  if (::getpid() != process_) {  // a forked child: neither to be joined nor destroyed
    [[maybe_unused]] const auto* left = threads_.release();
    return;
  }
  if (mailbox_) mailbox_->stop();
  if (threads_->sender.joinable()) threads_->sender.join();
  if (threads_->receiver.joinable()) threads_->receiver.join();
}

void CarrierPump::send_all() {
  client::Mailbox::Parcel out;
  while (!mailbox_->stopped()) {
    if (!mailbox_->take(kWaitMs, out)) continue;
    std::string why;
    try {
      const std::int32_t sent =
          calls_.send(calls_.ctx, out.participant.value, out.token.value, out.frame.data(), out.frame.size());
      if (sent != 0) why = format_text("send returned %d", sent);
    } catch (...) {
      why = "send threw an exception";
    }
    if (!why.empty()) mailbox_->hindered(out.participant, why);
  }
}

void CarrierPump::receive_all() {
  std::vector<std::byte> frame(limits::kInterestFrameBytes);
  while (!mailbox_->stopped()) {
    const auto asked = std::chrono::steady_clock::now();
    std::uint32_t participant = 0;
    std::uint64_t token = 0;
    std::int64_t bytes = -1;
    std::string why;
    try {
      bytes = calls_.receive(calls_.ctx, kWaitMs, frame.data(), &participant, &token);
    } catch (...) {
      why = "receive threw an exception";
    }
    if (bytes > static_cast<std::int64_t>(frame.size())) {
      why = "receive returned more bytes than a frame has";
    } else if (bytes > 0) {
      why = mailbox_->arrived({participant}, {token}, std::span(frame).first(static_cast<std::size_t>(bytes)))
                .message;
    } else if (bytes < 0 && why.empty()) {
      why = format_text("receive returned %lld", static_cast<long long>(bytes));
    }
    if (!why.empty()) mailbox_->hindered(why);
    if (bytes < 0) std::this_thread::sleep_for(kAfterError);
    if (bytes == 0 || !why.empty()) std::this_thread::sleep_until(asked + kAtLeast);
  }
}

}  // namespace orbitkv::capi
