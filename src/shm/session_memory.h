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
#include "wire/command.h"

namespace orbitkv::shm {

// ---- record states ----

// Reserved → Preparing → Granted → Active → Drained → Reaped → Acknowledged; Failed
// and Revoked end a record that nobody claimed. Every edge has one owner; the only
// race is Granted → {Active by the client, Revoked by the Manager}.
enum class RecordState : std::uint8_t {
  kFree = 0,          // fresh memory: operation 0
  kReserved = 1,      // client: about to be submitted
  kPreparing = 2,     // Manager: accepted, no grant yet
  kGranted = 3,       // Manager: plan bytes are in the bank
  kActive = 4,        // client: claimed; from here only a receipt ends it
  kDrained = 5,       // client: all copies ended; result fields are valid
  kReaped = 6,        // Manager: sources and destinations are released
  kFailed = 7,        // Manager: ended before a grant; code and text are valid
  kRevoked = 8,       // Manager: grant withdrawn before a claim; code and text are valid
  kAcknowledged = 9,  // client: the record may serve another operation
};
enum class Side : std::uint8_t { kClient, kManager };

// The edge table (tested cell by cell). kAcknowledged|kFree → kReserved takes a
// higher operation id; all other edges keep it.
bool may_move(RecordState from, RecordState to, Side side);

struct RecordWord {
  OperationId operation;  // low 56 bits
  RecordState state = RecordState::kFree;
  friend bool operator==(const RecordWord&, const RecordWord&) = default;
};
std::uint64_t pack(RecordWord word);
// nullopt: a state that does not exist.
std::optional<RecordWord> unpack(std::uint64_t word);

// ---- layout (192 bytes a record: three cache lines) ----

struct alignas(64) RecordLayout {
  std::atomic<std::uint64_t> word;      // operation << 8 | state
  std::uint8_t pad0[56];
  // Manager's line, valid from Granted / Failed / Revoked.
  std::uint32_t plan_offset;            // in the plan bank
  std::uint32_t plan_bytes;
  std::uint32_t result_offset;          // in the plan bank; the client writes here
  std::uint32_t result_bytes;
  std::uint16_t manager_code;           // orbitkv::Code
  std::uint16_t manager_text_bytes;
  char manager_text[44];
  // Client's line, valid from Drained.
  std::uint16_t client_code;            // kOk: every copy done and verified
  std::uint16_t client_text_bytes;
  std::uint32_t client_result_bytes;    // bytes of the result frame, 0 = none
  char client_text[56];
};
static_assert(sizeof(RecordLayout) == 192);

struct SessionLayout {
  static constexpr std::uint64_t kHeader = 0;                 // 4 KiB
  static constexpr std::uint64_t kCommandRing = 4096;         // client to Manager
  static constexpr std::uint64_t kReplyRing = kCommandRing + 64 * limits::kRingEntries;
  static constexpr std::uint64_t kDirty = kReplyRing + 64 * limits::kRingEntries;  // 16 x u64
  static constexpr std::uint64_t kRecords = kDirty + 4096;
  static constexpr std::uint64_t kSlots = kRecords + 192 * limits::kRecords;
  static constexpr std::uint64_t kPlanBank =
      kSlots + std::uint64_t{limits::kDescriptorSlots} * limits::kDescriptorSlotBytes;
  static constexpr std::uint64_t kBytes = kPlanBank + limits::kPlanBankBytes;
};

inline constexpr std::uint64_t kSessionMagic = 0x3153534556424B4F;  // "OKBVESS1"

struct alignas(64) SessionHeader {
  // Written once by the Manager before the descriptor is sent.
  std::uint64_t magic;
  std::uint16_t abi;
  std::uint16_t pad;
  std::uint32_t session;
  std::uint64_t epoch;
  std::uint64_t bytes;
  std::uint8_t pad0[32];
  // Client's line.
  alignas(64) std::atomic<std::uint64_t> command_tail;   // commands pushed
  std::atomic<std::uint64_t> client_bell;                // rises with every push and dirty bit
  std::atomic<std::uint32_t> client_sleeping;
  // Client's second line: consumed replies (read by the Manager for ring space).
  alignas(64) std::atomic<std::uint64_t> reply_head;
  // Manager's lines.
  alignas(64) std::atomic<std::uint64_t> reply_tail;
  std::atomic<std::uint64_t> manager_bell;               // rises with every reply and record change
  std::atomic<std::uint32_t> manager_sleeping;
  alignas(64) std::atomic<std::uint64_t> command_head;
};
static_assert(sizeof(SessionHeader) <= 4096);

// Owns the mapping (MADV_DONTFORK) and, on the Manager's side, the descriptor.
class SessionMemory {
 public:
  // Manager: makes, sizes, seals (GROW, SHRINK, SEAL), maps and fills the header.
  static Result<SessionMemory> create(SessionId session, Epoch epoch);
  // Client: refuses a descriptor that is not a memfd of this size with these seals,
  // or whose header names another ABI, session or epoch.
  static Result<SessionMemory> attach(UniqueFd fd, SessionId session, Epoch epoch);

  SessionMemory(SessionMemory&&) noexcept;
  SessionMemory& operator=(SessionMemory&&) noexcept;
  ~SessionMemory();

  int fd() const { return fd_.get(); }
  SessionHeader& header() const;
  RecordLayout& record(RecordIndex index) const;          // index < limits::kRecords (checked)
  std::byte* slot(std::uint32_t index) const;             // limits::kDescriptorSlotBytes
  std::byte* plan_bank() const;                           // limits::kPlanBankBytes
  std::atomic<std::uint64_t>& dirty(std::uint32_t word) const;  // word < 16
  std::byte* ring(Side producer) const;                   // kRingEntries x 64 bytes

 private:
  SessionMemory() = default;
  UniqueFd fd_;
  std::byte* base_ = nullptr;
};

}  // namespace orbitkv::shm
