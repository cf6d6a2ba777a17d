#include "tests/cuda/driver_bed.h"

#include <sys/mman.h>

#include <map>
#include <thread>
#include <utility>

#include "device/cuda/host_memory.h"

namespace orbitkv::device::cuda {
namespace {

constexpr unsigned kAtLeast = 0;  // CU_STREAM_WAIT_VALUE_GEQ

CuPtr address(const std::byte* at) {
  return reinterpret_cast<CuPtr>(at);
}
void expect_ok(CuResult code, const char* what) {
  EXPECT_EQ(code, kCuSuccess) << what;
}

// The primary context, held for whoever works on it often: to retain it costs more than
// many a call.
class Primary {
 public:
  explicit Primary(const Bed& bed) : bed_(bed) {
    expect_ok(bed.driver->cuDevicePrimaryCtxRetain(&context_, bed.device), "cuDevicePrimaryCtxRetain");
  }
  ~Primary() { bed_.driver->cuDevicePrimaryCtxRelease(bed_.device); }
  Primary(const Primary&) = delete;

  class Scope {
   public:
    explicit Scope(const Primary& primary) : d_(*primary.bed_.driver) {
      expect_ok(d_.cuCtxPushCurrent(primary.context_), "cuCtxPushCurrent");
    }
    ~Scope() {
      CuContext context = nullptr;
      d_.cuCtxPopCurrent(&context);
    }
    Scope(const Scope&) = delete;

   private:
    const Driver& d_;
  };

