// `orbitkv bench`: which benches there are and how one is run. Main thread.
#pragma once

#include <cstdint>
#include <string>

namespace orbitkv::bench {

struct Flags {
  std::string name;        // "channel", "query", …, "all"
  std::string only;        // one case, empty = all
  std::uint32_t runs = 0;  // 0: 5, ssd 15
  bool json = false;
  std::string device = "cpu:0";             // copy, restore, publish: where pages lie
  std::string file;                         // replay, endurance: the trace
  std::string window;                       // copy on a GPU
  std::string path;                         // ssd: the directory of its file
  std::uint64_t file_bytes = 0;             // ssd: 0 = 8 GiB, or a third of the free space
  std::uint64_t block_bytes = 64ull << 20;  // endurance: of a block of the trace
  std::uint64_t daily_budget = 0;           // endurance: 0 = half of what `all` writes
};

std::string names();
std::string case_names();  // of ssd, which takes minutes: one wants to choose
// `self` is the path of this binary: benches start their Manager from it. Exit
// status 0 only if every byte was right; 77: this machine cannot run it (no GPU).
int run(const Flags& flags, const char* self);

}  // namespace orbitkv::bench
