// What every decoder does with bytes that are not what an encoder wrote.
#include <gtest/gtest.h>

#include <random>

#include "wire/decoders_suite.h"

namespace orbitkv::wire::suite {
namespace {

TEST(Refusal, EveryTruncation) {
  for (const DecoderCase& c : all_cases())
    for (std::size_t n = 0; n < c.sample.size(); ++n) {
      // An allocation of exactly n bytes, so that a sanitizer sees a read past it.
      const Buffer cut(c.sample.begin(), c.sample.begin() + static_cast<std::ptrdiff_t>(n));
      ASSERT_EQ(c.probe(cut), Verdict::kRefused) << c.name << " cut to " << n;
    }
}

TEST(Refusal, EveryTruncationWithItsHeaderMadeRight) {
  for (const DecoderCase& c : all_cases()) {
    if (is_ring_entry(c)) continue;
    const auto view = open_frame(c.sample);
    for (std::size_t n = 0; n < view->body.size(); ++n) {
      Buffer cut;
      append_frame(view->type, view->body.first(n), cut);
      ASSERT_EQ(c.probe(cut), Verdict::kRefused) << c.name << " with a body of " << n;
    }
  }
}

TEST(Refusal, ALongerBody) {
  for (const DecoderCase& c : all_cases()) {
    if (is_ring_entry(c)) continue;
    const auto view = open_frame(c.sample);
    for (const std::size_t extra : {1, 8, 32}) {
      Buffer body(view->body.begin(), view->body.end());
      body.resize(body.size() + extra);
      Buffer longer;
      append_frame(view->type, body, longer);
      ASSERT_EQ(c.probe(longer), Verdict::kRefused) << c.name << " and " << extra;
    }
  }
}

TEST(Refusal, EveryFlippedBit) {
  for (const DecoderCase& c : all_cases()) {
    Buffer bytes = c.sample;
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      const auto mask = static_cast<std::byte>(1u << (bit % 8));
      bytes[bit / 8] ^= mask;
      ASSERT_EQ(c.probe(bytes), Verdict::kRefused) << c.name << " bit " << bit;
      bytes[bit / 8] ^= mask;
    }
  }
}

TEST(Refusal, EveryOtherFrameType) {
  const auto cases = all_cases();
  for (const DecoderCase& decoder : cases)
    for (const DecoderCase& other : cases) {
      const Verdict expected = &decoder == &other ? Verdict::kAccepted : Verdict::kRefused;
      ASSERT_EQ(decoder.probe(other.sample), expected) << decoder.name << " given " << other.name;
    }
}

// With a single bit flipped and the CRC made right, all is a value or a refusal.
TEST(Refusal, EveryFlippedBitWithItsCrcMadeRight) {
  for (const DecoderCase& c : all_cases()) {
    std::size_t accepted = 0;
    for (std::size_t bit = 0; bit < 8 * c.sample.size(); ++bit) {
      Buffer bytes = c.sample;
      bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      repair_crc(bytes, is_ring_entry(c));
      const Verdict verdict = c.probe(bytes);
      ASSERT_NE(verdict, Verdict::kBroken) << c.name << " bit " << bit;
      accepted += bytes != c.sample && verdict == Verdict::kAccepted;
    }
    // The repair works: what has free fields is read past the CRC. A bye has none.
    EXPECT_EQ(accepted > 0, c.name != "bye") << c.name;
  }
}

void mutate(Buffer& bytes, std::mt19937_64& random) {
  const std::uint64_t kinds[] = {0, 1, 63, 64, 0x7F, 0x80, 0xFF, random() & 0xFF};
  for (std::uint64_t changes = 1 + random() % 6; changes > 0; --changes) {
    const std::size_t at = random() % bytes.size();
    const std::size_t run =
        random() % 3 == 0 ? std::min<std::size_t>(1 + random() % 8, bytes.size() - at) : 1;
    const auto value = static_cast<std::byte>(kinds[random() % std::size(kinds)]);
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), run, value);
  }
}

