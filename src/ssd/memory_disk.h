// What MemoryIo's files hold, and a log of their writes and syncs from which the contents
// after a loss of power can be made. Owned by a test; outlives the MemoryIo that use it,
// so that a file can be closed and opened again. Files have names and nothing on a real
// file system; pages that nobody wrote take no memory. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace orbitkv::ssd {

// Which of the writes that no sync covers are there after a loss of power. A write is
// covered by a sync if it was reaped before the sync was submitted, and the sync was reaped.
struct CrashRules {
  std::uint64_t seed = 0;
  std::uint32_t lost_percent = 50;  // of those writes: nothing of them is there
  std::uint32_t torn_percent = 25;  // of the rest: each of their sectors is there or is not
  ByteCount sector = ByteCount(512);
  // The process was killed and the machine lives: what was reaped is there, synced or not.
  bool killed_only = false;
};

class MemoryDisk {
 public:
  // ---- what a test asks ----
  // The disk after a loss of power: now, or behind the first `events` of the log. Its own
  // log is empty and nothing on it is locked. Lengths are not lost.
  MemoryDisk after_crash(const CrashRules& rules) const { return after_crash(rules, events()); }
  MemoryDisk after_crash(const CrashRules& rules, std::size_t events) const;
  std::size_t events() const { return log_.size(); }  // submissions and reaped results
  ByteCount logged() const;                           // bytes of the writes in the log

  // Past the log: looks at the contents, or damages them. A file that is not there is made.
  void peek(const std::string& path, std::uint64_t offset, std::span<std::byte> out) const;
  void poke(const std::string& path, std::uint64_t offset, std::span<const std::byte> bytes);
  void resize(const std::string& path, ByteCount bytes);
  ByteCount size(const std::string& path) const;
  ByteCount free_space = 1024 * kGiB;  // what MemoryIo says and grow() keeps to

  // ---- what MemoryIo does ----
  using Number = Id<struct MemoryEventTag, std::uint64_t>;  // of a write or a sync in the log
  struct Found {
    ByteCount bytes;
    bool made = false;
  };
  Result<Found> open(const std::string& path);  // and locks it
  void close(const std::string& path);
  Number write_submitted(const std::string& path, std::uint64_t offset, std::vector<std::byte> data);
  Number sync_submitted(const std::string& path);
  void reaped(Number number);  // without error
  const std::vector<std::byte>& data_of(Number number) const { return *log_[number.value].data; }

 private:
  static constexpr std::uint64_t kPage = 4096;
  using Page = std::array<std::byte, kPage>;
  using Pages = std::map<std::uint64_t, std::shared_ptr<const Page>>;
  struct File {
    Pages pages, at_start;
    std::uint64_t bytes = 0;
    bool locked = false;
  };
  struct Event {
    enum class Kind : std::uint8_t { kWrite, kSync, kReaped } kind;
    Number number;
    std::string path;
    std::uint64_t offset = 0;
    std::shared_ptr<const std::vector<std::byte>> data;
  };

  static void apply(File& file, std::uint64_t offset, std::span<const std::byte> bytes);
  std::vector<bool> durable(const CrashRules& rules, std::size_t events) const;

  std::map<std::string, File> files_;
  std::vector<Event> log_;
};

}  // namespace orbitkv::ssd
