// The engine process of the GPU tests: does what the lines on its stdin say, one answer a
// line. key=value arguments: socket, instance, timeout (ms), bounce=1 (no slab can be
// registered).
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>

#include "tests/native/gpu_bed.h"

namespace orbitkv::test {
namespace {

constexpr int kIllegalAddress = 700;

class Helper {
 public:
  Helper(EngineOptions options, std::uint32_t enqueued_ms)
      : engine(std::move(options)), stream_(new_stream()), enqueued_ms_(enqueued_ms) {}

  // save|restore BLOCK HASH COUNT: from start to end. begin save|restore ...: behind a
  // stream that stands still, until the copies stand on the queues. load HASH: for ever, one
  // save and one restore at a time. wait | release | lose | deinit | fork | exit
  void serve(const std::string& line) {
    std::istringstream in(line);
    std::string verb, what;
    in >> verb;
    if (verb == "begin") in >> what;
    std::uint32_t block = 0, count = 0;
    std::uint64_t hash = 0;
    if (verb == "load") {
      in >> hash;
      return load(hash);
    }
    in >> block >> hash >> count;
    if (verb == "save") return answer("saved", engine.save(block, hash, count), 0, 0);
    if (verb == "restore") {
      const auto restored = engine.restore(block, hash, count);
      return answer("restored", restored.status, restored.hits, restored.wrong);
    }
    if (verb == "begin") return say("begun", begin(what == "save", block, hash, count));
    if (verb == "wait") return answer("waited", engine.client().wait(handle_, kDoneWithinMs), 0, 0);
    if (verb == "fork") return say("forked", fork_child());
    if (verb == "exit") std::exit(0);  // with a client that nobody closes
    if (verb == "release") let_go(stream_);
    if (verb == "deinit") fake_gpu().deinitialise();
    if (verb == "lose") fake_gpu().lose(0, kIllegalAddress);
    say(verb.c_str(), {});
  }

  Engine engine;

 private:
  static void say(const char* verb, const std::string& text) {
    std::printf("%s %s\n", verb, text.c_str());
    std::fflush(stdout);
  }
  static void answer(const char* verb, const client::OperationStatus& status, std::uint32_t hits,
                     std::uint64_t wrong) {
    std::printf("%s %d %u %u %llu %s\n", verb, status.done && status.success, status.blocks, hits,
                static_cast<unsigned long long>(wrong), status.message.c_str());
    std::fflush(stdout);
  }
  // Empty, or what went wrong.
  std::string begin(bool save, std::uint32_t block, std::uint64_t hash, std::uint32_t count) {
    hold(stream_);
    const auto hashes = hashes_of(hash, count);
    const auto blocks = blocks_of(block, count);
    client::Outcome outcome;
    if (save) {
      for (std::uint32_t i = 0; i < count; ++i) engine.compute(blocks[i], hashes[i]);
      outcome = engine.start_save(blocks, hashes, handle_, {stream_});
    } else {
      client::Ready ready;
      outcome = engine.lease(hash, count, ready);
      const client::Load load{ready.lease, 0, blocks};
      client::RestoreOptions options;
      options.ready_stream = stream_;
      if (outcome.ok())
        outcome = engine.client().start_restore(engine.registration(), {&load, 1}, options, handle_);
    }
    if (outcome.ok()) outcome = engine.client().wait_enqueued(handle_, enqueued_ms_);
    return outcome.message;
  }
  // Saves 16 new blocks and restores the 16 before, at once, until it is killed.
  void load(std::uint64_t hash) {
    std::vector<client::OperationHandle> open;
    for (std::uint64_t i = 0;; ++i) {
      const auto hashes = hashes_of(hash + 16 * i, 16);
      for (std::uint32_t b = 0; b < 16; ++b) engine.compute(b, hashes[b]);
      client::OperationHandle handle;
      if (engine.start_save(blocks_of(0, 16), hashes, handle).ok()) open.push_back(handle);
      client::Ready ready;
      if (i > 0 && engine.lease(hash + 16 * (i - 1), 16, ready).ok() && ready.lease) {
        const auto targets = blocks_of(16, ready.hit_blocks);
        const client::Load load{ready.lease, 0, targets};
        if (engine.client().start_restore(engine.registration(), {&load, 1}, {}, handle).ok())
          open.push_back(handle);
      }
      // The pages are written again.
      for (const auto each : open) {
        engine.client().wait(each, kDoneWithinMs);
        engine.client().drop(each);
      }
      open.clear();
    }
  }
  // The child may do nothing with the client, and ends without harm to it.
  std::string fork_child() {
    const pid_t child = ::fork();
    if (child == 0) {
      client::OperationHandle handle;
      const auto blocks = blocks_of(0, 1);
      const auto hashes = hashes_of(7777, 1);
      const bool refused = engine.start_save(blocks, hashes, handle).action == client::Action::kReject;
      std::exit(refused ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? ""
                                                         : "the child ended with " + std::to_string(status);
  }

  std::uint64_t stream_;
  std::uint32_t enqueued_ms_;
  client::OperationHandle handle_;
};

int run(std::map<std::string, std::string> arguments) {
  if (arguments.contains("bounce"))
    fake_gpu().fail({.entry = "cuMemHostRegister", .code = 801, .for_ever = true});
  EngineOptions options;
  options.socket = arguments["socket"];
  const auto number = [&](const char* key, int otherwise) {
    return arguments.contains(key) ? std::atoi(arguments[key].c_str()) : otherwise;
  };
  options.instance = static_cast<std::uint8_t>(number("instance", 1));
  options.timeout_ms = static_cast<std::uint32_t>(number("timeout", 5000));
  // Through the buffer, a restore's copies cannot be enqueued behind a stream that stands.
  Helper helper(on_gpu(options), arguments.contains("bounce") ? 300 : kDoneWithinMs);
  const auto outcome = helper.engine.connect();
  const bool waits = !arguments.contains("bounce") && !arguments.contains("early");
  if (outcome.ok() && waits && !registered_within(1)) return 1;
  std::printf("%s %s\n", outcome.ok() ? "ready" : "refused", outcome.message.c_str());
  std::fflush(stdout);
  if (!outcome.ok()) return 1;
  for (std::string line; std::getline(std::cin, line) && line != "quit";) helper.serve(line);
  return 0;
}

}  // namespace
}  // namespace orbitkv::test

int main(int argc, char** argv) {
  std::map<std::string, std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const auto equal = text.find('=');
    arguments[text.substr(0, equal)] = equal == std::string::npos ? "" : text.substr(equal + 1);
  }
  return orbitkv::test::run(std::move(arguments));
}
