#include "sim/batch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/text.h"
#include "sim/cells.h"

namespace orbitkv::sim {
namespace {

// One result on the pipe.
struct Line {
  std::uint64_t seed, operations, events, digest;
  char checker[32];
  char text[400];
};

void put(char* out, std::size_t room, const std::string& text) {
  std::memset(out, 0, room);
  std::memcpy(out, text.data(), std::min(text.size(), room - 1));
}

[[noreturn]] void work(const Batch& batch, int out, std::uint8_t* reached) {
  ::signal(SIGINT, SIG_IGN);  // the parent ends with the seed at hand
  for (std::uint64_t seed = batch.first; seed < batch.first + batch.count; ++seed) {
    const Outcome outcome = run_seed(seed, batch.run);
    add_reached(reached);
    Line line{seed, outcome.operations, outcome.events, outcome.digest, {}, {}};
    put(line.checker, sizeof line.checker, outcome.finding ? outcome.finding->checker : "");
    put(line.text, sizeof line.text, outcome.finding ? outcome.finding->text : "");
    if (::write(out, &line, sizeof line) != static_cast<ssize_t>(sizeof line)) ::_exit(1);
  }
  ::_exit(0);
}

std::string how_it_ended(int status) {
  if (!WIFSIGNALED(status)) return format_text("the process ended with exit status %d", WEXITSTATUS(status));
  const char* const name = ::sigabbrev_np(WTERMSIG(status));
  return format_text("signal %d (SIG%s) ended the process; its last words, if it had any, are above",
                     WTERMSIG(status), name ? name : "?");
}

// A process works through the batch until it ends or is stopped. Returns the next seed.
std::uint64_t run_worker(const Batch& batch, std::uint8_t* reached,
                         const std::function<bool(const SeedResult&)>& each, bool& go_on) {
  int ends[2];
  ORBITKV_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "a pipe");
  const pid_t child = ::fork();
  ORBITKV_CHECK(child >= 0, "a process for the seeds");
  if (child == 0) work(batch, ends[1], reached);
  ::close(ends[1]);
  std::uint64_t next = batch.first;
  Line line;
  while (go_on) {
    const ssize_t n = ::read(ends[0], &line, sizeof line);
    if (n < 0 && errno == EINTR) continue;
    if (n != static_cast<ssize_t>(sizeof line)) break;
    next = line.seed + 1;
    go_on = each({line.seed, line.operations, line.events, line.digest, line.checker, line.text});
  }
  ::close(ends[0]);
  if (!go_on) ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  const bool fine = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (!fine && go_on && next < batch.first + batch.count)
    go_on = each({next++, 0, 0, 0, "stopped", how_it_ended(status)});
  return next;
}

}  // namespace

void run_batch(const Batch& batch, std::vector<std::uint8_t>& reached,
               const std::function<bool(const SeedResult&)>& each) {
  const std::size_t cells = all_cells().size();
  void* shared = ::mmap(nullptr, cells, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ORBITKV_CHECK(shared != MAP_FAILED, "memory for the cells");
  auto* bytes = static_cast<std::uint8_t*>(shared);
  Batch left = batch;
  const std::uint64_t end = batch.first + batch.count;
  for (bool go_on = true; go_on && left.first < end;) {
    left.count = end - left.first;
    left.first = run_worker(left, bytes, each, go_on);
  }
  reached.resize(cells);
  for (std::size_t i = 0; i < cells; ++i) reached[i] |= bytes[i];
  ::munmap(shared, cells);
}

}  // namespace orbitkv::sim
