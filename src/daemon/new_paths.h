// What a start makes at paths where nothing was, so that one that fails takes it away again. Main
// thread. Never touches what was there before, nor a directory that somebody else has put something in.
#pragma once

#include <string>
#include <vector>

namespace orbitkv::daemon {

class NewPaths {
 public:
  // Before they are made: the file and the directories above it.
  void note(const std::string& file);
  bool is_new(const std::string& file) const;
  // Only by whoever holds its lock, so that it is nobody else's.
  void remove_file(const std::string& file) const;
  void remove_directories() const;

 private:
  std::vector<std::string> files_;
  std::vector<std::string> directories_;  // what is in another one stands before it
};

}  // namespace orbitkv::daemon
