#include "sim/process.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "sim/session_memories.h"
#include "sim/world.h"

namespace orbitkv::sim {
namespace {
constexpr Duration kRecheck = milliseconds(shm::kRecheckMs);
// As in the production client.
constexpr Duration kRetirePoll = milliseconds(20);
// The copy queue's own, for parts of one transfer that are granted one by one.
constexpr Duration kMergeFor = microseconds(201);
constexpr Duration kMoment = milliseconds(600);  // that one which is stopped again goes on for: it beats
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
  step_slabs();
  close_slabs();
  step_calls();  // what ended may have asked for more
  world_.set_current(nullptr);
  if (!saved_.empty()) return die();
  if (link_) world_.manager().hear(link_->epoch());
  const bool calling = !calls_.empty() && calls_.front().deadline.ns != 0;
  if (link_ && link_->lost() && transfers_.empty() && submitting_ == 0 && !calling) drop_link();
  if (!calls_.empty() || !transfers_.empty() || !asked_.empty()) schedule(kRecheck);
  if (link_ && link_->owes_slabs()) schedule(kRetirePoll);
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
  if (double_wakes_ > 0) {
    --double_wakes_;
    world_.events().at(world_.now() + delay + microseconds(30), [this, alive = life_] {
      if (*alive) schedule(Duration{});
    });
  }
  schedule(delay);
}

// At times it looks late, and goes on meanwhile.
void Process::on_hang_up(Epoch from, HangUp seen) {
  auto random = world_.random(0xA46u, number_, from.value);
  const Duration late = milliseconds(random.percent(30) ? 200 : 20);
  const bool looks_late = seen == HangUp::kLate || random.percent(25);
  const Duration soon = world_.config().frame.most;
  const Duration most = looks_late ? std::max(soon, late) : soon;
  world_.events().after(random.between(soon, most), [this, alive = life_, from] {
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
      world_.now() > calls_.front().deadline + kEndsWithin + (world_.delays() - calls_.front().delays))
    return name_ + ": a call does not end";
  return std::nullopt;
}

// ---- ends ----

void Process::stop(Duration time, std::uint32_t again) {
  stopped_until_ = std::max(stopped_until_, world_.now() + time);
  world_.delay(time);
  if (again == 0) return;
  auto random = world_.random(0x5709u, number_, stopped_until_.ns);
  world_.events().at(stopped_until_ + random.between(milliseconds(1), kMoment),
                     [this, alive = life_, time, again] {
                       if (*alive && !dead_) stop(time, again - 1);
                     });
}

void Process::resume() {
  stopped_until_ = std::min(stopped_until_, world_.now());
  schedule(Duration{});
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
  const auto state = state_of(*memory_of_session_);
  saved_.assign(state.begin(), state.end());
  return false;
}

// SIGKILL reaches who is stopped, too; who is in the kernel ends when it comes out of it.
void Process::condemn() {
  world_.say("process %u is condemned", number_);
  auto random = world_.random(0xC04Du, number_);
  const Duration most = random.percent(40) ? microseconds(50) : seconds(random.percent(30) ? 2 : 8);
  world_.events().after(random.between(microseconds(50), most), [this, alive = life_] {
    if (*alive) die();
  });
}

// A client drains its copies before it says goodbye; one that has no time for them says nothing.
void Process::leave() {
  if (!link_ || !transfers_.empty()) return die();
  link_->slabs().unmap_all();
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
  if (!saved_.empty()) {
    const auto state = state_of(*memory_of_session_);
    std::memset(state.data(), 0, state.size());  // of a record that it took since, too
    std::memcpy(state.data(), saved_.data(), saved_.size());
  }
  world_.manager().shelf().end_process(number_);
  // Of sessions that were closed before too: their claims may be open.
  world_.events().after(soon(), [world, number = number_] { world->manager().on_process_ended(number); });
  if (link_) world_.events().after(soon(), [world, epoch] { world->manager().on_hang_up(epoch); });
  calls_.clear();
  asked_.clear();
  inbox_.clear();
  running_.clear();
  transfers_.clear();
  queue_.reset();
  link_.reset();
  slabs_.reset();
}

}  // namespace orbitkv::sim
