// Structs of the C interface that begin with their own size: read into and written from
// the form that this library knows. Nothing is read or written beyond the caller's size.
// A size that cannot be one (garbage, an older first version, unknown members that are
// set) is an answer that names the struct.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "orbitkv/client.h"
#include "orbitkv/orbitkv.h"

namespace orbitkv::capi {

using client::Outcome;

Outcome reject(std::string message);

// Of each struct: its name, its size in C API version 1, and its defaults.
template <class T>
struct Sized;
#define ORBITKV_CAPI_SIZED(type, first, init)    \
  template <>                                    \
  struct Sized<type> {                           \
    static constexpr const char* kName = #type;  \
    static constexpr std::size_t kFirst = first; \
    static constexpr const char* kInit = #init;  \
    static_assert(sizeof(type) >= kFirst);       \
    static type defaults() {                     \
      return type init;                          \
    }                                            \
  }
ORBITKV_CAPI_SIZED(orbitkv_options, 64, ORBITKV_OPTIONS_INIT);
ORBITKV_CAPI_SIZED(orbitkv_health_info, 544, ORBITKV_HEALTH_INIT);
ORBITKV_CAPI_SIZED(orbitkv_publish_activity_info, 40, ORBITKV_PUBLISH_ACTIVITY_INIT);
ORBITKV_CAPI_SIZED(orbitkv_layer, 64, ORBITKV_LAYER_INIT);
ORBITKV_CAPI_SIZED(orbitkv_group, 24, ORBITKV_GROUP_INIT);
ORBITKV_CAPI_SIZED(orbitkv_memory, 88, ORBITKV_MEMORY_INIT);
ORBITKV_CAPI_SIZED(orbitkv_query, 56, ORBITKV_QUERY_INIT);
ORBITKV_CAPI_SIZED(orbitkv_hit, 32, ORBITKV_HIT_INIT);
ORBITKV_CAPI_SIZED(orbitkv_warm_hint, 24, ORBITKV_WARM_HINT_INIT);
ORBITKV_CAPI_SIZED(orbitkv_recovery_group, 32, ORBITKV_RECOVERY_GROUP_INIT);
ORBITKV_CAPI_SIZED(orbitkv_recovery, 64, ORBITKV_RECOVERY_INIT);
ORBITKV_CAPI_SIZED(orbitkv_recovered, 48, ORBITKV_RECOVERED_INIT);
ORBITKV_CAPI_SIZED(orbitkv_save_group, 40, ORBITKV_SAVE_GROUP_INIT);
ORBITKV_CAPI_SIZED(orbitkv_save, 32, ORBITKV_SAVE_INIT);
ORBITKV_CAPI_SIZED(orbitkv_load, 48, ORBITKV_LOAD_INIT);
ORBITKV_CAPI_SIZED(orbitkv_layer_event, 24, ORBITKV_LAYER_EVENT_INIT);
ORBITKV_CAPI_SIZED(orbitkv_restore, 48, ORBITKV_RESTORE_INIT);
ORBITKV_CAPI_SIZED(orbitkv_operation_status, 528, ORBITKV_OPERATION_STATUS_INIT);
ORBITKV_CAPI_SIZED(orbitkv_operation_report, 136, ORBITKV_OPERATION_REPORT_INIT);
ORBITKV_CAPI_SIZED(orbitkv_participant, 48, ORBITKV_PARTICIPANT_INIT);
ORBITKV_CAPI_SIZED(orbitkv_carrier, 32, ORBITKV_CARRIER_INIT);
ORBITKV_CAPI_SIZED(orbitkv_group_options, 16, ORBITKV_GROUP_OPTIONS_INIT);
ORBITKV_CAPI_SIZED(orbitkv_common_list, 48, ORBITKV_COMMON_LIST_INIT);
ORBITKV_CAPI_SIZED(orbitkv_common_prefix, 560, ORBITKV_COMMON_PREFIX_INIT);
ORBITKV_CAPI_SIZED(orbitkv_common_restore, 528, ORBITKV_COMMON_RESTORE_INIT);
ORBITKV_CAPI_SIZED(orbitkv_participant_stats, 40, ORBITKV_PARTICIPANT_STATS_INIT);
#undef ORBITKV_CAPI_SIZED

struct SizedName {
  const char* name;
  const char* init;
};
// What this library knows of a struct, and what the caller says to have.
struct Sizes {
  std::size_t first = 0, known = 0, given = 0;
};
Outcome check_size(SizedName name, Sizes sizes, const void* given);

template <class T>
Sizes sizes_of(const void* given) {
  Sizes sizes{Sized<T>::kFirst, sizeof(T), 0};
  if (given) std::memcpy(&sizes.given, given, sizeof(sizes.given));
  return sizes;
}

template <class T>
Outcome read_sized(const void* given, T& out) {
  const Sizes sizes = sizes_of<T>(given);
  Outcome outcome = check_size({Sized<T>::kName, Sized<T>::kInit}, sizes, given);
  if (!outcome.ok()) return outcome;
  out = Sized<T>::defaults();
  std::memcpy(&out, given, std::min(sizes.given, sizes.known));
  return outcome;
}

// A struct that the call fills: checked before, written when there is something to write.
template <class T>
Outcome check_out(const T* out) {
  const Sizes sizes = sizes_of<T>(out);
  Outcome outcome =
      check_size({Sized<T>::kName, Sized<T>::kInit}, {sizes.first, sizes.given, sizes.given}, out);
  return outcome;
}
template <class T>
void write_sized(T value, T* out) {
  value.size = out->size;
  std::memcpy(out, &value, std::min(value.size, sizeof(T)));
}

// The caller's array; all elements have the size of the first.
struct ArrayText {
  const char* name;
  std::size_t most;
};
Outcome check_array(ArrayText text, const void* first, std::size_t count);
Outcome mixed_sizes(const char* name);

template <class T, class Visit>
Outcome each(ArrayText text, std::span<const T> array, Visit visit) {
  Outcome outcome = check_array(text, array.data(), array.size());
  const std::size_t step = outcome.ok() && !array.empty() ? sizes_of<T>(array.data()).given : 0;
  const auto* at = reinterpret_cast<const std::byte*>(array.data());
  for (std::size_t i = 0; outcome.ok() && i < array.size(); ++i, at += step) {
    T element{};
    outcome = read_sized(at, element);
    if (outcome.ok() && element.size != step) outcome = mixed_sizes(text.name);
    if (outcome.ok()) outcome = visit(element);
  }
  return outcome;
}

}  // namespace orbitkv::capi
