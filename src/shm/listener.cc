// The Manager's side of the socket path: directory, lock file, stale socket, bind.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "shm/bootstrap.h"

namespace orbitkv::shm {
namespace {

constexpr int kBacklog = 64;
constexpr std::size_t kMostSaid = 1024;  // in a claim

std::string parent_of(const std::string& path) {
  const auto slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string octal(unsigned mode) {
  char text[16];
  std::snprintf(text, sizeof text, "%04o", mode & 07777u);
  return text;
}

// Missing ancestors too, each 0700.
Status make_directories(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0) return ok_status();
  const std::string parent = parent_of(path);
  if (parent != path) ORBITKV_RETURN_IF_ERROR(make_directories(parent));
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return errno_error("cannot make directory " + path);
  return ok_status();
}

// Whoever may write to the directory above may put another one in our place.
Status check_parent(const std::string& directory) {
  const std::string parent = parent_of(directory);
  struct stat status{};
  if (::stat(parent.c_str(), &status) != 0) return errno_error("cannot look at directory " + parent);
  const bool open_to_others = (status.st_mode & 022) != 0 && (status.st_mode & S_ISVTX) == 0;
  if (!open_to_others) return ok_status();
  return reject("directory " + parent + " has mode " + octal(status.st_mode) +
                ", so that others could replace the socket's directory; choose another --bootstrap-socket");
}

Status check_directory(const std::string& directory) {
  struct stat status{};
  if (::lstat(directory.c_str(), &status) != 0) return errno_error("cannot look at directory " + directory);
  if (!S_ISDIR(status.st_mode)) return reject(directory + " is not a directory; move it away");
  if (status.st_uid != ::geteuid()) {
    return reject("directory " + directory + " belongs to uid " + std::to_string(status.st_uid) +
                  ", not to uid " + std::to_string(::geteuid()) + "; choose another --bootstrap-socket");
  }
  if ((status.st_mode & 077) != 0) {
    return reject("directory " + directory + " has mode " + octal(status.st_mode) +
                  " and must be closed to others; give the socket a directory of its own (made if "
                  "missing), or chmod 0700 this one if nothing else uses it");
  }
  return check_parent(directory);
}

Status check_path(const std::string& path) {
  if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path)) {
    return reject("socket path \"" + path + "\" must have 1 to " +
                  std::to_string(sizeof(sockaddr_un::sun_path) - 1) +
                  " bytes; choose another --bootstrap-socket");
  }
  const std::string directory = parent_of(path);
  ORBITKV_RETURN_IF_ERROR(make_directories(directory));
  return check_directory(directory);
}

// Whoever takes a lock file away holds its lock: one that was opened before and locked after that is none.
bool stands_at(const UniqueFd& file, const std::string& path) {
  struct stat ours{}, there{};
  return ::fstat(file.get(), &ours) == 0 && ::stat(path.c_str(), &there) == 0 &&
         ours.st_ino == there.st_ino && ours.st_dev == there.st_dev;
}

Result<UniqueFd> open_lock(const std::string& path) {
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) return errno_error("cannot open lock file " + path);
  return lock;
}

// Who has locked it says so in it. 0: no process.
Status write_pid(const UniqueFd& lock, const std::string& path, int number = ::getpid()) {
  const std::string pid = std::to_string(number) + "\n";
  if (::ftruncate(lock.get(), 0) != 0 || ::pwrite(lock.get(), pid.data(), pid.size(), 0) < 0)
    return errno_error("cannot write lock file " + path);
  return ok_status();
}
std::string read_pid(const UniqueFd& lock) {
  char pid[16] = {};
  const ssize_t n = ::pread(lock.get(), pid, sizeof pid - 1, 0);
  pid[n > 0 ? ::strcspn(pid, "\n") : 0] = '\0';
  return pid;
}

Result<UniqueFd> take_lock(const std::string& socket_path) {
  const std::string path = lock_of(socket_path);
  ORBITKV_ASSIGN_OR_RETURN(UniqueFd lock, open_lock(path));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) {
    if (!stands_at(lock, path))
      return busy("the Manager that was at " + socket_path + " ended just now; start again");
    ORBITKV_RETURN_IF_ERROR(write_pid(lock, path));
    return lock;
  }
  if (errno != EWOULDBLOCK) return errno_error("cannot lock " + path);
  return busy("another Manager (pid " + read_pid(lock) + ") serves " + socket_path +
              "; stop it or choose another --bootstrap-socket");
}

