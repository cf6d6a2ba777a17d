#include "bench/lines.h"

#include "base/text.h"

namespace orbitkv::bench {

Result<Lines> Lines::open(const std::string& path) {
  Lines lines(path);
  if (!lines.in_) return errno_error("cannot open the trace " + path);
  return lines;
}

Result<bool> Lines::next(std::string& line) {
  ++number_;
  line.clear();
  std::array<char, 4096> part;
  for (bool ended = false; !ended;) {
    in_.getline(part.data(), part.size());
    const auto got = static_cast<std::size_t>(in_.gcount());
    if (got == 0) return false;
    // A full part is a failure of the stream's that is none; a newline counts and is not stored.
    const bool full = in_.fail() && !in_.eof();
    ended = !full;
    line.append(part.data(), got - (full || in_.eof() ? 0 : 1));
    if (full) in_.clear();
    if (line.size() > kMostLineBytes)
      return reject(format_text("%s, line %d is longer than %zu MiB, so this is no trace", path_.c_str(),
                                number_, kMostLineBytes >> 20));
  }
  return true;
}

}  // namespace orbitkv::bench
