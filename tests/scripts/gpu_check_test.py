"""scripts/gpu-check: bars notice what misses them, a missing part is named, a failure fails."""

import contextlib
import io
import json
import os
import pathlib
import tempfile
import unittest
from unittest import mock

import gpu_bars
import gpu_check


def copy_line(case, ratio, ctas=4, rate=50.0, plan=100):
    window = {"ctas": ctas, "stage_bytes": 16384, "loads": 2, "stores": 2}
    return {"case": case, "ratio": ratio, "gb_per_s": rate, "plan_bytes": plan, "window": window}


class Bars(unittest.TestCase):
    def missed(self, step, lines):
        return [row["what"] for row in gpu_bars.rows_of(step, lines) if not row["met"]]

    def test_each_size_has_its_share_and_its_thread_blocks(self):
        good = [copy_line("h2d_2KiB_split_auto_24", 0.90, 24), copy_line("d2h_4KiB_auto_16", 0.91, 16)]
        good += [copy_line("h2d_2MiB_auto_4", 0.92), copy_line("both_16KiB_auto_4", 0.90)]
        self.assertEqual(self.missed("copy", good), [])
        self.assertEqual(len(gpu_bars.rows_of("copy", good)), 7)
        slow = [copy_line("h2d_16KiB_auto_8", 0.919, 8)]
        self.assertEqual(len(self.missed("copy", slow)), 2)

    def test_comparing_sums_costs_at_most_a_hundredth(self):
        other = copy_line("h2d_64KiB_unverified_4", 0.95, rate=51.0)
        self.assertEqual(len(self.missed("copy", [copy_line("h2d_64KiB_auto_4", 0.93), other])), 1)

    def test_a_plan_is_small(self):
        self.assertEqual(self.missed("copy", [copy_line("h2d_36x128x4KiB_split_auto_8", 0.5, plan=8192)]), [])
        self.assertEqual(len(self.missed("copy", [copy_line("h2d_36x128x4KiB_split_auto_8", 0.5, plan=8193)])), 1)

    def test_rivals_have_no_bar(self):
        self.assertEqual(gpu_bars.rows_of("copy", [copy_line("h2d_4KiB_calls_0", 0.1)]), [])

    def test_operations_layers_and_attach(self):
        lines = [
            {"bench": "restore", "case": "4KiB", "p50_us": 21},
            {"bench": "restore", "case": "layers_36", "p50_us": 1, "first_layer_share": 0.11},
            {"bench": "restore", "case": "layers_36_consumer_half", "p50_us": 1, "over": 0.06},
            {"bench": "restore", "case": "attach_64GiB", "seconds": 1.1},
            {"bench": "publish", "case": "4KiB", "p50_us": 29},
            {"bench": "publish", "case": "64KiB", "p50_us": 1000},
        ]
        self.assertEqual(len(self.missed("restore", lines)), 4)

    def test_interference(self):
        line = {"fragment": 16384, "method": "auto", "copies": "saves", "gemm": "decode", "copy_gb_per_s": 11}
        found = [{**line, "pace": pace, "gemm_change_percent": 7} for pace in ("full", "gentle")]
        self.assertEqual(len(self.missed("interference", [*found, {"table": []}])), 2)


