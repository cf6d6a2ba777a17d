#include "shm/channel.h"

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <ctime>

#include "base/check.h"
#include "rt/spin.h"
#include "shm/shared_copy.h"

namespace orbitkv::shm {
namespace {

// The sleep protocol. The waker: bell (store), then flag (load). The sleeper: flag
// (store), then bell (load). All four are sequentially consistent, so at least one side
// sees the other: the sleeper sees the bell, or the waker sees the sleeper.
constexpr auto kSleepOrder = std::memory_order_seq_cst;

constexpr std::uint64_t kDirtyWords = limits::kRecords / 64;

std::byte* entry_of(const SessionMemory& memory, Side producer, std::uint64_t index) {
  return memory.ring(producer) + index % limits::kRingEntries * wire::kCommandBytes;
}

// Entries between two indices of a ring; more than kRingEntries is impossible, and
// an index that moved back looks like that too.
bool possible(std::uint64_t head, std::uint64_t tail) {
  return tail - head <= limits::kRingEntries;
}

// Client threads sleep on the low half of the bell. Not FUTEX_PRIVATE: the waker is
// another process.
static_assert(std::endian::native == std::endian::little);
std::uint32_t* futex_of(std::atomic<std::uint64_t>& bell) {
  return reinterpret_cast<std::uint32_t*>(&bell);
}

// More sleepers than this find out at their recheck: the Manager's wake stays short,
// however many threads a client parks here.
constexpr int kWakeAtMost = 64;

void futex_wake(std::atomic<std::uint64_t>& bell) {
  ::syscall(SYS_futex, futex_of(bell), FUTEX_WAKE, kWakeAtMost, nullptr, nullptr, 0);
}

void futex_wait(std::atomic<std::uint64_t>& bell, std::uint64_t seen, int timeout_ms) {
  const timespec timeout{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
  ::syscall(SYS_futex, futex_of(bell), FUTEX_WAIT, static_cast<std::uint32_t>(seen), &timeout, nullptr, 0);
}

// Text of the other side, for logs and exceptions: bounded, no control characters.
std::string printable(const char* text, std::size_t length, std::size_t room) {
  std::string out(text, std::min(length, room));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return out;
}

template <class Line>
void put_text(Line& line, std::string_view text) {
  const std::size_t n = std::min(text.size(), sizeof line.text);
  if (n > 0) std::memcpy(line.text, text.data(), n);
  line.text_bytes = static_cast<std::uint16_t>(n);
}

ManagerLines lines_of(const GrantFields& fields) {
  ManagerLines lines;
  lines.plan_offset = fields.plan_offset;
  lines.plan_bytes = fields.plan_bytes;
  lines.result_offset = fields.result_offset;
  lines.result_bytes = fields.result_bytes;
  lines.dropped = fields.dropped;
  lines.being_made = fields.being_made ? 1 : 0;
  return lines;
}

void check_bank(std::uint64_t offset, std::uint64_t length) {
  ORBITKV_CHECK(offset + length <= limits::kPlanBankBytes, "range out of the plan bank");
}

void read_bank(const SessionMemory& memory, std::uint32_t offset, std::uint32_t length,
               std::vector<std::byte>& out) {
  check_bank(offset, length);
  out.resize(length);
  copy_shared(out.data(), memory.plan_bank() + offset, length);
}

void fill_bank(const SessionMemory& memory, std::uint32_t offset, std::span<const std::byte> bytes) {
  check_bank(offset, bytes.size());
  copy_shared(memory.plan_bank() + offset, bytes.data(), bytes.size());
}

PassedEdges g_passed_edges{};

std::optional<std::uint64_t> swap_word(RecordLayout& record, RecordWord expected, RecordWord desired,
                                       Side side) {
  ORBITKV_CHECK(may_move(expected, desired, side), "a record edge that this side does not own");
  std::uint64_t found = pack(expected);
  if (record.word.compare_exchange_strong(found, pack(desired), std::memory_order_acq_rel,
                                          std::memory_order_acquire)) {
    g_passed_edges[static_cast<std::size_t>(expected.state)][static_cast<std::size_t>(desired.state)].store(
        true, std::memory_order_relaxed);
    return std::nullopt;
  }
  return found;
}

}  // namespace

PassedEdges& passed_edges() {
  return g_passed_edges;
}

Result<UniqueFd> make_bell() {
  UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell.valid()) return errno_error("cannot make an eventfd (raise the limit of open files, ulimit -n)");
  return bell;
}

// ---- Manager ----

ManagerChannel::ManagerChannel(SessionMemory memory, UniqueFd bell)
    : memory_(std::move(memory)), wake_(std::move(bell)) {}

bool ManagerChannel::rung() {
  const std::uint64_t bell = memory_.header().client_bell.load(std::memory_order_acquire);
  if (bell == seen_bell_ && !unrung_) return false;
  seen_bell_ = bell;
  unrung_ = false;
  return true;
}

std::optional<wire::CommandBytes> ManagerChannel::pop_command() {
  const std::uint64_t tail = memory_.header().command_tail.load(std::memory_order_acquire);
  if (poisoned_ || tail == command_head_) return std::nullopt;
  if (!possible(command_head_, tail)) {
    poisoned_ = true;
    return std::nullopt;
  }
  const auto command = load_shared<wire::CommandBytes>(entry_of(memory_, Side::kClient, command_head_));
  memory_.header().command_head.store(++command_head_, std::memory_order_release);
  return command;
}

void ManagerChannel::copy_slot(std::uint32_t slot, std::uint32_t length, std::vector<std::byte>& out) const {
  ORBITKV_CHECK(length <= limits::kDescriptorSlotBytes, "length out of the slot");
  out.resize(length);
  copy_shared(out.data(), memory_.slot(slot), length);
}

void ManagerChannel::write_slot(std::uint32_t slot, std::span<const std::byte> frame) {
  ORBITKV_CHECK(frame.size() <= limits::kDescriptorSlotBytes, "frame longer than the slot");
  copy_shared(memory_.slot(slot), frame.data(), frame.size());
}

bool ManagerChannel::push_reply(const wire::CommandBytes& reply) {
  if (reply_tail_ - reply_head_ == limits::kRingEntries) {
    const std::uint64_t head = memory_.header().reply_head.load(std::memory_order_acquire);
    if (!possible(head, reply_tail_)) poisoned_ = true;
    if (poisoned_ || reply_tail_ - head == limits::kRingEntries) return false;
    reply_head_ = head;
  }
  store_shared(entry_of(memory_, Side::kManager, reply_tail_), reply);
  memory_.header().reply_tail.store(++reply_tail_, std::memory_order_release);
  return true;
}

void ManagerChannel::take_dirty(std::vector<RecordIndex>& out) {
  for (std::uint32_t w = 0; w < kDirtyWords; ++w) {
    std::atomic<std::uint64_t>& word = memory_.dirty(w);
    if (word.load(std::memory_order_relaxed) == 0) continue;
    for (std::uint64_t bits = word.exchange(0, std::memory_order_acquire); bits != 0; bits &= bits - 1) {
      out.push_back(RecordIndex(w * 64 + static_cast<std::uint32_t>(__builtin_ctzll(bits))));
    }
  }
}

std::uint64_t ManagerChannel::load_word(RecordIndex record) const {
  return memory_.record(record).word.load(std::memory_order_acquire);
}

std::optional<std::uint64_t> ManagerChannel::exchange(RecordIndex record, RecordWord expected,
                                                      RecordWord desired) {
  return swap_word(memory_.record(record), expected, desired, Side::kManager);
}

void ManagerChannel::write_grant(RecordIndex record, const GrantFields& fields) {
  store_shared(&memory_.record(record).manager, lines_of(fields));
}

void ManagerChannel::write_failure(RecordIndex record, Code code, std::string_view text,
                                   const GrantFields& grant) {
  ManagerLines lines = lines_of(grant);
  lines.code = static_cast<std::uint16_t>(code);
  put_text(lines, text);
  store_shared(&memory_.record(record).manager, lines);
}

ManagerChannel::ClientResult ManagerChannel::read_client_result(RecordIndex record) const {
  const auto line = load_shared<ClientLines>(&memory_.record(record).client);
  return {line.code, line.result_bytes, printable(line.text, line.text_bytes, sizeof line.text)};
}

void ManagerChannel::write_bank(std::uint32_t offset, std::span<const std::byte> bytes) {
  fill_bank(memory_, offset, bytes);
}

void ManagerChannel::copy_bank(std::uint32_t offset, std::uint32_t length,
                               std::vector<std::byte>& out) const {
  read_bank(memory_, offset, length, out);
}

std::uint64_t ManagerChannel::beat() const {
  return memory_.header().client_beat.load(std::memory_order_relaxed);
}

void ManagerChannel::ring_client() {
  SessionHeader& header = memory_.header();
  header.manager_bell.store(++bell_, kSleepOrder);
  if (header.client_sleepers.load(kSleepOrder) != 0) futex_wake(header.manager_bell);
}

bool ManagerChannel::prepare_sleep() {
  SessionHeader& header = memory_.header();
  header.manager_sleeping.store(1, kSleepOrder);
  if (header.client_bell.load(kSleepOrder) != seen_bell_) return false;
  // A client that stopped between a push or a dirty bit and its ring is served too.
  unrung_ = !poisoned_ && header.command_tail.load(std::memory_order_acquire) != command_head_;
  for (std::uint32_t w = 0; w < kDirtyWords && !unrung_; ++w) {
    unrung_ = memory_.dirty(w).load(std::memory_order_acquire) != 0;
  }
  return !unrung_;
}

void ManagerChannel::cancel_sleep() {
  memory_.header().manager_sleeping.store(0, std::memory_order_relaxed);
}

// ---- client ----

ClientChannel::ClientChannel(SessionMemory memory, UniqueFd bell)
    : memory_(std::move(memory)), wake_(std::move(bell)) {}

bool ClientChannel::push_command(const wire::CommandBytes& command) {
  if (command_tail_ - command_head_ == limits::kRingEntries) {
    const std::uint64_t head = memory_.header().command_head.load(std::memory_order_acquire);
    if (!possible(head, command_tail_)) poisoned_ = true;
    if (poisoned_ || command_tail_ - head == limits::kRingEntries) return false;
    command_head_ = head;
  }
  store_shared(entry_of(memory_, Side::kClient, command_tail_), command);
  memory_.header().command_tail.store(++command_tail_, std::memory_order_release);
  return true;
}

std::optional<wire::CommandBytes> ClientChannel::pop_reply() {
  const std::uint64_t tail = memory_.header().reply_tail.load(std::memory_order_acquire);
  if (poisoned_ || tail == reply_head_) return std::nullopt;
  if (!possible(reply_head_, tail)) {
    poisoned_ = true;
    return std::nullopt;
  }
  const auto reply = load_shared<wire::CommandBytes>(entry_of(memory_, Side::kManager, reply_head_));
  memory_.header().reply_head.store(++reply_head_, std::memory_order_release);
  return reply;
}

void ClientChannel::ring_manager() {
  // Several threads ring: an add, where the Manager's single thread stores.
  memory_.header().client_bell.fetch_add(1, kSleepOrder);
  if (memory_.header().manager_sleeping.load(kSleepOrder) == 0) return;
  const std::uint64_t one = 1;
  // EAGAIN: the counter is full and the Manager still has an edge to come.
  [[maybe_unused]] const auto n = ::write(wake_.get(), &one, sizeof one);
}

std::uint64_t ClientChannel::load_word(RecordIndex record) const {
  return memory_.record(record).word.load(std::memory_order_acquire);
}

std::optional<std::uint64_t> ClientChannel::exchange(RecordIndex record, RecordWord expected,
                                                     RecordWord desired) {
  return swap_word(memory_.record(record), expected, desired, Side::kClient);
}

GrantFields ClientChannel::read_grant(RecordIndex record) const {
  const auto line = load_shared<ManagerLines>(&memory_.record(record).manager);
  return {line.plan_offset,  line.plan_bytes, line.result_offset,
          line.result_bytes, line.dropped,    line.being_made != 0};
}

ClientChannel::Failure ClientChannel::read_failure(RecordIndex record) const {
  const auto line = load_shared<ManagerLines>(&memory_.record(record).manager);
  const bool known = line.code > static_cast<std::uint16_t>(Code::kOk) &&
                     line.code <= static_cast<std::uint16_t>(Code::kBug);
  return {known ? static_cast<Code>(line.code) : Code::kBug,
          printable(line.text, line.text_bytes, sizeof line.text)};
}

void ClientChannel::write_client_result(RecordIndex record, Code code, std::uint32_t result_bytes,
                                        std::string_view text) {
  ClientLines line;
  line.code = static_cast<std::uint16_t>(code);
  line.result_bytes = result_bytes;
  put_text(line, text);
  store_shared(&memory_.record(record).client, line);
}

void ClientChannel::copy_bank(std::uint32_t offset, std::uint32_t length, std::vector<std::byte>& out) const {
  read_bank(memory_, offset, length, out);
}

void ClientChannel::write_bank(std::uint32_t offset, std::span<const std::byte> bytes) {
  fill_bank(memory_, offset, bytes);
}

void ClientChannel::mark_dirty(RecordIndex record) {
  ORBITKV_CHECK(record.value < limits::kRecords, "record index out of the session's records");
  memory_.dirty(record.value / 64).fetch_or(std::uint64_t{1} << record.value % 64, std::memory_order_release);
}

std::uint64_t ClientChannel::bell() const {
  return memory_.header().manager_bell.load(std::memory_order_acquire);
}

void ClientChannel::wait(std::uint64_t seen, std::uint32_t spins, int timeout_ms) {
  for (std::uint32_t i = 0; i < spins; ++i) {
    if (bell() != seen) return;
    rt::spin_pause();
  }
  if (bell() != seen || timeout_ms <= 0) return;
  SessionHeader& header = memory_.header();
  header.client_sleepers.fetch_add(1, kSleepOrder);
  // The kernel compares the bell with `seen` before it sleeps.
  futex_wait(header.manager_bell, seen, std::min(timeout_ms, kRecheckMs));
  header.client_sleepers.fetch_sub(1, kSleepOrder);
}

void ClientChannel::beat() {
  memory_.header().client_beat.fetch_add(1, std::memory_order_relaxed);
}

void ClientChannel::wake_waiters() {
  futex_wake(memory_.header().manager_bell);
}

}  // namespace orbitkv::shm
