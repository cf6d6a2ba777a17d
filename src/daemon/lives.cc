#include "daemon/lives.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <utility>

#include "base/text.h"
#include "daemon/exits.h"

namespace orbitkv::daemon {
namespace {

constexpr unsigned kColdAfter = 5;  // crashes, until what is kept is let go of
constexpr unsigned kTries = 10;     // failures, until it is given up
constexpr Duration kEndedAtOnce = seconds(1);
constexpr Duration kMostBackoff = seconds(5);
constexpr Duration kAgainFor = seconds(300);
constexpr Duration kNewAgainFor = seconds(5);  // of a successor: there is one that can serve
constexpr Duration kOomWithin = seconds(300);
constexpr std::array<std::string_view, static_cast<std::size_t>(LifeStart::kCount)> kStarts = {
    "any", "successor", "smaller"};

constexpr std::array<std::string_view, static_cast<std::size_t>(LifeCame::kCount)> kCames = {
    "first", "successor", "again", "back"};

bool exited_with(int status, int code) {
  return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

// Not an end that it chose, and has given a reason for.
bool crashed(int status) {
  if (WIFSIGNALED(status)) return true;
  const int code = WEXITSTATUS(status);
  return code != kExitFailed && code != kExitUsage && code != kExitCannotRun;
}

std::string how(const Lives::End& end) {
  const std::string said = end.said.empty() ? end.said : ": " + end.said;
  if (end.hung) return "it hung" + said;
  if (WIFSIGNALED(end.status)) return format_text("signal %d", WTERMSIG(end.status)) + said;
  return format_text("exit status %d", WEXITSTATUS(end.status)) + said;
}

std::string ended_how(const Lives::End& end) {
  return end.hung ? "the Manager hung at its start and was ended (" + end.said + ")"
                  : "the Manager ended by " + how(end);
}

std::string named(const std::string& program) {
  return program == Lives::kServedImage ? "the image that served last" : program;
}

}  // namespace

std::string_view life_start_name(LifeStart start) {
  return kStarts[static_cast<std::size_t>(start)];
}

std::string_view life_came_name(LifeCame came) {
  return kCames[static_cast<std::size_t>(came)];
}

LifeStart life_start_of(std::string_view name) {
  const auto it = std::find(kStarts.begin(), kStarts.end(), name);
  return static_cast<LifeStart>(it - kStarts.begin());
}

Lives::Lives(std::string binary, Duration backoff)
    : backoff_(backoff), path_(std::move(binary)), program_(path_) {}

void Lives::serves() {
  ever_ready_ = true;
  agains_ = 0;
  last_good_ = program_;
  if (program_ != kServedImage) path_ = program_;
}

void Lives::succeed(std::string_view binary, bool cold) {
  successor_ = binary;
  asked_ = true;
  cold_ = cold;
}

Lives::Decision Lives::ended(End end) {
  if (end.hung) end.ready = false;  // it said so while it was being ended
  const bool asked = std::exchange(asked_, false);
  if (end.hung) ++hung_;
  const LifeStart was = std::exchange(start_, LifeStart::kAny);
  Decision next = decide(end, asked, was);
  if (next.next != Next::kStart) return next;
  // One that has not served yet is what it was going to be, and why.
  const bool still = !end.ready && next.came == LifeCame::kAgain && came_ != LifeCame::kFirst;
  if (still) return next;
  came_ = next.came;
  why_ = next.why;
  return next;
}

Lives::Decision Lives::decide(const End& end, bool asked, LifeStart was) {
  // From one that never served it is any program's failure.
  if (end.ready && exited_with(end.status, kExitMadePlace)) return made_place(asked);
  // One that was told to stop, by its own signal, ends both.
  if (end.ready && exited_with(end.status, kExitDone)) return {.next = Next::kEnd};
  // It has said why.
  if (!ever_ready_ && WIFEXITED(end.status))
    return {.next = Next::kEnd, .exit_code = WEXITSTATUS(end.status)};
  if (exited_with(end.status, kExitTryAgain)) return try_again(end, was);
  if (exited_with(end.status, kExitCannotKeep) && !last_good_.empty()) return cannot_keep(end, was);
  const bool killed = !end.hung && WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGKILL;
  if (killed && end.oom) return out_of_memory(end);
  if (!end.ready || (!killed && end.lived < kEndedAtOnce)) return failed(end);
  failures_ = crashes_ = 0;
  return {.why = ended_how(end) + ": it is started again"};
}

Lives::Decision Lives::made_place(bool asked) {
  program_ = asked && !successor_.empty() ? successor_ : path_;
  // What stands there by now may be another one.
  if (program_ == last_good_) last_good_ = kServedImage;
  failures_ = crashes_ = 0;
  start_ = asked && cold_ ? LifeStart::kAny : LifeStart::kSuccessor;
  return {.why = "the Manager made place; next: " + program_, .came = LifeCame::kSuccessor};
}

// A successor that has not served yet, and one to go back to.
bool Lives::is_new() const {
  return came_ == LifeCame::kSuccessor && program_ != last_good_ && !last_good_.empty();
}

// Nothing is wrong with the binary, nor with what is kept. What it waited for itself counts.
Lives::Decision Lives::try_again(const End& end, LifeStart was) {
  if (agains_++ == 0) again_since_ = TimePoint{end.now.ns - end.lived.ns};
  if (end.now - again_since_ > (is_new() ? kNewAgainFor : kAgainFor)) {
    agains_ = 0;
    return failed(end);
  }
  start_ = was;
  const std::string why = end.said.empty() ? end.said : " (" + end.said + ")";
  return {.backoff = backoff(agains_), .why = "the Manager cannot start now" + why + ": it is tried again"};
}

Lives::Decision Lives::cannot_keep(const End& end, LifeStart was) {
  if (++failures_ >= kTries) return give_up();
  const char* const remedy =
      was == LifeStart::kSuccessor ? "; orbitkv upgrade --cold gives up what is kept" : "";
  Decision out{.why = named(program_) + " cannot go on with what is kept: back to " + named(last_good_) +
                      remedy + (end.said.empty() ? end.said : "; it said: " + end.said),
               .came = LifeCame::kBack};
  // The first one was told that it could say so.
  if (failures_ > 1) out.backoff = backoff(failures_ - 1);
  program_ = last_good_;
  return out;
}

// Memory that is kept outlives whom the kernel kills for it: the next life has to have less.
Lives::Decision Lives::out_of_memory(const End& end) {
  if (end.ready && end.lived >= kEndedAtOnce) failures_ = crashes_ = 0;
  if (ooms_ > 0 && end.now - last_oom_ > kOomWithin) ooms_ = 0;
  last_oom_ = end.now;
  Decision out = failed(end);
  if (out.next != Next::kStart) return out;
  if (++ooms_ == 1) {
    start_ = LifeStart::kSmaller;
    out.why = "the kernel killed the Manager for want of memory: the next has a slab less; lower --pool-size";
  } else {
    out.clear = true;
    out.why =
        "the kernel killed the Manager for want of memory again: what was kept is let go of; lower "
        "--pool-size";
  }
  return out;
}

Lives::Decision Lives::failed(const End& end) {
  if (++failures_ >= kTries) return give_up();
  Decision out{.backoff = backoff(failures_), .why = ended_how(end) + ": it is started again"};
  if (!end.ready && program_ != last_good_ && !last_good_.empty()) {
    out.why = named(program_) + " does not serve (" + how(end) + "): back to " + named(last_good_);
    out.came = LifeCame::kBack;
    program_ = last_good_;
  } else if (failures_ == 2 && ever_ready_) {
    program_ = kServedImage;
    out.why += ", by the image that served last";
  }
  if (failures_ > 1)
    out.why += format_text("; failed %u times in a row, it is given up after %u", failures_, kTries);
  crashes_ = end.took && crashed(end.status) ? crashes_ + 1 : 0;
  if (crashes_ < kColdAfter) return out;
  out.clear = true;
  crashes_ = 0;
  out.why = format_text("the Manager crashed or hung %u times in a row with what was kept: that is let go of",
                        kColdAfter);
  return out;
}

Lives::Decision Lives::give_up() {
  return {.next = Next::kGiveUp, .exit_code = kExitFailed, .why = "it ends whenever it is started"};
}

Duration Lives::backoff(unsigned times) const {
  const unsigned shift = std::min(times, 16u) - 1;
  return std::min(Duration{backoff_.ns << shift}, kMostBackoff);
}

}  // namespace orbitkv::daemon
