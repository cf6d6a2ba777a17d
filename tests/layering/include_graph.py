"""Walks the include graph of the tree and names every include that points the wrong way.

    python3 tests/layering/include_graph.py [ROOT]

A directory is a library; it may include itself, what stands in ARROWS for it, the
standard and system headers, and the third-party headers of its own row. Exit status 1
and one line per wrong include, with the file, the line and what would be allowed.
"""

import os
import re
import sys
from pathlib import Path

# Library -> libraries it may include. "include" is the installed headers; their plain
# values (types.h) lie below everything.
VALUES = "include/orbitkv/types.h"
ARROWS = {
    "src/base": set(),
    "src/model": {"src/base"},
    "src/rt": {"src/base"},
    "src/mem": {"src/base"},
    "src/wire": {"src/base", "src/model"},
    "src/shm": {"src/base", "src/wire", "src/rt", "src/mem"},
    "src/ssd": {"src/base", "src/rt", "src/mem", "src/model"},
    "src/device": {"src/base", "src/mem", "src/model"},
    "src/device/host": {"src/base", "src/mem", "src/model", "src/device"},
    "src/device/cuda": {"src/base", "src/mem", "src/model", "src/device"},
    "src/cache": {"src/base", "src/mem", "src/model"},
    "src/client": {
        "include", "src/base", "src/wire", "src/model", "src/rt", "src/shm", "src/mem", "src/device", "src/device/host",
        "src/device/cuda",
    },
    "src/capi": {"include", "src/base"},
    # No device: the Manager never touches one.
    "src/daemon": {
        "src/base", "src/wire", "src/model", "src/rt", "src/mem", "src/shm", "src/ssd", "src/cache", "bench",
    },
    # Everything but the devices of machines.
    "src/sim": {
        "include", "src/base", "src/wire", "src/model", "src/mem", "src/shm", "src/ssd", "src/device",
        "src/device/host", "src/cache", "src/client", "src/daemon",
    },
    VALUES: set(),
    "include": set(),
    "python/bindings": {"include", "src/base", "src/model"},  # plain values, nothing that runs
    "examples": {"include"},
    "bench": {
        "include", "src/base", "src/wire", "src/model", "src/rt", "src/mem", "src/shm", "src/device",
        "src/device/host", "src/device/cuda", "src/ssd", "src/cache", "src/client", "src/daemon",
    },
}

# First path element (or file) of a third-party header -> places that may include it.
THIRD_PARTY = {
    "CLI": {"src/daemon", "src/sim", "bench"},
    "nlohmann": {"src/daemon", "bench"},
    "liburing.h": {"src/ssd"},
    "nanobind": {"python/bindings"},
    "gtest": {"tests"},
    "gmock": {"tests"},
    "cuda.h": {"tests"},
}

SYSTEM_DIRECTORIES = {"sys", "linux", "asm", "bits", "arpa", "netinet", "net"}
SYSTEM_HEADERS = {
    "cpuid.h", "dirent.h", "dlfcn.h", "errno.h", "fcntl.h", "immintrin.h", "limits.h", "malloc.h", "netdb.h",
    "nmmintrin.h", "poll.h", "pty.h", "pthread.h", "pwd.h", "sched.h", "signal.h", "spawn.h", "stdbool.h", "stddef.h",
    "stdint.h", "stdio.h", "stdlib.h", "string.h", "termios.h", "time.h", "unistd.h", "wordexp.h", "x86intrin.h",
}
# They cost every includer half a second and more (regex five).
HEAVY_IN_HEADERS = {"regex", "iostream", "filesystem", "ranges"}

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
SUFFIXES = {".h", ".c", ".cc", ".cpp", ".cu", ".cuh", ".inc"}


def is_test(path):
    return path.stem.endswith(("_test", "_suite", "_rig")) or path.parts[0] == "tests"


def library_of(path):
    """The longest entry of ARROWS that is the path's directory or above it."""
    for place in (path, *path.parents):
        if str(place) in ARROWS:
            return str(place)
    return None


def resolve(root, includer, name):
    """Where a quoted include lies, relative to the root; None if it is nowhere."""
    for base in ("src", "include", "python", ".", str(includer.parent)):
        path = os.path.normpath(Path(base, name))
        if (root / path).is_file():
            return Path(path)
    return None


def check_own(root, path, library, name):
    target = resolve(root, path, name)
    if target is None:
        return "there is no such file in the tree; third-party and system headers stand in <>"
    other = library_of(target)
    if other in (library, VALUES) or other in ARROWS[library]:
        return None
    if is_test(path) and is_test(target):
        return None
    allowed = ", ".join(sorted(ARROWS[library])) or "nothing of ours"
    return f"{library} may include {allowed}, not {other or target}"


def check_foreign(path, library, name):
    first = name.split("/")[0]
    if first in THIRD_PARTY:
        places = THIRD_PARTY[first]
        if library in places or ("tests" in places and is_test(path)):
            return None
        return f"third-party header; only {', '.join(sorted(places))} may include it"
    if "/" in name:
        return None if first in SYSTEM_DIRECTORIES else "unknown third-party header"
    if name.endswith(".h"):
        return None if name in SYSTEM_HEADERS else "unknown header; system headers are listed in the layering check"
    if name in HEAVY_IN_HEADERS and path.suffix == ".h":
        return "too heavy for a header; include it in a .cc file"
    return None


def problems_of(root, path):
    library = library_of(path)
    if library is None:
        return ["0: no library owns this directory; give it a row in the layering check"]
    found = []
    for number, line in enumerate((root / path).read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        own, foreign = match.groups()
        why = check_own(root, path, library, own) if own else check_foreign(path, library, foreign)
        if why:
            found.append(f"{number}: includes {own or foreign}: {why}")
    return found


def sources(root):
    for top in sorted({name.split("/")[0] for name in ARROWS}):
        for file in sorted((root / top).rglob("*")):
            if file.suffix in SUFFIXES:
                yield file.relative_to(root)


def check(root):
    return [f"{path}:{problem}" for path in sources(root) for problem in problems_of(root, path)]


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2])
    count = len(list(sources(root)))
    problems = check(root)
    print("\n".join(problems) or f"layering: {count} files, every include points the right way")
    # A tree in which nothing was found was not looked at.
    sys.exit(1 if problems or count == 0 else 0)


if __name__ == "__main__":
    main()
