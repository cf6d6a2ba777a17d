"""The machine that scripts/gpu-check runs its steps on: where things lie, how programs are
run, and how long is left."""

import json
import os
import pathlib
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77


class Missing(Exception):
    """This machine or build lacks a part; the step is left out."""


class Failed(Exception):
    """The step did not end well."""


class Machine:
    """Where things lie, and the clock that all steps share."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.build = pathlib.Path(arguments.build).resolve() if arguments.build else ROOT / "build" / "gpu-check"
        self.out = pathlib.Path(arguments.out).resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self.deadline = time.monotonic() + arguments.limit
        self.environment = dict(os.environ)
        self.has_engine = False
        self.put_build_first()

    def put_build_first(self):
        if (self.build / "python" / "orbitkv").exists():
            self.prepend("PYTHONPATH", str(self.build / "python"))
        self.environment["ORBITKV_BIN"] = str(self.build / "bin" / "orbitkv")

    def prepend(self, name, value):
        old = self.environment.get(name)
        self.environment[name] = f"{value}:{old}" if old else value

    def left(self):
        return self.deadline - time.monotonic()

    def binary(self, name):
        path = self.build / "bin" / name
        if not path.exists():
            raise Missing(f"{path} is not there")
        return str(path)

    def run(self, step, command, environment=None, expected=(0,)):
        """Output in OUT/<step>.log; stdout comes back. Killed where the time ends."""
        log = self.out / f"{step}.log"
        with open(log, "ab") as err, tempfile.TemporaryFile() as out:
            err.write(f"$ {' '.join(map(str, command))}\n".encode())
            err.flush()
            process = subprocess.Popen(
                command, stdout=out, stderr=err, cwd=ROOT, env={**self.environment, **(environment or {})},
                start_new_session=True,
            )  # fmt: skip
            try:
                status = process.wait(max(1, self.left()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
                status = None
            out.seek(0)
            text = out.read().decode(errors="replace")
            err.write(text.encode())
        if status is None:
            raise Failed(f"did not end in time: {last_line(log)}; see {log}")
        if status == SKIPPED:
            raise Missing(last_line(log))
        if status not in expected:
            raise Failed(f"ended with {status}: {last_line(log)}; see {log}")
        return text


def last_line(log):
    lines = [line for line in pathlib.Path(log).read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
