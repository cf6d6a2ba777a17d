// The two ends of a session's channel over SessionMemory: rings, bells, records. The
// Manager's end belongs to its core thread. The client's end: commands, replies and
// slots under the client's call lock; records, bank, dirty bits and bells from any of
// its threads (one thread a record). The Manager sleeps on an eventfd that it never
// reads (edge-triggered epoll; O_NONBLOCK on a shared description cannot be relied on);
// the client's threads sleep on a futex, the low word of manager_bell. Wakes are hints:
// a lost one is recovered by the bounded recheck of whoever waits.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shm/session_memory.h"

namespace orbitkv::shm {

// Whoever sleeps looks again after this long, so that a lost wake costs no more.
inline constexpr int kRecheckMs = 10;

// An eventfd for the client to ring the Manager: non-blocking, close-on-exec.
Result<UniqueFd> make_bell();

// Which record edges this process has taken, on either side, by [from][to]: for the
// simulator's table.
using PassedEdges = std::array<std::array<std::atomic<bool>, kRecordStates>, kRecordStates>;
PassedEdges& passed_edges();

// Where a grant lies in the plan bank, as the Manager wrote it.
struct GrantFields {
  std::uint32_t plan_offset = 0, plan_bytes = 0, result_offset = 0, result_bytes = 0;
  // What a save left out: blocks that found no memory, perhaps because there was none yet. Also of
  // one without anything to copy, which has no grant.
  std::uint32_t dropped = 0;
  bool being_made = false;
  friend bool operator==(const GrantFields&, const GrantFields&) = default;
};

// Manager's end. Trusts nothing that it reads: every getter copies once.
class ManagerChannel {
 public:
  ManagerChannel(SessionMemory memory, UniqueFd bell);  // the eventfd that the client writes

  // True if the client rang since the last call, or prepare_sleep() found work that was
  // not rung (one acquire load of one word; the bell is remembered before anything is
  // popped, so that no ring is lost).
  bool rung();
  // Next command as raw bytes, or nullopt. An impossible tail (more than kRingEntries
  // ahead, or moved back) is reported by poisoned(). Frees the ring entry.
  std::optional<wire::CommandBytes> pop_command();
  bool poisoned() const { return poisoned_; }
  // Copies `length` bytes of a descriptor slot. Preconditions: slot and length within limits.
  void copy_slot(std::uint32_t slot, std::uint32_t length, std::vector<std::byte>& out) const;
  void write_slot(std::uint32_t slot, std::span<const std::byte> frame);
  // False: the client does not drain its replies, or its head is impossible (poison it).
  bool push_reply(const wire::CommandBytes& reply);

  // Appends the dirty record indices since the last call: atomically takes each word.
  void take_dirty(std::vector<RecordIndex>& out);
  std::uint64_t load_word(RecordIndex record) const;  // acquire
  // CAS expected → desired, release on success. On failure returns the word found.
  // `expected` is the caller's shadow, never a word read from memory: an edge that
  // may_move() does not give to the Manager stops the process.
  std::optional<std::uint64_t> exchange(RecordIndex record, RecordWord expected, RecordWord desired);
  void write_grant(RecordIndex record, const GrantFields& fields);
  // The text is cut to limits::kErrorTextBytes. `grant`: of one that the client may have claimed
  // meanwhile, where it keeps what stands there.
  void write_failure(RecordIndex record, Code code, std::string_view text, const GrantFields& grant = {});
  struct ClientResult {
    std::uint16_t code = 0;
    std::uint32_t result_bytes = 0;
    std::string text;  // printable ASCII; all else is '?'
  };
  ClientResult read_client_result(RecordIndex record) const;  // copied once, bounded
  // Precondition of both: the range lies in the bank.
  void write_bank(std::uint32_t offset, std::span<const std::byte> bytes);
  void copy_bank(std::uint32_t offset, std::uint32_t length, std::vector<std::byte>& out) const;

  // Changes while the client's own thread runs; whatever it says, it is only compared.
  std::uint64_t beat() const;
  // After replies or record changes: bumps the bell (release), wakes sleeping client
  // threads by FUTEX_WAKE. Never blocks, whatever the client does.
  void ring_client();
  // Sleep protocol: announce, then recheck bell, ring tail and dirty bits; true = still
  // quiet, may block on wake_fd() (edge-triggered) for at most kRecheckMs.
  bool prepare_sleep();
  void cancel_sleep();
  int wake_fd() const { return wake_.get(); }

 private:
  SessionMemory memory_;
  UniqueFd wake_;
  std::uint64_t seen_bell_ = 0, command_head_ = 0, reply_tail_ = 0, reply_head_ = 0, bell_ = 0;
  bool unrung_ = false;
  bool poisoned_ = false;
};

// Client's end.
class ClientChannel {
 public:
  ClientChannel(SessionMemory memory, UniqueFd bell);

  std::byte* slot(std::uint32_t index) { return memory_.slot(index); }
  bool push_command(const wire::CommandBytes& command);  // false: ring full
  std::optional<wire::CommandBytes> pop_reply();
  // The Manager's indices were impossible: the session is of no use any more.
  bool poisoned() const { return poisoned_; }
  void ring_manager();

  std::uint64_t load_word(RecordIndex record) const;
  // As in ManagerChannel, with the client's edges.
  std::optional<std::uint64_t> exchange(RecordIndex record, RecordWord expected, RecordWord desired);
  GrantFields read_grant(RecordIndex record) const;  // bounds checked by the caller
  struct Failure {
    Code code = Code::kBug;
    std::string text;
  };
  Failure read_failure(RecordIndex record) const;
  void write_client_result(RecordIndex record, Code code, std::uint32_t result_bytes, std::string_view text);
  // Precondition of both: the range lies in the bank.
  void copy_bank(std::uint32_t offset, std::uint32_t length, std::vector<std::byte>& out) const;
  void write_bank(std::uint32_t offset, std::span<const std::byte> bytes);
  void mark_dirty(RecordIndex record);  // then ring_manager()

  // Value of the Manager's bell; changes when there may be replies or record changes.
  std::uint64_t bell() const;
  // Returns when the bell differs from `seen` or `timeout_ms` passed (at most kRecheckMs
  // a sleep: callers loop and recheck what they wait for). Spins `spins` times first.
  // Several threads may wait at once.
  void wait(std::uint64_t seen, std::uint32_t spins, int timeout_ms);
  // Wakes this process's own waiters (close, lost Manager).
  void wake_waiters();
  // A sign of life: one addition. The thread that serves the socket, once a second or more often.
  void beat();

 private:
  SessionMemory memory_;
  UniqueFd wake_;
  std::uint64_t command_tail_ = 0, command_head_ = 0, reply_head_ = 0;
  bool poisoned_ = false;
};

}  // namespace orbitkv::shm
