#include "client/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <cinttypes>
#include <vector>

#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"

namespace orbitkv::client {
namespace {

// Of all parts of one group: they share a geometry.
struct GroupView {
  const RegisteredGroup* group = nullptr;
  std::vector<const Part*> parts;
};

std::vector<GroupView> groups_of(const Transfer& transfer) {
  std::vector<GroupView> groups;
  for (const Part& part : transfer.parts) {
    if (part.images.empty()) continue;
    auto at = groups.begin();
    while (at != groups.end() && at->group != part.group) ++at;
    if (at == groups.end()) at = groups.insert(at, {part.group, {}});
    at->parts.push_back(&part);
  }
  return groups;
}

std::uint64_t units_of(const std::vector<GroupView>& groups) {
  std::uint64_t units = 0;
  for (const GroupView& view : groups) {
    units += view.group->geometry.fragments.size();
    for (const Part* part : view.parts) units += part->images.size();
  }
  return units;
}

std::string fragment_text(const RegisteredGroup& group, std::size_t i, const std::byte* first) {
  const device::FragmentGeometry& f = group.geometry.fragments[i];
  const auto base = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(f.base) -
                                              reinterpret_cast<std::uintptr_t>(first));
  return format_text("[%u,%u,%u,%" PRId64 ",%" PRIu64 ",%u,%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", f.layer,
                     f.component, f.turn, base, f.block_stride, f.rows, f.row_bytes, f.row_stride,
                     group.layout.fragment_offsets[i]);
}

void append_group(const GroupView& view, const std::byte* first, std::string& out) {
  const RegisteredGroup& group = *view.group;
  out += format_text("{\"group\":%u,\"num_blocks\":%u,\"slot_bytes\":%" PRIu64 ",\"header_bytes\":%" PRIu64
                     ",\"fragments\":[",
                     group.geometry.shape.group.value, group.geometry.num_blocks, group.layout.slot_bytes,
                     group.layout.header_bytes);
  for (std::size_t i = 0; i < group.geometry.fragments.size(); ++i)
    out += (i ? "," : "") + fragment_text(group, i, first);
  out += "],\"slots\":[";
  const char* comma = "";
  for (const Part* part : view.parts) {
    for (std::size_t i = 0; i < part->images.size(); ++i) {
      out += format_text("%s[%u,%u,%" PRIu64 "]", comma, part->slots[i].block, part->images[i].slab.value,
                         part->images[i].offset);
      comma = ",";
    }
  }
  out += "]}";
}

std::string head_text(const Transfer& t, bool success) {
  const OperationReport& r = t.report;
  return format_text(
      "{\"op\":%" PRIu64
      ",\"kind\":\"%s\",\"device\":\"%s\",\"method\":\"%s\",\"success\":%s,\"bytes\":%" PRIu64
      ",\"fragments\":%" PRIu64 ",\"submissions\":%u,\"plan_bytes\":%" PRIu64
      ",\"bounced\":%s,\"stages_ns\":{\"readiness\":%" PRIu64 ",\"dispatched\":%" PRIu64
      ",\"dequeued\":%" PRIu64 ",\"claimed\":%" PRIu64 ",\"enqueued\":%" PRIu64 ",\"drained\":%" PRIu64 "}",
      t.handle.value, t.kind == model::PlanKind::kSave ? "save" : "restore", t.entry->rank.device.c_str(),
      r.method.c_str(), success ? "true" : "false", r.bytes, r.fragments, t.stats.submissions,
      t.stats.plan_bytes, t.stats.bounced ? "true" : "false", r.readiness_ns, r.dispatched_ns, r.dequeued_ns,
      r.claimed_ns, r.enqueued_ns, r.drained_ns);
}
}  // namespace

Result<std::unique_ptr<Trace>> Trace::open(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file.valid()) return errno_error("cannot open the trace file " + path);
  return std::unique_ptr<Trace>(new Trace(std::move(file)));
}

void Trace::write(const Transfer& transfer, bool success) {
  const std::vector<GroupView> groups = groups_of(transfer);
  std::lock_guard lock(mutex_);
  if (full_) return;
  units_ += units_of(groups);
  std::string line;
  if (units_ > limits::kTraceUnits) {
    full_ = true;
    line = "{\"full\":true}";
  } else {
    line = head_text(transfer, success) + ",\"groups\":[";
    const std::byte* first = groups.empty() ? nullptr : groups[0].group->geometry.fragments[0].base;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (i > 0) line += ',';
      append_group(groups[i], first, line);
    }
    line += "]}";
  }
  line += '\n';
  if (::write(file_.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size())) return;
  full_ = true;
  ORBITKV_WARN("the trace file takes no more lines: %s", errno_error("write").message().c_str());
}

}  // namespace orbitkv::client
