// Finds, on the machine at hand, the smallest window that fills the link, for each
// direction and size of fragment, and keeps what it found in a file of the user's cache
// directory, by device, driver and version of OrbitKV. A measurement takes a fraction of a
// second and 128 MiB on either side; where there is no room, or the link was busy, the
// defaults of windows.h stay and nothing is kept. One thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "device/cuda/context.h"
#include "device/cuda/windows.h"

namespace orbitkv::device::cuda {

// kBusy: other work was on the link, or no memory was to be had.
Result<Windows> measure_windows(const std::shared_ptr<Context>& context);

// ${XDG_CACHE_HOME:-~/.cache}/orbitkv/gpu-<identity>-<driver version>.windows; empty: no home.
std::string windows_path(const Context& context);
// nullopt: no file, or one of another form; it is then measured again.
std::optional<Windows> read_windows(const std::string& path);
// Written under another name, then renamed: a reader finds a whole file or none.
Status write_windows(const std::string& path, const Windows& windows);

}  // namespace orbitkv::device::cuda
