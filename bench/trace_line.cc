#include "bench/trace_line.h"

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "bench/lines.h"

namespace orbitkv::bench {
namespace {

using nlohmann::json;

TracedFragment fragment_of(const json& j) {
  TracedFragment f;
  f.layer = j.at(0).get<std::uint16_t>();
  f.component = j.at(1).get<std::uint16_t>();
  f.turn = j.at(2).get<std::uint16_t>();
  f.base = j.at(3).get<std::int64_t>();
  f.block_stride = j.at(4).get<std::uint64_t>();
  f.rows = j.at(5).get<std::uint32_t>();
  f.row_bytes = j.at(6).get<std::uint64_t>();
  f.row_stride = j.at(7).get<std::uint64_t>();
  return f;
}

TracedGroup group_of(const json& j) {
  TracedGroup g;
  g.group = j.at("group").get<std::uint16_t>();
  g.num_blocks = j.at("num_blocks").get<std::uint32_t>();
  g.slot_bytes = j.at("slot_bytes").get<std::uint64_t>();
  for (const json& f : j.at("fragments")) g.fragments.push_back(fragment_of(f));
  for (const json& s : j.at("slots"))
    g.slots.push_back(
        {s.at(0).get<std::uint32_t>(), s.at(1).get<std::uint32_t>(), s.at(2).get<std::uint64_t>()});
  return g;
}

TraceLine line_of(const json& j) {
  TraceLine line;
  line.op = j.at("op").get<std::uint64_t>();
  line.direction = j.at("kind") == "save" ? device::Direction::kSave : device::Direction::kRestore;
  line.method = j.at("method").get<std::string>();
  line.success = j.at("success").get<bool>();
  line.bounced = j.at("bounced").get<bool>();
  line.bytes = j.at("bytes").get<std::uint64_t>();
  line.fragments = j.at("fragments").get<std::uint64_t>();
  line.plan_bytes = j.at("plan_bytes").get<std::uint64_t>();
  line.submissions = j.at("submissions").get<std::uint32_t>();
  line.shape_key = j.at("kind").get<std::string>();
  for (const json& g : j.at("groups")) {
    line.groups.push_back(group_of(g));
    line.shape_key += format_text(" %u %zu ", line.groups.back().group, line.groups.back().slots.size()) +
                      g.at("fragments").dump();
  }
  return line;
}

}  // namespace

// The library throws; nothing of it leaves here.
Result<TraceLine> parse_trace_line(const std::string& text) {
  try {
    return line_of(json::parse(text));
  } catch (const json::exception& e) {
    return reject(e.what());
  }
}

Result<TraceFile> read_trace(const std::string& path) {
  ORBITKV_ASSIGN_OR_RETURN(Lines lines, Lines::open(path));
  TraceFile file;
  std::string text;
  for (;;) {
    ORBITKV_ASSIGN_OR_RETURN(const bool more, lines.next(text));
    if (!more) return file;
    if (text.empty()) continue;
    if (text == "{\"full\":true}") {
      file.full = true;
      continue;
    }
    auto line = parse_trace_line(text);
    if (!line.ok())
      return reject(format_text("%s, line %d is no line of a trace of transfers: %s", path.c_str(),
                                lines.number(), line.error().message().c_str()));
    file.lines.push_back(*std::move(line));
  }
}

}  // namespace orbitkv::bench
