// The interests of a group's claims: a coordinator's word above, a number that rises below. Whoever
// holds the group's mutex. Never gives one that was given: where the numbers end a new word is drawn.
#pragma once

#include <cstdint>
#include <functional>

#include "base/ids.h"
#include "base/limits.h"
#include "orbitkv/frames.h"

namespace orbitkv::client {

// A claim as its callers know it: the lower half of its interest, and the upper one of its tokens.
using ClaimNumber = std::uint32_t;
constexpr ClaimNumber claim_number(InterestId interest) {
  return static_cast<ClaimNumber>(interest.value);
}
constexpr ClaimNumber claim_number(FrameToken token) {
  return static_cast<ClaimNumber>(token.value >> 32);
}
constexpr FrameToken frame_token(InterestId claim, std::uint32_t number) {
  return {std::uint64_t{claim_number(claim)} << 32 | number};
}

class ClaimIds {
 public:
  using Draw = std::function<std::uint32_t()>;
  explicit ClaimIds(Draw draw, ClaimNumber last = 0) : draw_(std::move(draw)), last_(last) { renew(); }

  // `used`: whether a claim of that number is open still.
  template <class Used>
  InterestId next(Used used) {
    do {
      if (++last_ == 0) {
        renew();
        ++last_;
      }
    } while (used(last_));
    return InterestId(std::uint64_t{word_} << 32 | last_);
  }

 private:
  // Seats count up from the word: there is room for all of them, and 0 is none.
  void renew() { word_ = (draw_() >> 1) | 1; }
  static_assert(limits::kInterestGroup < 1u << 31);

  Draw draw_;
  std::uint32_t word_ = 0;
  ClaimNumber last_;
};

}  // namespace orbitkv::client
