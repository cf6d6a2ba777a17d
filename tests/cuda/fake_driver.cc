#include "tests/cuda/fake_driver.h"

#include <atomic>

#include "base/text.h"
#include "tests/cuda/fake_state.h"

namespace orbitkv::device::cuda::fake {
namespace {

std::atomic<State*> state_in_use{nullptr};
FakeDriver* driver_in_use = nullptr;

std::string lines(const std::vector<std::string>& all) {
  std::string text;
  for (const std::string& each : all) text += each + "\n";
  return text;
}

}  // namespace

Gpu sm_80() {
  return {.name = "Fake sm_80",
          .major = 8,
          .minor = 0,
          .multiprocessors = 108,
          .shared_optin = 166912,
          .uuid = 0x80};
}

State* current_state() {
  return state_in_use.load();
}

std::vector<Context*>& thread_contexts(const State& state) {
  thread_local std::map<std::uint64_t, std::vector<Context*>> contexts;
  return contexts[state.instance];
}

FakeDriver::FakeDriver(Config config) : state_(std::make_unique<State>(std::move(config))) {
  outer_ = driver_in_use;
  driver_in_use = this;
  state_in_use = state_.get();
}

FakeDriver::~FakeDriver() {
  driver_in_use = outer_;
  state_in_use = outer_ == nullptr ? nullptr : outer_->state_.get();
}

const Driver& FakeDriver::driver() const {
  return state_->table;
}

// ---- faults ----

void FakeDriver::fail(Fault fault) {
  std::lock_guard lock(state_->mutex);
  state_->faults.push_back(std::move(fault));
}

void FakeDriver::heal() {
  std::lock_guard lock(state_->mutex);
  state_->faults.clear();
}

void FakeDriver::before(const std::string& entry, std::function<void()> hook) {
  std::lock_guard lock(state_->mutex);
  state_->hooks[entry] = std::move(hook);
}

void FakeDriver::drop_flags(std::uint32_t count) {
  std::lock_guard lock(state_->mutex);
  state_->flags_to_drop = count;
}

void FakeDriver::stall_after_flags(std::uint32_t count) {
  std::lock_guard lock(state_->mutex);
  state_->flags_until_stall = count;
}

void FakeDriver::stall(const std::string& entry) {
  std::lock_guard lock(state_->mutex);
  state_->stalls.insert(entry);
}

void FakeDriver::release() {
  std::lock_guard lock(state_->mutex);
  state_->stalls.clear();
  state_->flags_until_stall = State::kAllFlags;
  for (Stream* stream : state_->all_streams())
    for (Op& op : stream->queue) op.stalled = false;
  state_->changed.notify_all();
}

void FakeDriver::lose(CuDevice device, CuResult code) {
  std::lock_guard lock(state_->mutex);
  state_->lose(*state_->contexts[static_cast<std::size_t>(device)], code);
}

void FakeDriver::deinitialise() {
  std::lock_guard lock(state_->mutex);
  state_->deinitialised = true;
}

void FakeDriver::revive() {
  std::lock_guard lock(state_->mutex);
  state_->deinitialised = false;
}

// ---- the engine ----

CuStream FakeDriver::new_stream(CuDevice device, unsigned flags) {
  std::lock_guard lock(state_->mutex);
  auto stream = std::make_unique<Stream>();
  stream->context = state_->contexts[static_cast<std::size_t>(device)].get();
  stream->context->alive = true;
  stream->of_table = false;
  stream->blocking = (flags & kStreamNonBlocking) == 0;
  const std::uint64_t handle = state_->new_handle();
  state_->streams[handle] = std::move(stream);
  return reinterpret_cast<CuStream>(handle);
}

CuContext FakeDriver::new_context(CuDevice device) {
  std::lock_guard lock(state_->mutex);
  state_->contexts.push_back(std::make_unique<Context>());
  state_->contexts.back()->device = device;
  return reinterpret_cast<CuContext>(state_->contexts.back().get());
}

CuEvent FakeDriver::new_event(CuDevice device) {
  std::lock_guard lock(state_->mutex);
  const std::uint64_t handle = state_->new_handle();
  Context* context = state_->contexts[static_cast<std::size_t>(device)].get();
  state_->events[handle] = std::make_shared<Event>(Event{.context = context, .of_table = false});
  return reinterpret_cast<CuEvent>(handle);
}

void FakeDriver::destroy_stream(CuStream stream) {
  std::lock_guard lock(state_->mutex);
  state_->streams.at(reinterpret_cast<std::uint64_t>(stream))->dead = true;
}

void FakeDriver::run_on(CuStream stream, std::function<void()> work) {
  std::lock_guard lock(state_->mutex);
  Stream* on = state_->stream(stream, state_->contexts[0].get());
  state_->enqueue(*on, {.entry = "work", .run = [this, work = std::move(work)] {
                          state_->note("work");
                          if (work) work();
                          return Step::kDone;
                        }});
}

void FakeDriver::hold(CuStream stream) {
  std::lock_guard lock(state_->mutex);
  Stream* on = state_->stream(stream, state_->contexts[0].get());
  ++on->holds;
  state_->enqueue(*on, {.entry = "hold", .ready = [on] { return on->holds == 0; }});
}

void FakeDriver::let_go(CuStream stream) {
  std::lock_guard lock(state_->mutex);
  state_->stream(stream, state_->contexts[0].get())->holds = 0;
  state_->changed.notify_all();
}

void FakeDriver::begin_capture(CuStream stream, CaptureMode mode) {
  std::lock_guard lock(state_->mutex);
  Stream* on = state_->stream(stream, state_->contexts[0].get());
  on->capture = Stream::Capture::kActive;
  on->mode = mode;
  on->capturer = std::this_thread::get_id();
}

bool FakeDriver::end_capture(CuStream stream) {
  std::lock_guard lock(state_->mutex);
  Stream* on = state_->stream(stream, state_->contexts[0].get());
  const bool valid = on->capture == Stream::Capture::kActive;
  on->capture = Stream::Capture::kNone;
  return valid;
}

CuPtr FakeDriver::device_memory(CuContext context, ByteCount bytes) {
  std::lock_guard lock(state_->mutex);
  Allocation made;
  made.bytes = {static_cast<std::byte*>(std::aligned_alloc(256, (bytes.value + 255) / 256 * 256)), std::free};
  made.size = bytes.value;
  made.context = state_->context(context);
  made.of_table = false;
  const auto at = reinterpret_cast<CuPtr>(made.bytes.get());
  state_->memory[at] = std::move(made);
  return at;
}

// ---- observation ----

std::uint32_t FakeDriver::calls(const std::string& entry) const {
  std::lock_guard lock(state_->mutex);
  return state_->counts[entry];
}

std::map<std::string, std::uint32_t> FakeDriver::all_calls() const {
  std::lock_guard lock(state_->mutex);
  return state_->counts;
}

std::vector<std::uint32_t> FakeDriver::grids() const {
  std::lock_guard lock(state_->mutex);
  return state_->grids;
}

std::uint32_t FakeDriver::registrations() const {
  std::lock_guard lock(state_->mutex);
  std::uint32_t count = 0;
  for (const auto& [at, range] : state_->host_memory) count += range.bytes == nullptr;
  return count;
}

std::vector<std::string> FakeDriver::history() const {
  std::lock_guard lock(state_->mutex);
  return state_->history;
}

std::string FakeDriver::complaints() const {
  std::lock_guard lock(state_->mutex);
  return lines(state_->broken);
}

std::string FakeDriver::leaks() const {
  std::lock_guard lock(state_->mutex);
  std::vector<std::string> all;
  const auto lost = [](const Context* context) { return context->error != kCuSuccess; };
  const auto count = [&](const char* what, std::uint64_t number) {
    if (number > 0) all.push_back(std::to_string(number) + " " + what);
  };
  std::uint64_t streams = 0, events = 0, pieces = 0, pinned = 0, registered = 0, modules = 0, retains = 0;
  for (const auto& [handle, stream] : state_->streams)
    streams += stream->of_table && !stream->dead && !lost(stream->context);
  for (const auto& [handle, event] : state_->events) events += event->of_table && !lost(event->context);
  for (const auto& [at, piece] : state_->memory) pieces += piece.of_table && !lost(piece.context);
  for (const auto& [at, range] : state_->host_memory)
    if (!lost(range.context)) ++(range.bytes ? pinned : registered);
  for (const auto& [handle, module] : state_->modules) modules += !lost(module->context);
  for (const auto& context : state_->contexts) retains += context->retains;
  count("streams", streams);
  count("events", events);
  count("pieces of device memory", pieces);
  count("pieces of pinned memory", pinned);
  count("registrations", registered);
  count("modules", modules);
  count("retains of primary contexts", retains);
  return lines(all);
}

void FakeDriver::settle() {
  for (;;) {
    std::unique_lock lock(state_->mutex);
    bool runs = false;
    for (const Stream* stream : state_->all_streams()) runs |= state_->ready(*stream);
    if (!runs) return;
    lock.unlock();
    std::this_thread::yield();
  }
}

}  // namespace orbitkv::device::cuda::fake
