// How a Manager ends, so that its keeper knows what comes next (lives.h). Under systemd only the
// first three and kExitMadePlace are to be seen, with neither only the first three.
#pragma once

namespace orbitkv::daemon {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;      // it has said why, and would fail again
inline constexpr int kExitUsage = 2;       // an option
inline constexpr int kExitTryAgain = 75;   // a lock, memory or descriptors that somebody has for now
inline constexpr int kExitMadePlace = 77;  // for the successor that was asked for
// A successor that cannot go on with what is kept; it let go of nothing.
inline constexpr int kExitCannotKeep = 78;
inline constexpr int kExitCannotRun = 127;  // of the program that was to be a Manager

}  // namespace orbitkv::daemon
