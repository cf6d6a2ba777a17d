// What `orbitkv bench ssd` works on: the nameless file and memory in huge pages, both of
// which a child process can open too. Bench's main thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "ssd/io.h"

namespace orbitkv::bench {

// Shared memory in reserved huge pages, else collapsed ones, else small ones.
class SsdMemory {
 public:
  static Result<SsdMemory> make(ByteCount bytes);
  SsdMemory(SsdMemory&& other) noexcept;
  ~SsdMemory();
  std::span<std::byte> bytes() const { return {base_, size_.value}; }
  const std::string& pages() const { return pages_; }  // "reserved 2 MiB", ...
  // The same for fio: this very memory, but where its pages are small.
  std::string fio_memory() const;

 private:
  SsdMemory() = default;
  UniqueFd fd_;
  std::byte* base_ = nullptr;
  ByteCount size_;
  std::string pages_;
  bool huge_ = false;
};

// A file without a name in `directory`, written from end to end.
class SsdFile {
 public:
  // `bytes` 0: 8 GiB, or a third of the free space if that is less.
  static Result<SsdFile> make(const std::string& directory, ByteCount bytes);
  ByteCount bytes() const { return bytes_; }
  std::string path() const;  // for this process and its children

 private:
  SsdFile() = default;
  Status write_all();
  UniqueFd fd_;
  ByteCount bytes_;
};

}  // namespace orbitkv::bench
