// A process and the Manager: attaching, frames, slabs.
#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "sim/process.h"
#include "sim/world.h"
#include "wire/frame.h"

namespace orbitkv::sim {
namespace {
// As in the production client.
constexpr Duration kBackoff = milliseconds(100), kSuccessor = milliseconds(10);
constexpr Duration kOffersWithin = seconds(5), kMappedWithout = seconds(30);
constexpr Duration kBeat = milliseconds(500);

std::uint64_t request_of(const wire::FrameView& frame) {
  return ByteReader(frame.body).u64();
}
}  // namespace

// ---- attach ----

void Process::connect() {
  connecting_ = false;
  if (dead_ || link_) return;
  if (world_.now() < stopped_until_) return connect_after(stopped_until_ - world_.now());
  auto seat = world_.manager().attach(*this);
  world_.note(World::Note::kFrame, number_, seat.ok());
  if (!seat.ok()) {
    if (slabs_ && world_.now() - lost_at_ > kMappedWithout) slabs_.reset();
    return connect_after(slabs_ ? kSuccessor : kBackoff);
  }
  view_ = seat->view;
  client::Attachment::Target target;
  target.name = name_;
  target.slabs = this;
  target.closing = client::SlabTable::Closing::kStepped;
  link_ = client::Attachment::over(target, seat->hello,
                                   shm::ClientChannel(seat->memory->alias(), std::move(seat->bell)));
  if (slabs_) {
    link_->use_slabs(std::move(slabs_));
    drop_waiting_slabs(link_->epoch());
  }
  memory_of_session_ = std::move(seat->memory);
  next_frame_out_ = next_frame_in_ = world_.now();
  if (world_.config().stalls.after.ns > 0) beat(link_->epoch());
  enroll();
}

// As its I/O thread does, also where nothing else happens.
void Process::beat(Epoch session) {
  if (dead_ || epoch() != session) return;
  if (world_.now() >= stopped_until_) link_->channel().beat();
  world_.events().after(kBeat, [this, alive = life_, session] {
    if (*alive) beat(session);
  });
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
  slabs_ = link_->leave_slabs();
  lost_at_ = world_.now();
  link_.reset();
  close_slabs();
  if (!slabs_ && !device_.slabs().empty())
    world_.fail("slabs", "process " + std::to_string(number_) + " keeps a mapping of a session that is over");
  world_.events().after(world_.config().frame.least,
                        [&world = world_, epoch] { world.manager().on_hang_up(epoch); });
  connect_after(slabs_ ? kSuccessor : kBackoff);
}

// ---- slabs ----

void Process::remove_slab(std::span<std::byte> slab) {
  const SimDevice::Mapping* at = device_.find(slab.data());
  if (at && !dead_ && world_.dma().running_on(number_, at->bytes.data()))
    world_.fail("slabs", "process " + std::to_string(number_) + " unmaps slab " +
                             std::to_string(at->name.value) + " under a copy");
  device_.remove_slab(slab);
}

// One by one, so that each mapping that is made has a name.
void Process::take_offer(shm::Message message) {
  const auto view = wire::open_frame(message.frame);
  const auto offer = wire::decode_slab_offer(message.frame);
  if (!offer.ok() || offer->slabs.size() != message.fds.size()) {
    link_->on_slabs(*view, message);
    return;
  }
  for (std::size_t i = 0; i < offer->slabs.size(); ++i) {
    shm::Message one;
    wire::encode(wire::SlabOffer{offer->pool, {offer->slabs[i]}}, one.frame);
    one.fds.push_back(std::move(message.fds[i]));
    device_.expect(offer->slabs[i].id);
    link_->on_slabs(*wire::open_frame(one.frame), one);
    device_.expect(std::nullopt);
  }
}

// What the next Manager has not offered by then is not its.
void Process::drop_waiting_slabs(Epoch session) {
  world_.events().after(kOffersWithin, [this, alive = life_, session] {
    if (!*alive || dead_ || epoch() != session) return;
    link_->slabs().drop_waiting();
    schedule(Duration{});
  });
}

void Process::let_go_hastily(const shm::Message& message) {
  const auto retire = wire::decode_slab_retire(message.frame);
  if (!retire.ok()) return;
  for (const SimDevice::Mapping& each : device_.slabs())
    if (each.name == retire->slab) return remove_slab(each.bytes);
}

// The closer's part of the production client, which is a thread there, and takes its time.
void Process::close_slabs() {
  client::SlabTable* const slabs = link_ ? &link_->slabs() : slabs_.get();
  if (slabs == nullptr) return;
  if (world_.now() < unmap_due_) return schedule(unmap_due_ - world_.now());
  while (slabs->close_one()) {
  }
}

void Process::step_slabs() {
  if (!link_ || !link_->owes_slabs()) return;
  const auto say = [this](const wire::Buffer& frame) {
    send(frame);
    return true;
  };
  link_->send_released(say);
  close_slabs();
  link_->send_released(say);
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

void Process::take_frame(shm::Message message) {
  auto view = wire::open_frame(message.frame);
  if (!view.ok()) return link_->lose();
  if (view->type == wire::FrameType::kSlabOffer) return take_offer(std::move(message));
  if (view->type == wire::FrameType::kSlabRetire) {
    unmap_due_ = world_.now() + std::exchange(unmap_delay_, {});
    if (world_.plant() == Plant::kHastyUnmap) let_go_hastily(message);
  }
  if (link_->on_slabs(*view, message)) return;
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
  for (shm::Message& message : std::exchange(inbox_, {}))
    if (link_) take_frame(std::move(message));
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

}  // namespace orbitkv::sim
