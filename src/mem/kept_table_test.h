// A kept table's memory as a test sees it: once more, or as plain words.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "mem/kept_table.h"

namespace orbitkv::mem {

inline UniqueFd copy_of(const KeptTable& table) {
  return UniqueFd(::fcntl(table.memory().get(), F_DUPFD_CLOEXEC, 0));
}

// The same memory as plain words.
class Raw {
 public:
  explicit Raw(const KeptTable& table) {
    struct stat status{};
    EXPECT_EQ(::fstat(table.memory().get(), &status), 0);
    bytes_ = static_cast<std::size_t>(status.st_size);
    void* const at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, table.memory().get(), 0);
    EXPECT_NE(at, MAP_FAILED);
    words_ = static_cast<std::uint64_t*>(at);
  }
  ~Raw() { ::munmap(words_, bytes_); }
  std::size_t size() const { return bytes_ / 8; }
  std::uint64_t& operator[](std::size_t i) { return words_[i]; }

 private:
  std::uint64_t* words_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace orbitkv::mem
