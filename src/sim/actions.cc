#include "sim/actions.h"

namespace orbitkv::sim {
namespace {

constexpr std::array<ActionInfo, kActionKinds> kActions = {{
    {"publish", false, 300},
    {"discover", false, 60},
    {"read", false, 200},
    {"recover", false, 120},
    {"prepare", false, 25},
    {"warm", false, 15},
    {"claim", false, 25},
    {"restore", false, 260},
    {"release", false, 30},
    {"cancel", false, 15},
    {"poll_old", false, 6},
    {"unregister", false, 3},
    {"status", false, 3},
    {"leave", false, 2},
    {"evict", false, 6},
    {"drop_space", false, 2},
    {"drop", false, 4},
    {"pool_add", false, 4},
    {"pool_drain", false, 4},
    {"upgrade", false, 2, true},
    {"pass", false, 2},
    {"kill_engine", true, 2},
    {"kill_worker", true, 3},
    {"kill_at_point", true, 4},
    {"kill_manager", true, 1},
    {"kill_manager_at_point", true, 1},
    {"lose_wake", true, 20},
    {"delay_wake", true, 10},
    {"double_wake", true, 10},
    {"lose_reply", true, 8},
    {"garble_reply", true, 2},
    {"garble_command", true, 2},
    {"lose_frame", true, 3},
    {"garble_frame", true, 2},
    {"fail_copy", true, 10},
    {"slow_copy", true, 10},
    {"flip_image", true, 6},
    {"stop_engine", true, 4},
    {"io_error", true, 8},
    {"io_short", true, 8},
    {"io_delay", true, 8},
    {"io_full", true, 2},
    {"io_flip", true, 4},
    {"jump", true, 3},
    {"stop_manager", true, 2},
    {"pressure", true, 2},
    {"slow_unmap", true, 4},
    {"crowd_sessions", true, 1},
    {"hog_metadata", true, 2},
    {"hog_tickets", true, 1},
    {"kill_start", true, 4, true},
    {"lose_stored", true, 4, true},
    {"refuse_stored", true, 4, true},
    {"stall_store", true, 4, true},
    {"other_format", true, 4, true},
    {"damage_kept", true, 4, true},
}};
static_assert(kActions.back().name != nullptr);

}  // namespace

const ActionInfo& info_of(ActionKind kind) {
  return kActions[static_cast<std::size_t>(kind)];
}

}  // namespace orbitkv::sim
