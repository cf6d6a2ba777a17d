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
#include "base/heap.h"
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

struct Worker {
  pid_t process = -1;
  int results = -1;  // where they are read
};

// Seeds from `first` on, in steps of the batch's jobs.
[[noreturn]] void work(const Batch& batch, std::uint64_t first, int out, std::uint32_t* reached) {
  ::signal(SIGINT, SIG_IGN);  // the parent ends with the seed at hand
  keep_heap();                // a world ends, and the next one takes as much
  std::vector<std::uint32_t> inherited(all_cells().size());
  count_reached(inherited.data());
  for (std::uint64_t seed = first; seed < batch.first + batch.count; seed += batch.jobs) {
    const Outcome outcome = run_seed(seed, batch.run);
    count_reached(reached);
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

// Processes that work through the batch, seed after seed in turns, each with cells of its own.
class Workers {
 public:
  Workers(const Batch& batch, std::uint32_t* reached)
      : batch_(batch), reached_(reached), all_(std::min<std::uint64_t>(batch.jobs, batch.count)) {
    for (std::uint64_t i = 0; i < all_.size(); ++i) start(all_[i], batch_.first + i);
  }
  ~Workers() {
    for (Worker& worker : all_) {
      if (worker.process < 0) continue;
      ::kill(worker.process, SIGKILL);
      end(worker);
    }
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Of this seed, when it has run; seeds are asked for in their order.
  SeedResult result(std::uint64_t seed) {
    Worker& worker = all_[(seed - batch_.first) % batch_.jobs];
    Line line;
    ssize_t n = -1;
    do n = ::read(worker.results, &line, sizeof line);
    while (n < 0 && errno == EINTR);
    if (n == static_cast<ssize_t>(sizeof line))
      return {line.seed, line.operations, line.events, line.digest, line.checker, line.text};
    const std::string how = how_it_ended(end(worker));
    if (batch_.jobs < batch_.first + batch_.count - seed) start(worker, seed + batch_.jobs);
    return {seed, 0, 0, 0, "stopped", how};
  }

 private:
  void start(Worker& worker, std::uint64_t first) {
    int ends[2];
    ORBITKV_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "a pipe");
    worker.process = ::fork();
    ORBITKV_CHECK(worker.process >= 0, "a process for the seeds");
    if (worker.process == 0) {
      for (const Worker& other : all_) ::close(other.results);
      ::close(ends[0]);
      work(batch_, first, ends[1], reached_ + (first - batch_.first) % batch_.jobs * all_cells().size());
    }
    ::close(ends[1]);
    worker.results = ends[0];
  }
  static int end(Worker& worker) {
    ::close(worker.results);
    int status = 0;
    ::waitpid(worker.process, &status, 0);
    worker = {};
    return status;
  }

  const Batch batch_;
  std::uint32_t* const reached_;
  std::vector<Worker> all_;
};

}  // namespace

void run_batch(const Batch& batch, std::vector<std::uint32_t>& reached,
               const std::function<bool(const SeedResult&)>& each) {
  const std::size_t cells = all_cells().size(), all = cells * batch.jobs;
  void* shared =
      ::mmap(nullptr, all * sizeof reached[0], PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ORBITKV_CHECK(shared != MAP_FAILED, "memory for the cells");
  auto* counts = static_cast<std::uint32_t*>(shared);
  {
    Workers workers(batch, counts);
    for (std::uint64_t i = 0; i < batch.count && each(workers.result(batch.first + i)); ++i) continue;
  }
  reached.resize(cells);
  for (std::size_t i = 0; i < all; ++i) reached[i % cells] += counts[i];
  ::munmap(shared, all * sizeof reached[0]);
}

}  // namespace orbitkv::sim
