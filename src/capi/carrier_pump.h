// The two threads of a group whose frames go by callbacks: one sends, one receives, neither with a lock
// held. They end when the group has ended, and are waited for: then the callbacks' context is the
// caller's again. Never lets an exception through, nor a frame in that is larger than any.
#pragma once

#include <unistd.h>

#include <memory>
#include <thread>

#include "capi/sized.h"
#include "orbitkv/interests.h"

namespace orbitkv::capi {

class CarrierPump {
 public:
  CarrierPump() = default;
  CarrierPump(const CarrierPump&) = delete;
  ~CarrierPump();
  // Once. kRetry: the threads cannot start.
  std::unique_ptr<client::Carrier> start(const orbitkv_carrier& calls, std::size_t participants,
                                         Outcome& outcome);

 private:
  void send_all();
  void receive_all();

  orbitkv_carrier calls_{};
  std::shared_ptr<client::Mailbox> mailbox_;
  struct Threads {
    std::thread sender, receiver;
  };
  std::unique_ptr<Threads> threads_ = std::make_unique<Threads>();
  const pid_t process_ = ::getpid();  // whose threads they are
};

}  // namespace orbitkv::capi
