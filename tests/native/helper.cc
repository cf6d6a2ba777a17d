// The second process of the native tests. As `engine` it opens a client and does what
// the lines on its stdin say, one answer a line; as `hostile` it breaks the protocol;
// as `coordinator` it holds a claim at two Managers.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>

#include "orbitkv/interests.h"
#include "tests/native/engine.h"
#include "tests/native/hostile.h"

namespace orbitkv::test {
namespace {

// key=value arguments.
std::map<std::string, std::string> arguments_of(int argc, char** argv) {
  std::map<std::string, std::string> out;
  for (int i = 2; i < argc; ++i) {
    const std::string text = argv[i];
    const auto equal = text.find('=');
    out[text.substr(0, equal)] = equal == std::string::npos ? "" : text.substr(equal + 1);
  }
  return out;
}

EngineOptions options_of(std::map<std::string, std::string>& in) {
  const auto number = [&](const char* key, unsigned long otherwise) {
    return in.contains(key) ? std::strtoul(in[key].c_str(), nullptr, 10) : otherwise;
  };
  EngineOptions o;
  o.socket = in["socket"];
  o.shape = shape_of(static_cast<int>(number("shape", 0)));
  o.shape.blocks = static_cast<std::uint32_t>(number("blocks", o.shape.blocks));
  o.instance = static_cast<std::uint8_t>(number("instance", 1));
  o.rank = static_cast<std::uint16_t>(number("rank", 0));
  o.world_size = static_cast<std::uint16_t>(number("world", 1));
  o.shard = static_cast<std::uint16_t>(number("shard", 0));
  o.shards = static_cast<std::uint16_t>(number("shards", 1));
  o.writer = number("writer", 1) != 0;
  o.lies = number("lies", 0) != 0;
  if (in.contains("space")) o.name_space = in["space"];
  return o;
}

LeaseId lease_of(const std::string& hex) {
  LeaseId lease;
  for (std::size_t i = 0; i < lease.bytes.size(); ++i)
    lease.bytes[i] = static_cast<std::byte>(std::strtoul(hex.substr(2 * i, 2).c_str(), nullptr, 16));
  return lease;
}

void answer(const char* verb, const client::OperationStatus& status, std::uint32_t hits,
            std::uint64_t wrong) {
  std::printf("%s %d %u %u %llu %s\n", verb, status.done && status.success, status.blocks, hits,
              static_cast<unsigned long long>(wrong), status.message.c_str());
  std::fflush(stdout);
}

// save BLOCK HASH COUNT | restore BLOCK HASH COUNT | lease HEX BLOCK HASH COUNT | hold BLOCK HASH
// COUNT (a lease that it keeps) | prepare BLOCK HASH COUNT (what it never asks for) | quit
void serve_line(Engine& engine, const std::string& line) {
  std::istringstream in(line);
  std::string verb, hex;
  std::uint32_t block = 0, count = 0;
  std::uint64_t hash = 0;
  in >> verb;
  if (verb == "lease") in >> hex;
  in >> block >> hash >> count;
  if (verb == "save") {
    answer("saved", engine.save(block, hash, count), 0, 0);
  } else if (verb == "restore") {
    const auto restored = engine.restore(block, hash, count);
    answer("restored", restored.status, restored.hits, restored.wrong);
  } else if (verb == "lease") {
    const auto blocks = blocks_of(block, count);
    const auto status = engine.restore_from(lease_of(hex), blocks);
    std::uint64_t wrong = 0;
    for (std::uint32_t i = 0; i < count; ++i) wrong += engine.wrong_bytes(blocks[i], hash_of(hash + i));
    answer("restored", status, count, wrong);
  } else if (verb == "hold") {
    client::Ready ready;
    const auto outcome = engine.lease(hash, count, ready);
    answer("held", {true, outcome.ok(), 0, outcome.message}, ready.hit_blocks, 0);
  } else if (verb == "prepare") {
    const auto hashes = hashes_of(hash, count);
    bool begun = false;
    const auto outcome = engine.client().prepare_prefix({engine.instance(), hashes, "prepared"}, begun);
    answer("prepared", {true, outcome.ok() && begun, 0, outcome.message}, 0, 0);
  }
}

int engine_main(std::map<std::string, std::string> in) {
  Engine engine(options_of(in));
  const auto outcome = engine.connect();
  std::printf("%s %s\n", outcome.ok() ? "ready" : "refused", outcome.message.c_str());
  std::fflush(stdout);
  if (!outcome.ok()) return 1;
  for (std::string line; std::getline(std::cin, line) && line != "quit";) serve_line(engine, line);
  return 0;
}
// Claims what the instances 1 at both sockets have of a list, says so, and holds it until it dies.
int coordinator_main(std::map<std::string, std::string> in) {
  std::vector<std::unique_ptr<client::Client>> clients;
  std::vector<client::Client*> carried;
  for (const char* socket : {"first", "second"}) {
    client::Options options;
    options.bootstrap_socket = in[socket];
    client::Outcome outcome;
    clients.push_back(client::Client::open(options, outcome));
    if (!outcome.ok() || !clients.back()->wait_connected(kDoneWithinMs).ok()) return 1;
    carried.push_back(clients.back().get());
  }
  client::Outcome outcome;
  auto group = client::PrefixGroup::open({}, {{instance_of(1), {0}}, {instance_of(1), {1}}},
                                         client::carry_over(carried, outcome), outcome);
  if (!outcome.ok()) return 1;
  const auto hashes = hashes_of(1, 16);
  std::uint64_t claim = 0;
  client::CommonPrefix found;
  if (!group->begin({hashes}, claim).ok() || !group->poll(claim, kDoneWithinMs, found).ok()) return 1;
  std::printf("claimed %u\n", found.blocks);
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
  }
  return 0;
}
}  // namespace
}  // namespace orbitkv::test

int main(int argc, char** argv) {
  using namespace orbitkv::test;
  const std::string verb = argc > 1 ? argv[1] : "";
  auto arguments = arguments_of(argc, argv);
  if (verb == "engine") return engine_main(arguments);
  while (verb == "hostile" && arguments.contains("forever"))  // until it is killed
    hostile_main(arguments["socket"], std::strtoul(arguments["seed"].c_str(), nullptr, 10), 60'000);
  if (verb == "hostile")
    return hostile_main(arguments["socket"], std::strtoul(arguments["seed"].c_str(), nullptr, 10),
                        std::atoi(arguments["ms"].c_str()));
  if (verb == "coordinator") return coordinator_main(arguments);
  std::fprintf(stderr, "engine, hostile or coordinator\n");
  return 2;
}
