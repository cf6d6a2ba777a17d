"""The page on the C interface tells the truth: its code is the example's, and its commands
build that example and print what they say, against a Manager of this build.

    c_api_docs.py BUILD_DIRECTORY
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))

from manager_process import ManagerProcess  # noqa: E402

PAGE = (ROOT / "docs/c-api.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


class Docs(unittest.TestCase):
    def test_code_is_the_examples(self):
        example = (ROOT / "examples/c/pages.c").read_text()
        self.assertGreaterEqual(len(blocks("c")), 4)
        for block in blocks("c"):
            self.assertIn(block, example)

    def test_commands_print_what_they_say(self):
        (commands,) = blocks("sh")
        with tempfile.TemporaryDirectory() as place, ManagerProcess() as manager:
            for name in ("include", "examples"):
                os.symlink(ROOT / name, Path(place, name))
            os.mkdir(Path(place, "build"))
            os.symlink(BUILD, Path(place, "build/release"))
            checked = 0
            for line in commands.splitlines():
                command, _, says = line.partition(" # ")
                done = subprocess.run(
                    ["bash", "-c", command], cwd=place, capture_output=True, text=True, timeout=120,
                    env={**os.environ, "SOCKET": manager.socket, "PWD": place},
                )  # fmt: skip
                self.assertEqual((done.returncode, done.stdout.strip(), done.stderr), (0, says.strip(), ""), line)
                checked += bool(says)
            self.assertEqual(checked, 2)


if __name__ == "__main__":
    BUILD = Path(sys.argv.pop(1)).resolve()
    os.environ["ORBITKV_BIN"] = str(BUILD / "bin/orbitkv")
    unittest.main()
