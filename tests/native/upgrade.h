// Upgrades of a Manager with blocks in memory, to programs that a test writes.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/native/kept.h"

namespace orbitkv::test {

constexpr std::uint32_t kBlocks = 48;

// A program that says what orbitkv says of what it can go on with, and otherwise runs `body`.
inline std::string script(const Directory& directory, const std::string& body,
                          const std::string& name = "/orbitkv") {
  const std::string path = directory.path() + name;
  {
    std::ofstream file(path);
    file << "#!/bin/sh\ncase \"$*\" in *--can-keep*) exec " << orbitkv_binary() << " \"$@\";; esac\n"
         << body << "\n";
  }
  ::chmod(path.c_str(), 0700);
  return path;
}
inline std::string serve_with(const std::string& fault) {
  return "ORBITKV_FAULT='" + fault + "' exec " + orbitkv_binary() + " \"$@\"";
}

inline bool says(Kept& kept, const std::string& text) {
  const TimePoint deadline = monotonic_now() + milliseconds(kDoneWithinMs);
  for (; monotonic_now() < deadline; ::usleep(5000))
    if (kept.manager().log().find(text) != std::string::npos) return true;
  return false;
}

class Upgrade : public ::testing::Test {
 protected:
  explicit Upgrade(std::vector<std::string> flags = {}) : kept(Environment{}, std::move(flags)) {}
  void SetUp() override {
    ASSERT_EQ(engine.connect().message, "");
    ASSERT_TRUE(engine.save(0, 1, kBlocks).success);
    ASSERT_EQ(kept.manager().settle("operations", 0), 0u);
    incarnation = engine.client().health().incarnation;
    pid = kept.manager_pid();
  }
  void expect_next_life(std::uint32_t blocks) {
    ASSERT_TRUE(attached_again(engine, incarnation)) << kept.manager().log();
    const auto restored = engine.restore(0, 1, kBlocks);
    EXPECT_EQ(restored.hits, blocks) << kept.manager().log();
    EXPECT_EQ(restored.wrong, 0u);
  }
  Directory directory;
  Kept kept;
  Engine engine{{.socket = kept.manager().socket(), .shape = {}}};
  std::uint64_t incarnation = 0;
  pid_t pid = 0;
};

}  // namespace orbitkv::test
