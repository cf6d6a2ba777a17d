// Which life of the Manager follows the one that has ended, and with what: the keeper's decisions,
// without processes and without a clock. Owned by the keeper; one thread. A binary is given up
// for the one before when it does not come to serve; what is kept only when lives that had taken it
// crash before they serve, or where the kernel killed for want of memory twice.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/time.h"

namespace orbitkv::daemon {

// What a life is told of how it begins (--keeper-says).
enum class LifeStart : std::uint8_t {
  kAny,        // goes on with what is kept, or starts cold
  kSuccessor,  // only with what is kept: another could go on with it
  kSmaller,    // with a slab less
  kCount,
};
// In the environment of a life: LifeCame's name, and why (keeper_protocol.h).
inline constexpr const char* kLifeCame = "ORBITKV_LIFE_CAME";
inline constexpr const char* kLifeWhy = "ORBITKV_LIFE_WHY";
// How many starts this keeper has ended because they hung.
inline constexpr const char* kLifeHung = "ORBITKV_LIFE_HUNG";

// How a life came to be, for whoever asks the Manager.
enum class LifeCame : std::uint8_t {
  kFirst,
  kSuccessor,  // the one before made place for it
  kAgain,      // after a death, or an end of its own
  kBack,       // the successor did not serve: the one before again
  kCount,
};
std::string_view life_came_name(LifeCame came);
std::string_view life_start_name(LifeStart start);
// kCount: none of that name.
LifeStart life_start_of(std::string_view name);

class Lives {
 public:
  // Instead of a path: the image that served last, whatever stands at its path by now.
  static constexpr std::string_view kServedImage = "/proc/self/exe";

  // backoff: after the first failure; doubled after each, up to 5 s.
  Lives(std::string binary, Duration backoff);

  const char* program() const { return program_.c_str(); }
  LifeStart begins_as() const { return start_; }
  LifeCame came() const { return came_; }
  const std::string& why_came() const { return why_; }
  std::uint64_t hung() const { return hung_; }  // starts

  // ---- what the life that runs says ----
  void serves();
  // Place will be made for `binary`; empty: what stands at the path of this one. `cold`: even if it
  // cannot go on with what is kept. Counts if the life then ends with kExitMadePlace.
  void succeed(std::string_view binary, bool cold);

  struct End {
    int status = 0;      // of waitpid
    bool took = false;   // it had asked for what is kept
    bool ready = false;  // it had come to serve
    bool oom = false;    // meanwhile the kernel has killed for want of memory
    Duration lived;
    TimePoint now;
    bool hung = false;   // the keeper has ended it: it gave no sign of progress at its start
    std::string said{};  // of a start: where it hung, or why it failed
  };
  enum class Next : std::uint8_t { kStart, kEnd, kGiveUp };
  struct Decision {
    Next next = Next::kStart;
    Duration backoff{};  // until the start
    bool clear = false;  // what is kept is let go of first
    int exit_code = 0;   // of the keeper
    std::string why{};   // for the log; empty: nothing to say
    LifeCame came = LifeCame::kAgain;
  };
  Decision ended(End end);

 private:
  Decision decide(const End& end, bool asked, LifeStart was);
  Decision made_place(bool asked);
  bool is_new() const;
  Decision try_again(const End& end, LifeStart was);
  Decision cannot_keep(const End& end, LifeStart was);
  static Decision give_up();
  Decision out_of_memory(const End& end);
  Decision failed(const End& end);
  Duration backoff(unsigned times) const;

  const Duration backoff_;
  std::string path_;                 // of the binary that served last, or was given
  std::string program_, last_good_;  // what runs; what served last
  std::string successor_;
  bool asked_ = false, cold_ = false;  // a succession
  bool ever_ready_ = false;
  LifeStart start_ = LifeStart::kAny;
  LifeCame came_ = LifeCame::kFirst;  // who runs
  std::string why_;
  unsigned failures_ = 0;  // in a row
  unsigned crashes_ = 0;   // in a row, of lives that had taken what is kept
  unsigned agains_ = 0;    // in a row
  unsigned ooms_ = 0;
  std::uint64_t hung_ = 0;
  TimePoint again_since_, last_oom_;
};

}  // namespace orbitkv::daemon
