// The subcommands of `orbitkv` behind their parsed options. Each returns the exit
// status; errors go to stderr with cause and remedy. Main thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.h"
#include "base/log.h"
#include "base/result.h"

namespace orbitkv::daemon::cli {

struct ServeFlags {
  std::string socket;     // empty: the default path
  std::string pool_size;  // "", "512MiB", "30gb"
  std::string huge_pages = "auto";
  bool prefault = true;
  std::uint32_t lease_ttl_s = 600;
  std::uint32_t publish_wait_ms = 2000;
  std::uint32_t incomplete_ttl_s = 60;
  std::uint32_t max_blocks = 0;  // 0: from the pool size
  std::uint32_t spin_us = 50;
  std::uint32_t drain_s = 30;
  std::string log_level = "info";
};
int serve(const ServeFlags& flags);

struct StatusFlags {
  std::string socket;
  bool json = false;
  std::uint32_t timeout_ms = 5000;
};
int status(const StatusFlags& flags);

// "64KiB", "512MiB", "30gb", "30GiB", "1tb"; powers of 1024 in every spelling.
Result<ByteCount> parse_size(const std::string& text);
std::string format_size(ByteCount bytes);

}  // namespace orbitkv::daemon::cli
