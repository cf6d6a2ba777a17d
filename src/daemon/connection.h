// The socket and the process of one session: frames wait here until the socket takes
// them. Owned by the Manager; core thread only.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "shm/bootstrap.h"

namespace orbitkv::daemon {

class Connection {
 public:
  Connection(shm::Socket socket, shm::Peer peer) : socket_(std::move(socket)), peer_(std::move(peer)) {}

  shm::Socket& socket() { return socket_; }
  const shm::Peer& peer() const { return peer_; }
  // Queues a frame behind what the socket has not taken yet. False: over the bound.
  // Descriptors are duplicated: numbers are given again.
  bool queue(std::vector<std::byte> frame, const std::vector<int>& fds = {});
  // Takes a slab out of the offers that are not sent. False: there is none of it.
  bool retract(SlabId slab);
  void drop_unsent() { outgoing_.clear(); }
  // Sends what is queued; kReconnect when the peer is gone.
  Status flush();
  bool unsent() const { return !outgoing_.empty(); }

 private:
  struct Outgoing {
    std::vector<std::byte> frame;
    std::vector<UniqueFd> fds;
  };
  shm::Socket socket_;
  shm::Peer peer_;
  std::deque<Outgoing> outgoing_;
};

}  // namespace orbitkv::daemon
