// How a pool of given bytes is cut into slabs, and whether a machine can hold it. Pure but
// for the limit of open files, which allow_descriptors() raises. Any thread.
#pragma once

#include <cstddef>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "mem/host_memory.h"

namespace orbitkv::mem {

struct PoolConfig;
struct KeptPool;

// One slab below 512 MiB. Above: slabs of one size, but for rounding to 2 MiB, from 256 MiB
// (so that the largest image fits) to 1 GiB; four of them where that can be. `each` is not 0:
// slabs of so many bytes, which are whole pages, and what is left.
std::vector<ByteCount> slab_sizes(ByteCount bytes, ByteCount each = {});

// Takes out of `sizes` what the kept slabs stand for, those of their size first, and what others
// hold of slabs that are gone; no more slabs than were wanted stay. The bytes that are left to be made.
ByteCount leave_out(const KeptPool& kept, std::vector<ByteCount>& sizes);

Status check_config(const PoolConfig& config);
// Of a prefaulted pool; sparse ones are taken at their word: they are for tests and for
// trying sizes.
Status check_memory(const PoolConfig& config, const HostMemory& memory);
// Raises the soft limit of open files where so many slabs need it.
Status allow_descriptors(std::size_t slabs);

}  // namespace orbitkv::mem
