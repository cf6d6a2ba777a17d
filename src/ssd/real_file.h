// Opens the real files and block devices of the store: lock, O_DIRECT, alignment, space.
// Errors name the path and the remedy. Called by the owner of an Io; may block.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "ssd/io.h"

namespace orbitkv::ssd {

struct OpenFile {
  UniqueFd fd;
  std::uint64_t bytes = 0;
  IoAlignment alignment;
  bool made = false;
};

// As Io::open, grow and free_space say.
Result<OpenFile> open_real(const std::string& path, ByteCount bytes);
Status grow_real(int fd, ByteCount bytes);
bool linked_real(int fd);
Io::FileIdentity identity_real(int fd);
// A ring lets go of its files some time after its end.
void unlock_real(int fd);
ByteCount free_space_real(const std::string& path);

}  // namespace orbitkv::ssd
