#include "daemon/connection.h"

namespace orbitkv::daemon {
namespace {
constexpr std::size_t kOutgoingFrames = 256;
}  // namespace

bool Connection::queue(std::vector<std::byte> frame, std::vector<int> fds) {
  if (outgoing_.size() >= kOutgoingFrames) return false;
  outgoing_.push_back({std::move(frame), std::move(fds)});
  return true;
}

Status Connection::flush() {
  while (!outgoing_.empty()) {
    auto sent = socket_.send(outgoing_.front().frame, outgoing_.front().fds);
    if (!sent.ok()) return sent.error().code() == Code::kBusy ? ok_status() : sent;
    outgoing_.pop_front();
  }
  return ok_status();
}

}  // namespace orbitkv::daemon
