// The client's I/O thread: attaches, maps offered slabs, carries the lifecycle calls
// (register, unregister, status) and, when the Manager is lost, ends what was open and
// attaches again. It is the only reader of the bootstrap socket.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "client/executor.h"
#include "client/link.h"
#include "client/registry.h"

namespace orbitkv::client {

// The registrations of this process, by handle.
struct Registry {
  std::mutex mutex;
  std::map<std::uint64_t, std::unique_ptr<Entry>> entries;
  std::uint64_t next = 1;
};

class IoThread {
 public:
  IoThread(Attachment::Target target, Link& link, Executors& executors, Registry& registry);
  ~IoThread();  // stop()

  // Starts; attaches at once if a Manager is there.
  Status start();
  void stop();
  bool wait_connected(std::uint32_t timeout_ms);

  // Sends a lifecycle frame that carries `request` and returns the reply message of
  // this request, a SocketError as its Error, kReconnect when the session is lost.
  using Encode = std::function<void(std::uint64_t request, wire::Buffer&)>;
  Result<wire::Buffer> call(const Encode& encode, std::uint32_t timeout_ms);
  // Registers one entry with the living session.
  Status register_entry(Entry& entry, std::uint32_t timeout_ms);

  struct State {
    bool connected = false;
    std::uint64_t incarnation = 0, reconnects = 0;
    std::string message;
  };
  State state();

 private:
  void run();
  void serve_session(Attachment& link);
  void on_message(Attachment& link, const shm::Message& message);
  bool attach_again();
  Status attach();
  Status register_all(Attachment& link);
  Result<wire::Buffer> call_now(Attachment& link, std::uint64_t request, const wire::Buffer& frame);
  void lost(const std::string& why);
  bool drop_session();
  bool sleep_ms(int ms);  // false: stop

  Attachment::Target target_;
  Link& link_;
  Executors& executors_;
  Registry& registry_;
  UniqueFd wake_;
  std::unique_ptr<SlabTable> slabs_;  // without a session: those that the next one may offer again
  bool waiting_slabs_ = false;        // the session has some that it has not offered yet
  TimePoint attached_;
  TimePoint lost_at_;  // of the last session that stood
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_;
  bool stop_ = false, started_ = false;
  std::uint64_t next_request_ = 1;
  std::map<std::uint64_t, std::optional<shm::Message>> replies_;  // waited for
};

}  // namespace orbitkv::client
