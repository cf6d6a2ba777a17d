// fuzz_seeds DIR: writes DIR/<target>/seed for every target and prints the names.
#include <sys/stat.h>

#include <cstdio>

#include "targets.h"

namespace orbitkv::fuzz {

namespace {

bool write_seed(const std::string& directory, const Target& target) {
  const std::string folder = directory + "/" + target.name;
  ::mkdir(folder.c_str(), 0755);
  std::FILE* file = std::fopen((folder + "/seed").c_str(), "wb");
  if (file == nullptr) return false;
  const bool whole = std::fwrite(target.seed.data(), 1, target.seed.size(), file) == target.seed.size();
  return std::fclose(file) == 0 && whole;
}

}  // namespace
}  // namespace orbitkv::fuzz

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: fuzz_seeds DIR\n");
    return 2;
  }
  ::mkdir(arguments[1], 0755);
  for (const auto& target : orbitkv::fuzz::targets()) {
    if (!orbitkv::fuzz::write_seed(arguments[1], target)) {
      std::fprintf(stderr, "fuzz_seeds: cannot write below %s\n", arguments[1]);
      return 1;
    }
    std::printf("%s\n", target.name.c_str());
  }
  return 0;
}
