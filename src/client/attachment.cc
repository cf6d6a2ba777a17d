#include "client/attachment.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/fault.h"
#include "base/limits.h"
#include "base/log.h"

namespace orbitkv::client {
namespace {
using shm::RecordState;
constexpr std::uint32_t kAllSlots = (1u << limits::kDescriptorSlots) - 1;
constexpr std::size_t kRetiredBeforeSweep = 64;

int ms_until(TimePoint deadline) {
  const std::int64_t ns = (deadline - monotonic_now()).ns;
  return ns <= 0 ? 0 : static_cast<int>((ns + 999'999) / 1'000'000);
}

struct Told {
  std::vector<LeaseId> leases;
  bool again = false;  // they were in a reply before: somebody may have them
};

Told leases_in(const wire::Reply& reply, const wire::Buffer& frame) {
  Told told;
  if (reply.code != Code::kOk) return told;
  if (reply.opcode == wire::Opcode::kQuery) {
    const auto answer = wire::decode_query_reply(frame);
    if (!answer.ok() || !answer->lease) return told;
    return {{answer->lease}, answer->again};
  }
  if (reply.opcode != wire::Opcode::kPoll && reply.opcode != wire::Opcode::kReadRecovery) return told;
  const auto answer = wire::decode_ticket_reply(frame);
  if (!answer.ok()) return told;
  told.again = answer->again;
  for (const wire::TicketLease& lease : answer->leases) told.leases.push_back(lease.lease);
  return told;
}
}  // namespace

Result<std::unique_ptr<Attachment>> Attachment::open(const Target& target) {
  const int timeout = static_cast<int>(target.timeout_ms);
  ORBITKV_ASSIGN_OR_RETURN(auto socket, shm::connect_to(target.path, timeout));
  ORBITKV_ASSIGN_OR_RETURN(auto peer, shm::authenticate_peer(socket));
  std::unique_ptr<Attachment> made(new Attachment(target, std::move(socket), std::move(peer)));
  ORBITKV_RETURN_IF_ERROR(made->greet());
  return made;
}

std::unique_ptr<Attachment> Attachment::over(const Target& target, const wire::HelloReply& hello,
                                             shm::ClientChannel channel) {
  std::unique_ptr<Attachment> made(new Attachment(target, shm::Socket(UniqueFd()), shm::Peer{}));
  made->hello_ = hello;
  made->start(std::move(channel));
  return made;
}

// A forked child may hold a copy of the socket: closing ours would tell the Manager nothing.
Attachment::~Attachment() {
  hang_up();
}

void Attachment::hang_up() {
  ::shutdown(socket_.fd(), SHUT_RDWR);
}

void Attachment::say_goodbye() {
  slabs_->unmap_all();
  wire::Buffer bye;
  wire::encode(wire::Bye{}, bye);
  (void)socket_.send(bye).ok();  // the closing socket says most of it
}

Status Attachment::greet() {
  const int timeout = static_cast<int>(target_.timeout_ms);
  wire::Buffer frame;
  wire::encode(wire::Hello{wire::kAbiVersion, wire::PeerRole::kEngine, target_.name}, frame);
  ORBITKV_ASSIGN_OR_RETURN(auto message, socket_.ask_within(frame, timeout));
  if (auto refused = wire::decode_socket_error(message.frame); refused.ok())
    return Error(refused->code, refused->text);
  ORBITKV_ASSIGN_OR_RETURN(hello_, wire::decode_hello_reply(message.frame));
  if (message.fds.size() != 2) return reject("the Manager's hello lacks the session's descriptors");
  ORBITKV_ASSIGN_OR_RETURN(
      auto memory, shm::SessionMemory::attach(std::move(message.fds[0]), hello_.session, hello_.epoch));
  start(shm::ClientChannel(std::move(memory), std::move(message.fds[1])));
  return ok_status();
}

void Attachment::start(shm::ClientChannel channel) {
  channel_ = std::make_unique<shm::ClientChannel>(std::move(channel));
  free_slots_ = kAllSlots;
  for (std::uint32_t i = limits::kRecords; i > 0; --i)
    free_records_.push_back({RecordIndex(i - 1), OperationId()});
}

void Attachment::lose() {
  lost_.store(true);  // in one order with what executors count
  channel_->wake_waiters();
}

// ---- commands ----

// The time that others take counts, or a silent Manager would hold a queue of threads for
// one deadline each.
Result<wire::Buffer> Attachment::call(wire::Opcode opcode, const Encode& encode, std::uint32_t timeout_ms) {
  const TimePoint deadline = monotonic_now() + milliseconds(timeout_ms);
  std::unique_lock lock(call_mutex_);
  if (!call_ended_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return !calling_; }))
    return reconnect("the Manager did not answer the calls before this one in time");
  calling_ = true;
  lock.unlock();
  auto result = call_in_turn(opcode, encode, deadline);
  lock.lock();
  calling_ = false;
  call_ended_.notify_one();
  return result;
}

Result<wire::Buffer> Attachment::call_in_turn(wire::Opcode opcode, const Encode& encode, TimePoint deadline) {
  ORBITKV_ASSIGN_OR_RETURN(const Call call, begin_call(opcode, encode));
  for (;;) {
    const std::uint64_t seen = channel_->bell();
    if (auto reply = poll_call(call)) return std::move(*reply);
    const int left = ms_until(deadline);
    if (lost() || left == 0) return give_up_call(call);
    channel_->wait(seen, target_.spins, left);
  }
}

Result<Attachment::Call> Attachment::begin_call(wire::Opcode opcode, const Encode& encode) {
  if (lost()) return reconnect("the Manager is gone");
  Call call{{opcode, next_request_++, hello_.epoch, 0, 0}, static_cast<bool>(encode)};
  request_.clear();
  if (encode) {
    encode(request_);
    ORBITKV_CHECK(request_.size() <= limits::kDescriptorSlotBytes, "a request outgrew its slot");
    if (free_slots_ == 0) take_replies(0);
    if (free_slots_ == 0)
      return busy("every descriptor slot belongs to a call that timed out; the Manager hangs");
  }
  if (!send(call.command)) return busy("the command ring is full of calls that timed out; the Manager hangs");
  fault_hit(FaultPoint::kClientSubmitted);
  return call;
}

std::optional<Result<wire::Buffer>> Attachment::poll_call(const Call& call) {
  auto taken = take_replies(call.command.request);
  if (!taken) return std::nullopt;
  auto result = read_reply(std::move(*taken));
  if (call.framed) free_slots_ |= 1u << call.command.slot;
  if (!unwanted_.empty()) release_unwanted();
  return result;
}

// The Manager may still write to the slot.
Error Attachment::give_up_call(const Call& call) {
  if (call.framed) late_.emplace(call.command.request, call.command.slot);
  return reconnect(lost() ? "the Manager went away during the call" : "the Manager did not answer in time");
}

bool Attachment::send(wire::Command& command) {
  if (!request_.empty()) {
    command.slot = static_cast<std::uint32_t>(__builtin_ctz(free_slots_));
    command.length = static_cast<std::uint32_t>(request_.size());
    std::memcpy(channel_->slot(command.slot), request_.data(), request_.size());
  }
  if (!channel_->push_command(wire::encode(command))) return false;
  if (!request_.empty()) free_slots_ &= ~(1u << command.slot);
  channel_->ring_manager();
  return true;
}

// ---- leases that nobody waits for any more ----

// Nobody waits for the answers: they are late from the start.
void Attachment::release_unwanted() {
  while (!unwanted_.empty() && free_slots_ != 0) {
    wire::Command command{wire::Opcode::kRelease, next_request_++, hello_.epoch, 0, 0};
    request_.clear();
    wire::encode(wire::ReleaseRequest{LeaseId{*unwanted_.begin()}}, request_);
    if (!send(command)) return;
    late_.emplace(command.request, command.slot);
    unwanted_.erase(unwanted_.begin());
  }
}

// A lease that only late replies told is nobody's, and goes back. One that was told before may
// be in use, whichever reply is late now.
std::optional<Attachment::Taken> Attachment::take_replies(std::uint64_t request) {
  while (auto bytes = channel_->pop_reply()) {
    auto reply = wire::decode_reply(*bytes);
    if (!reply.ok() || reply->epoch != hello_.epoch) {
      ORBITKV_WARN("a reply of the Manager is damaged; the session is given up");
      lose();
      return std::nullopt;
    }
    if (reply->request == request) {
      Taken taken{*reply, copy_frame(*reply)};
      // Asked again, the same list has the same lease.
      if (!unwanted_.empty())
        for (const LeaseId& lease : leases_in(taken.reply, taken.frame).leases) unwanted_.erase(lease.bytes);
      return taken;
    }
    if (auto late = late_.find(reply->request); late != late_.end()) {
      const Told told = leases_in(*reply, copy_frame(*reply));
      for (const LeaseId& lease : told.leases)
        if (!told.again) unwanted_.insert(lease.bytes);
      free_slots_ |= 1u << late->second;
      late_.erase(late);
    }
  }
  return std::nullopt;
}

wire::Buffer Attachment::copy_frame(const wire::Reply& reply) {
  wire::Buffer frame(reply.length);
  if (reply.length > 0) std::memcpy(frame.data(), channel_->slot(reply.slot), reply.length);
  return frame;
}

Result<wire::Buffer> Attachment::read_reply(Taken taken) {
  if (taken.reply.code == Code::kOk) return std::move(taken.frame);
  auto error = wire::decode_error_reply(taken.frame);
  return Error(taken.reply.code,
               error.ok() ? std::string(error->text) : "the Manager refused without a text");
}

// ---- records ----

void Attachment::collect_retired() {
  std::erase_if(retired_, [this](const RecordRef& ref) {
    const auto word = shm::unpack(channel_->load_word(ref.record));
    if (!word || word->operation != ref.operation) return false;
    const bool over = word->state == RecordState::kReaped || word->state == RecordState::kFailed ||
                      word->state == RecordState::kRevoked;
    if (!over || channel_->exchange(ref.record, *word, {ref.operation, RecordState::kAcknowledged}))
      return false;
    free_records_.push_back(ref);
    return true;
  });
}

Result<std::vector<RecordRef>> Attachment::reserve(std::uint32_t n) {
  std::lock_guard lock(record_mutex_);
  if (lost()) return reconnect("the Manager is gone");
  if (free_records_.size() < n || retired_.size() > kRetiredBeforeSweep) collect_retired();
  if (free_records_.size() < n)
    return busy("all 1024 operations of this session are open; wait for some to end");
  std::vector<RecordRef> refs;
  refs.reserve(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    const RecordRef last = free_records_.back();
    const RecordRef ref{last.record, OperationId(next_operation_++)};
    const auto state = last.operation.value ? RecordState::kAcknowledged : RecordState::kFree;
    if (channel_->exchange(ref.record, {last.operation, state}, {ref.operation, RecordState::kReserved}))
      return bug("a free grant record changed by itself");
    free_records_.pop_back();
    refs.push_back(ref);
  }
  return refs;
}

bool Attachment::withdraw(RecordRef ref) {
  std::lock_guard lock(record_mutex_);
  const shm::RecordWord reserved{ref.operation, RecordState::kReserved};
  if (channel_->exchange(ref.record, reserved, {ref.operation, RecordState::kAcknowledged})) return false;
  free_records_.push_back(ref);
  return true;
}

void Attachment::retire(RecordRef ref) {
  std::lock_guard lock(record_mutex_);
  retired_.push_back(ref);
}

// ---- slabs ----

bool Attachment::on_slabs(const wire::FrameView& view, const shm::Message& message) {
  if (view.type == wire::FrameType::kSlabOffer) {
    Status mapped = map_offer(message);
    if (!mapped.ok()) ORBITKV_WARN("a slab could not be mapped: %s", mapped.error().message().c_str());
    return true;
  }
  if (view.type != wire::FrameType::kSlabRetire) return false;
  auto retire = wire::decode_slab_retire(message.frame);
  if (retire.ok()) slabs_->retire(retire->slab);
  return true;
}

void Attachment::send_released(const Send& send) {
  if (!owes_slabs()) return;
  for (const SlabId slab : slabs_->collect_released()) released_.push_back(slab);
  while (!released_.empty()) {
    wire::Buffer frame;
    wire::encode(wire::SlabReleased{released_.back()}, frame);
    if (!send(frame)) return;
    released_.pop_back();
  }
}

std::unique_ptr<SlabTable> Attachment::leave_slabs() {
  if (!slabs_->suspend()) return nullptr;
  return std::exchange(slabs_, std::make_unique<SlabTable>(target_.slabs, target_.closing));
}

Status Attachment::map_offer(const shm::Message& message) {
  ORBITKV_ASSIGN_OR_RETURN(auto offer, wire::decode_slab_offer(message.frame));
  if (offer.slabs.size() != message.fds.size()) return reject("a slab offer without its descriptors");
  for (std::size_t i = 0; i < offer.slabs.size(); ++i) {
    const wire::SlabOffer::Slab& slab = offer.slabs[i];
    if (slabs_->has(slab.id)) continue;
    struct stat status{};
    if (::fstat(message.fds[i].get(), &status) != 0) return errno_error("cannot look at a slab");
    const SlabOrigin origin{offer.pool, status.st_dev, status.st_ino, slab.kept};
    if (slabs_->resume(slab.id, slab.bytes, origin)) continue;
    ORBITKV_ASSIGN_OR_RETURN(auto mapped, mem::MappedSlab::map(message.fds[i], slab.id, slab.bytes));
    channel_->beat();  // an offer of many slabs takes long
    slabs_->add(std::move(mapped), origin);
  }
  channel_->wake_waiters();
  return ok_status();
}

}  // namespace orbitkv::client
