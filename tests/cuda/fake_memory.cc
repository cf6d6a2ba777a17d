// Memory of the device, pinned and registered memory of the fake.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/cuda/fake_call.h"

namespace orbitkv::device::cuda::fake {
namespace {

// New memory holds no zeros, at least not at its beginning.
constexpr std::size_t kDirty = 64 * 1024;

CuResult mem_alloc(CuPtr* at, std::size_t bytes) {
  Call call("cuMemAlloc", Needs::kContext);
  if (call.unsafe()) return call.code;
  if (bytes == 0) return kCuInvalidValue;
  Allocation made;
  made.bytes = {static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256)), std::free};
  std::memset(made.bytes.get(), 0xCD, std::min(bytes, kDirty));
  made.size = bytes;
  made.context = call.current();
  *at = reinterpret_cast<CuPtr>(made.bytes.get());
  call.state.memory[*at] = std::move(made);
  return kCuSuccess;
}
CuResult mem_free(CuPtr at) {
  Call call("cuMemFree", Needs::kContext);
  if (call.unsafe()) return call.code;
  if (!call.state.memory.contains(at)) return kCuInvalidValue;
  Context* context = call.state.memory[at].context;
  call.wait_for_all(*context);
  call.state.memory.erase(at);
  return context->error;
}
CuResult host_alloc(void** at, std::size_t bytes, unsigned flags) {
  Call call("cuMemHostAlloc", Needs::kContext);
  if (call.unsafe()) return call.code;
  if (bytes == 0) return kCuInvalidValue;
  HostRange made;
  made.bytes = {static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)), std::free};
  std::memset(made.bytes.get(), 0xCD, std::min(bytes, kDirty));
  made.size = bytes;
  made.flags = flags;
  made.context = call.current();
  *at = made.bytes.get();
  call.state.host_memory[reinterpret_cast<std::uint64_t>(*at)] = std::move(made);
  return kCuSuccess;
}
CuResult free_host(void* at) {
  Call call("cuMemFreeHost", Needs::kContext);
  if (call.unsafe()) return call.code;
  auto found = call.state.host_memory.find(reinterpret_cast<std::uint64_t>(at));
  if (found == call.state.host_memory.end() || !found->second.bytes) return kCuInvalidValue;
  call.wait_for_all(*found->second.context);
  call.state.host_memory.erase(reinterpret_cast<std::uint64_t>(at));
  return kCuSuccess;
}
CuResult host_register(void* at, std::size_t bytes, unsigned flags) {
  Call call("cuMemHostRegister", Needs::kContext);
  if (call.unsafe()) return call.code;
  const auto begin = reinterpret_cast<std::uint64_t>(at);
  if (bytes == 0 || begin == 0) return kCuInvalidValue;
  auto next = call.state.host_memory.lower_bound(begin + bytes);
  if (next != call.state.host_memory.begin()) {
    const auto& [other, range] = *std::prev(next);
    if (other + range.size > begin) return kCuAlreadyRegistered;
  }
  HostRange& made = call.state.host_memory[begin];
  made.size = bytes;
  made.flags = flags;
  made.context = call.current();
  call.state.note("register");
  return kCuSuccess;
}
// As the real one it waits for nothing that a stream holds back for good; what then touches
// the memory faults.
CuResult host_unregister(void* at) {
  Call call("cuMemHostUnregister", Needs::kContext);
  if (call.unsafe()) return call.code;
  auto found = call.state.host_memory.find(reinterpret_cast<std::uint64_t>(at));
  if (found == call.state.host_memory.end() || found->second.bytes) return kCuNotRegistered;
  call.state.host_memory.erase(found);
  call.state.note("unregister");
  return kCuSuccess;
}
CuResult host_pointer(CuPtr* device, void* host, unsigned) {
  Call call("cuMemHostGetDevicePointer", Needs::kContext);
  if (call.code) return call.code;
  const auto at = reinterpret_cast<std::uint64_t>(host);
  if (call.state.pinned(*call.current(), {at, 1}).bytes == nullptr) return kCuInvalidValue;
  *device = call.state.config.aliased ? at + kAlias : at;
  return kCuSuccess;
}
CuResult pointer_attribute(void* value, int attribute, CuPtr pointer) {
  Call call("cuPointerGetAttribute");
  if (call.code) return call.code;
  const Context* owner = nullptr;
  unsigned type = kMemoryTypeDevice;
  auto next = call.state.memory.upper_bound(pointer);
  if (next != call.state.memory.begin()) {
    const auto& [at, allocation] = *std::prev(next);
    if (pointer < at + allocation.size) owner = allocation.context;
  }
  for (const auto& context : call.state.contexts) {
    if (owner != nullptr || !call.state.pinned(*context, {pointer, 1}).bytes) continue;
    owner = context.get();
    type = 1;  // host
  }
  if (owner == nullptr) return kCuInvalidValue;
  if (attribute == kPointerContext) std::memcpy(value, &owner, sizeof owner);
  if (attribute == kPointerMemoryType) std::memcpy(value, &type, sizeof type);
  if (attribute == kPointerDeviceOrdinal) std::memcpy(value, &owner->device, sizeof owner->device);
  return kCuSuccess;
}

}  // namespace

void add_memory(Driver& table) {
  table.cuMemAlloc = mem_alloc;
  table.cuMemFree = mem_free;
  table.cuMemHostAlloc = host_alloc;
  table.cuMemFreeHost = free_host;
  table.cuMemHostRegister = host_register;
  table.cuMemHostUnregister = host_unregister;
  table.cuMemHostGetDevicePointer = host_pointer;
  table.cuPointerGetAttribute = pointer_attribute;
}

}  // namespace orbitkv::device::cuda::fake
