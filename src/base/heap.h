// What the process does with memory that it frees: what serves with one thread calls keep_heap().
#pragma once

namespace orbitkv {

// Nothing of the heap goes back to the system. By itself the C library gives the free end of it back
// once that is long enough, and what many calls have freed goes in one of them: milliseconds for a few
// tens of MiB. Of the main thread, before others are.
void keep_heap();

}  // namespace orbitkv
