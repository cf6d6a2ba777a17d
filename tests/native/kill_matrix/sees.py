"""The kill matrix sees what it is there to find: victims that save wrong bytes, a Manager that
gives no capacity back, faults that do not strike.

    sees.py NATIVE_KILL_MATRIX ORBITKV"""

import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

MATRIX, ORBITKV = sys.argv[1:]
NAMES = subprocess.run([MATRIX, "rows"], check=True, capture_output=True, text=True).stdout
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def dies_with_us():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run(directory, *words, party="engine", binary=ORBITKV, within="60"):
    command = [MATRIX, party, str(NAMES.count(f"{party}\t")), within, "7", *words]
    environment = {**os.environ, "ORBITKV_BIN": str(binary), "TMPDIR": directory}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, preexec_fn=dies_with_us)
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def instead(directory, name, text):
    """A program that stands for orbitkv."""
    path = pathlib.Path(directory) / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


with tempfile.TemporaryDirectory(prefix="okv-") as place:
    code, right = run(place)
    assert code == 0 and right["wrong_bytes"] == 0 and right["not_back"] == 0, right
    assert right["reports"] > 10, right  # the dead had said what they had done
    code, lies = run(place, "lies")
    assert code == 1 and lies["wrong_bytes"] > 0, lies
    keeps = instead(place, "keeps", f'exec {ORBITKV} "${{@/#50/3600000}}"')  # --retire-after
    code, held = run(place, binary=keeps, within="1")
    assert code == 1 and held["not_back"] > 0, held
    safe = instead(place, "safe", f'unset ORBITKV_FAULT; exec {ORBITKV} "$@"')
    code, lives = run(place, party="manager", binary=safe, within="1")
    struck = {name: kills for name, kills in lives["rows"].items() if kills > 0}
    assert struck and not any("manager_" in name for name in struck), lives