// Of a whole file, by an open description: it can be asked for without being taken.
struct flock whole_file() {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}
std::string claimant_named(int pid) {
  return pid > 0 ? "a keeper (orbitkv serve --keep, pid " + std::to_string(pid) + ")"
                 : "a service manager (a systemd unit of orbitkv serve --keep)";
}

// Under the lock: a socket that lies there belongs to a Manager that has ended.
Status remove_stale(const std::string& path) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) {
    return errno == ENOENT ? ok_status() : Status(errno_error("cannot look at " + path));
  }
  if (!S_ISSOCK(status.st_mode)) return reject(path + " is there and is no socket; move it away");
  if (::unlink(path.c_str()) != 0) return errno_error("cannot remove the stale socket " + path);
  return ok_status();
}

Status listen_at(const UniqueFd& fd, const std::string& path) {
  if (::chmod(path.c_str(), 0600) != 0) return errno_error("cannot set the mode of " + path);
  if (::listen(fd.get(), kBacklog) != 0) return errno_error("cannot listen at " + path);
  return ok_status();
}

Result<UniqueFd> bind_and_listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno_error("cannot make a socket");
  // Before bind: the file never exists with a wider mode.
  if (::fchmod(fd.get(), 0600) != 0) return errno_error("cannot set the mode of the socket");
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return errno_error("cannot bind " + path);
  }
  const Status listens = listen_at(fd, path);
  if (listens.ok()) return fd;
  ::unlink(path.c_str());
  return listens.error();
}

}  // namespace

std::string lock_of(const std::string& socket_path) {
  return socket_path + ".lock";
}
std::string claim_file_of(const std::string& socket_path) {
  return socket_path + ".keeper";
}

std::string default_socket_path() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const std::string base = runtime != nullptr && runtime[0] == '/'
                               ? std::string(runtime)
                               : "/tmp/orbitkv-" + std::to_string(::geteuid());
  return base + "/orbitkv/manager.sock";
}

Result<UniqueFd> claim_path(const std::string& path, Claimant by) {
  ORBITKV_RETURN_IF_ERROR(check_path(path));
  const std::string name = claim_file_of(path);
  ORBITKV_ASSIGN_OR_RETURN(UniqueFd claim, open_lock(name));
  struct flock lock = whole_file();
  if (::fcntl(claim.get(), F_OFD_SETLK, &lock) == 0) {
    if (!stands_at(claim, name))
      return busy("the keeper that was at " + path + " ended just now; start again");
    ORBITKV_RETURN_IF_ERROR(write_pid(claim, name, by == Claimant::kKeeper ? ::getpid() : 0));
    return claim;
  }
  if (errno != EAGAIN && errno != EACCES) return errno_error("cannot lock " + name);
  return busy(claimant_named(std::atoi(read_pid(claim).c_str())) + " starts the Managers at " + path +
              "; stop it or choose another --bootstrap-socket");
}

// A lock of the same description is no conflict.
bool holds_claim(const UniqueFd& claim, const std::string& path) {
  if (!claim.valid() || !stands_at(claim, claim_file_of(path))) return false;
  struct flock lock = whole_file();
  return ::fcntl(claim.get(), F_OFD_SETLK, &lock) == 0;
}

// Its first line stays.
void say_in_claim(const UniqueFd& claim, std::string_view what) {
  if (!claim.valid()) return;
  const std::string pid = read_pid(claim) + "\n";
  const std::string text = std::string(what.substr(0, kMostSaid)) + "\n";
  const auto at = static_cast<off_t>(pid.size());
  if (::pwrite(claim.get(), text.data(), text.size(), at) == static_cast<ssize_t>(text.size()))
    (void)!::ftruncate(claim.get(), at + static_cast<off_t>(text.size()));
}

