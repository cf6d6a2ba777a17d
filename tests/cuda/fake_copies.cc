// The copies of the fake: by the copy engines, whose memory is one allocation or one
// registration each.
#include <algorithm>
#include <cstring>

#include "tests/cuda/fake_call.h"

namespace orbitkv::device::cuda::fake {
namespace {

struct Piece {
  std::uint64_t to = 0;
  std::uint64_t from = 0;
  std::uint64_t size = 0;
};

// When it is executed, not before: memory may have gone by then.
Step copy_now(State& state, const Context& context, const Piece& piece) {
  const Reach to = state.any(context, {piece.to, piece.size});
  const Reach from = state.any(context, {piece.from, piece.size});
  if (to.bytes == nullptr || from.bytes == nullptr) {
    state.complain(std::string("a DMA ") + (to.bytes == nullptr ? "to" : "from") +
                   " memory that is neither the device's nor in one registration");
    return Step::kFault;
  }
  std::memcpy(to.bytes, from.bytes, piece.size);
  return Step::kDone;
}

CuResult enqueue_copy(Call& call, CuStream stream, const Piece& piece, const char* entry) {
  Stream* on = call.work_on(stream);
  if (call.code) return call.code;
  if (piece.size == 0) return kCuSuccess;
  call.state.enqueue(*on, {.entry = entry, .run = [&state = call.state, on, piece] {
                             state.note("copy");
                             return copy_now(state, *on->context, piece);
                           }});
  return kCuSuccess;
}

CuResult to_device_async(CuPtr to, const void* from, std::size_t bytes, CuStream stream) {
  Call call("cuMemcpyHtoDAsync", Needs::kContext);
  return enqueue_copy(call, stream, {to, reinterpret_cast<std::uint64_t>(from), bytes}, "cuMemcpyHtoDAsync");
}
CuResult to_host_async(void* to, CuPtr from, std::size_t bytes, CuStream stream) {
  Call call("cuMemcpyDtoHAsync", Needs::kContext);
  return enqueue_copy(call, stream, {reinterpret_cast<std::uint64_t>(to), from, bytes}, "cuMemcpyDtoHAsync");
}

// Of pageable memory too; in the order of the legacy stream.
CuResult copy_and_wait(Call& call, CuPtr device, std::size_t bytes,
                       const std::function<void(std::byte*)>& body) {
  if (call.unsafe()) return call.code;
  Stream* on = call.work_on(nullptr);
  if (call.code) return call.code;
  bool ok = false, done = false;
  call.state.enqueue(*on, {.entry = "copy and wait", .run = [&] {
                             const Reach reach = call.state.reach(*on->context, {device, bytes});
                             ok = reach.bytes != nullptr;
                             if (ok) body(reach.bytes);
                             done = true;
                             return Step::kDone;
                           }});
  call.wait([&] { return done; }, *on->context);
  if (on->context->error) return on->context->error;
  return ok ? kCuSuccess : kCuInvalidValue;
}
CuResult to_host(void* to, CuPtr from, std::size_t bytes) {
  Call call("cuMemcpyDtoH", Needs::kContext);
  return copy_and_wait(call, from, bytes, [&](std::byte* at) { std::memcpy(to, at, bytes); });
}
CuResult to_device(CuPtr to, const void* from, std::size_t bytes) {
  Call call("cuMemcpyHtoD", Needs::kContext);
  return copy_and_wait(call, to, bytes, [&](std::byte* at) { std::memcpy(at, from, bytes); });
}

CuResult copy_2d(const CuCopy2D* copy, CuStream stream) {
  constexpr unsigned kHost = 1, kDevice = 2, kUnified = 4;
  constexpr std::size_t kMaxPitch = 0x7FFFFFFF;
  Call call("cuMemcpy2DAsync", Needs::kContext);
  Stream* on = call.work_on(stream);
  if (call.code) return call.code;
  const auto known = [](unsigned type) { return type == kHost || type == kDevice || type == kUnified; };
  if (!known(copy->src_type) || !known(copy->dst_type)) return kCuInvalidValue;
  if (copy->src_pitch < copy->width || copy->dst_pitch < copy->width) return kCuInvalidValue;
  if (copy->src_pitch > kMaxPitch || copy->dst_pitch > kMaxPitch) return kCuInvalidValue;
  if (copy->width == 0 || copy->height == 0) return kCuSuccess;
  const auto start = [](unsigned type, const void* host, CuPtr device, std::size_t offset) {
    return (type == kHost ? reinterpret_cast<std::uint64_t>(host) : device) + offset;
  };
  const std::uint64_t from =
      start(copy->src_type, copy->src_host, copy->src_device, copy->src_y * copy->src_pitch + copy->src_x);
  const std::uint64_t to =
      start(copy->dst_type, copy->dst_host, copy->dst_device, copy->dst_y * copy->dst_pitch + copy->dst_x);
  call.state.enqueue(
      *on, {.entry = "cuMemcpy2DAsync", .run = [&state = call.state, on, c = *copy, from, to] {
              state.note("copy2d");
              const auto span = [&](std::size_t pitch) { return (c.height - 1) * pitch + c.width; };
              if (!state.any(*on->context, {to, span(c.dst_pitch)}).bytes ||
                  !state.any(*on->context, {from, span(c.src_pitch)}).bytes) {
                state.complain("a 2D copy leaves its allocation or registration");
                return Step::kFault;
              }
              for (std::size_t row = 0; row < c.height; ++row)
                copy_now(state, *on->context, {to + row * c.dst_pitch, from + row * c.src_pitch, c.width});
              return Step::kDone;
            }});
  return kCuSuccess;
}

CuResult set_words(CuPtr at, unsigned value, std::size_t words, CuStream stream) {
  Call call("cuMemsetD32Async", Needs::kContext);
  Stream* on = call.work_on(stream);
  if (call.code) return call.code;
  if (at % 4 != 0) return kCuInvalidValue;
  call.state.enqueue(*on, {.entry = "cuMemsetD32Async", .run = [&state = call.state, on, at, value, words] {
                             const Reach reach = state.reach(*on->context, {at, words * 4});
                             if (reach.bytes == nullptr) {
                               state.complain("cuMemsetD32Async leaves its memory");
                               return Step::kFault;
                             }
                             auto* to = reinterpret_cast<std::uint32_t*>(reach.bytes);
                             for (std::size_t i = 0; i < words; ++i)
                               __atomic_store_n(to + i, value, __ATOMIC_RELEASE);
                             return Step::kDone;
                           }});
  return kCuSuccess;
}

struct BatchCopy {
  const CuPtr* to = nullptr;
  const CuPtr* from = nullptr;
  const std::size_t* bytes = nullptr;
  std::size_t count = 0;
  std::size_t* failed = nullptr;
  bool attributes = false;  // are there, and for all copies
};
// In any order among themselves.
CuResult copy_batch(const BatchCopy& what, CuStream stream) {
  Call call("cuMemcpyBatchAsync", Needs::kContext);
  Stream* on = call.work_on(stream);
  if (call.code) return call.code;
  if (on->legacy || what.count == 0 || what.failed == nullptr || !what.attributes) return kCuInvalidValue;
  auto pieces = std::make_shared<std::vector<Piece>>();
  for (std::size_t i = 0; i < what.count; ++i) {
    if (what.bytes[i] == 0) {
      *what.failed = i;
      return kCuInvalidValue;
    }
    pieces->push_back({what.to[i], what.from[i], what.bytes[i]});
  }
  std::shuffle(pieces->begin(), pieces->end(), call.state.random);
  call.state.enqueue(*on, {.entry = "cuMemcpyBatchAsync", .run = [&state = call.state, on, pieces] {
                             if (pieces->size() > 1 && state.draw(4) == 0) return Step::kMore;
                             const Piece piece = pieces->back();
                             pieces->pop_back();
                             if (copy_now(state, *on->context, piece) == Step::kFault) return Step::kFault;
                             if (!pieces->empty()) return Step::kMore;
                             state.note("batch");
                             return Step::kDone;
                           }});
  return kCuSuccess;
}

}  // namespace

void add_copies(Driver& table) {
  table.cuMemcpyHtoDAsync = to_device_async;
  table.cuMemcpyDtoHAsync = to_host_async;
  table.cuMemcpyDtoH = to_host;
  table.cuMemcpyHtoD = to_device;
  table.cuMemcpy2DAsync = copy_2d;
  table.cuMemsetD32Async = set_words;
  table.cuMemcpyBatchAsync = [](CuPtr* to, CuPtr* from, std::size_t* bytes, std::size_t count,
                                CuCopyAttributes* attributes, std::size_t* attribute_of,
                                std::size_t attributes_count, std::size_t* failed, CuStream stream) {
    const bool all =
        attributes != nullptr && attributes_count > 0 && attributes_count <= count && attribute_of[0] == 0;
    return copy_batch({to, from, bytes, count, failed, all}, stream);
  };
}

}  // namespace orbitkv::device::cuda::fake
