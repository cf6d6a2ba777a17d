#include "bench/manager.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace orbitkv::bench {
namespace {
constexpr std::uint32_t kWaitMs = 60'000;
constexpr std::uint32_t kBatch = 1024;

std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

void run_manager(const std::string& self, std::vector<std::string> args) {
  pin_thread(usable_cpus().size() > 1 ? usable_cpus()[1] : usable_cpus()[0]);
  std::vector<char*> argv{const_cast<char*>(self.c_str())};
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  execv("/proc/self/exe", argv.data());  // argv[0] is no path if the shell searched for it
}
}  // namespace

Status to_status(const client::Outcome& outcome) {
  if (outcome.ok()) return ok_status();
  return Error(static_cast<Code>(outcome.action), outcome.message);
}

BlockHash hash_of(std::uint64_t i, std::uint64_t series) {
  BlockHash hash;
  for (std::uint64_t word = 0; word < 4; ++word) {
    const std::uint64_t value = mix(i * 4 + word + 1 + series * 0x9E3779B97F4A7C15u);
    std::memcpy(hash.bytes.data() + 8 * word, &value, 8);
  }
  return hash;
}

std::vector<BlockHash> hashes_from(std::uint64_t first, std::uint32_t n, std::uint64_t series) {
  std::vector<BlockHash> out(n);
  for (std::uint32_t i = 0; i < n; ++i) out[i] = hash_of(first + i, series);
  return out;
}

// ---- Manager ----

