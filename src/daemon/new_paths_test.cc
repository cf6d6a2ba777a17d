#include "daemon/new_paths.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace orbitkv::daemon {
namespace {

namespace fs = std::filesystem;

struct NewPathsTest : ::testing::Test {
  NewPathsTest() { above = ::mkdtemp(name); }
  ~NewPathsTest() override { fs::remove_all(above); }
  char name[32] = "/tmp/okv-new-XXXXXX";
  std::string above;
  NewPaths paths;
};

TEST_F(NewPathsTest, WhatWasMadeGoesAndWhatWasThereStays) {
  fs::create_directory(above + "/there");
  std::ofstream(above + "/there/old") << "old";
  paths.note(above + "/there/old");
  paths.note(above + "/there/new");
  paths.note(above + "/a/b/file");
  fs::create_directories(above + "/a/b");
  for (const char* file : {"/there/new", "/a/b/file"}) std::ofstream(above + file) << "new";
  EXPECT_FALSE(paths.is_new(above + "/there/old"));
  for (const char* file : {"/there/old", "/there/new", "/a/b/file"}) paths.remove_file(above + file);
  paths.remove_directories();
  EXPECT_TRUE(fs::exists(above + "/there/old"));
  EXPECT_FALSE(fs::exists(above + "/there/new"));
  EXPECT_FALSE(fs::exists(above + "/a"));
}

TEST_F(NewPathsTest, ADirectoryThatSomebodyElseUsesStays) {
  paths.note(above + "/a/b/file");
  fs::create_directories(above + "/a/b");
  std::ofstream(above + "/a/other") << "another one's";
  paths.remove_directories();
  EXPECT_TRUE(fs::exists(above + "/a/other"));
  EXPECT_FALSE(fs::exists(above + "/a/b"));
}

}  // namespace
}  // namespace orbitkv::daemon
