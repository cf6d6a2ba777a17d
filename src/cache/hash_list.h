// A long list of block hashes that grows at its end. In pieces, so that no append moves what is there
// and its memory can go back a piece at a time (cache/leftovers.h). A value of the core; single-threaded.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "orbitkv/types.h"

namespace orbitkv::cache {

class HashList {
 public:
  static constexpr std::size_t kPiece = limits::kListSlice;

  HashList() = default;
  HashList(HashList&& other) noexcept
      : pieces_(std::move(other.pieces_)), size_(std::exchange(other.size_, 0)) {
    other.pieces_.clear();
  }
  HashList& operator=(HashList&& other) noexcept {
    std::swap(pieces_, other.pieces_);
    std::swap(size_, other.size_);
    return *this;
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const BlockHash& operator[](std::size_t i) const { return pieces_[i / kPiece][i % kPiece]; }
  // Those that lie together from `at` on, `most` of them; at least one, unless `at` is the end.
  std::span<const BlockHash> from(std::size_t at, std::size_t most) const {
    if (at == size_) return {};
    const std::span<const BlockHash> piece(pieces_[at / kPiece]);
    return piece.subspan(at % kPiece, std::min({most, size_ - at, piece.size() - at % kPiece}));
  }
  void add(const BlockHash& hash) { add({&hash, 1}); }
  void add(std::span<const BlockHash> hashes) {
    while (!hashes.empty()) {
      if (size_ == pieces_.size() * kPiece) {
        pieces_.emplace_back();
        if (pieces_.size() > 1) pieces_.back().reserve(kPiece);
      }
      std::vector<BlockHash>& piece = pieces_.back();
      const auto now = hashes.first(std::min(hashes.size(), kPiece - piece.size()));
      piece.insert(piece.end(), now.begin(), now.end());
      size_ += now.size();
      hashes = hashes.subspan(now.size());
    }
  }
  // Those behind the first `size` go; the pieces that this leaves without any are returned.
  HashList cut(std::size_t size) {
    HashList rest;
    if (size >= size_) return rest;
    const std::size_t keeps = (size + kPiece - 1) / kPiece;
    const auto from = pieces_.begin() + static_cast<std::ptrdiff_t>(keeps);
    rest.pieces_.assign(std::make_move_iterator(from), std::make_move_iterator(pieces_.end()));
    rest.size_ = size_ > keeps * kPiece ? size_ - keeps * kPiece : 0;
    pieces_.erase(from, pieces_.end());
    if (keeps > 0) pieces_.back().resize(size - (keeps - 1) * kPiece);
    size_ = size;
    return rest;
  }
  // Of one that nobody reads any more, from its end. False: there are more.
  bool free_some(std::size_t pieces) {
    for (; pieces > 0 && !pieces_.empty(); --pieces) pieces_.pop_back();
    size_ = 0;
    return pieces_.empty();
  }

 private:
  std::vector<std::vector<BlockHash>> pieces_;  // all but the last are full
  std::size_t size_ = 0;
};

}  // namespace orbitkv::cache
