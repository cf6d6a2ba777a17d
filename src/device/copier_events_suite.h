// The conformance suite of copiers whose device has streams: fences, and layer events.
// An implementation with Implementation::events instantiates it beside CopierSuite:
//   INSTANTIATE_TEST_SUITE_P(Cuda, CopierEventsSuite, Combine(ValuesIn(implementations),
//                            ValuesIn(engine_layouts())), test_name);
// Include it in one source of a test, after device/copier_suite.h. Tests only.
#pragma once

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "device/copier_suite.h"

namespace orbitkv::device::suite {

class CopierEventsSuite : public CopierSuite {
 protected:
  void SetUp() override {
    events = std::get<0>(GetParam()).events();
    ASSERT_NE(events, nullptr);
  }
  // One event for every layer of the rig, and for one more that has no bytes at all.
  std::vector<LayerEvent> all_turns(const Rig& rig) {
    std::set<std::uint16_t> turns;
    for (const FragmentGeometry& fragment : rig.group().fragments) turns.insert(fragment.turn);
    turns.insert(static_cast<std::uint16_t>(*turns.rbegin() + 1));
    std::vector<LayerEvent> made;
    for (const std::uint16_t turn : turns) made.push_back({turn, events->make()});
    return made;
  }
  CopyTicket submit(Rig& rig, CopyBatch batch) {
    auto ticket = rig.copier().submit(std::move(batch));
    EXPECT_TRUE(ticket.ok()) << ticket.error().message();
    return *ticket;
  }
  // Polls until everything stands on the device's queues. An end is kept.
  void poll_until_enqueued(Rig& rig, CopyTicket ticket) {
    while (!end && !rig.copier().enqueued(ticket)) end = rig.copier().poll(ticket);
  }
  // To the end, while the events are watched: none before those of earlier turns.
  void poll_to_the_end(Rig& rig, CopyTicket ticket, const std::vector<LayerEvent>& all) {
    poll_until_enqueued(rig, ticket);
    for (;;) {
      // From the last turn on: an event that fires in between is seen with the earlier ones.
      bool later = false;
      for (auto event = all.rbegin(); event != all.rend(); ++event) {
        const bool done = events->done(event->event);
        EXPECT_TRUE(done || !later) << "turn " << event->turn << " after a later one";
        later |= done;
      }
      if (end) break;
      end = rig.copier().poll(ticket);
    }
    ASSERT_TRUE(end->status.ok()) << end->status.error().message();
    for (const LayerEvent& event : all) EXPECT_TRUE(events->done(event.event)) << "turn " << event.turn;
  }
  CopyBatch behind_a_held_stream(Rig& rig, Direction direction, std::span<SlotCopy> slots) {
    CopyBatch batch = rig.batch(direction, slots);
    auto fence = rig.stand()->device->fence(events->hold());
    EXPECT_TRUE(fence.ok()) << fence.error().message();
    batch.ready = std::move(*fence);
    EXPECT_TRUE(batch.ready) << "a stream with work on it costs an event";
    return batch;
  }
  static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

