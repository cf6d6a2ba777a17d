#include "device/host/host_copier.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "base/check.h"
#include "base/fault.h"
#include "base/limits.h"
#include "model/slot_image.h"

namespace orbitkv::device {

namespace {

bool aligned(std::uint64_t value) {
  return value % model::kImageAlign == 0;
}
bool aligned(const std::byte* at) {
  return aligned(reinterpret_cast<std::uintptr_t>(at));
}

const std::byte* page_of(const FragmentGeometry& fragment, std::uint32_t block) {
  return fragment.base + block * fragment.block_stride;
}

// Rows without gaps are one row.
RowCopy rows_of(const FragmentGeometry& fragment) {
  RowCopy copy{.rows = fragment.rows, .row_bytes = fragment.row_bytes};
  if (fragment.rows == 1 || fragment.row_stride != fragment.row_bytes) return copy;
  copy.rows = 1;
  copy.row_bytes = fragment.bytes();
  return copy;
}

std::uint64_t run_kernel(const MixKernel& kernel, const RowCopy& copy, Stores stores) {
  if (copy.rows > 1 && copy.row_bytes % 8 != 0) return mix_rows_of_any_size(copy, stores);
  const bool streams = aligned(copy.to) && (copy.rows == 1 || aligned(copy.to_stride));
  if (stores == Stores::kStream && !streams) stores = Stores::kNormal;
  return kernel.mix(copy, stores);
}

// The slots of one group of a batch, in progress.
class GroupRun {
 public:
  GroupRun(const GroupCopy& copy, Direction direction, const MixKernel& kernel)
      : copy_(copy),
        group_(*copy.group),
        direction_(direction),
        kernel_(kernel),
        layout_(model::slot_layout(group_.shape)) {
    const std::uint64_t bytes = copy_.slots.size() * layout_.slot_bytes;
    stores_ = bytes >= kStreamFrom.value ? Stores::kStream : Stores::kNormal;
  }

  std::uint64_t payload() const {
    std::uint64_t bytes = 0;
    for (const FragmentGeometry& fragment : group_.fragments) bytes += fragment.bytes();
    return bytes * copy_.slots.size();
  }

  void save(std::size_t slot_index) {
    SlotCopy& slot = copy_.slots[slot_index];
    model::SlotHeader header{slot.allocation, layout_.slot_bytes, {}};
    header.checks.reserve(group_.fragments.size());
    for (std::size_t f = 0; f < group_.fragments.size(); ++f)
      header.checks.push_back(fragment_check(group_.fragments[f], slot, copy_fragment(slot_index, f)));
    slot.digest = model::write_slot_header(header, slot.seed, {slot.image, layout_.header_bytes});
  }

  // Without `verify` whatever lies in the image is copied and believed.
  void restore(std::size_t slot_index, bool verify) {
    SlotCopy& slot = copy_.slots[slot_index];
    slot.verified = false;
    std::vector<std::uint64_t> checks;
    if (verify) {
      // The slab may change at any time: what is checked and what is used is one private copy.
      private_header_.assign(slot.image, slot.image + layout_.header_bytes);
      auto header = model::read_slot_header(private_header_, expected(slot));
      if (!header.ok()) return;
      checks = std::move(header->checks);
    }
    for (std::size_t f = 0; f < group_.fragments.size(); ++f) {
      const std::uint64_t raw = copy_fragment(slot_index, f);
      if (verify && fragment_check(group_.fragments[f], slot, raw) != checks[f]) return;
    }
    slot.verified = true;
  }

 private:
  model::ExpectedSlot expected(const SlotCopy& slot) const {
    return {slot.digest, slot.seed, slot.allocation, layout_.slot_bytes,
            static_cast<std::uint32_t>(group_.fragments.size())};
  }

  std::uint64_t copy_fragment(std::size_t slot_index, std::size_t f) {
    const SlotCopy& slot = copy_.slots[slot_index];
    const FragmentGeometry& fragment = group_.fragments[f];
    std::byte* page = fragment.base + slot.block * fragment.block_stride;
    std::byte* image = slot.image + layout_.fragment_offsets[f];
    RowCopy copy = rows_of(fragment);
    const bool saving = direction_ == Direction::kSave;
    copy.to = saving ? image : page;
    copy.from = saving ? page : image;
    copy.to_stride = saving ? fragment.row_bytes : fragment.row_stride;
    copy.from_stride = saving ? fragment.row_stride : fragment.row_bytes;
    copy.next = source_after(slot_index, f);
    return run_kernel(kernel_, copy, stores_);
  }

  const std::byte* source_after(std::size_t slot_index, std::size_t f) const {
    if (f + 1 < group_.fragments.size()) return source(slot_index, f + 1);
    return slot_index + 1 < copy_.slots.size() ? source(slot_index + 1, 0) : nullptr;
  }

  const std::byte* source(std::size_t slot_index, std::size_t f) const {
    const SlotCopy& slot = copy_.slots[slot_index];
    if (direction_ == Direction::kSave) return page_of(group_.fragments[f], slot.block);
    return slot.image + layout_.fragment_offsets[f];
  }

