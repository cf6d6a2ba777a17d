#include "shm/record_state.h"

#include "base/check.h"

namespace orbitkv::shm {

std::uint64_t pack(RecordWord word) {
  ORBITKV_CHECK(word.operation <= kMaxOperationId, "operation ids of a session are used up");
  return word.operation.value << 8 | static_cast<std::uint8_t>(word.state);
}

std::optional<RecordWord> unpack(std::uint64_t word) {
  const std::uint64_t state = word & 0xFF;
  if (state >= kRecordStates) return std::nullopt;
  return RecordWord{OperationId(word >> 8), static_cast<RecordState>(state)};
}

}  // namespace orbitkv::shm
