#include "bench/endurance.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "bench/endurance_replay.h"

namespace orbitkv::bench {
namespace {

// Every other request is of a chat: four requests long, forty requests apart, each ending in
// a block that the next one does not share. The others ask for twice as much, once.
class Chats {
 public:
  std::vector<Request> make(std::uint32_t requests) {
    std::vector<Request> trace;
    for (std::uint32_t i = 0; i < requests; ++i) {
      Request request;
      request.at = TimePoint{} + milliseconds(100 * i);
      if (i % 2 == 0 && i / 40 % 4 != 0) request.blocks = continued(trace[i - 40]);
      if (request.blocks.empty()) request.blocks = fresh(i % 2 == 0 ? 20 : 40);
      trace.push_back(std::move(request));
    }
    return trace;
  }

 private:
  std::vector<BlockNumber> fresh(std::uint32_t length) {
    std::vector<BlockNumber> blocks;
    for (std::uint32_t i = 0; i < length; ++i) blocks.push_back(next_++);
    return blocks;
  }
  std::vector<BlockNumber> continued(const Request& before) {
    std::vector<BlockNumber> blocks(before.blocks.begin(), before.blocks.end() - 1);
    for (const BlockNumber block : fresh(5)) blocks.push_back(block);
    return blocks;
  }
  BlockNumber next_ = 0;
};

ssd::AdmissionConfig config_of(ssd::WritePolicy policy) {
  ssd::AdmissionConfig config;
  config.policy = policy;
  return config;
}
ReplayCounts replayed(const std::vector<Request>& trace, Writer& writer, std::uint32_t dram = 500) {
  EnduranceReplay replay(dram, writer);
  for (const Request& request : trace) replay.request(request);
  return replay.counts();
}
ReplayCounts of_policy(const std::vector<Request>& trace, ssd::WritePolicy policy) {
  PolicyWriter writer(config_of(policy), kMiB);
  return replayed(trace, writer);
}

TEST(EnduranceReplay, CountsAreThoseOfATraceDoneByHand) {
  // Two blocks of DRAM. 3 and 2 leave first: the end of a request before its beginning.
  const std::vector<Request> trace = {{{}, {1, 2, 3}}, {{}, {1, 2, 4}}, {{}, {5, 6}}, {{}, {1, 2, 3}}};
  PolicyWriter all(config_of(ssd::WritePolicy::kAll), kMiB);
  const ReplayCounts counts = replayed(trace, all, 2);
  EXPECT_EQ(counts.asked, 11u);
  EXPECT_EQ(counts.found, 5u);  // 1 2, 1 2 3
  EXPECT_EQ(counts.read, 3u);   // 1 2 3: the last time
  EXPECT_EQ(counts.written, 6u);
  ChosenWriter none({});
  EXPECT_EQ(replayed(trace, none, 2).found, 2u);
  const auto chosen = clairvoyant_choice(trace, 2, {0});
  EXPECT_EQ(chosen, (std::unordered_set<BlockNumber>{1, 2, 3}));
  ChosenWriter writer(chosen);
  const ReplayCounts best = replayed(trace, writer, 2);
  EXPECT_EQ(best.found, 5u);
  EXPECT_EQ(best.written, 3u);
  EXPECT_EQ(clairvoyant_choice(trace, 2, {0.2}), (std::unordered_set<BlockNumber>{1, 2}));
}

TEST(EnduranceReplay, AutoSparesMostOfWhatAClairvoyantSpares) {
  const auto trace = Chats().make(6000);
  const ReplayCounts all = of_policy(trace, ssd::WritePolicy::kAll);
  const ReplayCounts reuse = of_policy(trace, ssd::WritePolicy::kReuse);
  const ReplayCounts automatic = of_policy(trace, ssd::WritePolicy::kAuto);
  ChosenWriter chosen(clairvoyant_choice(trace, 500, {}));
  const ReplayCounts best = replayed(trace, chosen);
  EXPECT_LT(all.hit_rate() - best.hit_rate(), 0.011 * all.hit_rate());
  EXPECT_LT(all.hit_rate() - automatic.hit_rate(), 0.03);
  EXPECT_LT(reuse.hit_rate(), automatic.hit_rate());
  EXPECT_GT(all.written - automatic.written, (all.written - best.written) * 7 / 10);
}

// What was written after so many requests does not depend on those that follow.
TEST(EnduranceReplay, NoPolicyKnowsTheFuture) {
  const auto whole = Chats().make(3000);
  const std::vector<Request> part(whole.begin(), whole.begin() + 2000);
  for (const auto policy : {ssd::WritePolicy::kAll, ssd::WritePolicy::kReuse, ssd::WritePolicy::kAuto}) {
    PolicyWriter writer(config_of(policy), kMiB);
    EnduranceReplay replay(500, writer);
    ReplayCounts then;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      replay.request(whole[i]);
      if (i + 1 == part.size()) then = replay.counts();
    }
    EXPECT_EQ(then.written, of_policy(part, policy).written);
    EXPECT_GT(replay.counts().written, then.written);
  }
}

class EnduranceBench : public testing::Test {
 protected:
  EnduranceBench() {
    path = testing::TempDir() + format_text("endurance-%d", ::getpid());
    options.file = path;
    options.json = true;
    options.block_bytes = kMiB;
  }
  ~EnduranceBench() override { ::unlink(path.c_str()); }

