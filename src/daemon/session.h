// The Manager's side of one attached engine process: its channel, the private shadow of
// its grant records and its plan bank. Owned by the Host; its thread only. It believes
// nothing that the client wrote: a word that is not reachable from the shadow poisons
// the session.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/result.h"
#include "cache/core.h"
#include "daemon/mappers.h"
#include "daemon/plan_bank.h"
#include "model/plan.h"
#include "shm/channel.h"

namespace orbitkv::daemon {

class Session {
 public:
  struct Parts {
    SessionId id;
    Epoch epoch;
    std::string name;
    int pid = 0;  // for those who read logs and status
    shm::ManagerChannel channel;
    ProcessId process = {};
    std::uint32_t bank_bytes = limits::kPlanBankBytes;
  };
  explicit Session(Parts parts);

  SessionId id() const { return parts_.id; }
  Epoch epoch() const { return parts_.epoch; }
  const std::string& name() const { return parts_.name; }
  int pid() const { return parts_.pid; }
  ProcessId process() const { return parts_.process; }
  shm::ManagerChannel& channel() { return parts_.channel; }

  // ---- operations: the shadow decides what the client may have done ----

  // {operation, Reserved} → Preparing, before the core sees the request. kReject: the
  // record is in use, the id is not new, or the word is not what the client announced.
  Status begin(RecordIndex record, OperationId operation);
  // The Ports of the core, for operations of this session.
  cache::Ports::Grant grant(const cache::OperationKey& op, const model::Plan& plan);
  cache::Ports::Revoke revoke(const cache::OperationKey& op, const Error& why);
  void fail(const cache::OperationKey& op, const Error& why);
  void reap(const cache::OperationKey& op);
  void drop(const cache::OperationKey& op, const cache::Ports::Dropped& dropped);
  bool preparing(RecordIndex record, OperationId operation) const;

  // A receipt of the client, copied and decoded.
  struct Receipt {
    cache::OperationKey op;
    bool success = false;
    std::string text;
    std::vector<std::uint64_t> words;  // digests (save) or failed bitmap (restore)
    model::PlanKind kind = model::PlanKind::kSave;
  };
  // Looks at the records that the client marked (all open ones with `all`), follows
  // their words and appends the receipts. An impossible word poisons the session.
  void follow(bool all, std::vector<Receipt>& receipts);

  void poison(std::string_view why);
  bool poisoned() const { return poisoned_; }
  bool take_bank_freed() { return std::exchange(bank_freed_, false); }
  std::uint32_t open_operations() const { return open_; }

  // Life of the attachment as the daemon sees it.
  enum class Life : std::uint8_t { kOpen, kClosed, kEnded };
  Life life = Life::kOpen;
  std::uint32_t slabs_offered = 0;  // the last offer that this client was told
  bool said_goodbye = false;
  bool left_over = false;   // commands may be left in its ring that are not rung again
  std::uint64_t heard = 0;  // commands, receipts and frames: signs of life beside its beat

 private:
  struct Shadow {
    OperationId operation;
    shm::RecordState state = shm::RecordState::kFree;
    model::PlanKind kind = model::PlanKind::kSave;
    std::uint32_t entries = 0;
    PlanBank::Range plan, result;
    cache::Ports::Dropped dropped;
  };
  Shadow& shadow_of(const cache::OperationKey& op);
  static shm::GrantFields grant_of(const Shadow& shadow);
  void move(RecordIndex record, Shadow& shadow, shm::RecordState to);
  void end(RecordIndex record, Shadow& shadow, shm::RecordState to);
  void follow_record(RecordIndex record, std::vector<Receipt>& receipts);
  Receipt read_receipt(RecordIndex record, const Shadow& shadow);
  void free_bank(Shadow& shadow);

  Parts parts_;
  std::array<Shadow, limits::kRecords> shadows_{};
  PlanBank bank_;
  std::vector<RecordIndex> dirty_;
  std::vector<std::byte> scratch_;
  std::uint32_t open_ = 0;
  bool poisoned_ = false;
  bool bank_freed_ = false;
};

}  // namespace orbitkv::daemon
