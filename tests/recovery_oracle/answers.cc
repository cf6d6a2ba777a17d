#include "tests/recovery_oracle/answers.h"

#include <algorithm>
#include <cctype>

namespace orbitkv::recovery_oracle {
namespace {

std::string text_of(bool) {
  return "accepted";
}

std::string text_of(const Required& required) {
  std::string out;
  for (const auto& [group, range] : required)
    out += "group " + std::to_string(group) + " " + print(range) + " ";
  return out.empty() ? "nothing" : out;
}

std::string text_of(const Boundaries& boundaries) {
  std::string out = "{";
  for (const std::uint64_t b : boundaries) out += (out.size() > 1 ? ", " : "") + std::to_string(b);
  return out + "}";
}

std::string text_of(const std::optional<std::uint64_t>& boundary) {
  return boundary ? std::to_string(*boundary) : "none";
}

template <class T>
std::string text_of(const Answer<T>& answer) {
  return answer.value ? text_of(*answer.value) : answer.refusal;
}

// As a number of its own, not as some digits of another.
bool names(const std::string& text, std::uint64_t number) {
  const std::string digits = std::to_string(number);
  const auto digit_at = [&](std::size_t i) {
    return i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) != 0;
  };
  for (std::size_t at = text.find(digits); at != std::string::npos; at = text.find(digits, at + 1)) {
    if (!(at > 0 && digit_at(at - 1)) && !digit_at(at + digits.size())) return true;
  }
  return false;
}

// What is wrong with the text of a refusal; empty if nothing is.
std::string fault_of(const std::string& refusal, const std::vector<Violation>& violations) {
  if (!refusal.starts_with("rejected: ")) return "does not reject";
  if (violations.size() != 1) return {};  // any of them may be named
  const Violation& violation = violations.front();
  if (violation.group && !names(refusal, *violation.group)) return "does not name the group";
  const auto named = [&](const Range& r) { return names(refusal, r.begin) && names(refusal, r.end); };
  if (!violation.ranges.empty() && std::ranges::none_of(violation.ranges, named))
    return "does not name the range";
  return {};
}

template <class T>
std::string difference(const std::string& what, const Answer<T>& oracle, const Answer<T>& other) {
  const std::string fault =
      oracle.value || other.value ? std::string() : fault_of(other.refusal, oracle.violations);
  if (oracle.value == other.value && fault.empty()) return {};
  return what + (fault.empty() ? "" : " " + fault) + "\n  oracle: " + text_of(oracle) +
         "\n  other:  " + text_of(other);
}

}  // namespace

const char* name_of(Wrong wrong) {
  static constexpr const char* kNames[] = {
      "page of 0 tokens",    "no groups",         "too many groups", "group twice",
      "no group 0",          "rule of group 0",   "unknown rule",    "window of 0 tokens",
      "window of no window", "other namespace",   "tail misaligned", "tail backwards",
      "tail empty",          "no shards",         "too many shards", "list missing",
      "list of no group",    "list twice",        "range empty",     "range misaligned",
      "range outside tail",  "range out of order"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Wrong::kCount));
  return kNames[static_cast<std::size_t>(wrong)];
}

std::string difference(const Answers& oracle, const Answers& other) {
  if (auto text = difference("the contract", oracle.contract, other.contract); !text.empty()) return text;
  if (!oracle.contract.value) return {};
  if (auto text = difference("required ranges", oracle.required, other.required); !text.empty()) return text;
  if (oracle.restorable.size() != other.restorable.size()) return "another number of shards is answered";
  for (std::size_t i = 0; i < oracle.restorable.size(); ++i) {
    const std::string what = "restorable boundaries of shard " + std::to_string(i);
    if (auto text = difference(what, oracle.restorable[i], other.restorable[i]); !text.empty()) return text;
  }
  if (auto text = difference("common boundaries", oracle.common, other.common); !text.empty()) return text;
  return difference("selected boundary", oracle.selected, other.selected);
}

}  // namespace orbitkv::recovery_oracle