  void write(const std::vector<Request>& trace) {
    std::ofstream out(path);
    for (const Request& request : trace)
      out << nlohmann::json{{"timestamp", request.at.ns / 1'000'000}, {"hash_ids", request.blocks}} << '\n';
  }
  std::vector<nlohmann::json> lines() {
    testing::internal::CaptureStdout();
    EXPECT_EQ(run_endurance_bench(options), 0);
    std::istringstream out(testing::internal::GetCapturedStdout());
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(out, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }
  std::string complaint(int status = 1) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(run_endurance_bench(options), status);
    return testing::internal::GetCapturedStderr();
  }

  std::string path;
  Options options;
};

TEST_F(EnduranceBench, ALineForEachSizeAndPolicyAndAgainUnderABudget) {
  const auto trace = Chats().make(2000);
  write(trace);
  const auto all = lines();
  ASSERT_EQ(all.size(), 3u * 7);
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(all[i]["dram_blocks"], (std::vector{1000, 3000, 10'000})[i / 7]);
  EXPECT_EQ(all[0]["case"], "1000_all");
  EXPECT_EQ(all[0]["bytes_written"], all[0]["blocks_written"].get<std::uint64_t>() << 20);
  EXPECT_EQ(all[0]["points_lost"], 0.0);
  EXPECT_EQ(all[3]["case"], "1000_clairvoyant");
  EXPECT_EQ(all[3]["of_clairvoyant_percent"], 100.0);
  EXPECT_LT(all[3]["bytes_written"], all[2]["bytes_written"]);
  // Half of it may be written in the time of the trace.
  const double half = all[0]["bytes_written"].get<double>() / 2;
  EXPECT_NEAR(all[4]["bytes_written"].get<double>(), half, half / 20);
  EXPECT_LE(all[6]["bytes_written"].get<double>(), half);
}

TEST_F(EnduranceBench, ABudgetIsKept) {
  write(Chats().make(2000));
  options.only_case = "1000_*";
  options.daily_budget = 160'000 * kMiB;
  const auto all = lines();
  ASSERT_EQ(all.size(), 7u);
  // The burst, and what flows in within the 200 seconds of the trace.
  const std::uint64_t most = (20'000 * kMiB).value + (140'000 * kMiB).value * 200 / (24 * 3600);
  for (const std::size_t i : {4, 5, 6}) {
    EXPECT_LE(all[i]["bytes_written"], most);
    EXPECT_EQ(all[i]["daily_budget"], (160'000 * kMiB).value);
  }
  EXPECT_GT(all[6]["hit_percent"].get<double>(), all[4]["hit_percent"].get<double>() + 2);
}

TEST_F(EnduranceBench, WhatCannotBeReadIsNamed) {
  EXPECT_NE(complaint().find(path), std::string::npos);
  write({});
  EXPECT_NE(complaint().find("no request"), std::string::npos);
  std::ofstream(path) << "{\"timestamp\":0,\"hash_ids\":[1]}\n{\"timestamp\":0}\n";
  EXPECT_NE(complaint().find("line 2"), std::string::npos);
  // Of no trace at all nothing is printed that the terminal would take for commands.
  std::ofstream(path) << "\x7f" << "ELF\x1b[2J\n";
  const std::string binary = complaint();
  EXPECT_NE(binary.find("no trace"), std::string::npos) << binary;
  EXPECT_NE(binary.find("hash_ids"), std::string::npos);
  EXPECT_EQ(binary.find('\x1b'), std::string::npos);
  options.file = ::testing::TempDir();
  EXPECT_NE(complaint().find("directory"), std::string::npos);
  options.file.clear();
  EXPECT_NE(complaint(kUsageError).find("FILE"), std::string::npos);
}

}  // namespace
}  // namespace orbitkv::bench
