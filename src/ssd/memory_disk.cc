#include "ssd/memory_disk.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "base/check.h"
#include "base/text.h"

namespace orbitkv::ssd {

void MemoryDisk::apply(File& file, std::uint64_t offset, std::span<const std::byte> bytes) {
  file.bytes = std::max<std::uint64_t>(file.bytes, offset + bytes.size());
  while (!bytes.empty()) {
    const std::uint64_t inside = offset % kPage;
    const std::size_t length = std::min<std::size_t>(bytes.size(), kPage - inside);
    std::shared_ptr<const Page>& slot = file.pages[offset / kPage];
    auto page = slot && length < kPage ? std::make_shared<Page>(*slot) : std::make_shared<Page>();
    std::memcpy(page->data() + inside, bytes.data(), length);
    slot = std::move(page);
    offset += length;
    bytes = bytes.subspan(length);
  }
}

void MemoryDisk::peek(const std::string& path, std::uint64_t offset, std::span<std::byte> out) const {
  std::fill(out.begin(), out.end(), std::byte{0});
  const auto file = files_.find(path);
  while (file != files_.end() && !out.empty()) {
    const std::uint64_t inside = offset % kPage;
    const std::size_t length = std::min<std::size_t>(out.size(), kPage - inside);
    const auto page = file->second.pages.find(offset / kPage);
    if (page != file->second.pages.end()) std::memcpy(out.data(), page->second->data() + inside, length);
    offset += length;
    out = out.subspan(length);
  }
}

void MemoryDisk::poke(const std::string& path, std::uint64_t offset, std::span<const std::byte> bytes) {
  apply(files_[path], offset, bytes);
}

void MemoryDisk::resize(const std::string& path, ByteCount bytes) {
  File& file = files_[path];
  file.bytes = bytes.value;
  file.pages.erase(file.pages.lower_bound((bytes.value + kPage - 1) / kPage), file.pages.end());
  const std::uint64_t inside = bytes.value % kPage;
  const auto last = file.pages.find(bytes.value / kPage);
  if (inside == 0 || last == file.pages.end()) return;
  auto page = std::make_shared<Page>(*last->second);
  std::fill(page->begin() + static_cast<std::ptrdiff_t>(inside), page->end(), std::byte{0});
  last->second = std::move(page);
}

ByteCount MemoryDisk::size(const std::string& path) const {
  const auto file = files_.find(path);
  return ByteCount(file == files_.end() ? 0 : file->second.bytes);
}

Result<MemoryDisk::Found> MemoryDisk::open(const std::string& path) {
  const bool made = !files_.contains(path);
  File& file = files_[path];
  if (file.locked) return busy(format_text("SSD path %s: in use by another MemoryIo", path.c_str()));
  file.locked = true;
  return Found{ByteCount(file.bytes), made};
}

void MemoryDisk::close(const std::string& path) {
  files_[path].locked = false;
}

MemoryDisk::Number MemoryDisk::write_submitted(const std::string& path, std::uint64_t offset,
                                               std::vector<std::byte> data) {
  const Number number(log_.size());
  auto kept = std::make_shared<const std::vector<std::byte>>(std::move(data));
  log_.push_back({Event::Kind::kWrite, number, path, offset, std::move(kept)});
  return number;
}

MemoryDisk::Number MemoryDisk::sync_submitted(const std::string& path) {
  const Number number(log_.size());
  log_.push_back({Event::Kind::kSync, number, path, 0, nullptr});
  return number;
}

void MemoryDisk::reaped(Number number) {
  const std::string path = log_[number.value].path;
  log_.push_back({Event::Kind::kReaped, number, path, 0, nullptr});
}

ByteCount MemoryDisk::logged() const {
  ByteCount sum;
  for (const Event& event : log_)
    if (event.data) sum += ByteCount(event.data->size());
  return sum;
}

// For every write of the log: whether the crash leaves it alone.
std::vector<bool> MemoryDisk::durable(const CrashRules& rules, std::size_t events) const {
  std::vector<bool> durable(log_.size());
  std::map<std::string, std::vector<std::size_t>> reported;  // writes, in the order of their reaping
  std::map<std::size_t, std::size_t> covers;                 // sync: how many of `reported`
  for (std::size_t i = 0; i < events; ++i) {
    const Event& event = log_[i];
    auto& writes = reported[event.path];
    if (event.kind == Event::Kind::kSync) covers[i] = writes.size();
    if (event.kind != Event::Kind::kReaped) continue;
    if (log_[event.number.value].kind == Event::Kind::kWrite) {
      writes.push_back(event.number.value);
      durable[event.number.value] = rules.killed_only;
    } else {
      for (std::size_t w = 0; w < covers[event.number.value]; ++w) durable[writes[w]] = true;
    }
  }
  return durable;
}

MemoryDisk MemoryDisk::after_crash(const CrashRules& rules, std::size_t events) const {
  ORBITKV_CHECK(events <= log_.size(), "the log has fewer events");
  ORBITKV_CHECK(rules.sector.value > 0, "a sector has bytes");
  MemoryDisk out;
  out.free_space = free_space;
  for (const auto& [path, file] : files_) out.files_[path] = {file.at_start, {}, file.bytes, false};
  std::mt19937_64 random(rules.seed);
  const auto chance = [&](std::uint32_t percent) { return random() % 100 < percent; };
  const std::vector<bool> kept = durable(rules, events);
  for (std::size_t i = 0; i < events; ++i) {
    const Event& event = log_[i];
    if (event.kind != Event::Kind::kWrite || (!kept[i] && chance(rules.lost_percent))) continue;
    const bool torn = !kept[i] && chance(rules.torn_percent);
    const std::span<const std::byte> data(*event.data);
    const std::size_t step = torn ? rules.sector.value : data.size();
    for (std::size_t at = 0; at < data.size(); at += step) {
      if (torn && chance(50)) continue;
      apply(out.files_[event.path], event.offset + at, data.subspan(at, std::min(step, data.size() - at)));
    }
  }
  for (auto& [path, file] : out.files_) file.at_start = file.pages;
  return out;
}

}  // namespace orbitkv::ssd
