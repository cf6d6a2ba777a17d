// What each action does. Words are read against what is there; an action without an object
// does nothing.
#include <algorithm>
#include <iterator>

#include "sim/engine.h"
#include "sim/manager_node.h"
#include "sim/process.h"
#include "sim/world.h"

namespace orbitkv::sim {
namespace {

constexpr FaultPoint kClientPoints[] = {FaultPoint::kClientSubmitted, FaultPoint::kClientGranted,
                                        FaultPoint::kClientClaimed, FaultPoint::kClientBeforeDrained,
                                        FaultPoint::kClientAfterDrained};
// The last is passed with every write of the table.
constexpr FaultPoint kKeptPoints[] = {
    FaultPoint::kManagerBeforeGrant, FaultPoint::kManagerBeforeReap, FaultPoint::kManagerLent,
    FaultPoint::kManagerSealed,      FaultPoint::kManagerUnsealed,   FaultPoint::kManagerRetireMarked,
    FaultPoint::kManagerKeptOpen,    FaultPoint::kManagerKeptOpen,   FaultPoint::kManagerKeptOpen};

constexpr std::size_t kMostAimed = 48;
constexpr int kGoOn = 12;  // saves
constexpr Duration kAimWithin = milliseconds(500), kFavouredWithin = seconds(2);

// What meets a state by chance too seldom.
bool may_wait(ActionKind kind) {
  return info_of(kind).fault || kind == ActionKind::kPoolDrain || kind == ActionKind::kUpgrade ||
         kind == ActionKind::kDrop;
}

template <class Do>
void with_process(World& world, const Action& action, Do&& what) {
  if (Process* process = world.engine(action.words[0]).process(action.words[1])) what(*process);
}

}  // namespace

void World::act(const Action& action) {
  note(Note::kAction, action.number);
  say("%s (action %u)", info_of(action.kind).name, action.number);
  if (!may_wait(action.kind) || !aim(action)) strike(action);
}

// Half of what meets states waits for one that is met too seldom by chance; most of it for the seed's
// favourite.
bool World::aim(const Action& action) {
  const std::uint64_t word = action.words[3];
  if (word % 2 == 0 || aimed_.size() == kMostAimed) return false;
  const bool favoured = config_.favourite && (word >> 1) % 4 != 0;
  if (favoured)
    aimed_.push_back({action, *config_.favourite, now() + kFavouredWithin});
  else
    aimed_.push_back({action, state_to_meet(word >> 8), now() + kAimWithin});
  return true;
}

// All that waits for what there is now: what strikes may end it.
void World::strike_aimed() {
  while (!failed() && !manager_->doomed()) {
    const Met met = look();
    const auto it = std::find_if(aimed_.begin(), aimed_.end(), [&](const Aimed& each) {
      return met.test(each.state) || now() >= each.until;
    });
    if (it == aimed_.end()) return;
    const Action action = it->action;
    aimed_.erase(it);
    strike(action);
  }
}

void World::go_on(Duration time) {
  for (const auto& engine : engines_)
    for (Process* process : engine->processes()) process->resume();
  auto words = random(0x60A1u, manager_->life());
  for (int i = 0; i < kGoOn; ++i) {
    Action action;
    action.kind = ActionKind::kPublish;
    for (std::uint64_t& word : action.words) word = words.next();
    events_.after(words.between(Duration{}, time), [this, action] {
      if (Engine* engine = usable_engine(action.words[0])) engine->publish(action);
    });
  }
}

void World::strike(const Action& action) {
  if (!info_of(action.kind).fault) return act_engine(action);
  say("%s (action %u) strikes", info_of(action.kind).name, action.number);
  const bool at_point = action.kind == ActionKind::kKillAtPoint || action.kind == ActionKind::kKillManagerAt;
  if (!at_point) cover_fault(action.kind);  // those are met where they strike
  act_fault(action);
}

void World::act_engine(const Action& action) {
  if (Engine* engine = usable_engine(action.words[0]); engine && action.kind < ActionKind::kEvict)
    return act_engine(*engine, action);
  switch (action.kind) {
    case ActionKind::kEvict: return manager_->evict(ByteCount(action.words[1] % (2 * config_.pool.value)));
    case ActionKind::kDropSpace: return manager_->drop_space(static_cast<std::uint32_t>(action.words[1] % 8));
    case ActionKind::kDrop: return manager_->drop(action.words[1]);
    case ActionKind::kPoolAdd: return manager_->add_slab();
    case ActionKind::kPoolDrain: return manager_->drain_slab(action.words[1]);
    case ActionKind::kUpgrade: return manager_->upgrade();
    default: return;
  }
}

void World::act_engine(Engine& engine, const Action& action) {
  switch (action.kind) {
    case ActionKind::kPublish: return engine.publish(action);
    case ActionKind::kDiscover: return engine.discover(action);
    case ActionKind::kRead: return engine.read(action);
    case ActionKind::kRecover: return engine.recover(action);
    case ActionKind::kPrepare: return engine.prepare(action);
    case ActionKind::kWarm: return engine.warm(action);
    case ActionKind::kClaim: return engine.claim(action);
    case ActionKind::kRestore: return engine.restore(action);
    case ActionKind::kRelease: return engine.release(action);
    case ActionKind::kCancel: return engine.cancel(action);
    case ActionKind::kPollOld: return engine.poll_old(action);
    case ActionKind::kUnregister: return engine.unregister(action);
    case ActionKind::kStatus: return engine.ask_status(action);
    case ActionKind::kLeave: return engine.leave();
    default: return;
  }
}

void World::act_fault(const Action& action) {
  const std::uint64_t word = action.words[2];
  switch (action.kind) {
    case ActionKind::kKillEngine: return engine(action.words[0]).kill();
    case ActionKind::kKillWorker: return engine(action.words[0]).kill_worker(action);
    case ActionKind::kKillAtPoint:
      return with_process(*this, action, [&](Process& process) {
        process.die_at(kClientPoints[word % std::size(kClientPoints)],
                       static_cast<std::uint32_t>(word >> 10 & 1 ? word >> 8 & 3 : 0));
      });
    case ActionKind::kKillManager: return manager_->die(word);
    case ActionKind::kKillManagerAt:
      if (config_.keep.on && (word >> 16) % 3 == 0) return manager_->die_taking_back();
      return manager_->die_at(config_.keep.on ? kKeptPoints[word % std::size(kKeptPoints)]
                              : word % 2      ? FaultPoint::kManagerBeforeGrant
                                              : FaultPoint::kManagerBeforeReap,
                              static_cast<std::uint32_t>(word >> 8 & (word >> 12 & 1 ? 15 : 1)));
    case ActionKind::kLoseWake:
      if (word % 2) return manager_->fault_wake(ManagerNode::WakeFault::kLose);
      return with_process(*this, action, [](Process& process) { process.lose_wake(); });
    case ActionKind::kDelayWake:
      if (word % 2) return manager_->fault_wake(ManagerNode::WakeFault::kDelay);
      return with_process(*this, action, [](Process& process) { process.delay_wake(); });
    case ActionKind::kDoubleWake:
      if (word % 2) return manager_->fault_wake(ManagerNode::WakeFault::kDouble);
      return with_process(*this, action, [](Process& process) { process.double_wake(); });
    case ActionKind::kLoseReply:
      return with_process(*this, action, [](Process& process) { process.lose_reply(); });
    case ActionKind::kGarbleReply:
      return with_process(*this, action, [&](Process& p) { manager_->garble_reply(p.epoch(), word); });
    case ActionKind::kGarbleCommand:
      return with_process(*this, action, [&](Process& process) { process.garble_command(word); });
    case ActionKind::kLoseFrame: return manager_->lose_frame();
    case ActionKind::kGarbleFrame: return manager_->garble_frame(word);
    case ActionKind::kFailCopy: return dma_->fail_next();
    case ActionKind::kSlowCopy:
      return dma_->slow_next(milliseconds(static_cast<std::int64_t>(1 + word % 3000)));
    case ActionKind::kFlipImage: return manager_->flip_image(word);
    case ActionKind::kStopEngine: {
      const Duration time = milliseconds(static_cast<std::int64_t>(1 + word % (word >> 32 & 1 ? 8000 : 500)));
      const std::uint32_t again = (word >> 33) % 3 == 0 ? 2 : 0;
      for (Process* process : engine(action.words[0]).processes()) process->stop(time, again);
      return;
    }
    case ActionKind::kJump: {
      const std::uint64_t most = word >> 32 & 1 ? 400'000 : 10'000;
      return jump(milliseconds(static_cast<std::int64_t>(1 + word % most)));
    }
    default: return act_crowd(action);
  }
}

void World::act_crowd(const Action& action) {
  const std::uint64_t word = action.words[2];
  switch (action.kind) {
    case ActionKind::kStopManager:
      return manager_->stop(milliseconds(static_cast<std::int64_t>(1 + word % 3000)));
    case ActionKind::kPressure: return manager_->press();
    case ActionKind::kSlowUnmap:
      return with_process(*this, action, [&](Process& process) {
        process.unmap_slowly(milliseconds(static_cast<std::int64_t>(1 + word % 3000)));
      });
    case ActionKind::kCrowdSessions:
      return manager_->crowd(milliseconds(static_cast<std::int64_t>(1 + word % 500)));
    case ActionKind::kHogMetadata:
      return engine(action.words[0])
          .hog_metadata(milliseconds(static_cast<std::int64_t>(1 + word % (word >> 20 & 1 ? 100 : 1000))));
    case ActionKind::kHogTickets:
      return engine(action.words[0])
          .hog_tickets(milliseconds(static_cast<std::int64_t>(1 + word % (word >> 20 & 1 ? 100 : 1000))));
    default: return act_kept(action);
  }
}

void World::act_kept(const Action& action) {
  const std::uint64_t word = action.words[2];
  switch (action.kind) {
    case ActionKind::kKillStart: return manager_->die_twice(word);
    case ActionKind::kLoseStored: return manager_->shelf().fault_next(Shelf::Fault::kLose);
    case ActionKind::kRefuseStored:
      return manager_->shelf().fault_next(word % 2 ? Shelf::Fault::kRefuse : Shelf::Fault::kRefuseLater);
    case ActionKind::kStallStore:
      return manager_->shelf().stall(milliseconds(static_cast<std::int64_t>(1 + word % 3000)));
    case ActionKind::kOtherFormat: return manager_->next_reads_nothing();
    case ActionKind::kDamageKept: return manager_->damage_kept(word);
    default: return act_io(action);
  }
}

void World::act_io(const Action& action) {
  const std::uint64_t word = action.words[2];
  switch (action.kind) {
    case ActionKind::kIoError: return manager_->disk().fault_next(Disk::Fault::kError, word);
    case ActionKind::kIoShort: return manager_->disk().fault_next(Disk::Fault::kShort, word);
    case ActionKind::kIoDelay:
      delay(manager_->disk().delay_next(word));  // who joins that read waits for it
      return;
    case ActionKind::kIoFull: return manager_->disk().fault_next(Disk::Fault::kFull, word);
    case ActionKind::kIoFlip: return manager_->disk().fault_next(Disk::Fault::kFlip, word);
    default: return;
  }
}

}  // namespace orbitkv::sim
