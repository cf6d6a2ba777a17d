#include "daemon/shelf.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/result.h"
#include "daemon/kept_names.h"

namespace orbitkv::daemon {
namespace {

constexpr std::uint16_t code_of(Code code) {
  return static_cast<std::uint16_t>(code);
}

bool is_table(std::string_view name) {
  return name.starts_with(kept::kTable);
}

// Why the keeper cannot run it; nullptr: it can.
const char* why_no_program(const char* path) {
  struct stat status{};
  if (path[0] != '/') return "give an absolute path";
  if (::stat(path, &status) != 0 || ::access(path, X_OK) != 0) return std::strerror(errno);
  return S_ISREG(status.st_mode) ? nullptr : "it is no file";
}

}  // namespace

Shelf::Answer Shelf::handle(std::span<const std::byte> bytes, UniqueFd fd) {
  Answer answer;
  const auto in = read_keeper_message(bytes);
  if (!in) {
    answer.broken = true;
    answer.send = false;
    return answer;
  }
  answer.message.request = in->request;
  if (in->version != kKeeperVersion) {
    answer.message.code = code_of(Code::kReject);
    return answer;
  }
  switch (in->verb) {
    case KeeperVerb::kPut: answer.message.code = put(in->view(), std::move(fd)); break;
    case KeeperVerb::kRemove: remove(in->view()); break;
    case KeeperVerb::kSucceed: {
      const char* const why = succeed(in->view(), in->value != 0);
      if (why == nullptr) break;
      answer.message.code = code_of(Code::kReject);
      answer.message.set_text(why);
      break;
    }
    case KeeperVerb::kGet:
      took_ = true;
      answer.message.value = count_;
      if (in->value >= count_) break;
      answer.message.set_text(places_[in->value].view());
      answer.fd = places_[in->value].fd.get();
      break;
    case KeeperVerb::kReady:
      ready_ = true;
      manager_ = in->value;
      answer.send = false;
      break;
    case KeeperVerb::kStarting:
    case KeeperVerb::kFails:
      (in->verb == KeeperVerb::kFails ? why_ : doing_).set(in->view());
      answer.send = false;
      break;
    case KeeperVerb::kReply:
    case KeeperVerb::kLeave:
    case KeeperVerb::kCount: answer.message.code = code_of(Code::kReject); break;
  }
  return answer;
}

Shelf::Place* Shelf::find(std::string_view name) {
  const auto end = places_.begin() + count_;
  const auto it = std::find_if(places_.begin(), end, [&](const Place& each) { return each.view() == name; });
  return it == end ? nullptr : &*it;
}

std::uint16_t Shelf::put(std::string_view name, UniqueFd fd) {
  if (!is_kept_name(name) || !fd.valid() || find(name) != nullptr) return code_of(Code::kReject);
  const bool full = is_table(name) ? tables_ == kKeeperTablePlaces : count_ - tables_ == most_;
  if (full) return code_of(Code::kBusy);
  tables_ += is_table(name) ? 1 : 0;
  Place& place = places_[count_++];
  std::copy(name.begin(), name.end(), place.name.begin());
  place.name_bytes = static_cast<std::uint8_t>(name.size());
  place.fd = std::move(fd);
  return code_of(Code::kOk);
}

void Shelf::remove(std::string_view name) {
  Place* const place = find(name);
  if (place == nullptr) return;
  tables_ -= is_table(place->view()) ? 1 : 0;
  Place& last = places_[--count_];
  place->fd.reset();
  if (place == &last) return;
  place->name = last.name;
  place->name_bytes = last.name_bytes;
  place->fd = std::move(last.fd);
}

void Shelf::clear() {
  while (count_ > 0) places_[--count_].fd.reset();
  tables_ = 0;
}

void Shelf::Line::set(std::string_view from) {
  bytes = std::min(from.size(), text.size());
  std::transform(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(bytes), text.begin(),
                 [](unsigned char c) { return c < ' ' || c == 0x7F ? ' ' : static_cast<char>(c); });
}

const char* Shelf::succeed(std::string_view path, bool cold) {
  std::array<char, kKeeperPathBytes + 1> text{};
  std::copy(path.begin(), path.end(), text.begin());
  const char* const why = path.empty() ? nullptr : why_no_program(text.data());
  if (why != nullptr) return why;
  std::copy(path.begin(), path.end(), successor_.begin());
  successor_bytes_ = path.size();
  succession_ = true;
  cold_ = cold;
  return nullptr;
}

}  // namespace orbitkv::daemon
