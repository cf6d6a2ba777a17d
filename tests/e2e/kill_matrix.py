"""Kills real engines in the rows of the kill matrix (scripts/kill-matrix), beside one that goes on.

    kill_matrix.py COUNT WITHIN_S SEED DIRECTORY        kill_matrix.py rows

Lines "progress real COUNT OF", and last one JSON object, as native_kill_matrix."""

import json
import pathlib
import random
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

import pages  # noqa: E402
from conftest import Bed  # noqa: E402
from engine_run import prompts  # noqa: E402
from manager_process import ManagerProcess  # noqa: E402
from reports import tokens  # noqa: E402

POINTS = ("client_submitted", "client_granted", "client_claimed", "client_mid_copy", "client_before_drained",
          "client_after_drained", "")  # fmt: skip
ROWS = [(deed, point) for deed in ("save", "restore") for point in POINTS]
POOL = 128 << 20


def name(row):
    deed, point = row
    return f"{deed}, {point or 'any moment'}"


class Matrix:
    """One Manager; engines that die one after the other, and one that lives."""

    def __init__(self, directory, count, within, seed):
        self.directory, self.count, self.within = pathlib.Path(directory), count, within
        self.random = random.Random(seed)
        self.rows = {name(row): 0 for row in ROWS}
        self.wrong, self.failed, self.not_back, self.slowest, self.peak, self.headroom = 0, [], 0, 0.0, 0, 0
        self.asked = []  # prompts of the dead, to be asked again

    def fail(self, what):
        self.failed.append(what)
        print(what, file=sys.stderr, flush=True)

    def wait_whole(self, manager, row, pid, died):
        """Until the pool is what it was."""
        while True:
            status = manager.status()
            pool = status["pool"] if status else None
            now = time.monotonic() - died
            if pool:
                slabs = pool["capacity"] + pool["retiring"] + pool["retired"] + pool["building"]
                self.peak = max(self.peak, slabs - pool["configured"])
                self.headroom = max(pool["configured"] // max(pool["wanted_slabs"], 1), pool["configured"] // 16)
                gone = [pool[key] for key in ("quarantined", "retiring", "retired", "building")]
                dead = any(session["pid"] == pid for session in status["sessions"])
                if pool["capacity"] == pool["configured"] and not any(gone) and not dead:
                    self.slowest = max(self.slowest, now)
                    return
            if now > self.within:
                self.not_back += 1
                return print(f"{name(row)}: capacity is not back: {pool}", file=sys.stderr, flush=True)
            time.sleep(0.01)

    def kill(self, bed, manager, row, number):
        deed, point = row
        length = 650 if point == "client_mid_copy" else 80
        asked = prompts(4, length, seed=1000 + number if deed == "save" else length)
        env = {"ORBITKV_TEST_DUMP": str(self.directory / "dump")}
        if deed == "restore":
            bed.run(asked, manager, max_tokens=2, env=env)  # what is there is not saved again
        if point:
            env["ORBITKV_FAULT"] = f"{point}:kill:{self.random.randint(1, 4)}"
        engine = bed.start(asked, manager, one_by_one=True, max_tokens=2, env=env, hold=True)
        if point:
            code = engine.wait(30)
        else:
            time.sleep(self.random.uniform(0.02, 0.6))
            code = engine.kill()
        if code != -signal.SIGKILL:
            return self.fail(f"{name(row)}: its fault never struck, it ended with {code}")
        died = time.monotonic()
        self.rows[name(row)] += 1
        self.asked.append((row, asked))
        self.wait_whole(manager, row, engine.pid, died)

    def ask_again(self, bed, manager):
        """What the dead had asked: the tokens of an engine without connector, and the pages that were saved."""
        known, looked = {}, 0
        for number, (row, asked) in enumerate(self.asked):
            key = json.dumps(asked)
            if key not in known:
                known[key] = tokens(bed.run(asked, shape="plain", max_tokens=2))
            loaded = self.directory / f"after-{number}"
            report = bed.run(asked, manager, max_tokens=2, env={"ORBITKV_TEST_DUMP": str(loaded)})
            if tokens(report) != known[key]:
                self.fail(f"{name(row)}: another engine's tokens differ after it")
            published = [self.directory / "dump" / "published", *self.directory.glob("after-*/published")]
            count, _, wrong = pages.compare(published, loaded / "loaded")
            looked += count
            self.wrong += wrong
        if looked == 0:
            self.fail("nothing was loaded of what the dead had asked: no byte was looked at")

    def run(self):
        begun = time.monotonic()
        bed = Bed(self.directory)
        try:
            with ManagerProcess(pool=f"{POOL >> 20}MiB", extra=["--retire-after", "50"]) as manager:
                stop, lasting = self.directory / "stop", prompts(4, 200, seed=77)
                witness = bed.start(lasting, manager, passes=1, reset=True, until=str(stop), one_by_one=True)
                manager.wait_for(lambda status: status["instances"], "the engine that lives on")
                for number in range(self.count):
                    self.kill(bed, manager, ROWS[number % len(ROWS)], number)
                    print(f"progress real {number + 1} {self.count}", flush=True)
                stop.touch()
                report = witness.result(120)
                expected = tokens(bed.run(lasting, shape="plain"))
                if any(tokens(report, run) != expected for run in range(len(report["runs"]))):
                    self.fail("the engine that lived on has other tokens")
                self.ask_again(bed, manager)
                failures = manager.status()["failed_verifications"]
                if failures:
                    self.fail(f"{failures} verifications failed")
        finally:
            bed.close()
        return {
            "party": "real",
            "kills": sum(self.rows.values()),
            "rows": self.rows,
            "wrong_bytes": self.wrong,
            "slowest_s": round(self.slowest, 3),
            "not_back": self.not_back,
            "peak_over_pool": self.peak,
            "headroom": self.headroom,
            "over_headroom": int(self.peak > self.headroom),
            "others_failed": len(self.failed),
            "seconds": round(time.monotonic() - begun, 1),
        }


def main():
    if sys.argv[1:] == ["rows"]:
        for row in ROWS:
            print(f"real\t{name(row)}")
        return 0
    count, within, seed, directory = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    result = Matrix(directory, count, within, seed).run()
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
