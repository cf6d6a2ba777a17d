// A GPU that copies nothing: the test says when a batch stands on its queues and how it
// ends, and sees what was asked of it. Thread-safe. Tests only.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/limits.h"
#include "base/time.h"
#include "device/copier.h"
#include "device/device.h"

namespace orbitkv::client {

struct FakeBatch {
  device::Direction direction = device::Direction::kSave;
  std::vector<std::vector<std::uint32_t>> blocks;  // of each group
  std::vector<device::LayerEvent> events;
  bool fenced = false;
  std::thread::id submitter;
  // The script.
  bool enqueued = false;
  std::optional<Status> end;
  std::vector<std::span<device::SlotCopy>> slots;
};

class FakeScript {
 public:
  void enqueue(std::size_t i) {
    std::lock_guard lock(mutex_);
    batches_.at(i).enqueued = true;
  }
  void end(std::size_t i, Status status = ok_status()) {
    std::lock_guard lock(mutex_);
    batches_.at(i).end = std::move(status);
  }
  // The next submits fail.
  void refuse(int submits) {
    std::lock_guard lock(mutex_);
    refusals_ = submits;
  }
  // From here on batches end by themselves.
  void end_all() {
    std::lock_guard lock(mutex_);
    end_all_ = true;
  }
  std::size_t count() {
    std::lock_guard lock(mutex_);
    return batches_.size();
  }
  FakeBatch batch(std::size_t i) {
    std::lock_guard lock(mutex_);
    return batches_.at(i);
  }
  // At most ten seconds.
  bool wait_for(std::size_t batches) {
    const TimePoint end = monotonic_now() + seconds(10);
    while (count() < batches && monotonic_now() < end) std::this_thread::yield();
    return count() == batches;
  }

 private:
  friend class FakeCopier;
  std::mutex mutex_;
  std::vector<FakeBatch> batches_;
  int refusals_ = 0;
  bool end_all_ = false;
};

class FakeCopier final : public device::Copier {
 public:
  explicit FakeCopier(std::shared_ptr<FakeScript> script) : script_(std::move(script)) {}
  std::string name() const override { return "fake"; }
  Result<device::CopyTicket> submit(device::CopyBatch batch) override {
    std::lock_guard lock(script_->mutex_);
    if (script_->refusals_ > 0) {
      --script_->refusals_;
      return recompute("the fake device broke");
    }
    if (running_ == limits::kCopyBatches) return busy("too many");
    ++running_;
    FakeBatch seen;
    seen.direction = batch.direction;
    seen.events = batch.events;
    seen.fenced = static_cast<bool>(batch.ready);
    seen.submitter = std::this_thread::get_id();
    for (const auto& group : batch.groups) {
      seen.blocks.emplace_back();
      for (const auto& slot : group.slots) seen.blocks.back().push_back(slot.block);
      seen.slots.push_back(group.slots);
    }
    script_->batches_.push_back(std::move(seen));
    return device::CopyTicket{script_->batches_.size()};
  }
  bool enqueued(device::CopyTicket ticket) const override {
    std::lock_guard lock(script_->mutex_);
    return script_->batches_.at(ticket.value - 1).enqueued;
  }
  std::optional<device::CopyEnd> poll(device::CopyTicket ticket) override {
    std::lock_guard lock(script_->mutex_);
    FakeBatch& batch = script_->batches_.at(ticket.value - 1);
    if (!batch.end && !script_->end_all_) return std::nullopt;
    device::CopyEnd end{batch.end.value_or(ok_status()), {}};
    for (const auto slots : batch.slots) {
      end.stats.fragments += slots.size();
      for (auto& slot : slots) slot.verified = true;
    }
    --running_;
    return end;
  }

 private:
  std::shared_ptr<FakeScript> script_;
  std::uint32_t running_ = 0;
};

class FakeDevice final : public device::Device, public device::FencePool {
 public:
  explicit FakeDevice(std::string identity = "GPU-fake") : identity_(std::move(identity)) {}
  std::string identity() const override { return identity_; }
  Status check_memory(std::span<const std::byte> memory) const override {
    if (memory.data() == foreign) return reject("not memory of this device");
    return ok_status();
  }
  void add_slab(std::span<std::byte> slab) override { slabs.push_back(slab.data()); }
  void remove_slab(std::span<std::byte> slab) override { std::erase(slabs, slab.data()); }
  std::size_t reachable_slabs() const override { return slabs.size(); }
  Result<device::Fence> fence(device::StreamHandle stream) override {
    if (stream == device::kNoStream) return device::Fence();
    if (stream == bad_stream) return reject("not a stream of this device");
    ++fences;
    return device::Fence(this, {stream.value});
  }
  void give_back(device::EventHandle) override { --fences; }
  Result<std::unique_ptr<device::Copier>> new_copier(const device::CopierOptions&) override {
    return std::unique_ptr<device::Copier>(std::make_unique<FakeCopier>(script));
  }

  const std::byte* foreign = nullptr;
  device::StreamHandle bad_stream{666};
  std::vector<const std::byte*> slabs;
  std::atomic<int> fences{0};  // lent
  std::shared_ptr<FakeScript> script = std::make_shared<FakeScript>();

 private:
  const std::string identity_;
};

}  // namespace orbitkv::client