TEST(Refusal, SeededMutationsWithTheirCrcMadeRight) {
  std::mt19937_64 random(20260101);
  for (const DecoderCase& c : all_cases())
    for (int round = 0; round < 4000; ++round) {
      Buffer bytes = c.sample;
      mutate(bytes, random);
      repair_crc(bytes, is_ring_entry(c));
      ASSERT_NE(c.probe(bytes), Verdict::kBroken) << c.name << " round " << round;
    }
}

// Bodies of random length and content, so that counts and lengths disagree.
TEST(Refusal, SeededBodiesOfAnyLength) {
  std::mt19937_64 random(20260102);
  for (const DecoderCase& c : all_cases()) {
    if (is_ring_entry(c)) continue;
    const auto view = open_frame(c.sample);
    for (int round = 0; round < 1000; ++round) {
      Buffer body(view->body.begin(), view->body.end());
      body.resize(random() % 300);
      if (!body.empty()) mutate(body, random);
      Buffer frame;
      append_frame(view->type, body, frame);
      ASSERT_NE(c.probe(frame), Verdict::kBroken) << c.name << " round " << round;
    }
  }
}

// One field at a time: the byte offset in the sample frame (or ring entry), what is
// written there, and which refusal it must meet.
struct Violation {
  std::string_view sample;
  std::size_t at;
  std::uint64_t value;
  std::size_t width;
  std::string_view why;
};

