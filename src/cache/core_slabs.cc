// The core's side of slabs that retire.
#include "cache/core_impl.h"

namespace orbitkv::cache {

Status Core::retire_slab(SlabSlot slab, TimePoint now) {
  Status begun = impl_->retirer.begin(slab, now);
  impl_->wake(now);
  return begun;
}

bool Core::retire_turn(TimePoint now) {
  return impl_->retirer.turn(now);
}

void Core::abandon_slab() {
  impl_->retirer.abandon();
}

RetireReport Core::retiring() const {
  return impl_->retirer.report();
}

std::uint32_t Core::retiring_claims(SessionId session) const {
  return impl_->retirer.claims(session);
}

RetireStats Core::retire_stats() const {
  return impl_->retirer.stats();
}

}  // namespace orbitkv::cache
