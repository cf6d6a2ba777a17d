"""Starts the drivers of the kill matrix, adds up what they found, and ends whatever is left.

scripts/kill-matrix --help says what it takes. Two programs kill: native_kill_matrix (native engines
and Managers) and tests/e2e/kill_matrix.py (real engines). Each prints lines "progress PARTY KILLS OF"
and last one JSON object."""

import argparse
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PARTIES = {"engine": "native engine", "manager": "Manager", "real": "real engine"}
FLAGS = {"engine": "--native", "manager": "--manager", "real": "--engine"}
_PR_SET_CHILD_SUBREAPER = 36


def arguments(words):
    parser = argparse.ArgumentParser(prog="kill-matrix", add_help=False)
    parser.add_argument("--native", type=int, default=1000)
    parser.add_argument("--manager", type=int, default=100)
    parser.add_argument("--engine", type=int, default=20)
    parser.add_argument("--within", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1, 1 << 30))
    parser.add_argument("--build", type=Path, default=REPO / "build/release")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", action="store_true")
    return parser.parse_args(words)


class Drivers:
    """The commands of the parties, and their environment."""

    def __init__(self, build):
        build = build.resolve()
        self.native = [str(build / "bin/native_kill_matrix")]
        python = os.environ.get("ORBITKV_ENGINE_PYTHON", sys.executable)
        self.real = [python, str(REPO / "tests/e2e/kill_matrix.py")]
        self.environment = {
            **os.environ,
            "ORBITKV_BUILD": str(build),
            "ORBITKV_BIN": str(build / "bin/orbitkv"),
            "PYTHONPATH": str(build / "python"),
        }

    def command(self, party, count, options, directory):
        numbers = [str(count), str(options.within), str(options.seed)]
        if party == "real":
            return [*self.real, *numbers, str(directory)]
        return [*self.native, party, *numbers]

    def rows(self, parties):
        """party -> names of its rows."""
        found = {party: [] for party in parties}
        programs = [self.native] if {"engine", "manager"} & set(parties) else []
        programs += [self.real] if "real" in parties else []
        for program in programs:
            text = subprocess.run([*program, "rows"], check=True, capture_output=True, env=self.environment).stdout
            for line in text.decode().splitlines():
                party, _, name = line.partition("\t")
                if party in found:
                    found[party].append(name)
        return found


# ---- processes ----


def adopt_orphans():
    """A Manager whose keeper was killed becomes our child, so that we can end it."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def descendants(root):
    children = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if stat[0] not in "ZX":
            children.setdefault(int(stat[1]), []).append(int(entry))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found[1:]


def end_descendants(seconds=20):
    """By pid, until none is left: whoever is started meanwhile goes too."""
    deadline = time.monotonic() + seconds
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


# ---- one party ----


def follow(process, party, quiet):
    """Shows its progress; returns its last line."""
    last, shown = "", 0.0
    for line in process.stdout:
        words = line.split()
        if len(words) == 4 and words[0] == "progress":
            now = time.monotonic()
            if not quiet and now - shown > 5:
                shown = now
                print(f"kill-matrix: {PARTIES[party]}: {words[2]} of {words[3]} kills", file=sys.stderr, flush=True)
        elif line.strip():
            last = line
    return last


def run_party(drivers, party, count, options, directory):
    command = drivers.command(party, count, options, directory)
    environment = {**drivers.environment, "TMPDIR": str(directory)}  # where native drivers make theirs
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    last = follow(process, party, options.json)
    code = process.wait()
    try:
        return json.loads(last)
    except ValueError:
        return {"party": party, "died": f"its driver ended with {code} and said no result"}


def ignore_stops():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def stop(number, _):
    ignore_stops()
    sys.exit(128 + number)


def run_parties(drivers, parties, options):
    """party -> what it found. However it ends, no process is left, nor a file; a stop while this
    is seen to does not keep it from that."""
    results = {}
    with tempfile.TemporaryDirectory(prefix="okv-kills-") as directory:
        try:
            for party, count in parties.items():
                place = Path(directory) / party
                place.mkdir()
                results[party] = run_party(drivers, party, count, options, place)
        finally:
            ignore_stops()
            end_descendants()
    return results


# ---- the result ----


def merge(results, rows):
    """One object of what the parties found; `rows`: those that there are."""
    total = {
        "kills": {},
        "wrong_bytes": 0,
        "not_back": 0,
        "over_headroom": 0,
        "others_failed": 0,
        "slowest_s": 0.0,
        "peak_over_pool": 0,
        "not_reached": [],
        "died": [],
        "seconds": 0.0,
    }
    for party, result in results.items():
        if "died" in result:
            total["died"].append(f"{PARTIES[party]}: {result['died']}")
            continue
        total["kills"][party] = result["kills"]
        for field in ("wrong_bytes", "not_back", "over_headroom", "others_failed", "seconds"):
            total[field] += result[field]
        for field in ("slowest_s", "peak_over_pool"):
            total[field] = max(total[field], result[field])
        total["not_reached"] += [f"{PARTIES[party]}: {name}" for name in rows[party] if not result["rows"].get(name)]
    total["seconds"], total["slowest_s"] = round(total["seconds"], 1), round(total["slowest_s"], 3)
    bad = ("wrong_bytes", "not_back", "over_headroom", "others_failed", "not_reached", "died")
    total["ok"] = bool(total["kills"]) and not any(total[field] for field in bad)
    return total


def table(results, rows):
    lines = []
    for party, result in results.items():
        if "died" in result:
            continue
        lines += [f"{PARTIES[party]:14} {name:42} {result['rows'].get(name, 0):6} kills" for name in rows[party]]
    for party, result in results.items():
        if "died" in result:
            continue
        lines.append(
            f"{PARTIES[party]:14} {result['kills']} kills in {result['seconds']:.0f} s: {result['wrong_bytes']} wrong "
            f"bytes; all capacity back after {result['slowest_s']:.2f} s at most; "
            f"{result['peak_over_pool'] / 2**20:.0f} MiB over the pool at most; "
            f"{result['others_failed']} failures of others"
        )
    return "\n".join(lines)


def wanted(options):
    return {p: n for p, n in zip(PARTIES, (options.native, options.manager, options.engine), strict=True) if n}


def refuse(why):
    print(f"kill-matrix: {why}", file=sys.stderr)
    return 2


def main(words):
    # One stop at a time: behind the script a Ctrl-C is ignored here, and comes as its SIGTERM.
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)
    options = arguments(words)
    drivers = Drivers(options.build)
    parties = wanted(options)
    if not Path(drivers.native[0]).exists():
        return refuse(f"{drivers.native[0]} is not there: build the target native_kill_matrix, or leave --build out")
    if "real" in parties and not Path(drivers.real[0]).exists():
        return refuse("finds no engine environment: run scripts/setup --engine, or give --engine 0")
    rows = drivers.rows(parties)
    if options.rows:
        print("\n".join(f"{PARTIES[party]:14} {name}" for party, names in rows.items() for name in names))
        return 0
    if not parties:
        return refuse("nothing is to be killed: give --native, --manager or --engine a number above 0")
    for party, count in parties.items():
        if count < len(rows[party]):
            return refuse(f"{FLAGS[party]} {count} leaves rows out: give {len(rows[party])} or more, or 0 for none")
    adopt_orphans()
    print(f"kill-matrix: seed {options.seed}", file=sys.stderr, flush=True)
    results = run_parties(drivers, parties, options)
    if not options.json:
        print(table(results, rows))
    total = merge(results, rows)
    print(json.dumps({**total, "seed": options.seed}))
    return 0 if total["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
