// The frames of a group between its coordinators and whoever carries them: a line a participant out, one
// line in. Any thread. Never grows without bound: what is more is lost, and sent again. In a forked child
// it is another process's: nothing in it may be touched or destroyed there, for threads that the child
// has not may wait on it; its owner asks here() and leaves it behind.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "base/limits.h"
#include "orbitkv/interests.h"

namespace orbitkv::client {

class FrameQueues {
 public:
  using Parcel = Mailbox::Parcel;
  // A claim has one frame under way a participant; those that end count, too.
  static constexpr std::size_t kMostInLine = std::size_t{2} * limits::kInterestsPerInstance;
  static constexpr std::size_t kMostArrivals = kMostInLine * limits::kInterestGroup;

  explicit FrameQueues(std::size_t participants) : out_(participants) {}
  bool here() const { return ::getpid() == process_; }
  std::size_t participants() const { return out_.size(); }

  // The newest frame of a claim is the one that counts: what waits of it still is out of date.
  void send(Parcel parcel);
  // The next one, of each participant in turn, or of `only`. False: none within the time, or stopped.
  bool take(std::optional<std::chrono::milliseconds> timeout, std::optional<ParticipantIndex> only,
            Parcel& out);
  void arrived(Parcel parcel);
  // Also once it is stopped it takes the time: whoever asks again and again must not spin.
  bool receive(std::chrono::milliseconds timeout, Parcel& out);

  void stop();
  bool stopped() const;
  bool over() const;  // and nothing is left that came before

 private:
  // Oldest first. The bytes are those of all lines of its way.
  using Line = std::deque<Parcel>;
  static bool push(Line& line, std::size_t most, std::size_t& bytes, Parcel parcel);
  static Parcel pop(Line& line, std::size_t& bytes);
  Line* next(std::optional<ParticipantIndex> only);

  const pid_t process_ = ::getpid();
  mutable std::mutex mutex_;
  std::condition_variable sent_, came_;
  std::vector<Line> out_;  // by participant
  std::size_t turn_ = 0;   // whose frame goes next
  Line in_;
  std::size_t out_bytes_ = 0, in_bytes_ = 0;
  bool stop_ = false;
};

}  // namespace orbitkv::client
