// What a process asks of the Manager: commands, saves and restores.
#include <algorithm>
#include <utility>

#include "sim/process.h"
#include "sim/world.h"

namespace orbitkv::sim {
namespace {
client::OperationStatus failed(const Error& why) {
  return {true, false, 0, why.message()};
}
}  // namespace

// ---- commands ----

void Process::call(wire::Opcode opcode, client::Attachment::Encode encode, Reply reply) {
  calls_.push_back({opcode, std::move(encode), std::move(reply), {}, {}, {}, false});
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
        call.delays = world_.delays();
        call.unheard = lose_replies_ > 0;
        if (call.unheard) --lose_replies_;
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
    if (world_.plant() == Plant::kCutReply && reply->ok() && !(*reply)->empty()) (*reply)->pop_back();
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
  // At times it asks for more records than there are, and what has ended is swept before it is refused.
  auto random = world_.random(0x5EEBu, number_, ++polls_);
  const bool heard = world_.manager().alive();  // what a dead one has ended is swept, too
  if (random.percent(heard ? 20 : 60)) {
    const auto refused = link_->reserve(limits::kRecords + 1);
    if (random.percent(heard ? 10 : 50)) return made->ended(failed(refused.error()));
  }
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

}  // namespace orbitkv::sim
