#include "tests/gpu/gpu_engine.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>

#include "base/check.h"
#include "base/time.h"
#include "base/unique_fd.h"
#include "device/cuda/context.h"
#include "device/cuda/tuner.h"
#include "tests/native/engine.h"

namespace orbitkv::test {
namespace {

using device::cuda::PrimaryScope;

constexpr std::uint32_t kWitnessBlocks = 16;  // pages; it takes turns with them
constexpr std::byte kWiped{0xA5};

std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

std::vector<std::byte> model_row(std::uint64_t hash, std::uint16_t layer) {
  std::vector<std::byte> row(kGpuRow);
  const std::uint64_t seed = mix(hash) ^ mix(std::uint64_t{layer} << 40);
  for (std::uint64_t at = 0; at < kGpuRow; at += 8) {
    const std::uint64_t word = mix(seed + at);
    std::memcpy(row.data() + at, &word, sizeof word);
  }
  return row;
}

// Measured ones would have the measurement on the link beside the copies.
void keep_default_windows(const device::cuda::Driver& driver) {
  auto context = device::cuda::Context::open(driver, 0);
  ORBITKV_CHECK(context.ok(), context.ok() ? "" : context.error().message().c_str());
  const std::string path = device::cuda::windows_path(**context);
  if (!device::cuda::read_windows(path)) (void)device::cuda::write_windows(path, device::cuda::Windows{});
}

}  // namespace

// ---- GpuEngine ----

GpuEngine::GpuEngine(const device::cuda::Driver& driver, const Options& options)
    : bed_{&driver, 0}, options_(options), memory_(device::cuda::make_memory(bed_)) {
  pages_ = memory_->alloc(ByteCount(options_.blocks * kGpuBlock));
  client::Options o;
  o.bootstrap_socket = options_.socket;
  o.name = options_.name;
  o.verify = options_.verify;
  o.copy_method = options_.method;
  o.copy_pace = options_.pace;
  client_ = client::Client::open(o, opened_);
}

client::Outcome GpuEngine::connect() {
  if (!client_) return opened_;
  if (auto outcome = client_->wait_connected(kDoneWithinMs); !outcome.ok()) return outcome;
  return client_->register_rank(description(), registration_);
}

client::Registration GpuEngine::description() const {
  client::Registration r;
  r.instance = instance_of(options_.instance);
  r.name_space = "gpu";
  r.device = "cuda:0";
  r.num_blocks = options_.blocks;
  r.block_tokens = 16;
  r.groups.push_back({});
  for (std::uint16_t i = 0; i < kGpuLayers; ++i) {
    client::Layer layer;
    layer.name = "layer " + std::to_string(i);
    layer.base = page(i, 0);
    layer.bytes = options_.blocks * kGpuRow;
    layer.block_stride = layer.row_bytes = layer.row_stride = kGpuRow;
    r.layers.push_back(layer);
  }
  return r;
}

std::byte* GpuEngine::page(std::uint16_t layer, std::uint32_t block) const {
  return pages_ + (std::uint64_t{layer} * options_.blocks + block) * kGpuRow;
}

// The device of this process is the client's.
bool GpuEngine::reaches(std::size_t slabs) const {
  auto device = device::cuda::open_cuda_device("cuda:0");
  const TimePoint deadline = monotonic_now() + milliseconds(kDoneWithinMs);
  while (device.ok() && (*device)->reachable_slabs() < slabs) {
    if (monotonic_now() > deadline) return false;
    ::usleep(500);
  }
  return device.ok();
}

void GpuEngine::fill(std::byte value) {
  const std::vector<std::byte> bytes(options_.blocks * kGpuBlock, value);
  memory_->write(pages_, bytes);
}

void GpuEngine::compute(std::uint32_t block, std::uint64_t hash) {
  for (std::uint16_t i = 0; i < kGpuLayers; ++i) memory_->write(page(i, block), model_row(hash, i));
}

GpuEngine::Wrong GpuEngine::compare(std::uint32_t block, std::uint64_t hash) const {
  Wrong wrong;
  std::vector<std::byte> found(kGpuRow);
  for (std::uint16_t i = 0; i < kGpuLayers; ++i) {
    const auto right = model_row(hash, i);
    memory_->read(found, page(i, block));
    if (found == right) continue;
    for (std::uint64_t at = 0; at < kGpuRow; ++at) {
      if (found[at] == right[at]) continue;
      ++wrong.bytes;
      wrong.victims += found[at] == kVictimByte ? 1 : 0;
    }
  }
  return wrong;
}

void GpuEngine::synchronise() const {
  PrimaryScope scope(bed_);
  ORBITKV_CHECK(bed_.driver->cuStreamSynchronize(nullptr) == device::cuda::kCuSuccess, "cuStreamSynchronize");
}

client::Outcome GpuEngine::start_save(std::uint32_t block, std::uint64_t hash, std::uint32_t count,
                                      client::OperationHandle& out) {
  const auto blocks = blocks_of(block, count);
  const auto hashes = hashes_of(hash, count);
  const client::SaveGroup group{0, blocks, hashes};
  return client_->start_save(registration_, {&group, 1}, {client::kNoStream}, out);
}

client::OperationStatus GpuEngine::save(std::uint64_t hash, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) compute(i, hash + i);
  client::OperationHandle handle;
  if (auto outcome = start_save(0, hash, count, handle); !outcome.ok())
    return {true, false, 0, outcome.message};
  const auto status = client_->wait(handle, kDoneWithinMs);
  client_->drop(handle);
  return status;
}

