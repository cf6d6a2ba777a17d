#include "daemon/connection.h"

#include <fcntl.h>

#include "wire/lifecycle.h"

namespace orbitkv::daemon {
namespace {
constexpr std::size_t kOutgoingFrames = 256;
}  // namespace

bool Connection::queue(std::vector<std::byte> frame, const std::vector<int>& fds) {
  if (outgoing_.size() >= kOutgoingFrames) return false;
  Outgoing out{std::move(frame), {}};
  for (const int fd : fds) {
    out.fds.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!out.fds.back().valid()) return false;
  }
  outgoing_.push_back(std::move(out));
  return true;
}

bool Connection::retract(SlabId slab) {
  for (auto out = outgoing_.begin(); out != outgoing_.end(); ++out) {
    auto offer = wire::decode_slab_offer(out->frame);
    if (!offer.ok()) continue;
    for (std::size_t i = 0; i < offer->slabs.size(); ++i) {
      if (offer->slabs[i].id != slab) continue;
      offer->slabs.erase(offer->slabs.begin() + static_cast<std::ptrdiff_t>(i));
      out->fds.erase(out->fds.begin() + static_cast<std::ptrdiff_t>(i));
      out->frame.clear();
      if (offer->slabs.empty())
        outgoing_.erase(out);
      else
        wire::encode(*offer, out->frame);
      return true;
    }
  }
  return false;
}

Status Connection::flush() {
  std::vector<int> fds;
  while (!outgoing_.empty()) {
    fds.clear();
    for (const UniqueFd& fd : outgoing_.front().fds) fds.push_back(fd.get());
    auto sent = socket_.send(outgoing_.front().frame, fds);
    if (!sent.ok()) return sent.error().code() == Code::kBusy ? ok_status() : sent;
    outgoing_.pop_front();
  }
  return ok_status();
}

}  // namespace orbitkv::daemon
