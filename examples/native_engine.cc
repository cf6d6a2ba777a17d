#include "native_engine.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>

namespace orbitkv::example {
namespace {
using Clock = std::chrono::steady_clock;

constexpr InstanceId kPublisher{{std::byte{1}}};
constexpr InstanceId kRestorer{{std::byte{2}}};
constexpr std::uint32_t kWaitMs = 30'000;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// splitmix64: a bijection, so different words stay different.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

client::Registration registration(const Shape& shape, KvMemory& memory, InstanceId instance) {
  client::Registration r;
  r.instance = instance;
  r.name_space = "orbitkv:example:v1 model=xorshift dtype=u8";
  r.num_blocks = shape.blocks;
  r.block_tokens = shape.block_tokens;
  r.groups = {client::Group{}};
  r.layers = memory.layers();
  return r;
}

int fail(const char* what, const client::Outcome& outcome) {
  std::fprintf(stderr, "%s: %s\n", what, outcome.message.c_str());
  return 1;
}

int finish(client::Client& client, client::OperationHandle handle, const char* what) {
  const auto status = client.wait(handle, kWaitMs);
  if (status.done && status.success) return 0;
  std::fprintf(stderr, "%s: %s\n", what, status.done ? status.message.c_str() : "still running after 30 s");
  return 1;
}

// Publishing is idempotent and best effort (a Manager whose pool is not touched yet drops
// pages): offers the prompt again until the Manager has all of it.
int publish_all(client::Client& client, client::RegistrationHandle handle,
                std::span<const std::uint32_t> blocks, std::span<const BlockHash> hashes) {
  const client::SaveGroup group{0, blocks, hashes};
  const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(kWaitMs);
  while (Clock::now() < deadline) {
    client::OperationHandle save;
    client::Outcome outcome = client.start_save(handle, {&group, 1}, {}, save);
    if (!outcome.ok()) return fail("save", outcome);
    if (int code = finish(client, save, "save")) return code;
    client::Candidates found;
    outcome = client.query_candidates(kPublisher, hashes, "published?", 0, found);
    if (!outcome.ok()) return fail("query", outcome);
    if (found.hit_blocks == hashes.size()) return 0;
    usleep(20'000);
  }
  return fail("save",
              {client::Action::kRetry, "the Manager keeps dropping pages; is its pool large enough?"});
}

// Engine block of prompt block i: another order in every process, as in a real engine.
std::vector<std::uint32_t> engine_blocks(const Shape& shape, std::uint32_t stride) {
  std::vector<std::uint32_t> blocks(shape.blocks);
  while (std::gcd(stride, shape.blocks) != 1) ++stride;
  for (std::uint32_t i = 0; i < shape.blocks; ++i)
    blocks[i] = static_cast<std::uint32_t>(std::uint64_t{i} * stride % shape.blocks);
  return blocks;
}
}  // namespace

KvMemory::KvMemory(const Shape& shape)
    : shape_(shape), memory_(std::size_t{2} * shape.layers * shape.blocks * shape.page_bytes) {}

std::span<std::byte> KvMemory::page(std::uint32_t layer, std::uint32_t component, std::uint32_t block) {
  const std::size_t index = (std::size_t{layer} * 2 + component) * shape_.blocks + block;
  return std::span(memory_).subspan(index * shape_.page_bytes, shape_.page_bytes);
}

std::vector<client::Layer> KvMemory::layers() {
  std::vector<client::Layer> out;
  for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
    for (std::uint16_t component = 0; component < 2; ++component) {
      client::Layer l;
      l.name = "layer " + std::to_string(layer);
      l.component = component;
      l.base = page(layer, component, 0).data();
      l.bytes = std::uint64_t{shape_.blocks} * shape_.page_bytes;
      l.block_stride = shape_.page_bytes;
      l.row_bytes = shape_.page_bytes;
      out.push_back(l);
    }
  }
  return out;
}

// A chain like a real engine's: a block's hash depends on all blocks before it. Theirs is
// cryptographic; this one needs only to differ from block to block.
std::vector<BlockHash> prompt_hashes(std::uint32_t blocks) {
  std::vector<BlockHash> hashes(blocks);
  std::array<std::uint64_t, 4> chain{1, 2, 3, 4};
  for (std::uint32_t i = 0; i < blocks; ++i) {
    for (std::uint64_t& word : chain) word = mixed(word + i);
    std::memcpy(hashes[i].bytes.data(), chain.data(), sizeof(chain));
  }
  return hashes;
}

void compute_page(const BlockHash& hash, std::uint32_t layer_and_component, std::span<std::byte> page) {
  std::uint64_t x = 0;
  std::memcpy(&x, hash.bytes.data(), 8);
  x ^= (layer_and_component + 1) * 0x9E3779B97F4A7C15u;
  for (std::size_t at = 0; at + 8 <= page.size(); at += 8) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    std::memcpy(page.data() + at, &x, 8);
  }
}