constexpr std::size_t kBody = kFrameHeaderBytes;
constexpr Violation kViolations[] = {
    {"command", 4, 1, 2, "ABI version 1"},
    {"command", 6, 0, 2, "unknown opcode 0"},
    {"command", 6, 10, 2, "unknown opcode 10"},
    {"command", 24, 16, 4, "descriptor slot 16"},
    {"command", 28, 65537, 4, "frame length 65537"},
    {"command", 28, 15, 4, "frame length 15"},
    {"command", 32, 1, 2, "command with a code"},
    {"command", 40, 1, 1, "reserved"},
    {"command", 6, 1, 2, "ping with a frame"},
    {"reply", 32, 6, 2, "unknown code 6"},
    {"reply", 28, 8, 4, "frame length 8"},
    {"query_request", kBody + 18, 3, 1, "unknown mode"},
    {"query_request", kBody + 19, 5, 1, "unknown flags"},
    {"query_request", kBody + 19, 8, 1, "unknown flags"},
    {"query_request", kBody + 20, 257, 2, "request id is too long"},
    {"query_request", kBody + 28, (1u << 20) + 1, 4, "more hashes than a query"},
    {"query_request", kBody + 28, 5, 4, "beyond the whole query"},
    {"query_request", kBody + 32, 0, 4, "without hashes"},
    {"query_request", kBody + 32, 0x08000001, 4, "beyond the whole query"},
    {"query_request", kBody + 36, 1, 1, "reserved"},
    {"query_request", kBody + 40, 0, 1, "a part and its revision do not fit"},
    {"query_request", kBody + 24, 0, 4, "a part and its revision do not fit"},
    {"recovery_request", kBody + 56, 0, 1, "a part and its revision do not fit"},
    {"query_reply", kBody + 8, (1u << 20) + 1, 4, "more hits"},
    {"query_reply", kBody + 8, 0, 4, "lease without blocks"},
    {"query_reply", kBody + 12, 18, 1, "unknown flags"},
    {"query_reply", kBody + 12, 6, 1, "waits and does not load"},
    {"query_reply", kBody + 12, 3, 1, "still loading"},
    {"query_reply", kBody + 40, 4, 1, "bits beyond"},
    {"query_reply", kBody + 48, 4, 1, "bits beyond"},
    {"query_reply", kBody + 4, 4000, 4, "more hashes"},
    {"publish_request", kBody + 8, 0, 8, "56 bits"},
    {"publish_request", kBody + 8, std::uint64_t{1} << 56, 8, "56 bits"},
    {"publish_request", kBody + 16, 1024, 4, "no such record"},
    {"publish_request", kBody + 24, 0, 4, "no blocks"},
    {"publish_request", kBody + 24, 3, 4, "ends too early"},
    {"publish_request", kBody + 24, 1, 4, "left over"},
    {"publish_reply", kBody + 12, 0xFFFFFFFF, 4, "more blocks"},
    {"restore_request", kBody + 8, 0, 8, "56 bits"},
    {"restore_request", kBody + 32, 1024, 4, "no such record"},
    {"restore_request", kBody + 36, (1u << 20) - 1, 4, "beyond any lease"},
    {"restore_request", kBody + 40, 8193, 4, "too many"},
    {"restore_reply", kBody, 8193, 4, "more blocks"},
    {"cancel_query_request", kBody + 18, 300, 2, "request id is too long"},
    {"cancel_query_request", kBody + 20, 4, 1, "unknown kind"},
    {"cancel_query_request", kBody + 20, 2, 1, "has no group"},
    {"poll_request", kBody + 20, 3, 1, "unknown kind"},
    {"poll_request", kBody + 24, 0, 8, "no revision"},
    {"activity_reply", kBody, 64 * 1024, 4, "more publishes"},
    {"activity_reply", kBody + 24, std::uint64_t{1} << 63, 8, "older than can be"},
    {"ticket_reply", kBody, 4, 1, "unknown state"},
    {"ticket_reply", kBody, 1, 1, "not ready"},
    {"ticket_reply", kBody, 3, 1, "miss without one"},
    {"ticket_reply", kBody + 1, 5, 1, "unknown reason"},
    {"ticket_reply", kBody + 1, 1, 1, "reason without a miss"},
    {"ticket_reply", kBody + 2, 1, 2, "group without a miss"},
    {"ticket_reply", kBody + 4, (1u << 20) + 1, 4, "more hits"},
    {"ticket_reply", kBody + 16, 0, 2, "ready ticket without one"},
    {"ticket_reply", kBody + 16, 17, 2, "more leases than groups"},
    {"ticket_reply", kBody + 18, 3, 1, "unknown flags"},
    {"ticket_reply", kBody + 18, 1, 1, "does not load"},
    {"ticket_reply", kBody + 24 + 4, 0, 4, "without blocks"},
    {"ticket_reply", kBody + 48, 0, 2, "out of order"},
    {"recovery_request", kBody + 16, 257, 2, "request id is too long"},
    {"recovery_request", kBody + 18, 2, 1, "unknown flags"},
    {"recovery_request", kBody + 24, 512, 8, "no tokens"},
    {"recovery_request", kBody + 44, (1u << 20) + 1, 4, "more pages"},
    {"recovery_request", kBody + 44, 5, 4, "beyond the whole"},
    {"recovery_request", kBody + 48, 0, 4, "without hashes"},
    {"warm_request", kBody + 18, 257, 2, "request id is too long"},
    {"warm_request", kBody + 20, 101, 1, "confidence above 100"},
    {"warm_request", kBody + 36, 0, 4, "without hashes"},
    {"interest_submit", kBody + 48, 65, 2, "more consumers"},
    {"interest_submit", kBody + 50, 1, 1, "reserved"},
    {"interest_submit", kBody + 56, 0, 8, "no interest"},
    {"interest_submit", kBody + 64, 0, 4, "no such operation"},
    {"interest_submit", kBody + 64, 129, 4, "no such operation"},
    {"interest_submit", kBody + 70, 3, 1, "unknown kind"},
    {"interest_submit", kBody + 70, 2, 1, "has no group"},
    {"interest_submit", kBody + 96, 1, 8, "a prefix with some"},
    {"interest_submit", kBody + 76, (1u << 20) + 1, 4, "more blocks"},
    {"interest_submit", kBody + 76, 5, 4, "beyond the whole list"},
    {"interest_submit", kBody + 80, 0, 4, "without hashes"},
    {"interest_call", kBody + 56, 0, 8, "no interest"},
    {"interest_call", kBody + 64, 129, 4, "no such operation"},
    {"interest_call", kBody + 64, 0, 4, "no such operation"},
    {"interest_call", kBody + 68, 0, 4, "a claim of no blocks"},
    {"interest_call", kBody + 72, 0, 1, "unknown verb"},
    {"interest_call", kBody + 72, 5, 1, "unknown verb"},
    {"interest_call", kBody + 72, 1, 1, "blocks without"},
    {"interest_call", kBody + 72, 4, 1, "a close of one"},
    {"interest_reply", kBody + 40, 0, 8, "no interest"},
    {"interest_reply", kBody + 52, 129, 4, "no such operation"},
    {"interest_reply", kBody + 56, 0, 4, "none is held"},
    {"interest_reply", kBody + 60, 2, 1, "blocks that are not held"},
    {"interest_reply", kBody + 56, (1u << 20) + 1, 4, "more blocks"},
    {"interest_reply", kBody + 60, 8, 1, "unknown phase"},
    {"interest_reply", kBody + 60, 4, 1, "miss without one"},
    {"interest_reply", kBody + 60, 3, 1, "a lease that is not claimed"},
    {"interest_reply", kBody + 61, 5, 1, "unknown reason"},
    {"interest_reply", kBody + 62, 1, 2, "group without a miss"},
    {"interest_reply", kBody + 64, 17, 2, "more leases than groups"},
    {"interest_reply", kBody + 66, 2, 1, "unknown flags"},
    {"interest_reply", kBody + 66, 1, 1, "does not acquire"},
    {"interest_reply", kBody + 72 + 4, 0, 4, "without blocks"},
    {"interest_reply", kBody + 96, 0, 2, "out of order"},
    {"error_reply", kBody, 0, 2, "unknown code"},
    {"error_reply", kBody, 6, 2, "unknown code"},
    {"error_reply", kBody + 2, 1025, 2, "text is too long"},
    {"plan", kBody, 3, 1, "unknown kind"},
    {"plan", kBody, 1, 1, "digest in a save"},
    {"plan", kBody + 1, 1, 1, "unknown encoding"},
    {"plan", kBody + 4, 64, 2, "no such shard"},
    {"plan", kBody + 24, 0, 8, "image size"},
    {"plan", kBody + 24, 8321, 8, "image size"},
    {"plan", kBody + 24, (std::uint64_t{1} << 28) + 64, 8, "image size"},
    {"plan", kBody + 32, 8193, 4, "too many"},
    {"plan", kBody + 40 + 4, kHole, 4, "a hole"},
    {"plan", kBody + 40 + 8, 65, 8, "outside of a slab"},
    {"plan", kBody + 40 + 8, (std::uint64_t{1} << 30) - 8256, 8, "outside of a slab"},
    {"plan", kBody + 40 + 8, ~std::uint64_t{63}, 8, "outside of a slab"},
    {"publish_result", kBody + 8, 0, 4, "no digests"},
    {"publish_result", kBody + 8, 8193, 4, "too many"},
    {"restore_result", kBody + 8, 0, 4, "no entries"},
    {"restore_result", kBody + 24, 2, 1, "bits beyond"},
    {"hello", kBody, 3, 1, "unknown role"},
    {"hello", kBody + 2, 129, 2, "client name is too long"},
    {"hello", kBody + 8, '\n', 1, "not printable"},
    {"hello_reply", kBody, 64, 4, "no such session"},
    {"hello_reply", kBody + 40, 0x80, 1, "not printable"},
    {"register", kBody + 24, 2, 2, "rank is 2"},
    {"register", kBody + 26, 65, 2, "world_size is 65"},
    {"register", kBody + 28, 0, 4, "num_blocks is 0"},
    {"register", kBody + 32, 0, 4, "block_tokens is 0"},
    {"register", kBody + 36, 17, 2, "too many groups"},
    {"register", kBody + 73 + 3, 2, 1, "writer"},
    {"register", kBody + 73, 1, 2, "groups[0].group is 1; the first group must be 0"},
    {"register", kBody + 73 + 2, 3, 1, "group 0 must be a prefix group"},
    {"register", kBody + 73 + 8, 64, 4, "only a window group"},
    {"register", kBody + 73 + 12, 4097, 4, "too many fragments"},
    {"register", kBody + 113 + 2, 4, 1, "groups[1].rule is 4"},
    {"register", kBody + 113 + 8, 0, 4, "groups[1].window_tokens is 0"},
    {"slab_offer", kBody + 8, 65, 4, "too many"},
    {"slab_offer", kBody + 20, 2, 1, "huge"},
    {"slab_offer", kBody + 24, (std::uint64_t{1} << 30) + 1, 8, "impossible size"},
    {"status_reply", kBody + 8, 0xFFFFFFFF, 4, "ends too early"},
    {"socket_error", kBody + 8, 9, 2, "unknown code"},
};

