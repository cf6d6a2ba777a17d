// The main job with the example engine: publish, SIGKILL, restore in a new process.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "native_engine.h"

namespace orbitkv::example {
namespace {

// A child process whose first line of output is waited for.
class Child {
 public:
  explicit Child(std::vector<std::string> args) {
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      dup2(pipe_fds[1], 1);
      std::vector<char*> argv;
      for (auto& arg : args) argv.push_back(arg.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      std::perror(argv[0]);
      _exit(127);
    }
    close(pipe_fds[1]);
    output_ = fdopen(pipe_fds[0], "r");
  }
  ~Child() {
    if (pid_ > 0) end(SIGKILL);
    if (output_) std::fclose(output_);
  }
  bool read_line(char* line, int size) { return output_ && std::fgets(line, size, output_); }
  int end(int signal) {
    if (signal) kill(pid_, signal);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
  FILE* output_ = nullptr;
};

struct Figures {
  double cold = 0, restored = 0;
  unsigned blocks = 0;
  unsigned long long wrong = 0;
};

bool wait_for_socket(const std::string& path) {
  for (int i = 0; i < 500; ++i) {
    if (access(path.c_str(), F_OK) == 0) return true;
    usleep(20'000);
  }
  std::fprintf(stderr, "the Manager did not come up at %s\n", path.c_str());
  return false;
}

bool run(const std::string& socket, const char* self, Figures& figures) {
  char line[256];
  {
    Child publisher({self, "publish", "--bootstrap-socket", socket});
    if (!publisher.read_line(line, sizeof line) || std::sscanf(line, "published %lf", &figures.cold) != 1)
      return false;
    std::fprintf(stderr, "published; killing the engine with SIGKILL\n");
    publisher.end(SIGKILL);
  }
  Child restorer({self, "restore", "--bootstrap-socket", socket});
  if (!restorer.read_line(line, sizeof line)) return false;
  return std::sscanf(line, "restored %u %llu %lf", &figures.blocks, &figures.wrong, &figures.restored) == 3 &&
         restorer.end(0) == 0;
}
}  // namespace

int main_job(const Shape& shape, const std::string& orbitkv, const char* self) {
  char directory[] = "/tmp/orbitkv-job-XXXXXX";
  if (!mkdtemp(directory)) return 1;
  const std::string socket = std::string(directory) + "/manager.sock";
  Figures figures;
  bool ok = false;
  {
    Child manager(
        {orbitkv, "serve", "--bootstrap-socket", socket, "--pool-size", "256MiB", "--log-level", "warning"});
    ok = wait_for_socket(socket) && run(socket, self, figures);
    manager.end(SIGTERM);
  }
  std::system(("rm -rf " + std::string(directory)).c_str());  // NOLINT: our own temporary directory
  const unsigned long long bytes = 2ull * shape.layers * shape.page_bytes * figures.blocks;
  ok = ok && figures.wrong == 0 && figures.blocks == shape.blocks;
  std::printf("blocks restored   %u of %u\nbytes restored    %llu\nwrong bytes       %llu\n", figures.blocks,
              shape.blocks, bytes, figures.wrong);
  std::printf("compute, publish  %.4f s\nquery, restore    %.4f s\n", figures.cold, figures.restored);
  std::printf(
      "{\"restored_tokens\": %u, \"restored_bytes\": %llu, \"tokens_equal\": null, \"wrong_bytes\": %llu, "
      "\"seconds\": {\"cold\": %.6f, \"restored\": %.6f}}\n",
      figures.blocks * shape.block_tokens, bytes, figures.wrong, figures.cold, figures.restored);
  return ok ? 0 : 1;
}

}  // namespace orbitkv::example

int main(int argc, char** argv) {
  using namespace orbitkv::example;
  const char* usage =
      "orbitkv-native-engine: a small engine that publishes and restores KV pages\n"
      "  main-job --orbitkv PATH           Manager, publisher killed by SIGKILL, restorer; JSON on the last "
      "line\n"
      "  publish --bootstrap-socket PATH   compute and publish the prompt, then wait to be killed\n"
      "  restore --bootstrap-socket PATH   restore the prompt and compare every byte\n";
  const std::string command = argc > 1 ? argv[1] : "";
  const std::string value = argc == 4 ? argv[3] : "";
  if (command == "main-job" && argc == 4) return main_job({}, value, argv[0]);
  if (command == "publish" && argc == 4) return publish({}, value);
  if (command == "restore" && argc == 4) return restore({}, value);
  std::fputs(usage, command == "--help" ? stdout : stderr);
  return command == "--help" ? 0 : 2;
}
