// One step of a spin wait: tells the core that this thread only waits for memory.
// Any thread; never blocks.
#pragma once

namespace orbitkv::rt {

inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace orbitkv::rt
