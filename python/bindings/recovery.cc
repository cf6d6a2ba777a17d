#include "bindings/recovery.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "model/recovery.h"

namespace orbitkv::python {

namespace {

namespace nb = nanobind;
using model::GroupCoverage;
using model::RecoveryContract;

// As Python writes them: (group, rule, window), {group: [(start, end)]}.
using Groups = std::vector<std::tuple<std::uint16_t, std::string, std::optional<std::uint32_t>>>;
using Coverage = std::map<std::uint16_t, std::vector<std::pair<std::uint64_t, std::uint64_t>>>;
using Boundaries = std::vector<std::uint64_t>;

template <class T>
T value_of(Result<T> result) {
  if (!result.ok()) throw nb::value_error(result.error().message().c_str());
  return std::move(result).value();
}

RecoveryContract* make(const std::string& name_space, std::uint32_t page_tokens, const Groups& groups) {
  std::vector<model::GroupRule> rules;
  for (const auto& [group, rule, window] : groups)
    rules.push_back({GroupId(group), to_rule(rule), window.value_or(0)});
  return new RecoveryContract(value_of(RecoveryContract::make(name_space, page_tokens, std::move(rules))));
}

std::vector<GroupCoverage> to_coverage(const Coverage& groups) {
  std::vector<GroupCoverage> out;
  for (const auto& [group, ranges] : groups) {
    GroupCoverage& part = out.emplace_back(GroupCoverage{GroupId(group), {}});
    for (const auto& [begin, end] : ranges) part.ranges.push_back({begin, end});
  }
  return out;
}

std::vector<std::vector<GroupCoverage>> to_shards(const std::vector<Coverage>& coverages) {
  std::vector<std::vector<GroupCoverage>> out;
  for (const Coverage& coverage : coverages) out.push_back(to_coverage(coverage));
  return out;
}

nb::list required_ranges(const RecoveryContract& self, const std::string& name_space, std::uint64_t start,
                         std::uint64_t end) {
  nb::list out;
  for (const auto& [group, tokens] : value_of(self.required_ranges(name_space, {start, end})))
    out.append(nb::make_tuple(group.value, tokens.begin, tokens.end));
  return out;
}

Boundaries restorable_boundaries(const RecoveryContract& self, const std::string& name_space,
                                 std::uint64_t start, std::uint64_t end, const Coverage& coverage) {
  return value_of(self.restorable_boundaries(name_space, {start, end}, to_coverage(coverage)));
}

Boundaries common_boundaries(const RecoveryContract& self, const std::string& name_space, std::uint64_t start,
                             std::uint64_t end, const std::vector<Coverage>& coverages) {
  return value_of(self.common_boundaries(name_space, {start, end}, to_shards(coverages)));
}

std::optional<std::uint64_t> select_boundary(const RecoveryContract& self, const std::string& name_space,
                                             std::uint64_t start, std::uint64_t end,
                                             const std::vector<Coverage>& coverages, std::uint64_t limit) {
  return value_of(self.select_boundary(name_space, {start, end}, to_shards(coverages), limit));
}

}  // namespace

RecoveryRule to_rule(const std::string& name) {
  for (const auto rule : {RecoveryRule::kPrefix, RecoveryRule::kWindow, RecoveryRule::kCheckpoint})
    if (name == model::rule_name(rule)) return rule;
  throw nb::value_error(("the rule of a group is prefix, window or checkpoint, not '" + name + "'").c_str());
}

void bind_recovery(nb::module_& m) {
  nb::class_<RecoveryContract>(m, "RecoveryContract",
                               "Of orbitkv.RecoveryContract, which checks and explains.")
      .def(nb::new_(&make), nb::arg("namespace"), nb::arg("page_tokens"), nb::arg("groups"))
      .def_prop_ro("namespace", &RecoveryContract::name_space)
      .def_prop_ro("page_tokens", &RecoveryContract::page_tokens)
      .def("required_ranges", &required_ranges, nb::arg("namespace"), nb::arg("start"), nb::arg("end"))
      .def("restorable_boundaries", &restorable_boundaries, nb::arg("namespace"), nb::arg("start"),
           nb::arg("end"), nb::arg("coverage"))
      .def("common_boundaries", &common_boundaries, nb::arg("namespace"), nb::arg("start"), nb::arg("end"),
           nb::arg("coverages"))
      .def("select_boundary", &select_boundary, nb::arg("namespace"), nb::arg("start"), nb::arg("end"),
           nb::arg("coverages"), nb::arg("limit"));
}

}  // namespace orbitkv::python
