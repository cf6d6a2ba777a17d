// Session memory: one size-sealed memfd that the Manager makes, the client maps and
// both may write. Header, two command rings, descriptor slots, grant records, dirty
// bitset, plan bank. Each side keeps private copies of what it owns and never reads
// its own fields back; what the other side wrote is copied once, then validated.
// Authority lies in the record words alone, and only by compare-and-swap.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/ids.h"
#include "base/limits.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "shm/record_state.h"
#include "wire/command.h"

namespace orbitkv::shm {

// ---- layout (320 bytes a record: five cache lines) ----

// The Manager's lines, valid from Granted / Reaped / Failed / Revoked.
struct alignas(64) ManagerLines {
  std::uint32_t plan_offset = 0;  // in the plan bank
  std::uint32_t plan_bytes = 0;
  std::uint32_t result_offset = 0;  // in the plan bank; the client writes here
  std::uint32_t result_bytes = 0;
  std::uint16_t code = 0;  // orbitkv::Code
  std::uint16_t text_bytes = 0;
  char text[limits::kErrorTextBytes] = {};
  std::uint32_t dropped = 0;    // of a save: blocks that found no memory
  std::uint8_t being_made = 0;  // of those: 1 if there was none yet
  std::uint8_t pad[15] = {};
};
// The client's lines, valid from Drained.
struct alignas(64) ClientLines {
  std::uint16_t code = 0;  // kOk: every copy done and verified
  std::uint16_t text_bytes = 0;
  std::uint32_t result_bytes = 0;  // of the result frame, 0 = none
  char text[limits::kErrorTextBytes] = {};
  std::uint8_t pad[32] = {};
};
static_assert(sizeof(ManagerLines) == 128 && sizeof(ClientLines) == 128);

struct alignas(64) RecordLayout {
  std::atomic<std::uint64_t> word;  // operation << 8 | state
  std::uint8_t pad0[56];
  ManagerLines manager;
  ClientLines client;
};
static_assert(sizeof(RecordLayout) == 320);

struct SessionLayout {
  static constexpr std::uint64_t kHeader = 0;          // 4 KiB
  static constexpr std::uint64_t kCommandRing = 4096;  // client to Manager
  static constexpr std::uint64_t kReplyRing = kCommandRing + 64 * limits::kRingEntries;
  static constexpr std::uint64_t kDirty = kReplyRing + 64 * limits::kRingEntries;  // 16 x u64
  static constexpr std::uint64_t kRecords = kDirty + 4096;
  static constexpr std::uint64_t kSlots = kRecords + sizeof(RecordLayout) * limits::kRecords;
  static constexpr std::uint64_t kPlanBank =
      kSlots + std::uint64_t{limits::kDescriptorSlots} * limits::kDescriptorSlotBytes;
  static constexpr std::uint64_t kBytes = kPlanBank + limits::kPlanBankBytes;
};

inline constexpr std::uint64_t kSessionMagic = 0x3153534556424B4F;  // "OKBVESS1"
// Of what the next life of a Manager must know of copies under way in the last one's sessions:
// records, their words and lines, and the beat. Rises with these alone, whatever else the ABI changes.
inline constexpr std::uint16_t kRecordLayout = 1;

// Written once by the Manager before the descriptor is sent. The leading 16 bytes
// keep their place in every version, so that a mismatch can be said in words.
struct SessionIdentity {
  std::uint64_t magic = 0;
  std::uint16_t abi = 0;
  std::uint16_t records = 0;  // kRecordLayout
  std::uint32_t session = 0;
  std::uint64_t epoch = 0;
  std::uint64_t bytes = 0;
};

// One writer a line. A line holds what the other side reads together, so that a
// command costs the reader two line transfers: this one and the ring entry.
struct SessionHeader {
  alignas(64) SessionIdentity identity;
  // Client's line.
  alignas(128) std::atomic<std::uint64_t> command_tail;  // commands pushed
  std::atomic<std::uint64_t> client_bell;                // rises with every push and dirty bit
  std::atomic<std::uint32_t> client_sleepers;            // threads on the futex in wait()
  // Client's second line: consumed replies (read by the Manager for ring space).
  alignas(128) std::atomic<std::uint64_t> reply_head;
  // Manager's lines.
  alignas(128) std::atomic<std::uint64_t> reply_tail;
  std::atomic<std::uint64_t> manager_bell;  // rises with every reply and record change
  std::atomic<std::uint32_t> manager_sleeping;
  alignas(128) std::atomic<std::uint64_t> command_head;
  // Client's third line: rises while the client's own thread runs, at least once a second.
  alignas(128) std::atomic<std::uint64_t> client_beat;
};
static_assert(sizeof(SessionHeader) <= 4096);

// Owns the mapping (MADV_DONTFORK) and, on the Manager's side, the descriptor.
class SessionMemory {
 public:
  // Manager: makes, sizes, seals (GROW, SHRINK, SEAL), maps and fills the header. All
  // pages are there afterwards, so that no later touch can fail.
  static Result<SessionMemory> create(SessionId session, Epoch epoch);
  // Client: refuses a descriptor that is not a memfd of this size with these seals,
  // or whose header names another ABI, session or epoch. The text says what to upgrade.
  static Result<SessionMemory> attach(UniqueFd fd, SessionId session, Epoch epoch);
  // The next life of a Manager: likewise, but for the ABI, instead of which the layout of the
  // records must be the same.
  static Result<SessionMemory> adopt(UniqueFd fd, SessionId session, Epoch epoch);

  SessionMemory(SessionMemory&&) noexcept;
  SessionMemory& operator=(SessionMemory&&) noexcept;
  ~SessionMemory();

  // For simulation, where both sides live in one process: the same mapping once more, for as long as
  // this object lives.
  SessionMemory alias() const;

  int fd() const { return fd_.get(); }
  SessionHeader& header() const;
  RecordLayout& record(RecordIndex index) const;                // index < limits::kRecords (checked)
  std::byte* slot(std::uint32_t index) const;                   // limits::kDescriptorSlotBytes
  std::byte* plan_bank() const;                                 // limits::kPlanBankBytes
  std::atomic<std::uint64_t>& dirty(std::uint32_t word) const;  // word < 16
  std::byte* ring(Side producer) const;                         // kRingEntries x 64 bytes

 private:
  SessionMemory() = default;
  UniqueFd fd_;
  std::byte* base_ = nullptr;
  bool alias_ = false;  // the mapping is another object's
};

}  // namespace orbitkv::shm
