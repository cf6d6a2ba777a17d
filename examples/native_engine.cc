#include "native_engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "base/sha256.h"
#include "base/time.h"

namespace orbitkv::example {
namespace {
constexpr InstanceId kPublisher{{std::byte{1}}};
constexpr InstanceId kRestorer{{std::byte{2}}};
constexpr std::uint32_t kWaitMs = 30'000;

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
int publish_all(client::Client& client, client::RegistrationHandle handle, std::span<const std::uint32_t> blocks,
                std::span<const BlockHash> hashes) {
  const client::SaveGroup group{0, blocks, hashes};
  const TimePoint deadline = monotonic_now() + milliseconds(kWaitMs);
  while (monotonic_now() < deadline) {
    client::OperationHandle save;
    client::Outcome outcome = client.start_save(handle, {&group, 1}, save);
    if (!outcome.ok()) return fail("save", outcome);
    if (int code = finish(client, save, "save")) return code;
    client::Candidates found;
    outcome = client.query_candidates(kPublisher, hashes, "published?", 0, found);
    if (!outcome.ok()) return fail("query", outcome);
    if (found.hit_blocks == hashes.size()) return 0;
    usleep(20'000);
  }
  return fail("save", {client::Action::kRetry, "the Manager keeps dropping pages; is its pool large enough?"});
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

std::vector<BlockHash> prompt_hashes(std::uint32_t blocks) {
  std::vector<BlockHash> hashes(blocks);
  BlockHash parent{};
  for (std::uint32_t i = 0; i < blocks; ++i) {
    std::array<std::byte, 36> text{};
    std::memcpy(text.data(), parent.bytes.data(), 32);
    std::memcpy(text.data() + 32, &i, 4);
    hashes[i].bytes = sha256(text);
    parent = hashes[i];
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
  const TimePoint start = monotonic_now();
  for (std::size_t i = 0; i < hashes.size(); ++i)
    for (std::uint32_t part = 0; part < 2 * shape.layers; ++part)
      compute_page(hashes[i], part, memory.page(part / 2, part % 2, blocks[i]));
  client::Outcome outcome;
  auto client = client::Client::open({.bootstrap_socket = socket, .name = "native engine, publisher"}, outcome);
  if (!client) return fail("open", outcome);
  if (outcome = client->wait_connected(kWaitMs); !outcome.ok()) return fail("connect", outcome);
  client::RegistrationHandle handle;
  if (outcome = client->register_rank(registration(shape, memory, kPublisher), handle); !outcome.ok())
    return fail("register", outcome);
  if (int code = publish_all(*client, handle, blocks, hashes)) return code;
  std::printf("published %.6f\n", static_cast<double>((monotonic_now() - start).ns) / 1e9);
  std::fflush(stdout);
  for (;;) pause();  // the end is a SIGKILL
}

int restore(const Shape& shape, const std::string& socket) {
  KvMemory memory(shape);
  const auto hashes = prompt_hashes(shape.blocks);
  const auto blocks = engine_blocks(shape, 11);
  client::Outcome outcome;
  auto client = client::Client::open({.bootstrap_socket = socket, .name = "native engine, restorer"}, outcome);
  if (!client) return fail("open", outcome);
  if (outcome = client->wait_connected(kWaitMs); !outcome.ok()) return fail("connect", outcome);
  client::RegistrationHandle handle;
  if (outcome = client->register_rank(registration(shape, memory, kRestorer), handle); !outcome.ok())
    return fail("register", outcome);
  const TimePoint start = monotonic_now();
  client::Ready ready;
  if (outcome = client->query_prefetch(kRestorer, hashes, "prompt", 0, ready); !outcome.ok())
    return fail("query", outcome);
  if (ready.hit_blocks == 0) return fail("query", {client::Action::kRecompute, "the prompt is not in the Manager"});
  const client::Load load{ready.lease, 0, std::span(blocks).first(ready.hit_blocks)};
  client::OperationHandle operation;
  if (outcome = client->start_restore(handle, {&load, 1}, operation); !outcome.ok()) return fail("restore", outcome);
  if (int code = finish(*client, operation, "restore")) return code;
  const double seconds = static_cast<double>((monotonic_now() - start).ns) / 1e9;
  const auto hit = std::span(hashes).first(ready.hit_blocks);
  std::printf("restored %u %llu %.6f\n", ready.hit_blocks,
              static_cast<unsigned long long>(wrong_bytes(shape, memory, hit, blocks)), seconds);
  client->close();
  return 0;
}

}  // namespace orbitkv::example
