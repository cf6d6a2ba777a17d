"""The kill matrix sees what it is there to find: victims that save wrong bytes, and a Manager that
gives no capacity back.

    sees.py NATIVE_KILL_MATRIX ORBITKV"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

MATRIX, ORBITKV = sys.argv[1:]
ROWS = subprocess.run([MATRIX, "rows"], check=True, capture_output=True, text=True).stdout.count("engine\t")


def run(*words, binary=ORBITKV, within="10"):
    command = [MATRIX, "engine", str(ROWS), within, "7", *words]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "ORBITKV_BIN": binary})
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


code, right = run()
assert code == 0 and right["wrong_bytes"] == 0 and right["not_back"] == 0, right
code, lies = run("lies")
assert code == 1 and lies["wrong_bytes"] > 0, lies
with tempfile.TemporaryDirectory() as directory:
    keeps = pathlib.Path(directory) / "orbitkv"
    keeps.write_text(f"#!/bin/bash\nexec {ORBITKV} \"${{@/#50/3600000}}\"\n")  # --retire-after
    keeps.chmod(0o755)
    code, held = run(binary=str(keeps), within="1")
    assert code == 1 and held["not_back"] > 0, held
