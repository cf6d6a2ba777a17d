// Strong integer types, so that two scalars of one kind never stand side by side
// unnamed. An Id only compares and hashes; a ByteCount also adds.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace orbitkv {

template <class Tag, class Rep>
struct Id {
  Rep value{};
  constexpr Id() = default;
  constexpr explicit Id(Rep v) : value(v) {}
  friend constexpr auto operator<=>(Id, Id) = default;
};

using SessionId = Id<struct SessionIdTag, std::uint32_t>;            // slot of a session, 0..63
using Epoch = Id<struct EpochTag, std::uint64_t>;                    // one attach of one client
using Incarnation = Id<struct IncarnationTag, std::uint64_t>;        // one life of the Manager
using OperationId = Id<struct OperationIdTag, std::uint64_t>;        // 56 bits, never 0, per session
using RecordIndex = Id<struct RecordIndexTag, std::uint32_t>;        // grant record in a session
using SlabId = Id<struct SlabIdTag, std::uint32_t>;                  // never reused in a pool
using AllocationId = Id<struct AllocationIdTag, std::uint64_t>;      // never reused in a pool
using RegistrationId = Id<struct RegistrationIdTag, std::uint64_t>;  // its generation too
using Revision = Id<struct RevisionTag, std::uint64_t>;              // of a ticket: rises, 0 is none
using InterestId = Id<struct InterestIdTag, std::uint64_t>;          // of a coordinator (upper half): rises
using InterestOperation = Id<struct InterestOperationTag, std::uint32_t>;  // of an interest: rises from 1
using GroupId = Id<struct GroupIdTag, std::uint16_t>;
using ShardId = Id<struct ShardIdTag, std::uint16_t>;
using NamespaceIndex = Id<struct NamespaceIndexTag, std::uint32_t>;  // interned, Manager only
using NodeId = Id<struct NodeIdTag, std::int32_t>;                   // NUMA node, as the kernel numbers them
inline constexpr NodeId kAnyNode{-1};                                // not known, or no matter

struct ByteCount {
  std::uint64_t value{};
  constexpr ByteCount() = default;
  constexpr explicit ByteCount(std::uint64_t v) : value(v) {}
  friend constexpr auto operator<=>(ByteCount, ByteCount) = default;
  friend constexpr ByteCount operator+(ByteCount a, ByteCount b) { return ByteCount(a.value + b.value); }
  friend constexpr ByteCount operator-(ByteCount a, ByteCount b) { return ByteCount(a.value - b.value); }
  constexpr ByteCount& operator+=(ByteCount b) {
    value += b.value;
    return *this;
  }
  constexpr ByteCount& operator-=(ByteCount b) {
    value -= b.value;
    return *this;
  }
};

inline constexpr ByteCount kKiB{std::uint64_t{1} << 10};
inline constexpr ByteCount kMiB{std::uint64_t{1} << 20};
inline constexpr ByteCount kGiB{std::uint64_t{1} << 30};
constexpr ByteCount operator*(std::uint64_t n, ByteCount b) {
  return ByteCount(n * b.value);
}

}  // namespace orbitkv

template <class Tag, class Rep>
struct std::hash<orbitkv::Id<Tag, Rep>> {
  std::size_t operator()(orbitkv::Id<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value); }
};
