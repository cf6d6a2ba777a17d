#include "ssd/admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace orbitkv::ssd {
namespace {

constexpr ByteCount kBlock = kMiB;
constexpr TimePoint kStart{1'000'000'000};

AdmissionKey key_of(std::uint64_t n) {
  return AdmissionKey((n + 1) * 0xD6E8FEB86659FD93u);
}
TimePoint at(std::int64_t second) {
  return kStart + seconds(second);
}
AdmissionConfig config_of(WritePolicy policy) {
  AdmissionConfig config;
  config.policy = policy;
  config.history = 1 << 14;
  return config;
}

TEST(Admission, AllWritesAtTheSealAndAgainWhatWasRefused) {
  Admission admission(config_of(WritePolicy::kAll));
  EXPECT_EQ(admission.saved(key_of(1), kBlock, at(0)), Verdict::kWrite);
  admission.refused(key_of(1), kBlock);
  EXPECT_EQ(admission.stats().admitted, 0u);
  EXPECT_EQ(admission.stats().refused, 1u);
  EXPECT_EQ(admission.leaving(key_of(1), kBlock, at(1)), Verdict::kWrite);
  EXPECT_EQ(admission.stats().admitted, 1u);
  EXPECT_EQ(admission.stats().refused, 0u);
}

// Memory asks as often as it needs room; a block is counted once, and anew when it is saved anew.
TEST(Admission, BlocksAreCountedAndNotAttempts) {
  AdmissionConfig config = config_of(WritePolicy::kAll);
  config.daily_budget = 8 * kBlock;  // one at once
  Admission admission(config);
  EXPECT_EQ(admission.saved(key_of(1), kBlock, at(0)), Verdict::kWrite);
  EXPECT_EQ(admission.saved(key_of(2), kBlock, at(0)), Verdict::kBudget);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(admission.leaving(key_of(2), kBlock, at(0)), Verdict::kBudget);
  EXPECT_EQ(admission.stats().over_budget, 1u);
  for (int i = 0; i < 5; ++i) {
    admission.refused(key_of(1), kBlock);
    EXPECT_EQ(admission.stats().refused, 1u);
    EXPECT_EQ(admission.leaving(key_of(1), kBlock, at(0)), Verdict::kWrite);
  }
  EXPECT_EQ(admission.stats().admitted, 1u);
  EXPECT_EQ(admission.stats().refused, 0u);
  // A day later: written, and no longer among those that the budget left out.
  EXPECT_EQ(admission.leaving(key_of(2), kBlock, at(24 * 3600)), Verdict::kWrite);
  EXPECT_EQ(admission.stats().over_budget, 0u);
  EXPECT_EQ(admission.saved(key_of(2), kBlock, at(2 * 24 * 3600)), Verdict::kWrite);
  EXPECT_EQ(admission.stats().admitted, 3u);
}

// What the store copies forward is written too: no day sees more than the budget for it.
TEST(Admission, CopiesOfTheStoreAreCharged) {
  AdmissionConfig config = config_of(WritePolicy::kAll);
  config.daily_budget = 80 * kBlock;  // ten at once, 70 in the course of the day
  Admission admission(config);
  admission.copied(17 * kBlock, at(0));
  EXPECT_EQ(admission.saved(key_of(0), kBlock, at(0)), Verdict::kBudget);
  EXPECT_EQ(admission.stats().budget_left, ByteCount());
  const std::int64_t day = 24 * 3600;
  EXPECT_EQ(admission.leaving(key_of(0), kBlock, at(day / 10)), Verdict::kBudget);
  EXPECT_EQ(admission.leaving(key_of(0), kBlock, at(day / 10 + day / 60)), Verdict::kWrite);
}

TEST(Admission, ReuseWritesWhatWasReturned) {
  Admission admission(config_of(WritePolicy::kReuse));
  for (std::uint64_t n : {1, 2, 3}) {
    admission.asked(key_of(n), {0, 1}, false);
    EXPECT_EQ(admission.saved(key_of(n), kBlock, at(0)), Verdict::kWait);
  }
  admission.asked(key_of(1), {0, 1}, true);
  admission.asked(key_of(2), {0, 1}, false);  // asked for, and not there
  EXPECT_EQ(admission.leaving(key_of(1), kBlock, at(1)), Verdict::kWrite);
  EXPECT_EQ(admission.leaving(key_of(2), kBlock, at(1)), Verdict::kUnlikely);
  EXPECT_EQ(admission.leaving(key_of(3), kBlock, at(1)), Verdict::kUnlikely);
}

// The reference is a list of all saves.
TEST(Admission, ReuseRemembersExactlyTheLastSaves) {
  Admission admission(config_of(WritePolicy::kReuse));
  std::mt19937_64 random(7);
  std::vector<std::uint64_t> saves;
  std::unordered_map<std::uint64_t, std::size_t> last;
  std::size_t again = 0;
  for (std::size_t i = 0; i < 4 * kSavesRemembered; ++i) {
    const std::uint64_t n = random() % (2 * kSavesRemembered);
    const auto known = last.find(n);
    const bool expected = known != last.end() && i - known->second <= kSavesRemembered;
    const Verdict verdict = admission.saved(key_of(n), kBlock, at(0));
    ASSERT_EQ(verdict, expected ? Verdict::kWrite : Verdict::kWait) << i;
    again += expected;
    last[n] = i;
  }
  EXPECT_GT(again, kSavesRemembered);
}

TEST(Admission, TheBudgetHoldsForEveryPolicyAndIsCounted) {
  for (const auto policy : {WritePolicy::kAll, WritePolicy::kReuse, WritePolicy::kAuto}) {
    AdmissionConfig config = config_of(policy);
    config.daily_budget = 80 * kBlock;
    Admission admission(config);
    std::size_t written = 0;
    for (std::uint64_t n = 0; n < 30; ++n) {
      admission.asked(key_of(n), {0, 1}, true);
      const Verdict sealed = admission.saved(key_of(n), kBlock, at(0));
      const Verdict verdict = sealed == Verdict::kWait ? admission.leaving(key_of(n), kBlock, at(0)) : sealed;
      written += verdict == Verdict::kWrite;
      ASSERT_EQ(verdict, n < 10 ? Verdict::kWrite : Verdict::kBudget);
    }
    EXPECT_EQ(admission.stats().over_budget, 20u);
    EXPECT_EQ(admission.stats().budget_left, ByteCount(0));
    admission.refused(key_of(0), kBlock);
    EXPECT_EQ(admission.leaving(key_of(29), kBlock, at(0)), Verdict::kWrite);
    EXPECT_EQ(admission.leaving(key_of(28), kBlock, at(0)), Verdict::kBudget);
  }
}

// Requests that are followed up (their blocks are asked for once more, after they have left
// DRAM) add four blocks to a shared prefix, others sixteen; what is learnt must be that, and
// nothing that the numbers of blocks tell.
class Chat {
 public:
  Chat(const AdmissionConfig& config, bool short_ones_return)
      : admission(config), short_ones_return_(short_ones_return) {}

  void request(std::uint64_t number) {
    const bool is_short = number % 2 == 0;
    const std::uint32_t length = is_short ? 4 : 16;
    follow_up();
    for (std::uint32_t i = 0; i < length; ++i) admission.asked(block(number, i), {i, length}, false);
    std::uint32_t written = 0;
    for (std::uint32_t i = 0; i < length; ++i) {
      admission.saved(block(number, i), kBlock, now);
      const Verdict verdict = admission.leaving(block(number, i), kBlock, now);
      verdicts.push_back(verdict);
      written += verdict == Verdict::kWrite;
      stored_[block(number, i)] = verdict == Verdict::kWrite;
    }
    (is_short ? short_written : long_written) += written;
    if (is_short == short_ones_return_) waiting_.push_back({number, length});
    now = now + seconds(1);
  }

  Admission admission;
  TimePoint now = kStart;
  std::vector<Verdict> verdicts;
  std::uint64_t short_written = 0, long_written = 0, asked = 0, lost = 0;

 private:
  struct Request {
    std::uint64_t number;
    std::uint32_t length;
  };
  static AdmissionKey block(std::uint64_t number, std::uint32_t i) { return key_of(number * 64 + i); }
  // Twenty requests later.
  void follow_up() {
    if (waiting_.size() < 10) return;
    const Request request = waiting_.front();
    waiting_.pop_front();
    bool found = true;
    for (std::uint32_t i = 0; i < request.length; ++i) {
      found = found && stored_[block(request.number, i)];
      admission.asked(block(request.number, i), {i, request.length}, found);
      ++asked;
      lost += !found;
    }
  }

  bool short_ones_return_;
  std::list<Request> waiting_;
  std::unordered_map<AdmissionKey, bool> stored_;
};

TEST(Admission, AutoLearnsWhichRequestsComeBack) {
  for (const bool short_ones : {true, false}) {
    Chat chat(config_of(WritePolicy::kAuto), short_ones);
    for (std::uint64_t n = 0; n < 1000; ++n) chat.request(n);
    chat.short_written = chat.long_written = 0;
    for (std::uint64_t n = 1000; n < 2000; ++n) chat.request(n);
    const double short_share = static_cast<double>(chat.short_written) / (500 * 4);
    const double long_share = static_cast<double>(chat.long_written) / (500 * 16);
    EXPECT_GT(short_ones ? short_share : long_share, 0.8);  // some of them may be lost
    EXPECT_LT(short_ones ? long_share : short_share, 0.1);
    EXPECT_EQ(chat.admission.stats().lost, chat.lost);
  }
}

// Whatever is learnt turns out wrong, and is learnt anew.
TEST(Admission, AutoFollowsAChangeAndKeepsItsAllowance) {
  AdmissionConfig config = config_of(WritePolicy::kAuto);
  config.history = 4096;
  Admission admission(config);
  std::uint64_t number = 0;
  std::unordered_map<std::uint64_t, bool> stored;
  std::list<std::uint64_t> earlier;
  const auto round = [&](bool comes_back) {
    std::uint64_t written = 0;
    for (int i = 0; i < 20'000; ++i) {
      const std::uint64_t fresh = number++;
      admission.asked(key_of(fresh), {0, 1}, false);
      admission.saved(key_of(fresh), kBlock, at(i));
      stored[fresh] = admission.leaving(key_of(fresh), kBlock, at(i)) == Verdict::kWrite;
      written += stored[fresh];
      earlier.push_back(fresh);
      if (earlier.size() < 100) continue;
      if (comes_back) admission.asked(key_of(earlier.front()), {0, 1}, stored[earlier.front()]);
      earlier.pop_front();
    }
    return written;
  };
  EXPECT_GT(round(true), 18'000u);
  EXPECT_LT(round(false), 6'000u);
  round(true);
  EXPECT_GT(round(true), 18'000u);
  const AdmissionStats stats = admission.stats();
  EXPECT_LT(static_cast<double>(stats.lost), 0.03 * static_cast<double>(stats.asked));
}

TEST(Admission, WithoutAnyReturnNothingIsLeftOut) {
  Admission admission(config_of(WritePolicy::kAuto));
  for (std::uint64_t n = 0; n < 10'000; ++n) {
    admission.asked(key_of(n), {0, 1}, false);
    admission.saved(key_of(n), kBlock, at(0));
    ASSERT_EQ(admission.leaving(key_of(n), kBlock, at(0)), Verdict::kWrite) << n;
  }
}

// Answers are saved and nobody has asked for them before; here they never come back.
TEST(Admission, BlocksThatNobodyAskedForAreAKindOfTheirOwn) {
  Admission admission(config_of(WritePolicy::kAuto));
  std::uint64_t asked_written = 0, unasked_written = 0;
  const auto leaves = [&](std::uint64_t n, std::int64_t second) {
    admission.saved(key_of(n), kBlock, at(second));
    return admission.leaving(key_of(n), kBlock, at(second)) == Verdict::kWrite;
  };
  for (std::uint64_t n = 0; n < 5000; ++n) {
    admission.asked(key_of(2 * n), {0, 1}, false);
    const bool stored = leaves(2 * n, static_cast<std::int64_t>(n));
    asked_written += stored;
    unasked_written += leaves(2 * n + 1, static_cast<std::int64_t>(n));
    admission.asked(key_of(2 * n), {0, 1}, stored);
  }
  EXPECT_GT(asked_written, 4'500u);
  EXPECT_LT(unasked_written, 1'500u);
}

// A budget that is too small for all goes to those that return.
TEST(Admission, AShortBudgetGoesToTheLikely) {
  AdmissionConfig config = config_of(WritePolicy::kAuto);
  config.daily_budget = 200'000 * kBlock;  // about two blocks a second of the ten that come
  Chat chat(config, true);
  for (std::uint64_t n = 0; n < 30'000; ++n) {
    if (n == 20'000) chat.short_written = chat.long_written = 0;
    chat.request(n);
  }
  EXPECT_GT(chat.short_written, 5'000u * 4 * 3 / 4);
  EXPECT_LT(chat.long_written, 5'000u * 16 / 10);
  EXPECT_LT(static_cast<double>(chat.admission.stats().over_budget), 0.1 * 10'000 * 10);
}

TEST(Admission, TheSameCallsGiveTheSameVerdictsWhateverElseRuns) {
  Chat one(config_of(WritePolicy::kAuto), true);
  Chat other(config_of(WritePolicy::kAuto), false);
  for (std::uint64_t n = 0; n < 500; ++n) one.request(n);
  for (std::uint64_t n = 0; n < 700; ++n) other.request(n);
  Chat same(config_of(WritePolicy::kAuto), true);
  for (std::uint64_t n = 0; n < 500; ++n) same.request(n);
  EXPECT_NE(std::ranges::count(one.verdicts, Verdict::kUnlikely), 0);
  EXPECT_EQ(one.verdicts, same.verdicts);
  EXPECT_NE(std::vector(other.verdicts.begin(), other.verdicts.begin() + one.verdicts.size()), one.verdicts);
}

// Only the hole is unwritten, but nothing behind it can be found.
TEST(Admission, BlocksBehindAHoleAreLostWithIt) {
  AdmissionConfig config = config_of(WritePolicy::kAuto);
  config.history = 1024;
  Admission admission(config);
  std::uint64_t n = 100;
  const auto leave = [&](std::uint64_t block) { return admission.leaving(key_of(block), kBlock, at(0)); };
  while (true) {  // until single blocks that never return are left out
    admission.asked(key_of(++n), {0, 1}, false);
    admission.saved(key_of(n), kBlock, at(0));
    if (leave(n) == Verdict::kUnlikely) break;
    admission.asked(key_of(1), {0, 40}, true);
    if (n % 8 == 0) leave(1);
    ASSERT_LT(n, 100'000u);
  }
  const std::uint64_t lost = admission.stats().lost;
  for (std::uint32_t i = 1; i < 4; ++i) admission.saved(key_of(i), kBlock, at(0));
  admission.asked(key_of(n), {0, 4}, false);
  for (std::uint32_t i = 1; i < 4; ++i) admission.asked(key_of(i), {i, 4}, false);
  EXPECT_EQ(admission.stats().lost - lost, 4u);
}

TEST(Admission, ItsMemoryDoesNotGrow) {
  AdmissionConfig config = config_of(WritePolicy::kAuto);
  Admission admission(config);
  const ByteCount before = admission.stats().memory;
  EXPECT_LE(before.value, 16 * config.history + 128 * 1024);
  for (std::uint64_t n = 0; n < 10 * config.history; ++n) {
    admission.asked(key_of(n), {0, 1}, false);
    admission.leaving(key_of(n), kBlock, at(0));
  }
  EXPECT_EQ(admission.stats().memory, before);
}

}  // namespace
}  // namespace orbitkv::ssd
