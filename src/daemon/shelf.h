// What the keeper holds: descriptors under names, and its answers to the Manager's messages.
// Owned by the keeper's one thread. Allocates nothing; full is an answer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/limits.h"
#include "base/unique_fd.h"
#include "daemon/keeper_protocol.h"

namespace orbitkv::daemon {

class Shelf {
 public:
  // most: at most limits::kKeptDescriptors; kKeeperTablePlaces beside it are for tables alone.
  explicit Shelf(std::uint32_t most)
      : most_(most < limits::kKeptDescriptors ? most : limits::kKeptDescriptors) {}

  struct Answer {
    KeeperMessage message;
    int fd = -1;          // goes along; stays the shelf's
    bool send = true;     // false: none is expected
    bool broken = false;  // no message of ours: the connection is of no use
  };
  // `fd`: what came along, if anything did.
  Answer handle(std::span<const std::byte> bytes, UniqueFd fd);
  void clear();
  std::uint32_t count() const { return count_; }

  // ---- what it was told, until the next life begins ----
  bool took() const { return took_; }  // it has asked for what is kept
  bool ready() const { return ready_; }
  std::uint32_t manager() const { return manager_; }  // the process that is ready; 0: it did not say
  bool succession() const { return succession_; }
  std::string_view successor() const { return {successor_.data(), successor_bytes_}; }
  bool cold() const { return cold_; }  // the successor need not go on with what is kept
  // Of its start: what it said last that it does, and why it fails. One line, printable.
  std::string_view said() const { return doing_.view(); }
  std::string_view why() const { return why_.view(); }
  void begin_life() {
    took_ = ready_ = succession_ = cold_ = false;
    doing_.bytes = why_.bytes = 0;
  }

 private:
  struct Place {
    std::array<char, limits::kKeptNameBytes> name{};
    std::uint8_t name_bytes = 0;
    UniqueFd fd;
    std::string_view view() const { return {name.data(), name_bytes}; }
  };
  Place* find(std::string_view name);
  std::uint16_t put(std::string_view name, UniqueFd fd);
  void remove(std::string_view name);
  struct Line {
    std::array<char, kKeeperSaidBytes> text{};
    std::size_t bytes = 0;
    std::string_view view() const { return {text.data(), bytes}; }
    void set(std::string_view from);
  };
  // Why not; nullptr: it is to be.
  const char* succeed(std::string_view path, bool cold);

  std::uint32_t most_;
  std::uint32_t count_ = 0, tables_ = 0;                                     // all; of them tables
  std::array<Place, limits::kKeptDescriptors + kKeeperTablePlaces> places_;  // the first count_ are taken
  std::uint32_t manager_ = 0;
  bool took_ = false, ready_ = false, succession_ = false, cold_ = false;
  std::array<char, kKeeperPathBytes> successor_{};
  std::size_t successor_bytes_ = 0;
  Line doing_, why_;
};

}  // namespace orbitkv::daemon
