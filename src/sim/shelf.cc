#include "sim/shelf.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "sim/manager_node.h"
#include "sim/world.h"

namespace orbitkv::sim {
namespace {
constexpr std::string_view kSession = "session-";

std::uint64_t inode_of(int fd) {
  struct stat status{};
  ORBITKV_CHECK(::fstat(fd, &status) == 0, "an open descriptor");
  return status.st_ino;
}
}  // namespace

// Of one life. What a Manager says that has died has not been said.
class Shelf::Store final : public daemon::FdStore {
 public:
  explicit Store(Shelf& shelf) : shelf_(shelf) {}
  const char* kind() const override { return "simulated store"; }
  Result<std::vector<Named>> take() override {
    std::vector<Named> out;
    for (const auto& [name, fd] : shelf_.held_) out.push_back({name, duplicate(fd)});
    return out;
  }
  Status put(const std::string& name, const UniqueFd& fd) override {
    return heard() ? shelf_.put(name, fd) : ok_status();
  }
  Ticket remove(const std::string& name) override { return Ticket(heard() ? shelf_.remove(name) : 0); }
  void forget(const std::string& name) override {
    if (heard()) shelf_.post({false, name, {}, 0, {}, false, false});
  }
  bool removed(Ticket ticket) override { return !shelf_.open_tickets_.contains(ticket.value); }
  void poll() override {}
  std::vector<std::string> refused() override { return std::exchange(shelf_.refused_, {}); }
  int fd() const override { return -1; }
  bool alive() const override { return true; }
  void ready() override {}
  Status succeed(const Successor&) override { return ok_status(); }
  std::optional<Status> succeeded() override { return ok_status(); }

 private:
  bool heard() { return !shelf_.manager_.on_store_call(); }
  Shelf& shelf_;
};

UniqueFd Shelf::duplicate(const UniqueFd& fd) {
  UniqueFd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  ORBITKV_CHECK(copy.valid(), "a duplicate of a descriptor");
  return copy;
}

std::unique_ptr<daemon::FdStore> Shelf::open() {
  taken_.clear();
  for (const auto& [name, fd] : held_) taken_.insert(name);
  return std::make_unique<Store>(*this);
}

// Letters go in order, so those that were not sent are the last.
void Shelf::end_life(std::uint64_t word) {
  const std::size_t sent = word % 2 == 0 ? letters_.size() : (word >> 8) % (letters_.size() + 1);
  letters_.resize(sent);
  for (Letter& letter : letters_) apply(letter);
  letters_.clear();
  open_tickets_.clear();
  refused_.clear();
  taken_.clear();
  faults_.clear();
  stalled_until_ = {};
  std::erase_if(memories_, [&](const auto& each) { return may_release(each.first); });
}

// ---- letters ----

Status Shelf::put(const std::string& name, const UniqueFd& fd) {
  Letter letter{true, name, duplicate(fd), 0, {}, false, false};
  if (name.starts_with(kSession) && lent_) memories_[name] = std::exchange(lent_, nullptr);
  if (!faults_.empty()) {
    const Fault fault = faults_.back();
    faults_.pop_back();
    world_.say("the store %s %s", fault == Fault::kLose ? "loses" : "does not take", name.c_str());
    if (fault == Fault::kRefuse) {
      if (may_release(name)) memories_.erase(name);
      return busy("the simulated store is full");
    }
    letter.lost = true;
    letter.refused = fault == Fault::kRefuseLater;
  }
  post(std::move(letter));
  return ok_status();
}

std::uint64_t Shelf::remove(const std::string& name) {
  open_tickets_.insert(++last_ticket_);
  post({false, name, {}, last_ticket_, {}, false, false});
  return last_ticket_;
}

void Shelf::post(Letter letter) {
  auto random = world_.random(0x5E1Fu, ++posted_);
  const DurationRange& time = world_.config().keep.letter;
  letter.due = std::max(world_.now(), stalled_until_) + random.between(time.least, time.most);
  if (!letters_.empty()) letter.due = std::max(letter.due, letters_.back().due);
  const TimePoint due = letter.due;
  letters_.push_back(std::move(letter));
  world_.events().at(due, [this] { deliver(); });
}

void Shelf::deliver() {
  bool news = false;
  while (!letters_.empty() && letters_.front().due <= world_.now()) {
    Letter letter = std::move(letters_.front());
    letters_.pop_front();
    apply(letter);
    news |= open_tickets_.erase(letter.ticket) > 0 || letter.refused;
    if (letter.refused) refused_.push_back(letter.name);
    if (memories_.contains(letter.name) && may_release(letter.name)) memories_.erase(letter.name);
  }
  if (news) manager_.on_store();
}

void Shelf::apply(Letter& letter) {
  if (letter.lost) return;
  if (letter.put) {
    held_[letter.name] = std::move(letter.fd);
  } else if (world_.plant() != Plant::kHeldName) {
    held_.erase(letter.name);
  }
}

void Shelf::stall(Duration time) {
  stalled_until_ = std::max(stalled_until_, world_.now() + time);
}

// Not while a descriptor of it is here or on its way, or the Manager may have mapped it.
bool Shelf::may_release(const std::string& name) const {
  return !held_.contains(name) && !taken_.contains(name) &&
         std::none_of(letters_.begin(), letters_.end(), [&](const Letter& l) { return l.name == name; });
}

// ---- processes ----

const UniqueFd& Shelf::process(std::uint32_t number) {
  Living& living = processes_[number];
  if (living.end.valid()) return living.end;
  int ends[2];
  ORBITKV_CHECK(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "a pipe");
  living = {UniqueFd(ends[0]), UniqueFd(ends[1]), inode_of(ends[0])};
  return living.end;
}

void Shelf::end_process(std::uint32_t number) {
  const auto it = processes_.find(number);
  if (it == processes_.end() || world_.plant() == Plant::kUnheardEnd) return;
  ORBITKV_CHECK(::write(it->second.told.get(), "x", 1) == 1, "a pipe takes a byte");
  processes_.erase(it);
}

std::uint32_t Shelf::number_of(int process) const {
  const std::uint64_t inode = inode_of(process);
  for (const auto& [number, living] : processes_)
    if (living.inode == inode) return number;
  return 0;
}

// ---- for those who look ----

std::vector<int> Shelf::all(std::string_view kind) const {
  std::vector<int> out;
  for (const auto& [name, fd] : held_)
    if (name.starts_with(kind)) out.push_back(fd.get());
  for (const Letter& letter : letters_)
    if (letter.put && letter.name.starts_with(kind)) out.push_back(letter.fd.get());
  return out;
}

std::vector<std::string> Shelf::names() const {
  std::vector<std::string> out;
  for (const auto& [name, fd] : held_) out.push_back(name);
  return out;
}

std::vector<const shm::SessionMemory*> Shelf::memories() const {
  std::vector<const shm::SessionMemory*> out;
  for (const auto& [name, memory] : memories_) out.push_back(memory.get());
  return out;
}

}  // namespace orbitkv::sim
