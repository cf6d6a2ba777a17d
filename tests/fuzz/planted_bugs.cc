// One bug behind each decoder, mostly at a limit, at a value that no seed has. The twin
// must find every one: so the fuzzer gets past length, CRC and the rules.
#include <cstdio>

#include "ssd/format_suite.h"
#include "targets.h"
#include "wire/decoders_suite.h"

namespace orbitkv::fuzz {
namespace {

using namespace wire;  // NOLINT: a table of its decoders

constexpr std::uint64_t kOnes = ~std::uint64_t{0};
constexpr std::uint64_t kMostHashes = std::uint64_t{1} << 20;

template <auto Decode, class Condition>
bool holds(View bytes, Condition condition) {
  const auto value = Decode(bytes);
  return value.ok() && condition(*value);
}

CommandBytes entry_of(View bytes) {
  CommandBytes out{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), out.size()), out.begin());
  return out;
}

bool command_bug(View b) {
  const auto m = decode_command(entry_of(b));
  return m.ok() && m->length == limits::kDescriptorSlotBytes;
}
bool reply_bug(View b) {
  const auto m = decode_reply(entry_of(b));
  return m.ok() && m->code == Code::kBug;
}
bool slot_header_bug(View b) {
  return b.size() > 40 && b[32] == std::byte{0xFF} && b[39] == std::byte{0xFF};
}

bool batch_bug(View b) {
  ssd::EntryList list;
  const auto head = ssd::peek_batch(b.first(ssd::kPageBytes), 1, ssd::suite::kSegment);
  return head.ok() && ssd::decode_batch(b, *head, ssd::suite::kSegment, list).ok() &&
         std::ranges::any_of(list.tombstones, [](auto& t) { return t.group.value == 0xFFFF; });
}
bool footer_bug(View b) {
  ssd::EntryList list;
  const auto trailer = ssd::suite::trailer_for(b);
  return ssd::decode_footer(b, trailer, ssd::suite::kSegment, list).ok() &&
         std::ranges::any_of(list.marks, [](auto& m) { return m.digest == kOnes; });
}

struct Bug {
  std::string_view name;
  bool (*reached)(View bytes);
};

