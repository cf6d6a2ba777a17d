#include "sim/process.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "sim/world.h"
#include "wire/frame.h"

namespace orbitkv::sim {
namespace {
constexpr Duration kBackoff = milliseconds(100);
constexpr Duration kRecheck = milliseconds(shm::kRecheckMs);
// The copy queue's own, for parts of one transfer that are granted one by one.
constexpr Duration kMergeFor = microseconds(201);
// A save or restore ends within its grant's wait and its copies; nothing takes so long.
constexpr Duration kEndsWithin = seconds(30);

std::uint64_t request_of(const wire::FrameView& frame) {
  return ByteReader(frame.body).u64();
}
client::OperationStatus failed(const Error& why) {
  return {true, false, 0, why.message()};
}
}  // namespace

Process::Process(World& world, std::string name, std::optional<Worker> worker)
    : world_(world),
      number_(world.next_process()),
      name_(std::move(name)),
      worker_(std::move(worker)),
      device_(world, *this) {
  auto copier = device_.new_copier({});
  queue_ = std::make_unique<client::CopyQueue>(std::move(*copier), operations_, nullptr);
  if (worker_) {
    auto entry = client::make_entry(worker_->registration, 1, device_);
    ORBITKV_CHECK(entry.ok(), entry.ok() ? "" : entry.error().message().c_str());
    entry_ = std::move(*entry);
  }
  connecting_ = true;
  world_.events().after(microseconds(10 + number_), [this, alive = life_] {
    if (*alive) connect();
  });
}

Process::~Process() {
  *life_ = false;
  dead_ = true;
}

// ---- attach ----

void Process::connect() {
  connecting_ = false;
  if (dead_ || link_) return;
  if (world_.now() < stopped_until_) return connect_after(stopped_until_ - world_.now());
  auto seat = world_.manager().attach(*this);
  world_.note(World::Note::kFrame, number_, seat.ok());
  if (!seat.ok()) return connect_after(kBackoff);
  view_ = seat->view;
  client::Attachment::Target target;
  target.name = name_;
  target.slabs = this;
  link_ = client::Attachment::over(target, seat->hello,
                                   shm::ClientChannel(seat->memory->alias(), std::move(seat->bell)));
  memory_of_session_ = std::move(seat->memory);
  next_frame_out_ = next_frame_in_ = world_.now();
  enroll();
}

void Process::connect_after(Duration delay) {
  if (std::exchange(connecting_, true)) return;
  world_.events().after(delay, [this, alive = life_] {
    if (*alive) connect();
  });
}

void Process::enroll() {
  if (!entry_) return link_->set_ready();
  std::vector<std::byte> frame;
  const std::uint64_t request = ++requests_;
  wire::encode(wire::Register{request, entry_->rank}, frame);
  ask(request, std::move(frame), [this](const Result<wire::Buffer>& reply) {
    if (!link_) return;
    auto made = reply.ok() ? wire::decode_register_reply(*reply) : Result<wire::RegisterReply>(reply.error());
    if (!made.ok()) {
      world_.say("process %u is not registered: %s", number_, made.error().message().c_str());
      return link_->lose();
    }
    entry_->registration.store(made->registration.value);
    link_->set_ready();
  });
}

// As the I/O thread does: claimed copies end on the old mappings first.
void Process::drop_link() {
  if (entry_) entry_->registration.store(0);
  for (Asked& asked : std::exchange(asked_, {})) asked.reply(reconnect("the Manager went away"));
  const Epoch epoch = link_->epoch();
  link_.reset();
  device_.forget_slabs();
  world_.events().after(world_.config().frame.least,
                        [&world = world_, epoch] { world.manager().on_hang_up(epoch); });
  connect_after(kBackoff);
}

void Process::remove_slab(std::span<std::byte>) {
  if (!dead_ && world_.dma().running_for(number_))
    world_.fail("slabs", "process " + std::to_string(number_) + " unmaps a slab that it copies to or from");
}

// ---- frames ----

void Process::send(std::vector<std::byte> frame) {
  auto random = world_.random(0xF0u, number_, ++polls_);
  next_frame_out_ = std::max(next_frame_out_, world_.now() + random.between(world_.config().frame.least,
                                                                            world_.config().frame.most));
  world_.events().at(next_frame_out_, [&world = world_, epoch = link_->epoch(), frame = std::move(frame)] {
    world.manager().on_frame(epoch, frame);
  });
}

void Process::ask(std::uint64_t request, std::vector<std::byte> frame, Reply reply) {
  asked_.push_back({request, world_.now() + world_.config().call_timeout, std::move(reply)});
  send(std::move(frame));
  schedule(world_.config().call_timeout);
}

void Process::receive(Epoch from, shm::Message message) {
  auto random = world_.random(0xF1u, number_, ++polls_);
  next_frame_in_ = std::max(
      next_frame_in_, world_.now() + random.between(world_.config().frame.least, world_.config().frame.most));
  auto shared = std::make_shared<shm::Message>(std::move(message));
  world_.events().at(next_frame_in_, [this, alive = life_, from, shared] {
    if (!*alive || dead_ || epoch() != from) return;
    inbox_.push_back(std::move(*shared));
    schedule(Duration{});
  });
}

void Process::take_frame(const shm::Message& message) {
  auto view = wire::open_frame(message.frame);
  if (!view.ok()) return link_->lose();
  if (view->type == wire::FrameType::kSlabOffer) {
    if (const Status mapped = link_->map_offer(message); !mapped.ok())
      world_.say("process %u cannot map a slab: %s", number_, mapped.error().message().c_str());
    return;
  }
  if (auto error = wire::decode_socket_error(message.frame); error.ok())
    return answer(error->request, Error(error->code, error->text));
  answer(request_of(*view), message.frame);
}

void Process::answer(std::uint64_t request, const Result<wire::Buffer>& reply) {
  const auto it = std::find_if(asked_.begin(), asked_.end(), [&](auto& a) { return a.request == request; });
  if (it == asked_.end()) return;
  const Reply ended = std::move(it->reply);
  asked_.erase(it);
  world_.note(World::Note::kFrame, number_, reply.ok());
  ended(reply);
}

void Process::step_frames() {
  for (const shm::Message& message : std::exchange(inbox_, {}))
    if (link_) take_frame(message);
  std::vector<std::uint64_t> late;
  for (const Asked& asked : asked_)
    if (world_.now() >= asked.deadline) late.push_back(asked.request);
  for (const std::uint64_t request : late) answer(request, reconnect("the Manager did not answer in time"));
}

void Process::unregister() {
  if (!ready() || !entry_ || !idle() || !asked_.empty()) return;
  std::vector<std::byte> frame;
  const std::uint64_t request = ++requests_;
  wire::encode(wire::Unregister{request, RegistrationId(entry_->registration.load())}, frame);
  ask(request, std::move(frame), [this](const Result<wire::Buffer>& reply) {
    if (!link_) return;
    if (!reply.ok() && reply.error().code() == Code::kReconnect) return link_->lose();
    if (reply.ok()) enroll();
  });
}

void Process::ask_status() {
  if (!ready()) return;
  std::vector<std::byte> frame;
  const std::uint64_t request = ++requests_;
  wire::encode(wire::StatusRequest{request}, frame);
  ask(request, std::move(frame), [](const Result<wire::Buffer>&) {});
}

// ---- commands ----

void Process::call(wire::Opcode opcode, client::Attachment::Encode encode, Reply reply) {
  calls_.push_back({opcode, std::move(encode), std::move(reply), {}, {}, false});
  schedule(Duration{});
}

void Process::step_calls() {
  while (!calls_.empty()) {
    Call& call = calls_.front();
    std::optional<Result<wire::Buffer>> reply;
    if (call.deadline.ns == 0) {
      auto begun = link_ ? link_->begin_call(call.opcode, call.encode)
                         : Result<client::Attachment::Call>(reconnect("no Manager is attached"));
      if (begun.ok()) {
        call.begun = *begun;
        call.deadline = world_.now() + world_.config().call_timeout;
        call.unheard = lose_replies_ > 0 && lose_replies_-- > 0;
        world_.count_operations(1);
        world_.note(World::Note::kCall, number_, static_cast<std::uint64_t>(call.opcode));
        if (garble_command_) world_.manager().garble_command(epoch(), *garble_command_);
        garble_command_.reset();
        return;
      }
      reply = begun.error();
    } else if (!call.unheard || link_->lost() || world_.now() >= call.deadline) {
      if (!call.unheard) reply = link_->poll_call(call.begun);
      if (!reply && (link_->lost() || world_.now() >= call.deadline)) {
        if (world_.plant() == Plant::kLostReply) return;
        reply = link_->give_up_call(call.begun);
      }
    }
    if (!reply) return;
    const Reply ended = std::move(call.reply);
    calls_.pop_front();
    world_.note(World::Note::kReply, number_,
                reply->ok() ? 0 : 1 + static_cast<unsigned>(reply->error().code()));
    ended(*reply);
  }
}

// ---- saves and restores ----

// A request on its way: parts are asked for one after the other, as the submitter does.
struct Process::Submission {
  Job job;
  Ended ended;
  std::unique_ptr<client::Transfer> transfer;
  std::size_t next = 0;  // part
};

void Process::run(Job job, Ended ended) {
  if (!ready()) return ended(failed(reconnect("no Manager is attached")));
  auto made = std::make_shared<Submission>();
  made->job = std::move(job);
  made->ended = std::move(ended);
  Job& j = made->job;
  const std::size_t count = j.pages.size();
  const std::size_t parts = count >= 4 && (count + polls_) % 3 == 0 ? 2 : 1;
  auto refs = link_->reserve(static_cast<std::uint32_t>(parts));
  if (!refs.ok()) return made->ended(failed(refs.error()));
  made->transfer = std::make_unique<client::Transfer>();
  client::Transfer& t = *made->transfer;
  t.kind = j.kind;
  t.entry = entry_.get();
  t.link = link_.get();
  t.deadline = world_.now() + world_.config().grant_wait;
  t.handle = operations_.open(1);
  entry_->open_transfers.fetch_add(1);
  for (std::size_t p = 0; p < parts; ++p) {
    const std::size_t begin = p * count / parts, end = (p + 1) * count / parts;
    client::Part& part = t.parts.emplace_back();
    part.entry = entry_.get();
    part.kind = j.kind;
    part.group_id = j.group;
    part.group = entry_->group(j.group);
    part.ref = (*refs)[p];
    part.blocks.assign(j.pages.begin() + begin, j.pages.begin() + end);
    if (!j.hashes.empty()) part.hashes = std::span(j.hashes).subspan(begin, end - begin);
    part.lease = j.lease;
    part.first = j.first + static_cast<std::uint32_t>(begin);
  }
  ++submitting_;
  submit(std::move(made));
}

void Process::submit(std::shared_ptr<Submission> s) {
  if (s->next == s->transfer->parts.size()) {
    --submitting_;
    running_.push_back(
        {s->transfer->handle, std::move(s->ended), world_.now() + kEndsWithin, world_.delays()});
    transfers_.push_back(std::move(s->transfer));
    return;
  }
  client::Part& part = s->transfer->parts[s->next];
  const RegistrationId registration(entry_->registration.load());
  const bool save = part.kind == model::PlanKind::kSave;
  const auto encode = [&part, registration, save](wire::Buffer& out) {
    const auto blocks = std::as_bytes(std::span(part.blocks));
    if (save)
      wire::encode(wire::PublishRequest{registration, part.group_id, part.ref.operation, part.ref.record,
                                        blocks, part.hashes},
                   out);
    else
      wire::encode(wire::RestoreRequest{registration, part.ref.operation, part.ref.record, part.lease,
                                        part.first, blocks},
                   out);
  };
  call(save ? wire::Opcode::kPublish : wire::Opcode::kRestore, encode,
       [this, s](const Result<wire::Buffer>& reply) { on_submitted(s, reply); });
}

// The rules of client/submit.cc for a request that was refused or never answered.
void Process::on_submitted(const std::shared_ptr<Submission>& s, const Result<wire::Buffer>& reply) {
  client::Transfer& t = *s->transfer;
  client::Part& part = t.parts[s->next];
  const bool first = s->next++ == 0;
  if (reply.ok()) return submit(s);
  const bool withdrawn = link_->withdraw(part.ref);
  if (!withdrawn && reply.error().code() == Code::kReconnect) return submit(s);
  if (!withdrawn) link_->retire(part.ref);
  part.state = client::PartState::kEnded;
  part.outcome = {false, 0, reply.error().message()};
  if (!first) return submit(s);
  for (const client::Part& other : t.parts)
    if (other.state == client::PartState::kAsked) link_->withdraw(other.ref);
  operations_.forget(t.handle);
  entry_->open_transfers.fetch_sub(1);
  --submitting_;
  s->ended(failed(reply.error()));
}

void Process::step_transfers() {
  const auto advance = [this] {
    std::erase_if(transfers_, [this](const auto& t) { return queue_->advance(*t); });
  };
  if (transfers_.empty()) return;
  advance();
  if (queue_->poll().ended > 0) advance();
  std::vector<Running> ended;
  const auto first = std::stable_partition(running_.begin(), running_.end(), [&](const Running& r) {
    return !operations_.poll(r.handle).done || world_.plant() == Plant::kLostOperation;
  });
  std::move(first, running_.end(), std::back_inserter(ended));
  running_.erase(first, running_.end());
  for (const Running& r : ended) {
    const client::OperationStatus status = operations_.poll(r.handle);
    operations_.drop(r.handle);
    world_.count_operations(2);  // its claim and its receipt
    world_.note(World::Note::kOperation, number_, status.success ? status.blocks : ~std::uint64_t{0});
    r.ended(status);
  }
}

void Process::copy_ended() {
  schedule(microseconds(1));
}

// ---- steps ----

void Process::schedule(Duration delay) {
  if (dead_) return;
  const TimePoint time = world_.now() + delay;
  if (next_poll_.ns != 0 && next_poll_ <= time) return;
  next_poll_ = time;
  const std::uint64_t number = ++poll_number_;
  world_.events().at(time, [this, alive = life_, number] {
    if (*alive && number == poll_number_ && next_poll_.ns != 0) poll();
  });
}

void Process::poll() {
  next_poll_ = {};
  if (dead_) return;
  if (world_.now() < stopped_until_) return schedule(stopped_until_ - world_.now());
  world_.set_current(this);
  step_frames();
  step_calls();
  step_transfers();
  step_calls();  // what ended may have asked for more
  world_.set_current(nullptr);
  if (!saved_.empty()) return die();
  if (link_) world_.manager().hear(link_->epoch());
  const bool calling = !calls_.empty() && calls_.front().deadline.ns != 0;
  if (link_ && link_->lost() && transfers_.empty() && submitting_ == 0 && !calling) drop_link();
  if (!calls_.empty() || !transfers_.empty() || !asked_.empty()) schedule(kRecheck);
  const bool merging = std::any_of(transfers_.begin(), transfers_.end(), [](const auto& t) {
    return !t->ticket && t->any(client::PartState::kGranted);
  });
  if (merging) schedule(kMergeFor);
}

void Process::on_ring() {
  auto random = world_.random(0xBE12u, number_, ++polls_);
  Duration delay = random.between(world_.config().wake.least, world_.config().wake.most);
  if (lose_wakes_ > 0) {
    --lose_wakes_;
    return;
  }
  if (delay_wakes_ > 0) {
    --delay_wakes_;
    delay = milliseconds(5);
  }
  schedule(delay);
}

void Process::on_hang_up(Epoch from) {
  world_.events().after(world_.config().frame.most, [this, alive = life_, from] {
    if (!*alive || dead_ || epoch() != from) return;
    link_->lose();
    schedule(Duration{});
  });
}

std::optional<std::string> Process::overdue() const {
  if (dead_ || world_.now() < stopped_until_) return std::nullopt;
  for (const Running& r : running_)
    if (world_.now() > r.due + (world_.delays() - r.delays))
      return name_ + ": operation " + std::to_string(r.handle.value) + " does not end";
  if (!calls_.empty() && calls_.front().deadline.ns != 0 &&
      world_.now() > calls_.front().deadline + kEndsWithin)
    return name_ + ": a call does not end";
  return std::nullopt;
}

// ---- ends ----

void Process::stop(Duration time) {
  stopped_until_ = world_.now() + time;
  world_.delay(time);
}

void Process::die_at(FaultPoint point, std::uint32_t passes) {
  point_fault_ = PointFault{point, passes};
}

// What it does to the session's memory after this point has not happened.
bool Process::on_fault_point(FaultPoint point) {
  if (!point_fault_ || point_fault_->point != point || dead_ || !saved_.empty()) return false;
  if (point_fault_->passes-- > 0) return false;
  world_.cover_fault(ActionKind::kKillAtPoint);
  world_.say("process %u dies at fault point %u", number_, static_cast<unsigned>(point));
  saved_ = world_.manager().state_of_session(epoch());
  if (saved_.empty()) saved_.resize(1);
  return false;
}

void Process::leave() {
  if (!link_) return die();
  std::vector<std::byte> frame;
  wire::encode(wire::Bye{}, frame);
  send(std::move(frame));
  die();
}

void Process::die() {
  if (std::exchange(dead_, true)) return;
  const Epoch epoch = this->epoch();
  world_.note(World::Note::kManager, number_, 2);
  world_.say("process %u (%s) ends", number_, name_.c_str());
  auto random = world_.random(0xDEADu, number_);
  const auto soon = [&] { return random.between(microseconds(5), milliseconds(3)); };
  World* world = &world_;
  world_.manager().forget_client(number_);
  // Of sessions that were closed before too: their claims may be open.
  world_.events().after(soon(), [world, number = number_] { world->manager().on_process_ended(number); });
  if (link_) {
    world_.manager().restore_session(epoch, saved_);
    world_.events().after(soon(), [world, epoch] { world->manager().on_hang_up(epoch); });
  }
  calls_.clear();
  asked_.clear();
  inbox_.clear();
  running_.clear();
  transfers_.clear();
  queue_.reset();
  link_.reset();
}

}  // namespace orbitkv::sim
