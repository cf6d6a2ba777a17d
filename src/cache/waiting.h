// The line of those who wait for budget or memory: in order of coming within an instance, in
// turn between instances. One that does not fit may be passed limits::kPasses times by later ones.
// Then, if its instance's limit is what is full, it holds back its own instance; otherwise, and as
// long as it is not that, it is the reserver: nobody is admitted before it. There is one reserver at a time,
// and an instance has it once a round; a round is over when every instance that waits was admitted something
// or had it. So while one is the first of its instance, at most kPassesAtMost later ones are admitted before
// it. Owned by the core; single-threaded. Holds no bytes.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/time.h"
#include "cache/budgets.h"
#include "cache/residency.h"

namespace orbitkv::cache {

struct Waiter {
  enum class Kind : std::uint8_t { kPrefix, kRecovery };
  Kind kind = Kind::kPrefix;
  std::uint32_t index = 0;
};

// Who knows what a waiter needs.
class Admitting {
 public:
  virtual ~Admitting() = default;
  struct Attempt {
    // kGone: it has its result, without having been admitted. kTaking: it has its charge, and how it
    // ends is told by granted(), refused() or leave(); until then it keeps its place.
    enum class Outcome : std::uint8_t { kAdmitted, kGone, kInstanceFull, kTotalFull, kTaking };
    Outcome outcome = Outcome::kGone;
    std::uint64_t pages = 0;  // that were looked up
  };
  // A waiter that is admitted or gone leaves the line within the call.
  virtual Attempt admit(const Waiter& waiter, TimePoint now) = 0;
  // Ends what is done ahead of need and stands in the way of a charge. False: there is nothing.
  virtual bool make_way(AccountIndex account, Full full) = 0;
};

using WaitingPlace = Id<struct WaitingPlaceTag, std::uint32_t>;
inline constexpr WaitingPlace kNotWaiting{kNoLink};

class WaitingLine {
 public:
  static constexpr std::uint32_t kPassesAtMost = 2 * limits::kPasses + 2 * limits::kInstances;

  explicit WaitingLine(Admitting& admitting) : admitting_(admitting) {}

  WaitingPlace join(const Waiter& waiter, AccountIndex account);
  void leave(WaitingPlace place);
  // One that was taking: it is admitted and leaves, or memory has no room for it and it waits on.
  void granted(WaitingPlace place);
  void refused(WaitingPlace place);
  // Its instance has ended, and nobody of it waits: the next one of that number begins anew.
  void forget(AccountIndex account);
  // Admits whoever's turn it is and who fits, a bounded number of pages. Nobody more when that bound was
  // reached, until next_turn().
  void run(TimePoint now);
  bool more() const { return more_ && count_ > 0; }
  void next_turn() { more_ = false; }
  bool make_way(AccountIndex account, Full full) { return admitting_.make_way(account, full); }

  std::uint32_t count() const { return count_; }
  std::uint32_t count(AccountIndex account) const {
    return account.value < queues_.size() ? queues_[account.value].count : 0;
  }

 private:
  using Outcome = Admitting::Attempt::Outcome;
  struct Entry {
    Waiter waiter;
    AccountIndex account = kNoAccount;
    std::uint64_t number = 0;  // of coming; 0: none
    std::uint32_t passes = 0;
    bool refused = false, total = false;  // when it was tried last; not for its instance's limit
    bool taking = false;                  // is not tried
    std::uint32_t prev = kNoLink, next = kNoLink;
  };
  struct Queue {
    std::uint32_t head = kNoLink, tail = kNoLink, count = 0;
    bool ringed = false;
    bool served = false, reserved = false;  // in this round
    bool suspended = false;                 // its first one reserves again when its instance has room
  };

  bool resume(TimePoint now);
  bool one_turn(TimePoint now);
  bool try_queue(AccountIndex account, TimePoint now);
  Outcome attempt(std::uint32_t place, TimePoint now);
  void note_grant(AccountIndex account, std::uint64_t number);
  void choose_reserver();
  bool candidate(AccountIndex account) const;
  Entry& taking(WaitingPlace place);

  Admitting& admitting_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_;
  std::vector<Queue> queues_;      // by account
  std::deque<AccountIndex> ring_;  // accounts that wait, whose turn it is in front
  std::uint32_t reserver_ = kNoLink;
  std::uint64_t last_number_ = 0, pages_ = 0;
  std::uint32_t count_ = 0;
  bool running_ = false;
  bool more_ = false;  // pages have reached their bound
};

}  // namespace orbitkv::cache