class Round(unittest.TestCase):
    """A build whose programs are shell lines."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        (self.root / "bin").mkdir()
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        patch = mock.patch.dict(os.environ, {"PATH": path})
        patch.start()
        self.addCleanup(patch.stop)
        self.program("nvidia-smi", "echo 'H, 1.0, GPU-1, 5, 16, 1 MiB'")

    def program(self, name, line):
        file = self.root / "bin" / name
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)

    def check(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = gpu_check.main(["--build", str(self.root), "--out", str(self.root / "out"), *arguments])
        return status, json.loads(out.getvalue().splitlines()[-1])

    def test_lines_come_back_and_bars_are_shown(self):
        self.program("orbitkv", """echo '{"bench":"publish","case":"4KiB","p50_us":31}'""")
        status, found = self.check("--only", "publish")
        self.assertEqual(status, 0)
        self.assertEqual(found["steps"]["publish"]["lines"][0]["p50_us"], 31)
        self.assertEqual(found["bars_missed"], ["publish 4KiB: us, p50: 31 (<= 30)"])

    def test_a_failure_fails_and_says_why(self):
        self.program("orbitkv", "echo 'a restored block has wrong bytes' >&2; exit 1")
        status, found = self.check("--only", "restore")
        self.assertEqual(status, 1)
        self.assertIn("a restored block has wrong bytes", found["failed"]["restore"])

    def test_what_is_not_there_is_named(self):
        self.program("orbitkv", "exit 0")
        status, found = self.check("--only", "suites,vllm")
        self.assertEqual(status, 0)
        self.assertIn("gpu_copier_test is not there", found["missing"]["suites"])
        self.assertIn("--engine", found["missing"]["vllm"])

    def test_without_a_gpu_the_bench_is_skipped(self):
        self.program("orbitkv", "echo 'bench publish: skipped: no NVIDIA driver' >&2; exit 77")
        status, found = self.check("--only", "publish")
        self.assertIn("no NVIDIA driver", found["missing"]["publish"])

    def test_what_does_not_end_is_killed(self):
        self.program("orbitkv", "sleep 60")
        at_once = {name: (function, 0) for name, (function, _) in gpu_check.STEPS.items()}
        with mock.patch.dict(gpu_check.STEPS, at_once):
            status, found = self.check("--only", "publish", "--limit", "1")
        self.assertEqual(status, 1)
        self.assertIn("did not end in time", found["failed"]["publish"])

    def soak(self, script, *arguments):
        self.program("orbitkv", "exit 0")
        self.program("gpu_copier_test", script)
        with mock.patch.object(os, "cpu_count", return_value=3):
            return self.check("--only", "soak", *arguments)

    def test_a_soak_is_shared_out_and_summed(self):
        line = "soak: $ORBITKV_SOAK_ROUNDS rounds, 0.500 GB copied; wrong bytes $((ORBITKV_SOAK_SEED - 1))"
        status, found = self.soak(f'echo "soak seed 1: 1 of 3 rounds, 0 wrong bytes"; echo "{line}"', "--soak", "100")
        self.assertEqual(status, 0)
        told = found["steps"]["soak"]["lines"]
        self.assertEqual(told, [{"soak": "soak: 100 rounds, 1.500 GB copied; wrong bytes 3", "processes": 3}])

    def test_a_soak_that_one_process_fails_has_failed(self):
        script = 'echo "soak: $ORBITKV_SOAK_ROUNDS rounds"; [ "$ORBITKV_SOAK_SEED" != 3 ]'
        status, found = self.soak(script, "--soak", "100")
        self.assertEqual(status, 1)
        self.assertIn("soak-3.log", found["failed"]["soak"])

    def test_a_soak_with_fewer_rounds_than_asked_for_has_failed(self):
        status, found = self.soak('echo "soak: 33 rounds"', "--soak", "100")
        self.assertEqual(status, 1)
        self.assertIn("seed 1 did not tell of 34 rounds", found["failed"]["soak"])

    def test_a_soak_that_does_not_end_says_how_far_it_was(self):
        script = 'echo "soak seed 1: 40 of 100 rounds, 0 wrong bytes"; exec sleep 60'
        at_once = {name: (function, 0) for name, (function, _) in gpu_check.STEPS.items()}
        with mock.patch.dict(gpu_check.STEPS, at_once):
            _, found = self.soak(script, "--soak", "100", "--limit", "1")
        self.assertIn("did not end in time: soak seed 1: 40 of 100 rounds", found["failed"]["soak"])

    def test_tests_of_ends_tell_what_they_hit(self):
        self.program("orbitkv", "exit 0")
        for step in ("retire", "upgrade"):
            self.program(f"gpu_{step}_test", f'echo "{step}: $ORBITKV_{step.upper()}_ROUNDS ends under copies"')
            status, found = self.check("--only", step, "--quick")
            self.assertEqual(status, 0)
            self.assertEqual(found["steps"][step]["lines"], [{step: f"{step}: 6 ends under copies"}])
            self.program(f"gpu_{step}_test", "echo a slab lost its bytes; exit 1")
            status, found = self.check("--only", step)
            self.assertEqual(status, 1)
            self.assertIn("a slab lost its bytes", found["failed"][step])

    def test_a_step_that_no_longer_fits_is_named(self):
        self.program("orbitkv", "exit 0")
        _, found = self.check("--only", "copy", "--limit", "8")
        self.assertIn("--only copy", found["missing"]["copy"])

    def test_no_driver_ends_the_round(self):
        self.program("nvidia-smi", "exit 9")
        status, found = self.check()
        self.assertEqual(status, 1)
        self.assertEqual(list(found["steps"]), ["driver"])

    def test_unknown_steps_are_refused(self):
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
            self.check("--only", "nothing")


if __name__ == "__main__":
    unittest.main()
