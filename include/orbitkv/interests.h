// One engine whose ranks stand at several Managers (docs/tp.md): how much of a list every rank can
// restore, claimed at every Manager or at none. A PrefixGroup is the coordinator, in the process
// that knows the requests: its end ends everything that it holds. A Carrier brings its frames to the
// Managers: carry_over() by Clients of this process; carry_by(), or one of the engine's, over the engine's
// own channel to its other hosts, with Client::carry_interest() at the far end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "orbitkv/client.h"
#include "orbitkv/frames.h"

namespace orbitkv::client {

// The part of the engine at one Manager: an instance of its own there.
struct Participant {
  InstanceId instance;
  std::vector<std::uint16_t> ranks;  // of the whole engine: those that the instance has
  // As its ranks registered it; zero: whatever the Manager says when it is first asked.
  InterestAuthority authority{};
};

// Frames may be lost, doubled, late or out of order, and never changed into others.
class Carrier {
 public:
  struct Arrival {
    ParticipantIndex participant;
    FrameToken token;  // of the frame that this one answers
    std::vector<std::byte> frame;
  };
  virtual ~Carrier() = default;
  // Returns at once. Any thread.
  virtual void send(ParticipantIndex participant, FrameToken token, std::vector<std::byte> frame) = 0;
  // The next answer; false: none within the time. One thread.
  virtual bool receive(std::uint32_t timeout_ms, Arrival& out) = 0;
  // What hindered the frames of the participant last: told with a claim that ends without its answer.
  // Any thread.
  virtual std::string trouble(ParticipantIndex participant) const {
    static_cast<void>(participant);
    return {};
  }
  // What came of the participant was an answer: what hindered it before is over.
  virtual void heard(ParticipantIndex participant) { static_cast<void>(participant); }
  // Nothing comes or goes any more: a group that is stopped waits for no answer then.
  virtual bool over() const { return false; }
};
// Participant i is asked through clients[i]; all outlive the carrier. A thread each.
std::unique_ptr<Carrier> carry_over(std::vector<Client*> clients, Outcome& outcome);

// Where a transport fetches the frames of a group, and leaves what comes back: for one that has threads
// of its own. All calls from any thread; none calls back. What comes back is checked and copied once, and
// nothing grows without bound: frames beyond that are lost, and sent again.
class Mailbox {
 public:
  struct Parcel {
    ParticipantIndex participant;
    FrameToken token;
    std::vector<std::byte> frame;
  };
  // As many as the group has, 64 at most. What is sent to others, or comes from them, is lost.
  explicit Mailbox(std::size_t participants);
  ~Mailbox();
  // The next frame to bring to its participant. False: none within the time, or stopped.
  bool take(std::uint32_t timeout_ms, Parcel& out);
  // An answer, with the participant and the token of the frame that it answers. kReject: no such
  // participant, or larger than any frame.
  Outcome arrived(ParticipantIndex participant, FrameToken token, std::span<const std::byte> frame);
  // What hinders the transport, of all participants or of one: Carrier::trouble(). 256 bytes of it.
  void hindered(std::string why);
  void hindered(ParticipantIndex participant, std::string why);
  // Nothing comes in or goes out any more, and take() returns. By itself when the group ends.
  void stop();
  bool stopped() const;

  struct Impl;

 private:
  friend std::unique_ptr<Carrier> carry_by(std::shared_ptr<Mailbox> mailbox, Outcome& outcome);
  std::unique_ptr<Impl> impl_;
};
// The group's end of the mailbox, which is stopped with it. kReject: no mailbox, or it has carried for a
// group before.
std::unique_ptr<Carrier> carry_by(std::shared_ptr<Mailbox> mailbox, Outcome& outcome);

// What is asked for: the blocks of one group, or with a boundary all pages of it as read_recovery
// takes them, for each group ascending, as one list.
struct CommonList {
  std::span<const BlockHash> hashes;
  std::uint16_t group = 0;
  std::uint64_t origin = 0, boundary = 0;  // tokens
};
struct CommonPrefix {
  bool loading = false;      // not known yet
  std::uint32_t blocks = 0;  // every rank can restore exactly these; 0: none, and nothing is held
  // By participant, one a group. A rank restores with the leases of its own.
  std::vector<std::vector<RecoveryLease>> leases;
  Missing why = Missing::kNone;  // no blocks: why, as far as a Manager said so
  ParticipantIndex participant;  // that it was for
  std::string message;
};
struct CommonRestore {
  bool done = false;     // the outcome is known
  bool success = false;  // every rank has restored all blocks
  // No rank may be copying any more, or none was told a lease. Until then the pages that were to be restored
  // into are not the engine's, whatever the outcome: a failure at one rank stops no copy of another.
  bool quiet = false;
  std::string message;
};

// What went to a participant and came of it, since the group was opened: how a carrier that loses frames,
// and never says so, is told from a Manager that has nothing.
struct ParticipantStats {
  std::uint64_t sent = 0;      // frames given to the carrier, each as often as it was sent again
  std::uint64_t answered = 0;  // of them, each once
  std::uint64_t astray = 0;    // came of it, and answered nothing: late, doubled, spoilt or of no claim
  std::uint64_t silent = 0;    // claims that ran out of time because nothing of it answered
};

class PrefixGroup {
 public:
  struct Options {
    std::uint32_t timeout_ms = 5000;    // from begin() until all is claimed
    std::uint32_t restore_ms = 60'000;  // from there until every rank has told
    std::uint32_t resend_ms = 500;      // of frames that are not answered
    std::uint32_t poll_ms = 2;          // while blocks are on their way; grows to ten times that
  };
  // kReject: no participants, more than 64, a rank that two of them have, or a time of 0.
  static std::unique_ptr<PrefixGroup> open(const Options& options, std::vector<Participant> participants,
                                           std::unique_ptr<Carrier> carrier, Outcome& outcome);
  // finish(). No call may run.
  ~PrefixGroup();
  // Closes all. Calls that wait return at once, and every later one is refused. Any thread, like
  // those below.
  void stop();
  // stop(), and waits until all is given back: the options' timeout_ms at most, and a client's timeout where
  // it carries; that is where the carrier may go, too. Never within a call of the carrier's. False: not
  // within this timeout_ms, of which the default is no bound. A forked child gives nothing back, and does not
  // wait; there every other call is refused.
  bool finish(std::uint32_t timeout_ms = UINT32_MAX);

  // All participants are asked at once. kRetry: 128 claims are open.
  Outcome begin(const CommonList& list, std::uint64_t& claim);
  // Waits for the outcome of the claims, timeout_ms at most; then it is `loading` still.
  Outcome poll(std::uint64_t claim, std::uint32_t timeout_ms, CommonPrefix& out);
  // Once poll() has told the leases: the restore of a rank has ended so; of a rank that has died, or has not
  // begun and will not: false. One that failed ends the claim: no rank may go on from these blocks.
  Outcome restored(std::uint64_t claim, std::uint16_t rank, bool success);
  // Waits until it is quiet and the outcome is known, timeout_ms at most.
  Outcome wait(std::uint64_t claim, std::uint32_t timeout_ms, CommonRestore& out);
  // Gives back what is held, and forgets the claim. Copies that run go on.
  Outcome close(std::uint64_t claim);
  // By participant. kReject: in a forked child.
  Outcome stats(std::vector<ParticipantStats>& out) const;

  struct Impl;

 private:
  explicit PrefixGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace orbitkv::client
