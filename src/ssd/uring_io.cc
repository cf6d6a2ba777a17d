#include "ssd/uring_io.h"

#include <unistd.h>

#include <future>
#include <thread>

#include "ssd/io_front.h"
#include "ssd/uring_ring.h"

namespace orbitkv::ssd {
namespace {

class UringIo final : public IoFront {
 public:
  explicit UringIo(const IoOptions& options) : IoFront(options), shared_(this->options().queue) {}
  ~UringIo() override {
    if (!thread_.joinable()) return;
    shared_.stop = true;
    shared_.wake();
    thread_.join();
  }

  // The ring belongs to the thread that makes it.
  Status start() {
    std::promise<Status> made;
    auto outcome = made.get_future();
    thread_ = std::thread([this, &made] {
      auto ring = UringRing::make(shared_, completions(), gauges(), options());
      if (!ring.ok()) return made.set_value(ring.error());
      made.set_value(ok_status());  // `made` is gone from here on
      (*ring)->run();
    });
    return outcome.get();
  }

  const char* name() const override { return "io_uring"; }
  void add_memory(std::span<std::byte> memory) override {
    command({.kind = UringCommand::Kind::kAddMemory, .memory = memory});
  }
  void remove_memory(std::span<std::byte> memory) override {
    command({.kind = UringCommand::Kind::kRemoveMemory, .memory = memory});
  }

 private:
  void hand_over(const Accepted& accepted) override { push({.accepted = accepted}); }
  void handed_over() override { shared_.wake(); }
  void file_opened(FileIndex file, int fd) override {
    UringCommand add{.kind = UringCommand::Kind::kAddFile};
    add.accepted.request.file = file;
    add.accepted.fd = fd;
    command(add);
  }

  void command(const UringCommand& command) {
    push(command);
    shared_.wake();
  }
  // There is room for all requests that may be accepted; only a flood of other commands
  // waits for the thread.
  void push(const UringCommand& command) {
    while (!shared_.commands.push(command)) {
      shared_.wake();
      ::usleep(100);
    }
  }

  UringShared shared_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Io>> make_uring_io(const IoOptions& options) {
  auto io = std::make_unique<UringIo>(options);
  ORBITKV_RETURN_IF_ERROR(io->start());
  return std::unique_ptr<Io>(std::move(io));
}

}  // namespace orbitkv::ssd
