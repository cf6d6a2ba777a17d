// Bytes that change in the slab behind everybody's back: detected by the restore,
// dropped, counted once, asked for no more. The slabs are reached as a stray writer
// would: through the Manager's descriptors.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "model/slot_image.h"
#include "tests/native/engine.h"
#include "tests/native/processes.h"

namespace orbitkv::test {
namespace {

class SlabView {
 public:
  explicit SlabView(pid_t manager) {
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(manager) + "/fd")) {
      std::error_code gone;
      const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
      if (target.find("orbitkv-slab-") == std::string::npos) continue;
      UniqueFd fd(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
      struct stat status{};
      ::fstat(fd.get(), &status);
      bytes_ = static_cast<std::size_t>(status.st_size);
      base_ =
          static_cast<std::byte*>(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
      break;
    }
  }
  ~SlabView() { ::munmap(base_, bytes_); }
  bool mapped() const { return base_ != nullptr && base_ != MAP_FAILED; }

  // Address of the image whose first fragment begins with these bytes.
  std::byte* image(const std::vector<std::byte>& start, std::uint64_t header_bytes) const {
    for (std::size_t at = header_bytes; at + start.size() <= bytes_; at += model::kImageAlign)
      if (std::memcmp(base_ + at, start.data(), start.size()) == 0) return base_ + at - header_bytes;
    return nullptr;
  }

 private:
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

struct Bed {
  explicit Bed(bool verify = true)
      : engine({.socket = manager.socket(), .shape = {}, .verify = verify}),
        header(model::slot_header_bytes(4)) {}
  void publish() {
    ASSERT_EQ(engine.connect().message, "");
    ASSERT_EQ(engine.save(0, 1, 8).blocks, 8u);
    ASSERT_EQ(manager.settle("blocks", 8), 8u);
    slab.emplace(manager.pid());
    ASSERT_TRUE(slab->mapped());
  }
  std::byte* image(std::uint64_t hash) const { return slab->image(engine.page_start(hash_of(hash)), header); }

  Manager manager;
  Engine engine;
  std::uint64_t header;
  std::optional<SlabView> slab;
};

constexpr std::uint64_t kVictim = 4;  // hash of the block that is damaged: the fourth of eight

// Damage, then: the restore fails, the image is gone, and all else is as it was.
void expect_detected(const std::function<void(Bed&)>& damage) {
  Bed bed;
  bed.publish();
  ASSERT_FALSE(testing::Test::HasFatalFailure());
  ASSERT_NE(bed.image(kVictim), nullptr);
  damage(bed);
  const auto failed = bed.engine.restore(20, 1, 8);
  ASSERT_EQ(failed.hits, 8u);
  EXPECT_TRUE(failed.status.done);
  EXPECT_FALSE(failed.status.success);
  EXPECT_NE(failed.status.message.find("verif"), std::string::npos) << failed.status.message;
  EXPECT_EQ(bed.manager.settle("failed_verifications", 1), 1u);
  EXPECT_EQ(bed.manager.status()["failed_restores"], 1u);
  EXPECT_EQ(bed.manager.settle("blocks", 7), 7u);
  const auto shorter = bed.engine.restore(20, 1, 8);
  EXPECT_EQ(shorter.hits, kVictim - 1);
  EXPECT_TRUE(shorter.status.success) << shorter.status.message;
  EXPECT_EQ(shorter.wrong, 0u);
  // It can be published again, and is whole then.
  ASSERT_EQ(bed.engine.save(0, 1, 8).blocks, 1u);
  ASSERT_EQ(bed.manager.settle("blocks", 8), 8u);
  const auto whole = bed.engine.restore(20, 1, 8);
  EXPECT_TRUE(whole.status.success);
  EXPECT_EQ(whole.wrong, 0u);
  EXPECT_EQ(bed.manager.status()["failed_verifications"], 1u);
}

TEST(Corruption, OneBitOfThePayload) {
  for (const std::size_t at : {std::size_t{0}, std::size_t{4096 * 2 + 77}, std::size_t{4 * 4096 - 1}})
    expect_detected([&](Bed& bed) { bed.image(kVictim)[bed.header + at] ^= std::byte{0x10}; });
}

TEST(Corruption, OneBitOfTheHeader) {
  for (const std::size_t at : {0, 4, 9, 16, 24, 32, 40, 63})
    expect_detected([&](Bed& bed) { bed.image(kVictim)[at] ^= std::byte{1}; });
}

TEST(Corruption, AnotherBlocksImageInItsPlace) {
  expect_detected(
      [](Bed& bed) { std::memcpy(bed.image(kVictim), bed.image(kVictim + 1), bed.header + 4 * 4096); });
}

TEST(Corruption, AStaleImageOfTheSameBlock) {
  expect_detected([](Bed& bed) {
    // The header of an older life of the block: its bytes are right, its revision is not.
    auto* header = bed.image(kVictim);
    std::uint64_t allocation;
    std::memcpy(&allocation, header + 16, 8);
    --allocation;
    std::memcpy(header + 16, &allocation, 8);
  });
}

TEST(Corruption, ZeroedPages) {
  expect_detected([](Bed& bed) { std::memset(bed.image(kVictim), 0, bed.header + 4 * 4096); });
}

TEST(Corruption, TwoFragmentsSwapped) {
  expect_detected([](Bed& bed) {
    auto* payload = bed.image(kVictim) + bed.header;
    std::swap_ranges(payload, payload + 4096, payload + 4096);
  });
}

// The proof that these tests see what they say: without verification nobody notices.
TEST(Corruption, GoesUnnoticedWithoutVerification) {
  Bed bed(false);
  bed.publish();
  ASSERT_NE(bed.image(kVictim), nullptr);
  bed.image(kVictim)[bed.header + 100] ^= std::byte{0x10};
  const auto restored = bed.engine.restore(20, 1, 8);
  EXPECT_TRUE(restored.status.success) << restored.status.message;
  EXPECT_EQ(restored.wrong, 1u);
  EXPECT_EQ(bed.manager.status()["failed_verifications"], 0u);
}

// A digest that was damaged before the Manager got it damages the image for everyone.
TEST(Corruption, OneBitOfADigest) {
  Manager manager;
  auto publisher = start_helper({"engine", "socket=" + manager.socket()}, "client_digest:flip:1");
  ASSERT_EQ(publisher.line(), "ready ");
  publisher.say("save 0 1 8");
  ASSERT_EQ(publisher.line(), "saved 1 8 0 0 ");
  ASSERT_EQ(manager.settle("blocks", 8), 8u);
  Engine engine({.socket = manager.socket(), .shape = {}, .instance = 2});
  ASSERT_EQ(engine.connect().message, "");
  EXPECT_FALSE(engine.restore(0, 1, 8).status.success);
  EXPECT_EQ(manager.settle("failed_verifications", 1), 1u);
  const auto rest = engine.restore(0, 1, 8);
  EXPECT_EQ(rest.hits, 4u);
  EXPECT_EQ(rest.wrong, 0u);
}

}  // namespace
}  // namespace orbitkv::test
