#include "cache/sessions.h"

#include <algorithm>

#include "base/check.h"
#include "base/text.h"

namespace orbitkv::cache {

void Sessions::open(SessionId id) {
  Session& s = at(id);
  step(s.state, SessionEvent::kOpened);
  s.metadata = std::make_unique<mem::Budget>(format_text("metadata of session %u", id.value),
                                             limits::kMetadataPerSession);
  s.operation_of.assign(limits::kRecords, kNoOperation);
}

Session* Sessions::open_session(SessionId id) {
  if (id.value >= sessions_.size() || sessions_[id.value].state != SessionState::kOpen) return nullptr;
  return &sessions_[id.value];
}

Session& Sessions::at(SessionId id) {
  ORBITKV_CHECK(id.value < sessions_.size(), "session slot out of range");
  return sessions_[id.value];
}

const Session& Sessions::at(SessionId id) const {
  ORBITKV_CHECK(id.value < sessions_.size(), "session slot out of range");
  return sessions_[id.value];
}

std::uint32_t Sessions::living() const {
  const auto lives = [](const Session& s) {
    return s.state != SessionState::kAbsent && s.state != SessionState::kGone;
  };
  return static_cast<std::uint32_t>(std::count_if(sessions_.begin(), sessions_.end(), lives));
}

}  // namespace orbitkv::cache
