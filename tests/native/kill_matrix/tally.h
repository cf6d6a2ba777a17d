// What the drivers of the kill matrix count, and how they find out that all capacity is back.
// One thread; engines under load count for themselves.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "tests/native/processes.h"

namespace orbitkv::test::kills {

struct Limits {
  Duration within = seconds(10);  // until all capacity is back
  ByteCount headroom;             // of slabs beyond the pool, at any time
};

class Tally {
 public:
  explicit Tally(std::string_view party, std::uint32_t wanted) : party_(party), wanted_(wanted) {}

  void kill(std::string_view row, std::uint32_t count = 1);
  void wrong(std::string_view row, std::uint64_t bytes);
  void other_failed(std::string_view row, const std::string& why);
  void report() { ++reports_; }  // of a victim, about what it had done
  void whole_after(std::string_view row, Duration time);
  void late(std::string_view row, const std::string& why);
  void memory(ByteCount slabs, ByteCount pool, ByteCount headroom);
  std::uint32_t kills() const { return kills_; }
  std::uint64_t reports() const { return reports_; }
  bool failed() const { return wrong_ + others_ + late_ + over_ > 0; }
  void say_progress();       // at most once a second
  std::string json() const;  // one object

 private:
  void say(std::string_view row, const std::string& what);
  std::string party_;
  std::uint32_t wanted_, kills_ = 0;
  std::map<std::string, std::uint32_t, std::less<>> rows_;
  std::uint64_t wrong_ = 0, others_ = 0, late_ = 0, over_ = 0, said_ = 0, reports_ = 0;
  Duration slowest_;
  std::uint64_t peak_over_ = 0, headroom_ = 0;
  TimePoint started_ = monotonic_now(), progress_;
};

// Memory of all distinct slabs that these processes hold or map.
ByteCount slab_memory(const std::vector<pid_t>& processes);

// How the Manager's status stands.
struct Standing {
  bool answers = false, whole = false;  // whole: nothing is lent, quarantined, retiring or missing
  pid_t pid = 0;
  ByteCount pool;
  std::string missing;  // what is not back
};
// `sessions`: that should be there.
Standing standing_of(const Manager& manager, std::uint64_t sessions);

// Polls until all is back, measuring from `since`. False: not within the limit, which is counted.
struct Watched {
  const Manager& manager;
  std::uint64_t sessions;
  std::vector<pid_t> processes;  // beside the Manager's
};
bool wait_whole(const Watched& watched, const Limits& limits, std::string_view row, TimePoint since,
                Tally& tally);

// Each driver kills at least `count` and goes through its rows in rotation.
struct Order {
  std::uint32_t count = 0;
  Duration within;
  std::uint64_t seed = 0;
  bool lies = false;  // victims save wrong bytes: for the test of this test
};
void kill_engines(const Order& order, Tally& tally);
void kill_managers(const Order& order, Tally& tally);

}  // namespace orbitkv::test::kills