GpuEngine::Restored GpuEngine::restore(std::uint64_t hash, std::uint32_t count) {
  Restored out;
  fill(kWiped);
  client::Ready ready;
  if (auto outcome = client_->query_prefetch(instance_of(options_.instance), hashes_of(hash, count),
                                             "r" + std::to_string(next_request_++), 0, ready);
      !outcome.ok()) {
    out.status = {true, false, 0, outcome.message};
    return out;
  }
  out.hits = ready.hit_blocks;
  if (out.hits == 0) return out;
  const auto blocks = blocks_of(0, out.hits);
  const client::Load load{ready.lease, 0, blocks};
  client::RestoreOptions how;
  how.ready_stream = client::kNoStream;
  client::OperationHandle handle;
  if (auto outcome = client_->start_restore(registration_, {&load, 1}, how, handle); !outcome.ok()) {
    out.status = {true, false, 0, outcome.message};
    return out;
  }
  out.status = client_->wait(handle, kDoneWithinMs);
  client_->drop(handle);
  for (std::uint32_t i = 0; i < out.hits; ++i) {
    const Wrong wrong = compare(i, hash + i);
    out.wrong.bytes += wrong.bytes;
    out.wrong.victims += wrong.victims;
  }
  return out;
}

// ---- the processes ----

VictimProgress& map_progress(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ORBITKV_CHECK(file.get() >= 0 && ::ftruncate(file.get(), sizeof(VictimProgress)) == 0, path.c_str());
  void* at = ::mmap(nullptr, sizeof(VictimProgress), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ORBITKV_CHECK(at != MAP_FAILED, path.c_str());
  return *static_cast<VictimProgress*>(at);
}

namespace {

void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

// Two saves at a time, of one half of the pages each, so that the device is never idle.
void save_until_enough(GpuEngine& engine, std::uint64_t hash, std::uint32_t blocks,
                       VictimProgress& progress) {
  client::OperationHandle open[2];
  const auto wait = [&](client::OperationHandle& mine) {
    if (mine.value == 0) return;
    engine.client().wait(mine, kDoneWithinMs);
    engine.client().drop(mine);
    mine = {};
    ++progress.ended;
  };
  std::uint64_t incarnation = engine.client().health().incarnation;
  const auto rest_in_a_new_life = [&] {
    const auto health = engine.client().health();
    if (!health.connected || health.incarnation == incarnation) return;
    incarnation = health.incarnation;
    for (auto& each : open) wait(each);
    const std::uint32_t life = ++progress.lives;
    while (progress.go_on < life && !progress.enough) ::usleep(500);
  };
  for (std::uint32_t turn = 0; !progress.enough; ++turn, hash += blocks) {
    rest_in_a_new_life();
    client::OperationHandle& mine = open[turn % 2];
    wait(mine);
    if (!engine.start_save(turn % 2 * blocks, hash, blocks, mine).ok()) {
      ::usleep(1000);
      continue;
    }
    engine.client().wait_enqueued(mine, kDoneWithinMs);
    ++progress.enqueued;
  }
  for (auto& each : open) wait(each);
}

int victim(GpuEngine& engine, std::map<std::string, std::string>& words) {
  engine.fill(kVictimByte);
  if (!engine.reaches(std::stoul(words["slabs"]))) {
    say("refused the driver has not registered the slabs");
    return 1;
  }
  VictimProgress& progress = map_progress(words["progress"]);
  say("ready ");
  std::string line;
  if (!std::getline(std::cin, line)) return 1;
  save_until_enough(engine, std::stoull(words["hash"]),
                    static_cast<std::uint32_t>(std::stoul(words["blocks"])), progress);
  return 0;
}

// save HASH COUNT | restore HASH COUNT | synchronise
int witness(GpuEngine& engine) {
  say("ready ");
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    std::istringstream in(line);
    std::string verb;
    std::uint64_t hash = 0;
    std::uint32_t count = 0;
    in >> verb >> hash >> count;
    count = std::min(count, kWitnessBlocks);
    std::ostringstream out;
    if (verb == "save") {
      const auto status = engine.save(hash, count);
      out << (status.done && status.success) << ' ' << status.blocks << ' ' << status.message;
    } else if (verb == "restore") {
      const auto restored = engine.restore(hash, count);
      out << (restored.status.done && restored.status.success) << ' ' << restored.hits << ' '
          << restored.wrong.bytes << ' ' << restored.wrong.victims << ' ' << restored.status.message;
    } else {
      engine.synchronise();
      out << verb;
    }
    say(out.str());
  }
  return 0;
}

}  // namespace

int gpu_engine_main(const std::vector<std::string>& list) {
  std::map<std::string, std::string> words;
  for (const std::string& word : list)
    words[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  auto driver = device::cuda::load_driver();
  if (!driver.ok()) {
    say("refused " + driver.error().message());
    return 1;
  }
  keep_default_windows(**driver);
  const bool dies = words["role"] == "victim";
  GpuEngine::Options options;
  options.socket = words["socket"];
  options.name = words["role"];
  options.instance = dies ? 1 : 2;
  options.blocks = dies ? 2 * static_cast<std::uint32_t>(std::stoul(words["blocks"])) : kWitnessBlocks;
  options.verify = dies;
  if (words["way"] == "dma") options.method = "direct";
  if (words["way"] == "kernel") options.method = "kernel";
  if (words["way"] == "gentle") options.pace = "gentle";
  GpuEngine engine(**driver, options);
  if (const auto outcome = engine.connect(); !outcome.ok()) {
    say("refused " + outcome.message);
    return 1;
  }
  return dies ? victim(engine, words) : witness(engine);
}

}  // namespace orbitkv::test
