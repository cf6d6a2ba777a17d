// What every FdStore does. A bed makes a store over its other side, lets that side do its work,
// and begins a next life that finds what was stored.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "daemon/fd_store.h"

namespace orbitkv::daemon::suite {

inline UniqueFd some_file(const char* name = "kept") {
  return UniqueFd(::memfd_create(name, MFD_CLOEXEC));
}
inline ino_t inode(const UniqueFd& fd) {
  struct stat status{};
  EXPECT_EQ(::fstat(fd.get(), &status), 0);
  return status.st_ino;
}

template <class Bed>
class FdStoreSuite : public ::testing::Test {};
TYPED_TEST_SUITE_P(FdStoreSuite);

TYPED_TEST_P(FdStoreSuite, WhatIsPutIsFoundByTheNextLife) {
  TypeParam bed(8);
  auto store = bed.life();
  EXPECT_TRUE(store->take().value().empty());
  const UniqueFd a = some_file(), b = some_file();
  ASSERT_TRUE(store->put("slab-1", a).ok());
  ASSERT_TRUE(store->put("table-1", b).ok());
  bed.work();
  store.reset();
  auto next = bed.life();
  auto found = next->take();
  ASSERT_TRUE(found.ok()) << found.error().to_string();
  ASSERT_EQ(found->size(), 2u);
  for (const auto& each : *found) EXPECT_EQ(inode(each.fd), inode(each.name == "slab-1" ? a : b));
}

TYPED_TEST_P(FdStoreSuite, ARemovalHasItsReceiptAndNotBefore) {
  TypeParam bed(8);
  auto store = bed.life();
  ASSERT_TRUE(store->take().ok());
  ASSERT_TRUE(store->put("slab-1", some_file()).ok());
  ASSERT_TRUE(store->put("slab-2", some_file()).ok());
  const auto ticket = store->remove("slab-1");
  EXPECT_FALSE(store->removed(ticket)) << "the other side has not even read it";
  bed.work();
  EXPECT_TRUE(store->removed(ticket));
  EXPECT_TRUE(store->removed(ticket));
  store->forget("slab-8");
  const auto none = store->remove("slab-9");
  bed.work();
  EXPECT_TRUE(store->removed(none)) << "one that is not there counts as removed";
  store.reset();
  auto next = bed.life();
  const auto found = next->take();
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ((*found)[0].name, "slab-2");
}

TYPED_TEST_P(FdStoreSuite, FullIsToldAndCostsNothingElse) {
  TypeParam bed(2);
  auto store = bed.life();
  ASSERT_TRUE(store->take().ok());
  bool told = false;
  for (int i = 0; i < 4; ++i) {
    told |= !store->put("slab-" + std::to_string(i), some_file()).ok();
    bed.work();
    store->poll();
    told |= !store->refused().empty();
  }
  EXPECT_TRUE(told);
  EXPECT_TRUE(store->alive());
  store.reset();
  EXPECT_EQ(bed.life()->take().value().size(), 2u);
}

TYPED_TEST_P(FdStoreSuite, NamesAreChecked) {
  TypeParam bed(8);
  auto store = bed.life();
  ASSERT_TRUE(store->take().ok());
  for (const char* name : {"", "a b", "a:b", "a\nFDSTORE=1", "A", "a/b"})
    EXPECT_FALSE(store->put(name, some_file()).ok()) << name;
  EXPECT_FALSE(store->put(std::string(limits::kKeptNameBytes + 1, 'a'), some_file()).ok());
  EXPECT_TRUE(store->put(std::string(limits::kKeptNameBytes, 'a'), some_file()).ok());
}

// The store holds a duplicate of its own.
TYPED_TEST_P(FdStoreSuite, TheCallersDescriptorStaysTheCallers) {
  TypeParam bed(8);
  auto store = bed.life();
  ASSERT_TRUE(store->take().ok());
  UniqueFd fd = some_file();
  ASSERT_EQ(::write(fd.get(), "x", 1), 1);
  ASSERT_TRUE(store->put("slab-1", fd).ok());
  fd.reset();
  bed.work();
  store.reset();
  auto next = bed.life();
  const auto found = next->take();
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 1u);
  char byte = 0;
  EXPECT_EQ(::pread((*found)[0].fd.get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 'x');
}

REGISTER_TYPED_TEST_SUITE_P(FdStoreSuite, WhatIsPutIsFoundByTheNextLife, ARemovalHasItsReceiptAndNotBefore,
                            FullIsToldAndCostsNothingElse, NamesAreChecked,
                            TheCallersDescriptorStaysTheCallers);

}  // namespace orbitkv::daemon::suite
