"""Quickstart calls a run well only if something was restored and nothing was wrong."""

import json
import subprocess
import sys
import unittest

import main_job_result

GOOD = {
    "restored_tokens": 96,
    "restored_bytes": 4096,
    "tokens_equal": True,
    "wrong_bytes": 0,
    "seconds": {"cold": 2.0, "restored": 1.0},
}


class MainJobResult(unittest.TestCase):
    def run_script(self, output, engine="vllm", exit_status=0):
        command = [sys.executable, main_job_result.__file__, engine, str(exit_status)]
        return subprocess.run(command, input=output, capture_output=True, text=True, check=False)

    def test_good_result_ends_in_the_json_line(self):
        line = json.dumps(GOOD)
        done = self.run_script(f"some log\n{line}\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines()[-1], line)
        self.assertIn("96", done.stdout.splitlines()[2])

    def test_each_fault_alone_is_noticed(self):
        for change in ({"restored_tokens": 0}, {"restored_bytes": 0}, {"wrong_bytes": 1}, {"tokens_equal": False}):
            with self.subTest(change):
                self.assertEqual(len(main_job_result.faults({**GOOD, **change}, "vllm", 0)), 1)
        for name in ("restored_tokens", "restored_bytes", "wrong_bytes", "tokens_equal"):
            with self.subTest(missing=name):
                result = {key: value for key, value in GOOD.items() if key != name}
                self.assertEqual(len(main_job_result.faults(result, "vllm", 0)), 1)
        self.assertEqual(len(main_job_result.faults(GOOD, "vllm", 1)), 1)

    def test_example_engine_compares_no_tokens(self):
        self.assertEqual(main_job_result.faults({**GOOD, "tokens_equal": None}, "native", 0), [])
        self.assertEqual(len(main_job_result.faults({**GOOD, "tokens_equal": None}, "vllm", 0)), 1)

    def test_a_job_without_result_fails(self):
        for output in ("", "Traceback\n", "[1]\n"):
            with self.subTest(output):
                self.assertEqual(self.run_script(output).returncode, 1)


if __name__ == "__main__":
    unittest.main()
