// The subcommands of `orbitkv` behind their parsed options. Each returns the exit
// status; errors go to stderr with cause and remedy. Main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/log.h"
#include "base/result.h"
#include "base/time.h"

namespace orbitkv::daemon::cli {

struct ServeFlags {
  std::string socket;     // empty: the default path
  std::string pool_size;  // "", "512MiB", "30gb"
  std::string huge_pages = "auto";
  bool prefault = true;
  std::string numa = "auto";
  std::uint32_t lease_ttl_s = 600;
  std::uint32_t publish_wait_ms = 2000;
  std::uint32_t retire_after_ms = 1000;
  std::string pool_min;         // "": memory pressure does not shrink the pool
  std::string retire_headroom;  // "": a slab, or 1/16 of the pool
  std::uint32_t incomplete_ttl_s = 60;
  std::uint32_t max_blocks = 0;       // 0: from the pool size
  std::string query_budget;           // "", a size, or "150%" of the pool
  std::string query_instance_budget;  // likewise
  std::uint32_t full_prefix_wait_s = 30;
  std::uint32_t spin_us = 50;
  std::uint32_t drain_s = 30;
  std::uint32_t stall_after_s = 30;  // 0: off
  std::string stalled_engine = "report";
  std::string log_level = "info";
  std::uint32_t protected_percent = 20;  // of the pool
  // SSD; without a path there is none.
  std::vector<std::string> ssd_paths;
  std::string ssd_size;  // of all paths; "": of each, half of what is free, or as it was
  std::string ssd_segment_size = "64MiB";
  std::string ssd_io = "auto";
  std::string ssd_write_policy = "auto";
  std::string ssd_daily_write_budget;  // "": none
  std::string ssd_scrub_rate;          // a second; "": off
  std::uint32_t load_wait_ms = 5000;
  // What outlives the process.
  bool keep = false;
  std::string keep_with = "auto";
  int keeper_fd = -1;  // of the child of a keeper; -1: there is none
  std::string keeper_says = "any";
  std::uint32_t start_silence_s = 30;  // of a start, until it is ended; 0: never
  bool can_keep = false;               // only says what it could go on with
};
// `arguments`: those of the process behind its name, for a keeper to start it with.
int serve(const ServeFlags& flags, const std::vector<std::string>& arguments);

struct UpgradeFlags {
  std::string socket;
  std::string binary;  // "": what stands at the path of the running one
  bool cold = false;
  bool json = false;
  bool log = false;  // what it says is a log's: lines with time and level
};
int upgrade(const UpgradeFlags& flags);

struct StatusFlags {
  std::string socket;
  bool json = false;
  std::uint32_t timeout_ms = 5000;
};
int status(const StatusFlags& flags);

struct EvictFlags {
  std::string socket;
  std::string bytes;  // "": everything that nobody holds
  bool wait = false;  // until what is being written has left
  bool json = false;
};
int evict(const EvictFlags& flags);

struct DropFlags {
  std::string socket;
  bool json = false;
  std::vector<std::string> digests;  // of namespaces, or their beginnings
  std::string scope;
  std::string older_than;  // "90m", "2h", "7d"; "": of any age
  bool all_unasked = false, force = false;
  bool memory_only = false, ssd_only = false;
  bool dry_run = false;
};
int drop(const DropFlags& flags);

struct SsdFlags {
  std::string socket;
  bool json = false;
  std::string drop;      // digest, or the beginning of one, of a namespace to be dropped
  bool unasked = false;  // drop those that no engine has asked for
  bool force = false;    // with unasked: also where no engine has registered
};
int ssd_list(const SsdFlags& flags);
int ssd_drop(const SsdFlags& flags);

struct PoolFlags {
  std::string socket;
  bool json = false;
  std::string amount;  // "2GiB"; drain also a slab's number
};
int pool_list(const PoolFlags& flags);
int pool_add(const PoolFlags& flags);
int pool_drain(const PoolFlags& flags);

// "64KiB", "512MiB", "30gb", "30GiB", "1tb"; powers of 1024 in every spelling.
Result<ByteCount> parse_size(const std::string& text);
// As much of what was given as an error shows.
std::string echo_of(const std::string& text);
std::string format_size(ByteCount bytes);
// "90s", "30m", "2h", "7d".
Result<Duration> parse_age(const std::string& text);

}  // namespace orbitkv::daemon::cli
