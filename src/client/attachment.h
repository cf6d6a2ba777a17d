// One session of one life of the Manager: socket, session memory, mapped slabs and
// grant records. Made by the I/O thread, used by callers and the executor under the
// client's link lock, dropped as a whole when the Manager is lost. After `lost` is
// set every call answers kReconnect at once; copies already claimed still finish on
// the mappings, which live as long as this object.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "client/slab_table.h"
#include "shm/bootstrap.h"
#include "shm/channel.h"
#include "wire/frame.h"
#include "wire/lifecycle.h"
#include "wire/messages.h"

namespace orbitkv::client {

struct RecordRef {
  RecordIndex record;
  OperationId operation;
};

class Attachment {
 public:
  struct Target {
    std::string path, name;
    std::uint32_t timeout_ms = 5000;
    std::uint32_t spins = 64;
    SlabUser* slabs = nullptr;  // outlives the attachment
    SlabTable::Closing closing = SlabTable::Closing::kThread;
  };
  static Result<std::unique_ptr<Attachment>> open(const Target& target);
  // Over a session that the caller has made, without a socket: for simulation.
  static std::unique_ptr<Attachment> over(const Target& target, const wire::HelloReply& hello,
                                          shm::ClientChannel channel);
  ~Attachment();  // no operation is open

  Incarnation incarnation() const { return hello_.incarnation; }
  shm::ClientChannel& channel() { return *channel_; }
  shm::Socket& socket() { return socket_; }
  const shm::Peer& peer() const { return peer_; }
  Epoch epoch() const { return hello_.epoch; }
  bool lost() const { return lost_.load(); }
  // False until every registration of the process stands in this session.
  bool ready() const { return ready_.load(std::memory_order_acquire); }
  void set_ready() { ready_.store(true, std::memory_order_release); }
  // Marks the session lost and wakes everyone who waits on it. Any thread.
  void lose();

  // ---- commands: one at a time, in the caller ----
  using Encode = std::function<void(wire::Buffer&)>;
  // Sends one command and returns a copy of its reply frame (empty for codes without
  // one), or the Manager's error, or kReconnect (lost, or no answer in time).
  Result<wire::Buffer> call(wire::Opcode opcode, const Encode& encode, std::uint32_t timeout_ms);
  // Its parts, for who cannot wait inside: in turn, one call at a time.
  struct Call {
    wire::Command command;
    bool framed = false;  // it has the descriptor slot
  };
  Result<Call> begin_call(wire::Opcode opcode, const Encode& encode);
  // The reply; nullopt: none yet. After a value the call has ended.
  std::optional<Result<wire::Buffer>> poll_call(const Call& call);
  // The call ends without its reply, which may still come: its slot is out of use until then.
  Error give_up_call(const Call& call);

  // ---- records ----
  // n records with fresh operation ids, word = Reserved; kBusy if fewer are free.
  Result<std::vector<RecordRef>> reserve(std::uint32_t n);
  // A request that was refused or never sent: Reserved → Acknowledged. False: the Manager
  // has it already, and the record ends as the Manager says.
  bool withdraw(RecordRef ref);
  // The operation has ended on this side; the record is reused once the Manager let go.
  void retire(RecordRef ref);

  // ---- slabs; but for the table I/O thread ----
  SlabTable& slabs() { return *slabs_; }
  // Before the first offer: slabs of an earlier session, which may be offered again.
  void use_slabs(std::unique_ptr<SlabTable> slabs) { slabs_ = std::move(slabs); }
  // No operation is open, and the session has ended: slabs that the next one may offer again.
  // nullptr: there are none.
  std::unique_ptr<SlabTable> leave_slabs();
  // True: the frame is about slabs, which the Manager speaks of unasked, and has been obeyed.
  bool on_slabs(const wire::FrameView& view, const shm::Message& message);
  // Slabs retire, or the Manager has not been told of all that are unmapped.
  bool owes_slabs() const { return slabs_->retiring() || !released_.empty(); }
  // False: the frame has not gone out, and is sent the next time.
  using Send = std::function<bool(const wire::Buffer& frame)>;
  void send_released(const Send& send);
  // Maps what the message offers, and wakes who waits for a grant or a slab.
  Status map_offer(const shm::Message& message);
  // Every operation has ended: unmaps all and says so, the last word of the session.
  void say_goodbye();
  // Tells the Manager that nothing more will come; what is claimed goes on.
  void hang_up();

 private:
  Attachment(Target target, shm::Socket socket, shm::Peer peer)
      : target_(std::move(target)),
        socket_(std::move(socket)),
        peer_(std::move(peer)),
        slabs_(std::make_unique<SlabTable>(target_.slabs, target_.closing)) {}
  Status greet();
  void start(shm::ClientChannel channel);
  Result<wire::Buffer> call_in_turn(wire::Opcode opcode, const Encode& encode, TimePoint deadline);
  struct Taken {
    wire::Reply reply;
    wire::Buffer frame;
  };
  // Takes what has come, late replies included; the answer to `request` if it was there.
  std::optional<Taken> take_replies(std::uint64_t request);
  wire::Buffer copy_frame(const wire::Reply& reply);
  static Result<wire::Buffer> read_reply(Taken taken);
  // Puts request_ into a free slot, and the command into the ring. False: that is full.
  bool send(wire::Command& command);
  void release_unwanted();
  void collect_retired();

  Target target_;
  shm::Socket socket_;
  shm::Peer peer_;
  wire::HelloReply hello_;
  std::unique_ptr<shm::ClientChannel> channel_;
  std::atomic<bool> lost_{false}, ready_{false};

  std::mutex call_mutex_;
  std::condition_variable call_ended_;
  bool calling_ = false;  // the rest of this part is the caller's whose turn it is
  wire::Buffer request_;
  std::uint64_t next_request_ = 1;
  std::uint32_t free_slots_ = 0;                  // bit = descriptor slot; a timed-out call keeps its own
  std::map<std::uint64_t, std::uint32_t> late_;   // request → slot of calls that timed out
  std::set<std::array<std::byte, 16>> unwanted_;  // leases that were told in late replies alone

  std::mutex record_mutex_;
  std::vector<RecordRef> free_records_;  // with the last operation, 0 = never used
  std::vector<RecordRef> retired_;
  std::uint64_t next_operation_ = 1;

  std::unique_ptr<SlabTable> slabs_;
  std::vector<SlabId> released_;  // that the Manager has not been told of
};

}  // namespace orbitkv::client
