#include "tests/cuda/fake_state.h"

#include <atomic>
#include <chrono>

namespace orbitkv::device::cuda::fake {
namespace {

// Between two looks at a word of memory that a stream waits for.
constexpr auto kLook = std::chrono::microseconds(20);

std::uint64_t end_of(const Extent& extent) {
  return extent.at + extent.size;
}

}  // namespace

State::State(Config made) : config(std::move(made)), table(entries()), random(config.seed) {
  static std::atomic<std::uint64_t> instances{0};
  instance = ++instances;
  for (CuDevice device = 0; device < static_cast<CuDevice>(config.gpus.size()); ++device) {
    contexts.push_back(std::make_unique<Context>());
    contexts.back()->device = device;
    contexts.back()->primary = true;
    contexts.back()->alive = false;
  }
  if (!config.wait_values) table.cuStreamWaitValue32 = nullptr;
  if (!config.batched) table.cuMemcpyBatchAsync = nullptr;
  scheduler_ = std::thread([this] { schedule(); });
}

State::~State() {
  {
    std::lock_guard lock(mutex);
    stopping = true;
  }
  changed.notify_all();
  scheduler_.join();
}

void State::complain(const std::string& what) {
  broken.push_back(what);
}

void State::lose(Context& context, CuResult code) {
  if (context.error != kCuSuccess) return;
  context.error = code;
  for (Stream* stream : all_streams()) {
    if (stream->context == &context) stream->queue.clear();
  }
  changed.notify_all();
}

// ---- memory ----

Reach State::pinned(const Context& context, Extent extent) const {
  auto next = host_memory.upper_bound(extent.at);
  if (next == host_memory.begin()) return {};
  const auto& [at, range] = *std::prev(next);
  if (end_of(extent) > at + range.size) return {};
  if (range.context != &context && (range.flags & kHostRegisterPortable) == 0) return {};
  return {reinterpret_cast<std::byte*>(extent.at), true};
}

Reach State::reach(const Context& context, Extent extent) const {
  if (extent.at >= kAlias || !config.aliased) {
    Extent left = {extent.at >= kAlias ? extent.at - kAlias : extent.at, extent.size};
    std::byte* bytes = reinterpret_cast<std::byte*>(left.at);
    for (;;) {
      auto next = host_memory.upper_bound(left.at);
      if (next == host_memory.begin()) break;
      const auto& [at, range] = *std::prev(next);
      if (left.at >= at + range.size) break;
      if (range.context != &context && (range.flags & kHostRegisterPortable) == 0) break;
      if ((range.flags & kHostRegisterDeviceMap) == 0) break;
      if (end_of(left) <= at + range.size) return {bytes, true};
      left = {at + range.size, end_of(left) - at - range.size};
    }
    if (extent.at >= kAlias) return {};
  }
  auto next = memory.upper_bound(extent.at);
  if (next == memory.begin()) return {};
  const auto& [at, allocation] = *std::prev(next);
  if (end_of(extent) > at + allocation.size || allocation.context != &context) return {};
  return {reinterpret_cast<std::byte*>(extent.at), false};
}

Reach State::any(const Context& context, Extent extent) const {
  if (extent.at >= kAlias) return pinned(context, {extent.at - kAlias, extent.size});
  if (const Reach host = pinned(context, extent); host.bytes != nullptr) return host;
  const Reach device = reach(context, extent);
  return device.host ? Reach{} : device;
}

// ---- handles ----

CuContext State::primary(CuDevice device) {
  return reinterpret_cast<CuContext>(contexts[static_cast<std::size_t>(device)].get());
}

Context* State::context(CuContext handle) const {
  for (const auto& each : contexts) {
    if (reinterpret_cast<CuContext>(each.get()) == handle) return each.get();
  }
  return nullptr;
}

Stream* State::stream(CuStream handle, Context* current) {
  const auto value = reinterpret_cast<std::uint64_t>(handle);
  if (value > 2) {
    auto found = streams.find(value);
    return found == streams.end() || found->second->dead ? nullptr : found->second.get();
  }
  if (current == nullptr) return nullptr;
  auto& place = value == 2 ? per_thread[{current, std::this_thread::get_id()}] : legacy[current];
  if (place == nullptr) {
    place = std::make_unique<Stream>();
    place->context = current;
    place->of_table = false;
    place->blocking = value == 2;
    place->legacy = value != 2;
  }
  return place.get();
}

EventRef State::event(CuEvent handle) const {
  auto found = events.find(reinterpret_cast<std::uint64_t>(handle));
  return found == events.end() ? nullptr : found->second;
}

// ---- streams ----

void State::enqueue(Stream& stream, Op op) {
  op.number = next_op++;
  op.stalled = stalls.contains(op.entry);
  if (stream.queue.size() == kQueueRoom) complain(op.entry + ": the queue is full, the caller would wait");
  stream.queue.push_back(std::move(op));
  changed.notify_all();
}

std::vector<Stream*> State::all_streams() const {
  std::vector<Stream*> all;
  for (const auto& [handle, stream] : streams) all.push_back(stream.get());
  for (const auto& [context, stream] : legacy) all.push_back(stream.get());
  for (const auto& [key, stream] : per_thread) all.push_back(stream.get());
  return all;
}

bool State::behind(const Stream& stream, std::uint64_t number) const {
  return !stream.queue.empty() && stream.queue.front().number < number;
}

bool State::ready(const Stream& stream) const {
  if (stream.queue.empty() || stream.context->error != kCuSuccess) return false;
  const Op& op = stream.queue.front();
  if (op.stalled || (op.ready && !op.ready())) return false;
  if (!stream.legacy && !stream.blocking) return true;
  for (const Stream* other : all_streams()) {
    if (other->context != stream.context) continue;
    const bool ordered = stream.legacy ? other->blocking : other->legacy;
    if (ordered && behind(*other, op.number)) return false;
  }
  return true;
}

void State::step(Stream& stream) {
  Op& op = stream.queue.front();
  const Step step = op.run ? op.run() : Step::kDone;
  if (step == Step::kFault)
    lose(*stream.context, kCuIllegalAddress);
  else if (step == Step::kDone)
    stream.queue.pop_front();
  changed.notify_all();
}

void State::schedule() {
  std::unique_lock lock(mutex);
  while (!stopping) {
    std::vector<Stream*> can;
    bool waits = false;
    for (Stream* stream : all_streams()) {
      if (ready(*stream))
        can.push_back(stream);
      else if (!stream->queue.empty())
        waits = true;
    }
    if (can.empty()) {
      // Of what is waited for, words in memory change without a call.
      if (waits)
        changed.wait_for(lock, kLook);
      else
        changed.wait(lock);
      continue;
    }
    step(*can[draw(can.size())]);
    if (config.nap == 0 || draw(32) != 0) continue;
    const std::chrono::microseconds nap(draw(config.nap) + 1);
    lock.unlock();
    std::this_thread::sleep_for(nap);
    lock.lock();
  }
}

}  // namespace orbitkv::device::cuda::fake