 private:
  const Bed bed_;
  CuContext context_ = nullptr;
};

class Memory final : public suite::DeviceMemory {
 public:
  explicit Memory(const Bed& bed) : d_(*bed.driver), primary_(bed) {}
  ~Memory() override {
    Primary::Scope scope(primary_);
    for (std::byte* at : taken_) d_.cuMemFree(address(at));
    for (const auto& [at, bytes] : slabs_) ::munmap(at, bytes);
  }
  std::byte* alloc(ByteCount bytes) override {
    Primary::Scope scope(primary_);
    CuPtr at = 0;
    expect_ok(d_.cuMemAlloc(&at, bytes.value), "cuMemAlloc");
    taken_.push_back(reinterpret_cast<std::byte*>(at));
    return taken_.back();
  }
  void write(std::byte* to, std::span<const std::byte> bytes) override {
    Primary::Scope scope(primary_);
    expect_ok(d_.cuMemcpyHtoD(address(to), bytes.data(), bytes.size()), "cuMemcpyHtoD");
    // Pageable bytes may still be on their way from the driver's buffer.
    expect_ok(d_.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  }
  void read(std::span<std::byte> out, const std::byte* from) override {
    Primary::Scope scope(primary_);
    expect_ok(d_.cuMemcpyDtoH(out.data(), address(from), out.size()), "cuMemcpyDtoH");
  }
  std::byte* alloc_slab(ByteCount bytes) override {
    // Where a piece of a registration begins: one registration for what is small.
    void* room = ::mmap(nullptr, bytes.value + kRegisterPiece, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(room, MAP_FAILED);
    auto* at = static_cast<std::byte*>(room) + to_piece_end(reinterpret_cast<std::uint64_t>(room));
    EXPECT_EQ(::mmap(at, bytes.value, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0),
              at);
    slabs_[room] = bytes.value + kRegisterPiece;
    return at;
  }

 private:
  const Driver& d_;
  const Primary primary_;
  std::vector<std::byte*> taken_;
  std::map<void*, std::size_t> slabs_;
};

// Stands still at a word of pinned memory.
class Events final : public suite::DeviceEvents {
 public:
  explicit Events(const Bed& bed) : d_(*bed.driver), primary_(bed) {
    Primary::Scope scope(primary_);
    void* at = nullptr;
    expect_ok(d_.cuMemHostAlloc(&at, 64, kHostAllocPortable | kHostAllocDeviceMap), "cuMemHostAlloc");
    word_ = static_cast<std::uint32_t*>(at);
    __atomic_store_n(word_, 0u, __ATOMIC_RELEASE);
    expect_ok(d_.cuMemHostGetDevicePointer(&device_word_, at, 0), "cuMemHostGetDevicePointer");
    expect_ok(d_.cuStreamCreateWithPriority(&stream_, kStreamNonBlocking, 0), "cuStreamCreate");
  }
  ~Events() override {
    release();
    Primary::Scope scope(primary_);
    d_.cuStreamSynchronize(stream_);
    for (CuEvent event : made_) d_.cuEventDestroy(event);
    d_.cuStreamDestroy(stream_);
    d_.cuMemFreeHost(word_);
  }
  EventHandle make() override {
    Primary::Scope scope(primary_);
    CuEvent event = nullptr;
    expect_ok(d_.cuEventCreate(&event, kEventDisableTiming), "cuEventCreate");
    made_.push_back(event);
    return {reinterpret_cast<std::uint64_t>(event)};
  }
  bool done(EventHandle event) override {
    Primary::Scope scope(primary_);
    const CuResult code = d_.cuEventQuery(reinterpret_cast<CuEvent>(event.value));
    EXPECT_TRUE(code == kCuSuccess || code == kCuNotReady) << code;
    return code == kCuSuccess;
  }
  StreamHandle hold() override {
    Primary::Scope scope(primary_);
    expect_ok(d_.cuStreamWaitValue32(stream_, device_word_, ++held_, kAtLeast), "cuStreamWaitValue32");
    return {reinterpret_cast<std::uint64_t>(stream_)};
  }
  void release() override { __atomic_store_n(word_, held_, __ATOMIC_RELEASE); }

 private:
  const Driver& d_;
  const Primary primary_;
  std::uint32_t* word_ = nullptr;
  CuPtr device_word_ = 0;
  std::uint32_t held_ = 0;
  CuStream stream_ = nullptr;
  std::vector<CuEvent> made_;
};

// The top of the stack tells: what lies below it is seen when that is popped.
class Unchanged {
 public:
  explicit Unchanged(const Driver& driver) : d_(driver) {
    d_.cuCtxGetCurrent(&before_);
    mode_ = mode();
  }
  ~Unchanged() {
    CuContext after = nullptr;
    d_.cuCtxGetCurrent(&after);
    EXPECT_EQ(before_, after) << "the thread's current context has changed";
    EXPECT_EQ(mode_, mode()) << "the thread's capture mode has changed";
  }
  Unchanged(const Unchanged&) = delete;

 private:
  int mode() const {
    int now = 0;
    d_.cuThreadExchangeStreamCaptureMode(&now);
    int back = now;
    d_.cuThreadExchangeStreamCaptureMode(&back);
    return now;
  }
  const Driver& d_;
  CuContext before_ = nullptr;
  int mode_ = 0;
};

class CheckedCopier final : public Copier {
 public:
  CheckedCopier(const Driver& driver, std::unique_ptr<Copier> copier)
      : d_(driver), copier_(std::move(copier)) {}
  ~CheckedCopier() override {
    Unchanged check(d_);
    copier_.reset();
  }
  std::string name() const override { return copier_->name(); }
  Result<CopyTicket> submit(CopyBatch batch) override {
    Unchanged check(d_);
    return copier_->submit(std::move(batch));
  }
  bool enqueued(CopyTicket ticket) const override {
    Unchanged check(d_);
    return copier_->enqueued(ticket);
  }
  std::optional<CopyEnd> poll(CopyTicket ticket) override {
    Unchanged check(d_);
    return copier_->poll(ticket);
  }

 private:
  const Driver& d_;
  std::unique_ptr<Copier> copier_;
};

class CheckedDevice final : public Device {
 public:
  CheckedDevice(const Driver& driver, std::shared_ptr<Device> device, const CheckedOptions& options)
      : d_(driver), device_(std::move(device)), options_(options) {}
  ~CheckedDevice() override {
    Unchanged check(d_);
    device_.reset();
  }
  std::string identity() const override { return device_->identity(); }
  Status check_memory(std::span<const std::byte> memory) const override {
    Unchanged check(d_);
    return device_->check_memory(memory);
  }
  void add_slab(std::span<std::byte> slab) override {
    Unchanged check(d_);
    const std::size_t before = device_->reachable_slabs();
    device_->add_slab(slab);
    while (options_.wait_for_slabs && device_->reachable_slabs() == before) std::this_thread::yield();
  }
  void remove_slab(std::span<std::byte> slab) override {
    Unchanged check(d_);
    device_->remove_slab(slab);
  }
  std::size_t reachable_slabs() const override { return device_->reachable_slabs(); }
  Result<Fence> fence(StreamHandle stream) override {
    Unchanged check(d_);
    return device_->fence(stream);
  }
  Result<std::unique_ptr<Copier>> new_copier(const CopierOptions& options) override {
    Unchanged check(d_);
    CopierOptions asked = options;
    if (asked.method == CopyMethod::kAuto) asked.method = options_.method;
    ORBITKV_ASSIGN_OR_RETURN(auto copier, device_->new_copier(asked));
    return std::unique_ptr<Copier>(std::make_unique<CheckedCopier>(d_, std::move(copier)));
  }

 private:
  const Driver& d_;
  std::shared_ptr<Device> device_;
  const CheckedOptions options_;
};

}  // namespace

PrimaryScope::PrimaryScope(const Bed& bed) : bed_(bed) {
  CuContext context = nullptr;
  expect_ok(bed_.driver->cuDevicePrimaryCtxRetain(&context, bed_.device), "cuDevicePrimaryCtxRetain");
  expect_ok(bed_.driver->cuCtxPushCurrent(context), "cuCtxPushCurrent");
}

PrimaryScope::~PrimaryScope() {
  CuContext context = nullptr;
  bed_.driver->cuCtxPopCurrent(&context);
  bed_.driver->cuDevicePrimaryCtxRelease(bed_.device);
}

std::unique_ptr<suite::DeviceMemory> make_memory(const Bed& bed) {
  return std::make_unique<Memory>(bed);
}
std::unique_ptr<suite::DeviceEvents> make_events(const Bed& bed) {
  return std::make_unique<Events>(bed);
}
std::shared_ptr<Device> checked(const Bed& bed, std::shared_ptr<Device> device,
                                const CheckedOptions& options) {
  return std::make_shared<CheckedDevice>(*bed.driver, std::move(device), options);
}

}  // namespace orbitkv::device::cuda