  std::unique_ptr<DeviceEvents> events;
  std::optional<CopyEnd> end;
};

TEST_P(CopierEventsSuite, NothingIsRestoredBeforeTheReadyStreamIsThere) {
  auto rig = new_rig();
  const auto content = rig->pages(4);
  SlotCopy slot = saved(*rig, {4})[0];
  const CopyTicket ticket = submit(*rig, behind_a_held_stream(*rig, Direction::kRestore, {&slot, 1}));
  for (int i = 0; i < 20 && !end; ++i) end = rig->copier().poll(ticket);
  pause();
  EXPECT_FALSE(end) << "the batch did not wait";
  events->release();
  rig->expect_pages(4, content);
  EXPECT_TRUE(rig->copier().drain(ticket).status.ok());
  EXPECT_TRUE(slot.verified);
  EXPECT_TRUE(rig->pages_are_as_expected());
}

TEST_P(CopierEventsSuite, ASaveWaitsForItsProducer) {
  auto rig = new_rig();
  SlotCopy slot = rig->new_slot(4);
  const CopyTicket ticket = submit(*rig, behind_a_held_stream(*rig, Direction::kSave, {&slot, 1}));
  for (int i = 0; i < 20 && !end; ++i) end = rig->copier().poll(ticket);
  EXPECT_FALSE(end) << "the batch did not wait";
  events->release();
  EXPECT_TRUE(rig->copier().drain(ticket).status.ok());
  rig->fill_pages(kSecond);
  EXPECT_TRUE(rig->restores(slot));
}

TEST_P(CopierEventsSuite, EveryTurnGetsAFreshRecordAlsoWithoutBytes) {
  auto rig = new_rig();
  std::vector<SlotCopy> slots = saved(*rig, {1, 4, 7});
  const std::vector<LayerEvent> all = all_turns(*rig);
  for (int round = 0; round < 2; ++round) {  // the second finds every event done
    CopyBatch batch = behind_a_held_stream(*rig, Direction::kRestore, slots);
    batch.events = all;
    end.reset();
    const CopyTicket ticket = submit(*rig, std::move(batch));
    poll_until_enqueued(*rig, ticket);
    EXPECT_FALSE(end) << "the batch did not wait";
    for (const LayerEvent& event : all)
      EXPECT_FALSE(events->done(event.event)) << "turn " << event.turn << " of an earlier round";
    events->release();
    poll_to_the_end(*rig, ticket, all);
    for (const SlotCopy& slot : slots) EXPECT_TRUE(slot.verified);
  }
}

TEST_P(CopierEventsSuite, EventsFireInOrderAlsoWhenASlotIsWrong) {
  auto rig = new_rig();
  std::vector<SlotCopy> slots = saved(*rig, {1, 4, 7});
  const std::vector<LayerEvent> all = all_turns(*rig);
  slots[0].digest ^= 1;                       // its header is refused
  flip(rig->fragment_of(slots[2], 0)[3], 5);  // its first fragment is wrong
  CopyBatch batch = behind_a_held_stream(*rig, Direction::kRestore, slots);
  batch.events = all;
  const CopyTicket ticket = submit(*rig, std::move(batch));
  poll_until_enqueued(*rig, ticket);
  events->release();
  poll_to_the_end(*rig, ticket, all);
  EXPECT_FALSE(slots[0].verified);
  EXPECT_TRUE(slots[1].verified);
  EXPECT_FALSE(slots[2].verified);
}

TEST_P(CopierEventsSuite, TheBytesOfATurnAreThereWithItsEvent) {
  auto rig = new_rig();
  const auto content = rig->pages(4);
  SlotCopy slot = saved(*rig, {4})[0];
  const std::vector<LayerEvent> all = all_turns(*rig);
  rig->expect_pages(4, content);
  CopyBatch batch = behind_a_held_stream(*rig, Direction::kRestore, {&slot, 1});
  batch.events = all;
  const CopyTicket ticket = submit(*rig, std::move(batch));
  poll_until_enqueued(*rig, ticket);
  events->release();
  while (!events->done(all.back().event) && !end) end = rig->copier().poll(ticket);
  EXPECT_TRUE(rig->pages_are_as_expected()) << "the last event came before the last byte";
  poll_to_the_end(*rig, ticket, all);
}

// What is left of a restore of which no image came.
TEST_P(CopierEventsSuite, ABatchWithoutSlotsRecordsItsEvents) {
  auto rig = new_rig();
  const std::vector<LayerEvent> all = all_turns(*rig);
  CopyBatch batch = behind_a_held_stream(*rig, Direction::kRestore, {});
  batch.groups.clear();
  batch.events = all;
  const CopyTicket ticket = submit(*rig, std::move(batch));
  events->release();
  poll_to_the_end(*rig, ticket, all);
  EXPECT_TRUE(rig->pages_are_as_expected());
}

TEST_P(CopierEventsSuite, TwoGroupsShareTheOrderOfTurns) {
  auto rig = new_rig();
  Rig even(rig->stand(), std::get<1>(GetParam()), Turns{0, 2});
  Rig odd(rig->stand(), contiguous("odd", {512, 4096, 64}), Turns{1, 2});
  even.fill_pages(kFirst);
  odd.fill_pages(kFirst);
  std::vector<SlotCopy> here = saved(even, {2, 3}), there = saved(odd, {7, 0});
  std::set<std::uint16_t> turns;
  for (const Rig* each : {&even, &odd})
    for (const FragmentGeometry& fragment : each->group().fragments) turns.insert(fragment.turn);
  std::vector<LayerEvent> all;
  for (const std::uint16_t turn : turns) all.push_back({turn, events->make()});
  CopyBatch batch = behind_a_held_stream(even, Direction::kRestore, here);
  batch.groups.push_back({&odd.group(), there});
  batch.events = all;
  const CopyTicket ticket = submit(*rig, std::move(batch));
  poll_until_enqueued(*rig, ticket);
  events->release();
  poll_to_the_end(*rig, ticket, all);
  for (const auto* slots : {&here, &there})
    for (const SlotCopy& slot : *slots) EXPECT_TRUE(slot.verified);
}

TEST_P(CopierEventsSuite, AnIdleStreamAndNoStreamCostNoEvent) {
  auto rig = new_rig();
  auto none = rig->stand()->device->fence(kNoStream);
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(*none);
  const StreamHandle stream = events->hold();
  events->release();
  for (int i = 0; i < 1000; ++i) {
    auto idle = rig->stand()->device->fence(stream);
    ASSERT_TRUE(idle.ok()) << idle.error().message();
    if (!*idle) return;
    pause();
  }
  FAIL() << "a stream without work still costs an event";
}

}  // namespace orbitkv::device::suite
