"""The shared library shows exactly what its header declares, under its soname.

    exports.py HEADER LIBRARY
"""

import re
import subprocess
import sys
from pathlib import Path


def declared(header):
    text = re.sub(r"//[^\n]*|^#[^\n]*", "", header, flags=re.MULTILINE)
    return set(re.findall(r"ORBITKV_API\s[^;()]*?(\w+)\(", text))


def exported(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in lines.splitlines() if line.split()[-2] != "A"}
    return {name.split("@")[0] for name in names}


def soname(library):
    lines = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(SONAME\).*\[(.+)\]", lines)


def main():
    header, library = Path(sys.argv[1]).read_text(), sys.argv[2]
    wanted, found = declared(header), exported(library)
    problems = [f"declared and not exported: {name}" for name in sorted(wanted - found)]
    problems += [f"exported and not declared: {name}" for name in sorted(found - wanted)]
    if not wanted:
        problems.append("the header declares nothing")
    if not re.fullmatch(r"\['liborbitkv\.so\.\d+'\]", str(soname(library))):
        problems.append(f"the soname is {soname(library)}, wanted liborbitkv.so.<version>")
    print("\n".join(problems) or f"exports: {len(wanted)} functions, as declared")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