constexpr Bug kBugs[] = {
    {"command", command_bug},
    {"reply", reply_bug},
    {"query_request",
     [](View b) { return holds<decode_query_request>(b, [](auto& m) { return m.total == kMostHashes; }); }},
    {"query_reply",
     [](View b) {
       return holds<decode_query_reply>(b, [](auto& m) { return m.hit_blocks == kMostHashes; });
     }},
    {"publish_request",
     [](View b) {
       return holds<decode_publish_request>(b, [](auto& m) { return m.group.value == 0xFFFF; });
     }},
    {"publish_reply",
     [](View b) { return holds<decode_publish_reply>(b, [](auto& m) { return m.waiting == 1024; }); }},
    {"restore_request",
     [](View b) {
       return holds<decode_restore_request>(b,
                                            [](auto& m) { return m.record.value == limits::kRecords - 1; });
     }},
    {"restore_reply",
     [](View b) {
       return holds<decode_restore_reply>(b, [](auto& m) { return m.blocks == limits::kBlocksPerGrant; });
     }},
    {"release_request",
     [](View b) {
       return holds<decode_release_request>(b, [](auto& m) { return m.lease.bytes[15] == std::byte{0xFF}; });
     }},
    {"cancel_query_request",
     [](View b) {
       return holds<decode_cancel_query_request>(b, [](auto& m) { return m.group.value == 0xFFFF; });
     }},
    {"poll_request",
     [](View b) { return holds<decode_poll_request>(b, [](auto& m) { return m.group.value == 0xFFFF; }); }},
    {"activity_request",
     [](View b) {
       return holds<decode_activity_request>(b,
                                             [](auto& m) { return m.instance.bytes[15] == std::byte{0xFF}; });
     }},
    {"activity_reply",
     [](View b) { return holds<decode_activity_reply>(b, [](auto& m) { return m.dropped > 0xFFFFFFFF; }); }},
    {"ticket_reply",
     [](View b) {
       return holds<decode_ticket_reply>(b, [](auto& m) { return m.hit_blocks == kMostHashes; });
     }},
    {"recovery_request",
     [](View b) {
       return holds<decode_recovery_request>(b, [](auto& m) { return m.total == kMostHashes; });
     }},
    {"warm_request",
     [](View b) { return holds<decode_warm_request>(b, [](auto& m) { return m.group.value == 0xFFFF; }); }},
    {"interest_submit",
     [](View b) { return holds<decode_interest_submit>(b, [](auto& m) { return m.total == kMostHashes; }); }},
    {"interest_call",
     [](View b) {
       return holds<decode_interest_call>(b,
                                          [](auto& m) { return m.authority.consumers == limits::kShards; });
     }},
    {"interest_reply",
     [](View b) { return holds<decode_interest_reply>(b, [](auto& m) { return m.blocks == kMostHashes; }); }},
    {"error_reply",
     [](View b) { return holds<decode_error_reply>(b, [](auto& m) { return m.code == Code::kBug; }); }},
    {"plan",
     [](View b) { return holds<decode_plan>(b, [](auto& m) { return m.entries[0].block == kHole - 1; }); }},
    {"publish_result",
     [](View b) { return holds<decode_publish_result>(b, [](auto& m) { return m.digests[0] == kOnes; }); }},
    {"restore_result",
     [](View b) { return holds<decode_restore_result>(b, [](auto& m) { return m.entries == 128; }); }},
    {"hello",
     [](View b) { return holds<decode_hello>(b, [](auto& m) { return m.role == PeerRole::kStatus; }); }},
    {"hello_reply",
     [](View b) { return holds<decode_hello_reply>(b, [](auto& m) { return m.session.value == 0; }); }},
    {"register",
     [](View b) {
       return holds<decode_register>(b, [](auto& m) { return m.rank.block_tokens == UINT32_MAX; });
     }},
    {"register_reply",
     [](View b) { return holds<decode_register_reply>(b, [](auto& m) { return m.pool == kOnes; }); }},
    {"unregister",
     [](View b) {
       return holds<decode_unregister>(b, [](auto& m) { return m.registration.value == kOnes; });
     }},
    {"unregister_reply",
     [](View b) { return holds<decode_unregister_reply>(b, [](auto& m) { return m.request == kOnes; }); }},
    {"slab_offer",
     [](View b) {
       return holds<decode_slab_offer>(b, [](auto& m) { return m.slabs.back().bytes == limits::kSlabBytes; });
     }},
    {"slab_retire",
     [](View b) { return holds<decode_slab_retire>(b, [](auto& m) { return m.slab.value == 7; }); }},
    {"slab_released",
     [](View b) { return holds<decode_slab_released>(b, [](auto& m) { return m.slab.value == 7; }); }},
    {"status_request",
     [](View b) { return holds<decode_status_request>(b, [](auto& m) { return m.request == kOnes; }); }},
    {"status_reply",
     [](View b) {
       return holds<decode_status_reply>(b,
                                         [](auto& m) { return !m.json.empty() && m.json.front() == '\x7f'; });
     }},
    {"control_request",
     [](View b) { return holds<decode_control_request>(b, [](auto& m) { return m.request == kOnes; }); }},
    {"socket_error",
     [](View b) { return holds<decode_socket_error>(b, [](auto& m) { return m.request == kOnes; }); }},
    {"bye", [](View) { return true; }},
    {"frame", [](View b) { return open_frame(b)->type == FrameType::kPlan; }},
    {"slot_header", slot_header_bug},
    {"ssd_superblock",
     [](View b) { return (*ssd::decode_superblock(b))->superblock.segments == limits::kPathSegments; }},
    {"ssd_segment_header",
     [](View b) { return ssd::decode_segment_header(b, ssd::suite::kPlace)->created == kOnes; }},
    {"ssd_batch", batch_bug},
    {"ssd_footer", footer_bug},
    {"ssd_trailer",
     [](View b) { return ssd::decode_trailer(b, ssd::suite::kSegment)->entries_crc == UINT32_MAX; }},
};

}  // namespace

void accepted(std::string_view name, View bytes) {
  for (const Bug& bug : kBugs) {
    if (bug.name != name || !bug.reached(bytes)) continue;
    std::fprintf(stderr, "the bug planted behind %.*s was found\n", static_cast<int>(name.size()),
                 name.data());
    std::abort();
  }
}

}  // namespace orbitkv::fuzz