std::string refusal_of(std::string_view name, const Buffer& bytes) {
  const auto text = [](const auto& result) { return result.ok() ? "accepted" : result.error().message(); };
  CommandBytes entry{};
  if (bytes.size() == entry.size()) std::copy(bytes.begin(), bytes.end(), entry.begin());
  if (name == "command") return text(decode_command(entry));
  if (name == "reply") return text(decode_reply(entry));
  if (name == "interest_submit") return text(decode_interest_submit(bytes));
  if (name == "interest_call") return text(decode_interest_call(bytes));
  if (name == "interest_reply") return text(decode_interest_reply(bytes));
  if (name == "query_request") return text(decode_query_request(bytes));
  if (name == "query_reply") return text(decode_query_reply(bytes));
  if (name == "publish_request") return text(decode_publish_request(bytes));
  if (name == "publish_reply") return text(decode_publish_reply(bytes));
  if (name == "restore_request") return text(decode_restore_request(bytes));
  if (name == "restore_reply") return text(decode_restore_reply(bytes));
  if (name == "cancel_query_request") return text(decode_cancel_query_request(bytes));
  if (name == "poll_request") return text(decode_poll_request(bytes));
  if (name == "activity_reply") return text(decode_activity_reply(bytes));
  if (name == "recovery_request") return text(decode_recovery_request(bytes));
  if (name == "warm_request") return text(decode_warm_request(bytes));
  if (name == "ticket_reply") return text(decode_ticket_reply(bytes));
  if (name == "error_reply") return text(decode_error_reply(bytes));
  if (name == "plan") return text(decode_plan(bytes));
  if (name == "publish_result") return text(decode_publish_result(bytes));
  if (name == "restore_result") return text(decode_restore_result(bytes));
  if (name == "hello") return text(decode_hello(bytes));
  if (name == "hello_reply") return text(decode_hello_reply(bytes));
  if (name == "register") return text(decode_register(bytes));
  if (name == "slab_offer") return text(decode_slab_offer(bytes));
  if (name == "status_reply") return text(decode_status_reply(bytes));
  return text(decode_socket_error(bytes));
}

TEST(Refusal, EveryRuleByName) {
  const auto cases = all_cases();
  for (const Violation& v : kViolations) {
    const auto found = std::ranges::find(cases, v.sample, &DecoderCase::name);
    ASSERT_NE(found, cases.end()) << v.sample;
    Buffer bytes = found->sample;
    ASSERT_LE(v.at + v.width, bytes.size());
    std::memcpy(bytes.data() + v.at, &v.value, v.width);
    repair_crc(bytes, is_ring_entry(*found));
    const std::string text = refusal_of(v.sample, bytes);
    EXPECT_NE(text.find(v.why), std::string::npos) << v.sample << " at " << v.at << ": " << text;
  }
}

TEST(Refusal, AnEmptyLease) {
  for (const DecoderCase& c : all_cases()) {
    if (c.name != "restore_request" && c.name != "release_request") continue;
    Buffer bytes = c.sample;
    std::memset(bytes.data() + kBody + (c.name == "restore_request" ? 16 : 0), 0, 16);
    repair_crc(bytes, false);
    EXPECT_EQ(c.probe(bytes), Verdict::kRefused) << c.name;
  }
}

}  // namespace
}  // namespace orbitkv::wire::suite