  const GroupCopy& copy_;
  const GroupGeometry& group_;
  const Direction direction_;
  const MixKernel& kernel_;
  const model::SlotLayout layout_;
  Stores stores_ = Stores::kNormal;
  std::vector<std::byte> private_header_;
};

// The whole batch before the first byte, so that a refused batch has touched nothing.
Status check_batch(const CopyBatch& batch) {
  if (batch.ready || !batch.events.empty())
    return reject("pages in CPU memory have no streams: pass no ready stream and no layer events");
  for (const GroupCopy& copy : batch.groups) ORBITKV_RETURN_IF_ERROR(validate(copy));
  return batch.direction == Direction::kRestore ? validate_destinations(batch.groups) : ok_status();
}

class HostCopier final : public Copier {
 public:
  HostCopier(const CopierOptions& options, Isa isa) : options_(options), kernel_(mix_kernel(isa)) {}

  std::string name() const override { return std::string("host ") + kernel_.name; }

  // Copies at once: the caller's thread is the copy queue, and a small copy costs no hand-over.
  Result<CopyTicket> submit(CopyBatch batch) override {
    ORBITKV_RETURN_IF_ERROR(check_batch(batch));
    Ended* place = std::find_if(ended_.begin(), ended_.end(), [](const Ended& e) { return e.ticket == 0; });
    if (place == ended_.end())
      return busy(std::to_string(limits::kCopyBatches) + " copy batches run; poll until one has ended");
    CopyStats stats;
    for (const GroupCopy& copy : batch.groups) run(copy, batch.direction, stats);
    stream_fence();
    *place = {next_++, stats};
    return CopyTicket{place->ticket};
  }

  bool enqueued(CopyTicket) const override { return true; }

  std::optional<CopyEnd> poll(CopyTicket ticket) override {
    for (Ended& ended : ended_) {
      if (ticket.value == 0 || ended.ticket != ticket.value) continue;
      ended.ticket = 0;
      return CopyEnd{ok_status(), ended.stats};
    }
    return std::nullopt;
  }

 private:
  struct Ended {
    std::uint64_t ticket = 0;  // 0: none
    CopyStats stats;
  };

  void run(const GroupCopy& copy, Direction direction, CopyStats& stats) {
    if (copy.slots.empty()) return;
    GroupRun group(copy, direction, kernel_);
    for (std::size_t i = 0; i < copy.slots.size(); ++i) {
      if (i > 0) fault_hit(FaultPoint::kClientMidCopy);
      if (direction == Direction::kSave) group.save(i);
      if (direction == Direction::kRestore) group.restore(i, options_.verify);
    }
    stats.bytes += group.payload();
    stats.fragments += copy.slots.size() * copy.group->fragments.size();
    ++stats.submissions;
  }

  CopierOptions options_;
  MixKernel kernel_;
  std::array<Ended, limits::kCopyBatches> ended_;  // not polled yet
  std::uint64_t next_ = 1;
};

class HostDevice final : public Device {
 public:
  explicit HostDevice(Isa isa) : isa_(isa) {}

  std::string identity() const override { return "cpu:0"; }
  Status check_memory(std::span<const std::byte>) const override { return ok_status(); }
  void add_slab(std::span<std::byte> slab) override {
    std::lock_guard lock(mutex_);
    slabs_.push_back(slab.data());
  }
  void remove_slab(std::span<std::byte> slab) override {
    std::lock_guard lock(mutex_);
    std::erase(slabs_, slab.data());
  }
  std::size_t reachable_slabs() const override {
    std::lock_guard lock(mutex_);
    return slabs_.size();
  }
  // Whatever stream the caller names is another device's: nothing stands on it for the CPU.
  Result<Fence> fence(StreamHandle) override { return Fence(); }
  Result<std::unique_ptr<Copier>> new_copier(const CopierOptions& options) override {
    return make_host_copier(options, isa_);
  }

 private:
  const Isa isa_;
  mutable std::mutex mutex_;
  std::vector<const std::byte*> slabs_;
};

}  // namespace

std::unique_ptr<Device> make_host_device(Isa isa) {
  return std::make_unique<HostDevice>(isa);
}
std::unique_ptr<Device> make_host_device() {
  return make_host_device(best_isa());
}

std::unique_ptr<Copier> make_host_copier(const CopierOptions& options, Isa isa) {
  return std::make_unique<HostCopier>(options, isa);
}
std::unique_ptr<Copier> make_host_copier(const CopierOptions& options) {
  return make_host_copier(options, best_isa());
}

std::vector<std::uint64_t> page_checks(const GroupGeometry& group, std::uint32_t block, std::uint64_t seed) {
  ORBITKV_CHECK(block < group.num_blocks, "the block is outside the geometry");
  const MixKernel kernel = mix_kernel(best_isa());
  std::vector<std::uint64_t> checks;
  checks.reserve(group.fragments.size());
  for (const FragmentGeometry& fragment : group.fragments) {
    RowCopy copy = rows_of(fragment);
    copy.from = page_of(fragment, block);
    copy.from_stride = fragment.row_stride;
    checks.push_back(fragment_check(fragment, {.seed = seed}, run_kernel(kernel, copy, Stores::kNone)));
  }
  return checks;
}

}  // namespace orbitkv::device