namespace {
PathClaim read_claim(const UniqueFd& claim) {
  std::string text(kMostSaid + 16, '\0');
  const ssize_t n = ::pread(claim.get(), text.data(), text.size(), 0);
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  PathClaim out;
  out.pid = std::atoi(text.c_str());
  const std::size_t first = text.find('\n');
  if (first != std::string::npos) out.says = text.substr(first + 1, text.find('\n', first + 1) - first - 1);
  struct stat status{};
  if (::fstat(claim.get(), &status) == 0)
    out.said_ns = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  return out;
}

// Who claims it; an error: that cannot be told.
Result<std::optional<PathClaim>> claimant(const std::string& path) {
  const std::string name = claim_file_of(path);
  const UniqueFd claim(::open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!claim.valid() && errno == ENOENT) return std::optional<PathClaim>();
  struct flock lock = whole_file();
  if (!claim.valid() || ::fcntl(claim.get(), F_OFD_GETLK, &lock) != 0)
    return errno_error("whether a keeper has the socket's path cannot be told from " + name);
  if (lock.l_type == F_UNLCK) return std::optional<PathClaim>();
  return std::optional(read_claim(claim));
}
}  // namespace

std::optional<PathClaim> path_claim(const std::string& path) {
  auto claimed = claimant(path);
  return claimed.ok() ? std::move(*claimed) : std::nullopt;
}

std::optional<int> path_claimed_by(const std::string& path) {
  const auto claimed = path_claim(path);
  return claimed ? std::optional(claimed->pid) : std::nullopt;
}

Result<Listener> Listener::open(const std::string& path, std::optional<int> keeper, const UniqueFd& claim) {
  ORBITKV_RETURN_IF_ERROR(check_path(path));
  ORBITKV_ASSIGN_OR_RETURN(const auto claimed, claimant(path));
  if (claimed && claimed->pid != keeper && !holds_claim(claim, path))
    return busy("the Managers at " + path + " are started by " + claimant_named(claimed->pid) +
                ", which keeps the blocks of the last one; stop it or choose another --bootstrap-socket");
  Listener listener;
  const bool new_lock = ::access(lock_of(path).c_str(), F_OK) != 0;
  ORBITKV_ASSIGN_OR_RETURN(listener.lock_, take_lock(path));
  listener.path_ = path;
  Status bound = remove_stale(path);
  if (bound.ok()) bound = listener.bind();
  if (bound.ok()) return listener;
  if (new_lock) ::unlink(lock_of(path).c_str());
  return bound.error();
}

Status Listener::bind() {
  ORBITKV_ASSIGN_OR_RETURN(UniqueFd fd, bind_and_listen(path_));
  struct stat status{};
  if (::lstat(path_.c_str(), &status) != 0) return errno_error("cannot look at " + path_);
  inode_ = status.st_ino;
  device_ = status.st_dev;
  fd_ = std::move(fd);
  return ok_status();
}

bool Listener::gone() const {
  struct stat status{};
  return ::lstat(path_.c_str(), &status) != 0 && errno == ENOENT;
}

Status Listener::renew() {
  const bool locked = stands_at(lock_, lock_of(path_));
  UniqueFd lock;
  if (!locked) {
    ORBITKV_ASSIGN_OR_RETURN(lock, take_lock(path_));
  }
  ORBITKV_RETURN_IF_ERROR(bind());
  if (lock.valid()) lock_ = std::move(lock);
  return ok_status();
}

Listener::~Listener() {
  remove_socket();
}

void Listener::remove_socket() const {
  struct stat status{};
  if (!fd_.valid() || path_.empty() || ::lstat(path_.c_str(), &status) != 0) return;
  if (status.st_ino == inode_ && status.st_dev == device_) ::unlink(path_.c_str());
}

Result<std::optional<Socket>> Listener::accept() {
  for (;;) {
    UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      ORBITKV_ASSIGN_OR_RETURN(auto socket, Socket::adopt(std::move(fd)));
      return std::optional<Socket>(std::move(socket));
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN) return std::optional<Socket>();
    if (errno == EMFILE || errno == ENFILE) return busy("no descriptor left for a client; raise ulimit -n");
    return errno_error("cannot accept a client");
  }
}

}  // namespace orbitkv::shm
