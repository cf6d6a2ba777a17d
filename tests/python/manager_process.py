"""A Manager of its own for a test: started, asked, killed, started again."""

import ctypes
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def binary() -> str:
    return os.environ.get("ORBITKV_BIN") or str(ROOT / "build/release/bin/orbitkv")


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _end_with_the_test():
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class ManagerProcess:
    """Sockets have short paths, so the directory is made under the system's own."""

    def __init__(self, pool="64MiB", environment=None, extra=(), log=None):
        self.directory = tempfile.TemporaryDirectory(prefix="okv-")
        self.socket = os.path.join(self.directory.name, "run", "manager.sock")
        os.mkdir(os.path.dirname(self.socket), 0o700)
        self.log = log or os.path.join(self.directory.name, "manager.log")
        self.pool, self.extra = pool, list(extra)
        self.environment = environment or {}
        self.process = None

    def start(self, ready=True):
        """ready=False: for a Manager that is to die before anybody can see it ready."""
        assert self.process is None or self.process.poll() is not None
        # Its parent, for the kernel, is the thread that starts it: another one may end long before the test.
        main = threading.current_thread() is threading.main_thread()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [binary(), "serve", "--bootstrap-socket", self.socket, "--pool-size", self.pool, *self.extra],
                stdout=log, stderr=log, env={**os.environ, **self.environment},
                preexec_fn=_end_with_the_test if main else None,
            )  # fmt: skip
        return self._wait_ready() if ready else self

    def _wait_ready(self):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the Manager ended at once: {self.text()}")
            status = self.status() if os.path.exists(self.socket) else None
            # Memory comes in the background, and so does what is on SSD.
            opened = status is not None and status.get("ssd", {}).get("state", "ready") == "ready"
            if opened and status["pool"]["largest_free"] > 0:
                return self
            time.sleep(0.02)
        raise RuntimeError(f"the Manager does not answer: {self.text()}")

    def status(self):
        """Its status as a dict, or None if it does not answer."""
        done = subprocess.run(
            [binary(), "status", "--json", "--bootstrap-socket", self.socket], capture_output=True, timeout=30
        )
        try:
            return json.loads(done.stdout) if done.returncode == 0 else None
        except ValueError:
            return None

    def command(self, *words):
        """`orbitkv WORDS --json`, of this Manager."""
        done = subprocess.run(
            [binary(), *words, "--json", "--bootstrap-socket", self.socket], capture_output=True, timeout=90
        )
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    def wait_for(self, condition, what, seconds=20):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            status = self.status()
            if status is not None and condition(status):
                return status
            time.sleep(0.02)
        raise AssertionError(f"not seen within {seconds} s: {what}; last status: {status}")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def text(self):
        with open(self.log, errors="replace") as log:
            return log.read()

    def __enter__(self):
        return self.start()

    def __exit__(self, *exc):
        self.stop()
        self.directory.cleanup()
