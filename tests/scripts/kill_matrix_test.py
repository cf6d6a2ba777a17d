"""The kill matrix fails for each thing that it is there to find, and leaves no process behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import kill_matrix

ROWS = {"engine": ["save", "restore"]}
GOOD = {
    "party": "engine",
    "kills": 4,
    "rows": {"save": 2, "restore": 2},
    "wrong_bytes": 0,
    "slowest_s": 0.5,
    "not_back": 0,
    "peak_over_pool": 4096,
    "headroom": 8192,
    "over_headroom": 0,
    "others_failed": 0,
    "seconds": 1.0,
}
# What stands for a driver: names two rows, and says what FAKE_RESULT holds.
DRIVER = """#!/bin/bash
if [ "$1" = rows ]; then printf 'engine\\tsave\\nengine\\trestore\\n'; exit; fi
[ -z "$FAKE_CHILD" ] || touch "$TMPDIR/store"
[ -z "$FAKE_CHILD" ] || setsid sleep 300 &
[ -z "$FAKE_CHILD" ] || { echo "progress engine 1 4"; sleep 300; }
echo "progress engine 2 4"
echo "$FAKE_RESULT"
"""


def merged(**change):
    return kill_matrix.merge({"engine": {**GOOD, **change}}, ROWS)


def end(process):
    """And all that it started."""
    for pid in [*kill_matrix.descendants(process.pid), *([process.pid] if process.poll() is None else [])]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(30)


class KillMatrix(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        driver = Path(self.directory.name) / "bin/native_kill_matrix"
        driver.parent.mkdir()
        driver.write_text(DRIVER)
        driver.chmod(0o755)

    def tearDown(self):
        self.directory.cleanup()

    def command(self, *words):
        options = ["--build", self.directory.name, "--manager", "0", "--engine", "0", *words]
        return [sys.executable, kill_matrix.__file__, *options]

    def run_script(self, result, *words):
        environment = {**os.environ, "FAKE_RESULT": result, "FAKE_CHILD": ""}
        return subprocess.run(self.command(*words), capture_output=True, text=True, env=environment, check=False)

    def test_each_finding_alone_is_a_failure(self):
        self.assertTrue(merged()["ok"])
        for field in ("wrong_bytes", "not_back", "over_headroom", "others_failed"):
            with self.subTest(field):
                self.assertFalse(merged(**{field: 1})["ok"])
        missed = merged(rows={"save": 4, "restore": 0})
        self.assertFalse(missed["ok"])
        self.assertEqual(missed["not_reached"], ["native engine: restore"])
        self.assertFalse(kill_matrix.merge({"engine": {"died": "no result"}}, ROWS)["ok"])

    def test_the_last_line_is_the_result(self):
        done = self.run_script(json.dumps(GOOD), "--native", "4", "--seed", "7")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual((result["kills"], result["seed"], result["ok"]), ({"engine": 4}, 7, True))
        self.assertIn("restore", done.stdout.splitlines()[1])

    def test_exit_status(self):
        self.assertEqual(self.run_script(json.dumps({**GOOD, "wrong_bytes": 3}), "--native", "4").returncode, 1)
        self.assertEqual(self.run_script("no result", "--native", "4").returncode, 1)
        few = self.run_script(json.dumps(GOOD), "--native", "1")
        self.assertEqual(few.returncode, 2)
        self.assertIn("give 2 or more", few.stderr)
        none = subprocess.run([sys.executable, kill_matrix.__file__, "--build", "/no/such"], capture_output=True)
        self.assertEqual(none.returncode, 2)

    def test_a_stop_at_any_moment_is_no_failure_of_python(self):
        script = Path(kill_matrix.__file__).parents[1] / "kill-matrix"
        environment = {**os.environ, "FAKE_CHILD": "1", "TMPDIR": self.directory.name}
        words = ["--native", "4", "--build", self.directory.name, "--manager", "0", "--engine", "0"]
        for moment in (0.03, 0.06, 0.1, 0.2, 0.4):
            with self.subTest(moment):
                process = subprocess.Popen(
                    [script, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment,
                    start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                )  # fmt: skip
                self.addCleanup(end, process)
                time.sleep(moment)
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does
                _, said = process.communicate(timeout=60)
                self.assertIn(process.returncode, (130, -signal.SIGINT))
                self.assertNotIn("Traceback", said)

    def test_a_stop_ends_all_that_it_started(self):
        place = Path(self.directory.name) / "tmp"
        place.mkdir()
        environment = {**os.environ, "FAKE_CHILD": "1", "TMPDIR": str(place)}
        command = self.command("--native", "4")
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        self.addCleanup(end, process)
        deadline = time.monotonic() + 20
        while len(left := kill_matrix.descendants(process.pid)) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertGreaterEqual(len(left), 3)
        self.assertTrue(list(place.rglob("store")))
        while process.poll() is None and time.monotonic() < deadline:
            process.terminate()  # a second one, and a third, do not keep it from its work
            time.sleep(0.001)
        self.assertEqual(process.wait(30), 128 + 15)
        self.assertFalse([pid for pid in left if os.path.exists(f"/proc/{pid}")])
        self.assertFalse(list(place.iterdir()))


if __name__ == "__main__":
    unittest.main()
