#include "bench/endurance_replay.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ranges>

#include "base/text.h"
#include "bench/lines.h"

namespace orbitkv::bench {

namespace {

// The Manager's keys are hashes; the trace's are numbers in the order of their first use.
ssd::AdmissionKey key_of(BlockNumber block) {
  block = (block + 1) * 0x9E3779B97F4A7C15u;
  block = (block ^ block >> 30) * 0xBF58476D1CE4E5B9u;
  return ssd::AdmissionKey(block ^ block >> 31);
}

std::optional<Request> parse_request(const std::string& text) {
  try {
    const auto line = nlohmann::json::parse(text);
    Request request;
    request.at = TimePoint{} + milliseconds(static_cast<std::int64_t>(line.at("timestamp").get<double>()));
    request.blocks = line.at("hash_ids").get<std::vector<BlockNumber>>();
    return request;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

Result<std::vector<Request>> read_requests(const std::string& path) {
  ORBITKV_ASSIGN_OR_RETURN(Lines lines, Lines::open(path));
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return reject(path + " is a directory, no trace");
  std::vector<Request> requests;
  std::string text;
  for (;;) {
    ORBITKV_ASSIGN_OR_RETURN(const bool more, lines.next(text));
    if (!more) return requests;
    if (text.empty()) continue;
    auto request = parse_request(text);
    if (!request)
      return reject(
          format_text("%s, line %d is no request, so this is no trace: each line is to be a JSON object with "
                      "\"timestamp\" "
                      "(milliseconds) and \"hash_ids\" (the numbers of its blocks)",
                      path.c_str(), lines.number()));
    requests.push_back(*std::move(request));
  }
}

void PolicyWriter::asked(BlockNumber block, const ssd::BlockContext& context, bool found) {
  admission_.asked(key_of(block), context, found);
}
bool PolicyWriter::saved(BlockNumber block, TimePoint now) {
  return admission_.saved(key_of(block), bytes_, now) == ssd::Verdict::kWrite;
}
bool PolicyWriter::leaving(BlockNumber block, TimePoint now) {
  return admission_.leaving(key_of(block), bytes_, now) == ssd::Verdict::kWrite;
}

void EnduranceReplay::request(const Request& request) {
  const std::uint32_t found = found_of(request);
  const auto length = static_cast<std::uint32_t>(request.blocks.size());
  for (std::uint32_t i = 0; i < length; ++i) writer_.asked(request.blocks[i], {i, length}, i < found);
  save_rest(request, found);
  // The beginning is touched last: the end leaves first.
  for (const BlockNumber number : std::views::reverse(request.blocks)) {
    Block& block = blocks_[number];
    if (block.in_dram) dram_.erase(block.place);
    block.in_dram = true;
    block.place = dram_.insert(dram_.end(), number);
  }
  evict(request.at);
}

std::uint32_t EnduranceReplay::found_of(const Request& request) {
  last_read_.clear();
  std::uint32_t found = 0;
  for (const BlockNumber number : request.blocks) {
    const auto known = blocks_.find(number);
    if (known == blocks_.end() || (!known->second.in_dram && !known->second.on_ssd)) break;
    if (!known->second.in_dram) last_read_.push_back(number);
    ++found;
  }
  counts_.asked += request.blocks.size();
  counts_.found += found;
  counts_.read += last_read_.size();
  return found;
}

void EnduranceReplay::save_rest(const Request& request, std::uint32_t found) {
  const auto length = static_cast<std::uint32_t>(request.blocks.size());
  for (std::uint32_t i = found; i < length; ++i) {
    Block& block = blocks_[request.blocks[i]];
    if (block.in_dram || block.on_ssd) continue;
    block.on_ssd = writer_.saved(request.blocks[i], request.at);
    counts_.written += block.on_ssd;
  }
}

void EnduranceReplay::evict(TimePoint now) {
  for (; dram_.size() > room_; dram_.pop_front()) {
    Block& block = blocks_[dram_.front()];
    block.in_dram = false;
    if (block.on_ssd) continue;
    block.on_ssd = writer_.leaving(dram_.front(), now);
    counts_.written += block.on_ssd;
  }
}

std::unordered_set<BlockNumber> clairvoyant_choice(const std::vector<Request>& trace,
                                                   std::uint32_t dram_blocks, Spared spared) {
  ssd::AdmissionConfig config;
  config.policy = ssd::WritePolicy::kAll;
  PolicyWriter all(config, ByteCount(1));
  EnduranceReplay replay(dram_blocks, all);
  std::vector<std::vector<BlockNumber>> reads;
  std::unordered_map<BlockNumber, std::uint32_t> times;
  for (const Request& request : trace) {
    replay.request(request);
    reads.push_back(replay.last_read());
    for (const BlockNumber block : reads.back()) ++times[block];
  }
  std::unordered_set<BlockNumber> chosen;
  for (const auto& read : times) chosen.insert(read.first);
  auto left = static_cast<std::uint64_t>(spared.share * static_cast<double>(replay.counts().found));
  for (const auto& read : reads) {
    for (const BlockNumber block : std::views::reverse(read)) {
      if (times[block] > 1 || left == 0) break;
      chosen.erase(block);
      --left;
    }
  }
  return chosen;
}

}  // namespace orbitkv::bench
