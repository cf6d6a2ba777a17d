// A file read line by line, none of them without bound: what has no newlines is no trace.
#pragma once

#include <array>
#include <fstream>
#include <string>

#include "base/result.h"

namespace orbitkv::bench {

inline constexpr std::size_t kMostLineBytes = 64u << 20;  // 2^20 hashes take a third of that

class Lines {
 public:
  static Result<Lines> open(const std::string& path);
  // The next one, without its end; false: there is none. kReject names the line that is too long.
  Result<bool> next(std::string& line);
  int number() const { return number_; }  // of the line that next() gave, from 1

 private:
  explicit Lines(const std::string& path) : path_(path), in_(path) {}
  std::string path_;
  std::ifstream in_;
  int number_ = 0;
};

}  // namespace orbitkv::bench
