#include "bindings/block_hashes.h"

#include <nanobind/stl/string.h>

#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace orbitkv::python {

namespace {
constexpr std::size_t kBytes = sizeof(BlockHash);
static_assert(kBytes == 32 && alignof(BlockHash) == 1);
}  // namespace

BlockHashes::BlockHashes(nb::bytes data, std::size_t first, std::size_t count)
    : data_(std::move(data)), first_(first), count_(count) {}

BlockHashes BlockHashes::from_iterable(nb::handle items) {
  std::string all;
  std::size_t position = 0;
  for (nb::handle item : items) {
    if (!nb::isinstance<nb::bytes>(item) || nb::len(item) != kBytes) {
      const std::string what = "hash " + std::to_string(position) + " is not a bytes object of 32 bytes; " +
                               "use a 32-byte block hash such as sha256_cbor";
      throw nb::value_error(what.c_str());
    }
    all.append(nb::borrow<nb::bytes>(item).c_str(), kBytes);
    ++position;
  }
  return BlockHashes(nb::bytes(all.data(), all.size()), 0, position);
}

BlockHashes BlockHashes::from_bytes(nb::bytes data) {
  if (data.size() % kBytes != 0) throw nb::value_error("the length must be a multiple of 32 bytes");
  const std::size_t count = data.size() / kBytes;
  return BlockHashes(std::move(data), 0, count);
}

nb::bytes BlockHashes::at(nb::ssize_t index) const {
  if (index < 0) index += static_cast<nb::ssize_t>(count_);
  if (index < 0 || static_cast<std::size_t>(index) >= count_) throw nb::index_error();
  return nb::bytes(data_.c_str() + (first_ + static_cast<std::size_t>(index)) * kBytes, kBytes);
}

BlockHashes BlockHashes::slice(nb::slice range) const {
  const auto [start, stop, step, length] = range.compute(count_);
  (void)stop;
  if (step != 1) throw nb::value_error("BlockHashes slices are contiguous: the step must be 1");
  return BlockHashes(data_, first_ + static_cast<std::size_t>(start), length);
}

nb::bytes BlockHashes::to_bytes() const {
  return nb::bytes(data_.c_str() + first_ * kBytes, count_ * kBytes);
}

bool BlockHashes::equals(const BlockHashes& other) const {
  return count_ == other.count_ &&
         std::memcmp(data_.c_str() + first_ * kBytes, other.data_.c_str() + other.first_ * kBytes,
                     count_ * kBytes) == 0;
}

std::size_t BlockHashes::hash() const {
  return std::hash<std::string_view>{}({data_.c_str() + first_ * kBytes, count_ * kBytes});
}

std::span<const BlockHash> BlockHashes::view() const {
  return {reinterpret_cast<const BlockHash*>(data_.c_str()) + first_, count_};
}

void bind_block_hashes(nb::module_& m) {
  nb::class_<BlockHashes>(m, "BlockHashes", "Immutable run of 32-byte block hashes; slices share memory.")
      .def(nb::new_([](nb::object items) {
             return nb::isinstance<nb::bytes>(items) ? BlockHashes::from_bytes(nb::borrow<nb::bytes>(items))
                                                     : BlockHashes::from_iterable(items);
           }),
           nb::arg("items"))
      .def("tobytes", &BlockHashes::to_bytes)
      .def("__len__", &BlockHashes::size)
      .def("__getitem__", &BlockHashes::at, nb::arg("index"))
      .def("__getitem__", &BlockHashes::slice, nb::arg("range"))
      .def("__eq__", &BlockHashes::equals, nb::arg("other"), nb::is_operator())
      .def("__hash__", &BlockHashes::hash)
      .def("__reduce__", [](nb::handle self) {
        return nb::make_tuple(self.type(), nb::make_tuple(self.attr("tobytes")()));
      });
}

}  // namespace orbitkv::python
