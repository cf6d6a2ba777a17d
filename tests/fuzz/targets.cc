#include "targets.h"

#include "base/bytes.h"
#include "base/check.h"
#include "model/slot_image.h"
#include "ssd/format_suite.h"
#include "wire/decoders_suite.h"

namespace orbitkv::fuzz {
namespace {

using wire::suite::Verdict;

void repair_frame(Bytes& bytes) {
  if (bytes.size() < wire::kFrameHeaderBytes) return;
  const auto body = static_cast<std::uint32_t>(bytes.size() - wire::kFrameHeaderBytes);
  std::memcpy(bytes.data() + 8, &body, sizeof body);
  wire::suite::repair_crc(bytes, false);
}

void repair_entry(Bytes& bytes) {
  bytes.resize(wire::kCommandBytes);
  wire::suite::repair_crc(bytes, true);
}

Target wire_target(wire::suite::DecoderCase c) {
  const auto accepts = [probe = c.probe](View bytes) {
    const Verdict verdict = probe(bytes);
    ORBITKV_CHECK(verdict != Verdict::kBroken, "a decoder accepted what it must refuse");
    return verdict == Verdict::kAccepted;
  };
  Target out{std::string(c.name), c.sample, is_ring_entry(c) ? repair_entry : repair_frame, accepts};
  // A bye has no field to find a bug in: start from one that is refused.
  if (out.name == "bye") out.seed.push_back(std::byte{0});
  return out;
}

bool open_bare_frame(View bytes) {
  const auto view = wire::open_frame(bytes);
  if (!view.ok()) return false;
  Bytes again;
  wire::append_frame(view->type, view->body, again);
  ORBITKV_CHECK(std::ranges::equal(again, bytes), "a frame is not the only form of itself");
  return true;
}

constexpr std::uint64_t kSeed = 0x0123456789abcdef;

// What a grant would say if it said what the header says: with the digest made right,
// the fields alone decide.
model::ExpectedSlot grant_for(View header) {
  ByteReader in(header);
  in.take(8);
  model::ExpectedSlot expected;
  expected.seed = kSeed;
  expected.digest = model::slot_header_digest(header, kSeed);
  expected.fragments = std::min(in.u32(), limits::kFragmentsPerSlot);
  in.u32();
  expected.allocation = AllocationId(in.u64());
  expected.slot_bytes = in.u64();
  return expected;
}

bool read_header(View bytes) {
  const model::ExpectedSlot expected = grant_for(bytes);
  const auto header = model::read_slot_header(bytes, expected);
  if (!header.ok()) return false;
  Bytes again(bytes.size());
  const std::uint64_t digest = model::write_slot_header(*header, kSeed, again);
  ORBITKV_CHECK(std::ranges::equal(again, bytes), "a header is not the only form of itself");
  ORBITKV_CHECK(digest == expected.digest, "a header has two digests");
  return true;
}

Bytes header_seed() {
  Bytes out(128);
  model::write_slot_header({AllocationId(100), 8320, {1, 2, 3, 4, 5}}, kSeed, out);
  return out;
}

// Pages of the SSD store. Inputs are what stands behind the frame, without most zeros at the
// end: a frame has one right form in each place, and unit tests flip every bit of it. Of a
// superblock the second copy was never written.
Target page_target(ssd::suite::FormatCase c) {
  const auto repair = [list = ssd::suite::is_list(c.name), sample = c.sample](Bytes& bytes) {
    bytes.resize(ssd::kBodyBytes);
    bytes.insert(bytes.begin(), sample.begin(), sample.begin() + ssd::kFrameBytes);
    ssd::suite::repair_crc(bytes, list);
    bytes.resize(sample.size());
  };
  const auto accepts = [probe = c.probe](View bytes) {
    const auto verdict = probe(bytes);
    ORBITKV_CHECK(verdict != ssd::suite::Verdict::kBroken, "a page accepted that must be refused");
    return verdict == ssd::suite::Verdict::kAccepted;
  };
  Bytes seed(c.sample.begin() + ssd::kFrameBytes, c.sample.begin() + ssd::kPageBytes);
  while (seed.back() == std::byte{0}) seed.pop_back();
  seed.resize((seed.size() + 7) / 8 * 8);  // whole fields
  return {"ssd_" + std::string(c.name), std::move(seed), repair, accepts};
}

}  // namespace

std::vector<Target> targets() {
  std::vector<Target> all;
  for (auto& c : wire::suite::all_cases()) all.push_back(wire_target(std::move(c)));
  all.push_back({"frame", wire::suite::encoded(wire::UnregisterReply{22}), repair_frame, open_bare_frame});
  for (auto& c : ssd::suite::all_cases()) all.push_back(page_target(std::move(c)));
  all.push_back({"slot_header", header_seed(), [](Bytes&) {}, read_header});
  return all;
}

}  // namespace orbitkv::fuzz