Result<std::unique_ptr<BenchManager>> BenchManager::start(const Options& options,
                                                          std::vector<std::string> flags) {
  std::unique_ptr<BenchManager> made(new BenchManager);
  char directory[] = "/tmp/orbitkv-bench-XXXXXX";
  if (!mkdtemp(directory)) return errno_error("making a directory for the bench's socket");
  made->directory_ = directory;
  made->socket_ = made->directory_ + "/manager.sock";
  std::vector<std::string> args{"serve", "--bootstrap-socket", made->socket_, "--log-level", "warning"};
  args.insert(args.end(), flags.begin(), flags.end());
  ORBITKV_ASSIGN_OR_RETURN(auto child, ChildProcess::start([&] {
                             run_manager(options.self, args);
                             return 127;
                           }));
  made->child_.emplace(std::move(child));
  for (int i = 0; i < 3000; ++i) {
    if (access(made->socket_.c_str(), F_OK) == 0) return made;
    siginfo_t ended{};
    if (waitid(P_PID, static_cast<id_t>(made->pid()), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        ended.si_pid != 0)
      break;
    usleep(10'000);
  }
  return bug("the bench's Manager did not come up; what it said stands above");
}

BenchManager::~BenchManager() {
  if (child_) {
    ::kill(child_->pid(), SIGTERM);
    child_->wait();
  }
  unlink(socket_.c_str());
  unlink((socket_ + ".lock").c_str());
  rmdir(directory_.c_str());
}

// ---- engine ----

Result<std::unique_ptr<BenchEngine>> BenchEngine::attach(const BenchManager& manager,
                                                         const EngineShape& shape, client::Options options,
                                                         Gpu* gpu) {
  static std::uint64_t count = 0;
  std::unique_ptr<BenchEngine> made(new BenchEngine);
  made->shape_ = shape;
  const std::uint64_t id = ++count;
  std::memcpy(made->instance_.bytes.data(), &id, sizeof id);
  made->memory_.resize(shape.blocks * made->block_bytes());
  if (gpu != nullptr) {
    leave_pinned_cores();  // else the client's threads would share the core that this one spins on
    ORBITKV_ASSIGN_OR_RETURN(made->gpu_memory_, GpuMemory::make(*gpu, ByteCount(made->memory_bytes())));
  }
  options.bootstrap_socket = manager.socket();
  options.name = "bench";
  options.timeout_ms = kWaitMs;
  options.spin_iterations = 1'000'000;  // the bench owns its core
  client::Outcome outcome;
  made->client_ = client::Client::open(options, outcome);
  ORBITKV_RETURN_IF_ERROR(to_status(outcome));
  ORBITKV_RETURN_IF_ERROR(
      to_status(made->client_->register_rank(made->registration_of(gpu), made->registration_)));
  return made;
}

client::Registration BenchEngine::registration_of(const Gpu* gpu) {
  client::Registration r;
  r.instance = instance_;
  r.name_space = format_text("orbitkv:bench:v1 %u x %u x %llu", shape_.layers, shape_.components,
                             static_cast<unsigned long long>(shape_.page_bytes));
  if (gpu != nullptr) r.device = gpu->context()->identity();
  r.num_blocks = shape_.blocks;
  r.block_tokens = 16;
  r.groups = {client::Group{}};
  std::byte* base = gpu != nullptr ? gpu_memory_->data() : memory_.data();
  for (std::uint32_t part = 0; part < shape_.layers * shape_.components; ++part) {
    client::Layer layer;
    layer.name = "layer " + std::to_string(part / shape_.components);
    layer.component = static_cast<std::uint16_t>(part % shape_.components);
    layer.base = base + page_offset(part, 0);
    layer.bytes = shape_.blocks * shape_.page_bytes;
    layer.block_stride = shape_.page_bytes;
    layer.row_bytes = shape_.page_bytes;
    r.layers.push_back(layer);
  }
  return r;
}

std::span<std::byte> BenchEngine::page(std::uint32_t part, std::uint32_t block) {
  return std::span(memory_).subspan(page_offset(part, block), shape_.page_bytes);
}

Status BenchEngine::push(BlockRange blocks) {
  for (std::uint32_t part = 0; part < shape_.layers * shape_.components; ++part) {
    const std::uint64_t at = page_offset(part, blocks.first);
    ORBITKV_RETURN_IF_ERROR(
        gpu_memory_->write(at, std::span(memory_).subspan(at, blocks.count * shape_.page_bytes)));
  }
  return ok_status();
}

Status BenchEngine::pull(BlockRange blocks) {
  for (std::uint32_t part = 0; part < shape_.layers * shape_.components; ++part) {
    const std::uint64_t at = page_offset(part, blocks.first);
    ORBITKV_RETURN_IF_ERROR(
        gpu_memory_->read(std::span(memory_).subspan(at, blocks.count * shape_.page_bytes), at));
  }
  return ok_status();
}

Status BenchEngine::spoil(BlockRange blocks) {
  for (std::uint32_t part = 0; part < shape_.layers * shape_.components; ++part)
    ORBITKV_RETURN_IF_ERROR(gpu_memory_->fill(page_offset(part, blocks.first),
                                              ByteCount(blocks.count * shape_.page_bytes), 0xEEEEEEEE));
  return ok_status();
}

void BenchEngine::fill(const BlockHash& hash, std::uint32_t block) {
  for (std::uint32_t part = 0; part < shape_.layers * shape_.components; ++part) {
    auto bytes = page(part, block);
    for (std::size_t at = 0; at < bytes.size(); ++at)
      bytes[at] = hash.bytes[(at + part) % 32] ^ static_cast<std::byte>(at >> 5);
  }
}

std::uint64_t BenchEngine::wrong_bytes(const BlockHash& hash, std::uint32_t block) {
  std::uint64_t wrong = 0;
  for (std::uint32_t part = 0; part < shape_.layers * shape_.components; ++part) {
    auto bytes = page(part, block);
    for (std::size_t at = 0; at < bytes.size(); ++at)
      wrong += bytes[at] != (hash.bytes[(at + part) % 32] ^ static_cast<std::byte>(at >> 5));
  }
  return wrong;
}

Status BenchEngine::save(std::span<const BlockHash> hashes, std::span<const std::uint32_t> blocks) {
  const client::SaveGroup group{0, blocks, hashes};
  client::OperationHandle handle;
  ORBITKV_RETURN_IF_ERROR(to_status(client_->start_save(registration_, {&group, 1}, {}, handle)));
  const auto status = client_->wait(handle, kWaitMs);
  client_->drop(handle);
  if (status.done && status.success) return ok_status();
  return bug("a save of the bench failed: " + status.message);
}

// A pool that is still being touched drops pages; offers them again until all are there.
Status BenchEngine::make_resident(std::uint32_t n) {
  for (std::uint32_t at = 0; at < n; at += kBatch) {
    const auto hashes = hashes_from(at, std::min(kBatch, n - at));
    std::vector<std::uint32_t> blocks(hashes.size());
    for (std::uint32_t i = 0; i < blocks.size(); ++i) blocks[i] = i % shape_.blocks;
    for (int tries = 0;; ++tries) {
      ORBITKV_RETURN_IF_ERROR(save(hashes, blocks));
      client::Candidates found;
      ORBITKV_RETURN_IF_ERROR(to_status(client_->query_candidates(instance_, hashes, "resident?", 0, found)));
      if (found.hit_blocks == hashes.size()) break;
      if (tries == 500) return bug("the Manager's pool is too small for the bench");
      usleep(20'000);
    }
  }
  return ok_status();
}

Result<LeaseId> BenchEngine::lease(std::span<const BlockHash> hashes) {
  client::Ready ready;
  const std::string request = "r" + std::to_string(++next_request_);
  ORBITKV_RETURN_IF_ERROR(to_status(client_->query_prefetch(instance_, hashes, request, 0, ready)));
  if (ready.hit_blocks != hashes.size()) return bug("blocks that were published are not resident");
  return ready.lease;
}

}  // namespace orbitkv::bench
