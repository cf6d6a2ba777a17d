#include "rt/event_loop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

namespace orbitkv::rt {
namespace {

std::unique_ptr<EventLoop> make_loop() {
  return std::move(EventLoop::create()).value();
}

UniqueFd make_eventfd(unsigned count = 0) {
  return UniqueFd(::eventfd(count, EFD_CLOEXEC | EFD_NONBLOCK));
}

void add_one(const UniqueFd& fd) {
  const std::uint64_t one = 1;
  ASSERT_EQ(::write(fd.get(), &one, sizeof one), 8);
}

void read_all(const UniqueFd& fd) {
  std::uint64_t count;
  [[maybe_unused]] const auto n = ::read(fd.get(), &count, sizeof count);
}

TEST(EventLoop, ACallbackRunsWhileItsDescriptorIsReady) {
  auto loop = make_loop();
  const UniqueFd fd = make_eventfd();
  Ready told{};
  ASSERT_TRUE(loop->add(fd.get(), kReadable, [&](Ready ready) { told = ready; }).ok());
  EXPECT_EQ(loop->run_once(Duration{0}), 0u);
  add_one(fd);
  EXPECT_EQ(loop->run_once(kForever), 1u);
  EXPECT_TRUE(told.readable());
  EXPECT_FALSE(told.writable());
  EXPECT_EQ(loop->run_once(Duration{0}), 1u) << "level triggered: not read yet";
  read_all(fd);
  EXPECT_EQ(loop->run_once(Duration{0}), 0u);
}

TEST(EventLoop, AnEdgeIsToldOnceThoughNobodyReads) {
  auto loop = make_loop();
  const UniqueFd fd = make_eventfd();
  int calls = 0;
  ASSERT_TRUE(loop->add(fd.get(), kReadableEdge, [&](Ready) { ++calls; }).ok());
  add_one(fd);
  loop->run_once(Duration{0});
  loop->run_once(Duration{0});
  EXPECT_EQ(calls, 1);
  add_one(fd);
  loop->run_once(Duration{0});
  EXPECT_EQ(calls, 2);
}

TEST(EventLoop, ModifyChangesWhatIsTold) {
  auto loop = make_loop();
  const UniqueFd fd = make_eventfd();
  Ready told{};
  ASSERT_TRUE(loop->add(fd.get(), kReadable, [&](Ready ready) { told = ready; }).ok());
  ASSERT_TRUE(loop->modify(fd.get(), kReadWrite).ok());
  EXPECT_EQ(loop->run_once(Duration{0}), 1u);
  EXPECT_TRUE(told.writable());
  EXPECT_FALSE(told.readable());
  ASSERT_TRUE(loop->modify(fd.get(), kReadable).ok());
  EXPECT_EQ(loop->run_once(Duration{0}), 0u);
}

TEST(EventLoop, HangUpIsToldWithoutInterest) {
  auto loop = make_loop();
  int ends[2];
  ASSERT_EQ(::pipe2(ends, 0), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  Ready told{};
  ASSERT_TRUE(loop->add(reader.get(), kHangUpOnly, [&](Ready ready) { told = ready; }).ok());
  EXPECT_EQ(loop->run_once(Duration{0}), 0u);
  writer.reset();
  EXPECT_EQ(loop->run_once(Duration{0}), 1u);
  EXPECT_TRUE(told.hung_up());
}

TEST(EventLoop, RefusesWhatItCannotWatch) {
  auto loop = make_loop();
  const UniqueFd fd = make_eventfd();
  ASSERT_TRUE(loop->add(fd.get(), kReadable, [](Ready) {}).ok());
  EXPECT_EQ(loop->add(fd.get(), kReadable, [](Ready) {}).error().code(), Code::kReject);
  EXPECT_FALSE(loop->add(-1, kReadable, [](Ready) {}).ok());
  EXPECT_FALSE(loop->modify(fd.get() + 1000, kReadable).ok());
  loop->remove(fd.get() + 1000);
}

TEST(EventLoop, ACallbackMayRemoveItself) {
  auto loop = make_loop();
  const UniqueFd fd = make_eventfd(1);
  // The captured text lies on the heap: a destroyed callback would be a use after free.
  const std::string text(100, 'x');
  std::string seen;
  ASSERT_TRUE(loop->add(fd.get(), kReadable,
                        [&, text](Ready) {
                          loop->remove(fd.get());
                          seen = text;
                        })
                  .ok());
  EXPECT_EQ(loop->run_once(Duration{0}), 1u);
  EXPECT_EQ(seen, text);
  EXPECT_EQ(loop->run_once(Duration{0}), 0u);
}

TEST(EventLoop, ARemovedDescriptorIsNotToldThoughItsEventWasFetched) {
  auto loop = make_loop();
  const UniqueFd a = make_eventfd(1), b = make_eventfd(1);
  int calls = 0;
  const auto other = [&](int fd) {
    return [&, fd](Ready) {
      ++calls;
      loop->remove(fd);
    };
  };
  ASSERT_TRUE(loop->add(a.get(), kReadable, other(b.get())).ok());
  ASSERT_TRUE(loop->add(b.get(), kReadable, other(a.get())).ok());
  loop->run_once(Duration{0});
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, ADescriptorNumberThatIsUsedAgainDoesNotGetTheOldEvent) {
  auto loop = make_loop();
  UniqueFd a = make_eventfd(1), b = make_eventfd(1);
  int old_calls = 0, new_calls = 0;
  // Whichever runs first replaces the other one by a fresh, quiet descriptor of its number.
  const auto replace = [&](UniqueFd& other) {
    return [&](Ready) {
      ++old_calls;
      if (old_calls > 1) return;
      const int number = other.get();
      loop->remove(number);
      UniqueFd fresh = make_eventfd();
      ASSERT_EQ(::dup3(fresh.get(), number, O_CLOEXEC), number);
      ASSERT_TRUE(loop->add(number, kReadable, [&](Ready) { ++new_calls; }).ok());
    };
  };
  ASSERT_TRUE(loop->add(a.get(), kReadable, replace(b)).ok());
  ASSERT_TRUE(loop->add(b.get(), kReadable, replace(a)).ok());
  loop->run_once(Duration{0});
  EXPECT_EQ(old_calls, 1);
  EXPECT_EQ(new_calls, 0);
}

TEST(EventLoop, OneShotTimersRunOnceInTheOrderOfTheirTimes) {
  auto loop = make_loop();
  std::string order;
  loop->after(milliseconds(2), [&] { order += 'b'; });
  loop->after(milliseconds(1), [&] { order += 'a'; });
  const TimePoint start = monotonic_now();
  while (order.size() < 2) loop->run_once(kForever);
  EXPECT_EQ(order, "ab");
  EXPECT_GE(monotonic_now() - start, milliseconds(2));
  EXPECT_EQ(loop->run_once(milliseconds(3)), 0u);
}

TEST(EventLoop, AWaitEndsAtItsTimeout) {
  auto loop = make_loop();
  loop->after(seconds(3600), [] {});
  const TimePoint start = monotonic_now();
  EXPECT_EQ(loop->run_once(milliseconds(5)), 0u);
  EXPECT_GE(monotonic_now() - start, milliseconds(5));
  EXPECT_LT(monotonic_now() - start, seconds(60));
}

TEST(EventLoop, APeriodicTimerSkipsTheTicksThatItMissed) {
  auto loop = make_loop();
  int ticks = 0;
  loop->every(milliseconds(1), [&] { ++ticks; });
  ::usleep(20'000);
  loop->run_once(Duration{0});
  EXPECT_EQ(ticks, 1);
  while (ticks < 3) loop->run_once(kForever);
}

TEST(EventLoop, CancelledTimersDoNotRun) {
  auto loop = make_loop();
  int calls = 0;
  TimerId self;
  self = loop->every(milliseconds(1), [&] {
    ++calls;
    loop->cancel(self);
  });
  const TimerId other = loop->after(milliseconds(1), [&] { calls += 100; });
  loop->cancel(other);
  loop->cancel(other);
  const TimePoint start = monotonic_now();
  while (monotonic_now() - start < milliseconds(10)) loop->run_once(milliseconds(1));
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, ATimerWithoutDelayCannotHoldTheLoop) {
  auto loop = make_loop();
  std::function<void()> again = [&] { loop->after(Duration{0}, again); };
  again();
  EXPECT_EQ(loop->run_once(Duration{0}), 1u);
}

TEST(EventLoop, AWakeFromAnotherThreadEndsTheWait) {
  auto loop = make_loop();
  std::jthread waker([&] {
    ::usleep(2000);
    loop->wake();
  });
  EXPECT_EQ(loop->run_once(kForever), 0u);
}

// Work that another thread announces by a flag, as a client does in shared memory.
class FlagPoller final : public Poller {
 public:
  explicit FlagPoller(EventLoop& loop) : loop_(loop) {}
  void announce() {
    work_.fetch_add(1);
    if (asleep_.load()) loop_.wake();
  }
  int done() const { return done_; }
  int sleeps() const { return sleeps_; }
  Duration limit = kForever;

  bool poll() override {
    const int work = work_.load();
    if (work == done_) return false;
    done_ = work;
    if (done_ >= stop_after) loop_.stop();
    return true;
  }
  Duration prepare_sleep() override {
    ++sleeps_;
    asleep_.store(true);
    return work_.load() == done_ ? limit : Duration{0};
  }
  void cancel_sleep() override { asleep_.store(false); }
  int stop_after = 1;

 private:
  EventLoop& loop_;
  std::atomic<int> work_{0};
  std::atomic<bool> asleep_{false};
  int done_ = 0;
  int sleeps_ = 0;
};

TEST(EventLoop, RunSpinsThenSleepsAndIsWokenForWork) {
  auto loop = make_loop();
  FlagPoller poller(*loop);
  poller.stop_after = 50;
  std::jthread worker([&] {
    for (int i = 0; i < 50; ++i) {
      ::usleep(i % 2 == 0 ? 300 : 0);
      poller.announce();
    }
  });
  loop->run(poller, microseconds(50));
  EXPECT_EQ(poller.done(), 50);
  EXPECT_GT(poller.sleeps(), 0);
}

TEST(EventLoop, ALostWakeCostsThePollersBound) {
  auto loop = make_loop();
  FlagPoller poller(*loop);
  poller.limit = milliseconds(5);
  std::jthread worker([&] {
    ::usleep(30'000);
    loop->stop();
  });
  loop->run(poller, Duration{0});
  EXPECT_GE(poller.sleeps(), 3) << "the loop rechecks without a wake";
}

TEST(EventLoop, DescriptorsAreServedWhileThePollerIsBusy) {
  auto loop = make_loop();
  class Busy final : public Poller {
   public:
    bool poll() override { return true; }
    Duration prepare_sleep() override { return kForever; }
    void cancel_sleep() override {}
  } busy;
  const UniqueFd fd = make_eventfd(1);
  ASSERT_TRUE(loop->add(fd.get(), kReadable, [&](Ready) { loop->stop(); }).ok());
  loop->run(busy, seconds(1));
  EXPECT_TRUE(loop->stopped());
}

}  // namespace
}  // namespace orbitkv::rt
