// Unix sockets that carry attach, registration and slab descriptors: SEQPACKET,
// mode 0600 in a 0700 directory, uid checked by both sides (SO_PEERCRED), liveness
// of the other side by pidfd. Blocking calls have a deadline. Any thread; one
// Socket is used by one reader and one writer at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace orbitkv::shm {

// ${XDG_RUNTIME_DIR:-/tmp/orbitkv-$UID}/orbitkv/manager.sock
std::string default_socket_path();

struct Message {
  std::vector<std::byte> frame;  // <= limits::kSocketFrameBytes, never truncated
  std::vector<UniqueFd> fds;     // <= limits::kFdsPerMessage, close-on-exec
};

class Socket {
 public:
  explicit Socket(UniqueFd fd) : fd_(std::move(fd)) {}
  // Gives a connected socket the buffer that a full frame needs.
  static Result<Socket> adopt(UniqueFd fd);
  // Two connected ends in this process.
  static Result<std::pair<Socket, Socket>> pair();
  int fd() const { return fd_.get(); }
  // Non-blocking send of one message. kBusy: the buffer is full. kReconnect: closed.
  // kReject: empty, or over limits::kSocketFrameBytes or kFdsPerMessage.
  Status send(std::span<const std::byte> frame, std::span<const int> fds = {});
  // Non-blocking receive. nullopt: nothing there. kReconnect: closed by the peer.
  // kReject: truncated, too large or too many descriptors (which are closed).
  Result<std::optional<Message>> receive();
  // The same, waiting up to timeout_ms; kBusy when that has passed.
  Status send_within(std::span<const std::byte> frame, std::span<const int> fds, int timeout_ms);
  Result<Message> receive_within(int timeout_ms);
  // Sends and waits for the answer. A refusal that the other side left behind before it
  // closed is read even if it took nothing from us.
  Result<Message> ask_within(std::span<const std::byte> frame, int timeout_ms);
  void close() { fd_.reset(); }

 private:
  UniqueFd fd_;
};

struct Peer {
  int pid = 0;
  unsigned uid = 0;
  UniqueFd pidfd;  // readable when every thread of the process has ended
};
// kReject if the peer's uid is not ours, with both uids in the text, or if its process
// cannot be seen from here. kReconnect if it has ended already.
Result<Peer> authenticate_peer(const Socket& socket);
bool process_ended(const UniqueFd& pidfd);

// A claim to a socket path: who has it starts the Managers there, also while none runs. As long as the
// descriptor or a duplicate of it is open, in whatever process. kBusy: another one has it.
enum class Claimant : std::uint8_t {
  kKeeper,  // this process
  kStore,   // whoever stores the descriptor: a service manager
};
Result<UniqueFd> claim_path(const std::string& path, Claimant by = Claimant::kKeeper);
// It is the claim that holds at the path: its file has not been removed or replaced.
bool holds_claim(const UniqueFd& claim, const std::string& path);
// For whoever looks at the claim: what goes on where no Manager answers, on one line.
void say_in_claim(const UniqueFd& claim, std::string_view what);

struct PathClaim {
  int pid = 0;               // 0: a service manager's
  std::string says;          // say_in_claim()
  std::int64_t said_ns = 0;  // when that was; to be compared with another one of the same path
};
// nullopt: nobody has it, or it cannot be told.
std::optional<PathClaim> path_claim(const std::string& path);
// The process that has it; nullopt: nobody, or it cannot be told.
std::optional<int> path_claimed_by(const std::string& path);

// The files beside the socket: a Manager's lock, and the claim to its path.
std::string lock_of(const std::string& socket_path);
std::string claim_file_of(const std::string& socket_path);

class Listener {
 public:
  // Makes the directory (0700; refuses one of another owner or of a wider mode), takes
  // a lock file beside the socket (a second Manager on the path is refused by name),
  // replaces a stale socket file, binds 0600, listens.
  // `keeper`, `claim`: whose claim does not count; a path that another one claims is refused.
  static Result<Listener> open(const std::string& path, std::optional<int> keeper = {},
                               const UniqueFd& claim = {});
  Listener(Listener&&) noexcept = default;
  ~Listener();  // removes the socket file
  // Only if it is still ours; nobody else makes one there as long as the lock stands.
  void remove_socket() const;
  int fd() const { return fd_.get(); }
  // Nothing stands at the path any more: whoever comes would find nobody.
  bool gone() const;
  // Then: makes the socket anew, and the lock file, if that has gone as well. Whoever waited at the old one
  // asks again. The old fd() is closed. After an error all is as before.
  Status renew();
  Result<std::optional<Socket>> accept();  // nullopt: nobody there

 private:
  Listener() = default;
  Status bind();
  UniqueFd fd_, lock_;
  std::string path_;
  std::uint64_t inode_ = 0, device_ = 0;
};

// kReconnect with the path and what to start if nobody listens there.
Result<Socket> connect_to(const std::string& path, int timeout_ms);

}  // namespace orbitkv::shm