std::uint64_t wrong_bytes(const Shape& shape, KvMemory& memory, std::span<const BlockHash> hashes,
                          std::span<const std::uint32_t> blocks) {
  std::vector<std::byte> expected(shape.page_bytes);
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    for (std::uint32_t part = 0; part < 2 * shape.layers; ++part) {
      compute_page(hashes[i], part, expected);
      const auto page = memory.page(part / 2, part % 2, blocks[i]);
      for (std::size_t b = 0; b < page.size(); ++b) wrong += page[b] != expected[b];
    }
  }
  return wrong;
}

int publish(const Shape& shape, const std::string& socket) {
  KvMemory memory(shape);
  const auto hashes = prompt_hashes(shape.blocks);
  const auto blocks = engine_blocks(shape, 7);
  const Clock::time_point start = Clock::now();
  for (std::size_t i = 0; i < hashes.size(); ++i)
    for (std::uint32_t part = 0; part < 2 * shape.layers; ++part)
      compute_page(hashes[i], part, memory.page(part / 2, part % 2, blocks[i]));
  client::Outcome outcome;
  auto client =
      client::Client::open({.bootstrap_socket = socket, .name = "native engine, publisher"}, outcome);
  if (!client) return fail("open", outcome);
  if (outcome = client->wait_connected(kWaitMs); !outcome.ok()) return fail("connect", outcome);
  client::RegistrationHandle handle;
  if (outcome = client->register_rank(registration(shape, memory, kPublisher), handle); !outcome.ok())
    return fail("register", outcome);
  if (int code = publish_all(*client, handle, blocks, hashes)) return code;
  std::printf("published %.6f\n", seconds_since(start));
  std::fflush(stdout);
  for (;;) pause();  // the end is a SIGKILL
}

int restore(const Shape& shape, const std::string& socket) {
  KvMemory memory(shape);
  const auto hashes = prompt_hashes(shape.blocks);
  const auto blocks = engine_blocks(shape, 11);
  client::Outcome outcome;
  auto client =
      client::Client::open({.bootstrap_socket = socket, .name = "native engine, restorer"}, outcome);
  if (!client) return fail("open", outcome);
  if (outcome = client->wait_connected(kWaitMs); !outcome.ok()) return fail("connect", outcome);
  client::RegistrationHandle handle;
  if (outcome = client->register_rank(registration(shape, memory, kRestorer), handle); !outcome.ok())
    return fail("register", outcome);
  const Clock::time_point start = Clock::now();
  client::Ready ready;
  if (outcome = client->query_prefetch(kRestorer, hashes, "prompt", 0, ready); !outcome.ok())
    return fail("query", outcome);
  if (ready.hit_blocks == 0)
    return fail("query", {client::Action::kRecompute, "the prompt is not in the Manager"});
  const client::Load load{ready.lease, 0, std::span(blocks).first(ready.hit_blocks)};
  client::OperationHandle operation;
  if (outcome = client->start_restore(handle, {&load, 1}, {}, operation); !outcome.ok())
    return fail("restore", outcome);
  if (int code = finish(*client, operation, "restore")) return code;
  const double seconds = seconds_since(start);
  const auto hit = std::span(hashes).first(ready.hit_blocks);
  std::printf("restored %u %llu %.6f\n", ready.hit_blocks,
              static_cast<unsigned long long>(wrong_bytes(shape, memory, hit, blocks)), seconds);
  client->close();
  return 0;
}

}  // namespace orbitkv::example
