#include "daemon/new_paths.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "base/result.h"

namespace orbitkv::daemon {
namespace {
bool is_missing(const std::string& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) != 0 && errno == ENOENT;
}
}  // namespace

void NewPaths::note(const std::string& file) {
  if (!is_missing(file)) return;
  files_.push_back(file);
  for (std::size_t slash = file.rfind('/'); slash != file.npos && slash > 0;
       slash = file.rfind('/', slash - 1)) {
    const std::string directory = file.substr(0, slash);
    if (!is_missing(directory)) return;
    directories_.push_back(directory);
  }
}

bool NewPaths::is_new(const std::string& file) const {
  return std::find(files_.begin(), files_.end(), file) != files_.end();
}

void NewPaths::remove_file(const std::string& file) const {
  if (is_new(file) && ::unlink(file.c_str()) != 0 && errno != ENOENT)
    ORBITKV_WARN("%s", errno_error("cannot remove " + file).message().c_str());
}

void NewPaths::remove_directories() const {
  for (const std::string& directory : directories_) (void)::rmdir(directory.c_str());
}

}  // namespace orbitkv::daemon
