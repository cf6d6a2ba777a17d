// A client process that means harm: it follows the protocol far enough to hold grants
// and in between rewrites whatever both sides share.
#pragma once

#include <cstdint>
#include <string>

namespace orbitkv::test {

// Goes on for `ms`, with a new session whenever it was cut off. Prints "hostile
// <sessions> <damages>".
int hostile_main(const std::string& socket, std::uint64_t seed, int ms);

}  // namespace orbitkv::test
