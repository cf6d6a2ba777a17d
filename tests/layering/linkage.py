"""What runs inside an engine's process needs libc, libstdc++ and pthread, nothing else.

    python3 tests/layering/linkage.py FILE...   (executables or shared objects)

An engine carries its own copies of many libraries; a second one from us could clash.
"""

import re
import subprocess
import sys

ALLOWED = re.compile(r"^(libc|libm|libstdc\+\+|libgcc_s|libpthread|ld-linux-x86-64)\.so(\.\d+)?$")


def needed(file):
    lines = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", lines)


def main():
    wrong = [f"{file} needs {name}" for file in sys.argv[1:] for name in needed(file) if not ALLOWED.match(name)]
    print("\n".join(wrong) or f"linkage: {len(sys.argv) - 1} files, system libraries only")
    sys.exit(1 if wrong or len(sys.argv) == 1 else 0)


if __name__ == "__main__":
    main()
