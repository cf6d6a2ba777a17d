"""serve --keep under systemd: a notification socket that stores descriptors as sd_notify(3) says, and
starts the next Manager with them as sd_listen_fds(3) says."""

import array
import fcntl
import os
import signal
import socket
import subprocess
import threading
import time

import numpy as np
import pytest
from manager_process import ManagerProcess, binary
from orbitkv import CacheManagerClient
from test_client import key, pages, publish, register, restore, visible


class Unit:
    """One unit: its stored descriptors by name, its main process."""

    def __init__(self, manager):
        self.manager, self.stored, self.said, self.flags = manager, {}, [], []
        self.address = f"\0orbitkv-test-{os.getpid()}-{id(self)}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address)
        self.pid = None
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            text, ancillary, _, _ = self.socket.recvmsg(4096, socket.CMSG_LEN(4 * 8))
            fds = array.array("i")
            for _, kind, data in ancillary:
                if kind == socket.SCM_RIGHTS:
                    fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
            if not text:
                return
            lines = text.decode().split("\n")
            self.said.append(lines)
            name = next((line[7:] for line in lines if line.startswith("FDNAME=")), "stored")
            if "FDSTOREREMOVE=1" in lines and name in self.stored:
                os.close(self.stored.pop(name))
            elif "FDSTORE=1" in lines and fds and name not in self.stored:
                self.stored[name] = fcntl.fcntl(fds[0], fcntl.F_DUPFD_CLOEXEC, 200)
            for fd in fds:  # also of a barrier
                os.close(fd)

    def start(self):
        names, sources = zip(*self.stored.items(), strict=True) if self.stored else ((), ())
        log = os.open(self.manager.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        command = [binary(), "serve", "--bootstrap-socket", self.manager.socket, "--pool-size", "16MiB", "--keep"]
        command += self.flags
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(log, 1)
            os.dup2(log, 2)
            for number, source in enumerate(sources):
                os.dup2(source, 3 + number)
            environment = {
                **os.environ,
                "NOTIFY_SOCKET": "@" + self.address[1:],
                "FDSTORE": "64",
                "LISTEN_PID": str(os.getpid()),
                "LISTEN_FDS": str(len(names)),
                "LISTEN_FDNAMES": ":".join(names),
            }
            os.execve(command[0], command, environment)
        os.close(log)
        deadline = time.monotonic() + 20
        while (
            (status := self.manager.status()) is None
            or status["pool"]["largest_free"] == 0
            or status.get("ssd", {}).get("state", "ready") != "ready"
        ):
            assert time.monotonic() < deadline, self.manager.text()
            time.sleep(0.01)
        return status

    def end(self, number):
        os.kill(self.pid, number)
        status = os.waitpid(self.pid, 0)[1]
        self.pid = None
        time.sleep(0.05)  # what it said last
        return os.waitstatus_to_exitcode(status)


@pytest.fixture
def unit():
    manager = ManagerProcess()
    unit = Unit(manager)
    yield unit
    if unit.pid:
        unit.end(signal.SIGKILL)
    manager.directory.cleanup()


@pytest.mark.skipif(bool(os.environ.get("ORBITKV_FAKE_ONLY")), reason="needs a Manager")
@pytest.mark.parametrize("number,code", [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0), (signal.SIGHUP, 77)])
def test_blocks_outlive_a_restart_of_the_unit(unit, number, code):
    assert unit.start()["kept"]["by"] == "systemd"
    assert ["READY=1"] in unit.said
    memory = pages(1)
    before = memory.copy()
    keys = [key(i) for i in range(8)]
    with CacheManagerClient(unit.manager.socket, b"i" * 16, name="test") as client:
        registration = register(client, memory)
        publish(client, registration, list(range(8)), keys)
        visible(client, keys)
        incarnation = client.health().incarnation
        assert unit.end(number) == code
        assert unit.start()["kept"]["blocks"] == 8
        deadline = time.monotonic() + 20
        while not (client.health().connected and client.health().incarnation != incarnation):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        ready = client.query_prefetch(client.instance_id, keys, "again")
        assert ready.hit_blocks == 8
        restore(client, registration, ready.lease, list(range(8, 16)))
        assert np.array_equal(memory[:, 8:16], before[:, 0:8])
    assert sum(name.startswith("table-") for name in unit.stored) == 1


def serve_beside(unit, *flags):
    # exit status and words of a Manager that is none of the unit's
    command = [binary(), "serve", "--bootstrap-socket", unit.manager.socket, "--pool-size", "16MiB", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


@pytest.mark.skipif(bool(os.environ.get("ORBITKV_FAKE_ONLY")), reason="needs a Manager")
@pytest.mark.parametrize("flags", [(), ("--keep", "--keep-with", "keeper")])
def test_between_two_lives_the_socket_is_the_units(unit, flags):
    unit.start()
    assert "claim" in unit.stored
    for _ in range(2):
        assert unit.end(signal.SIGKILL) == -signal.SIGKILL
        code, said = serve_beside(unit, *flags)
        assert code == 1
        assert "a service manager (a systemd unit of orbitkv serve --keep)" in said
        unit.start()
    assert sum(name == "claim" for name in unit.stored) == 1
    # The store goes with the unit, and the claim with the store.
    assert unit.end(signal.SIGTERM) == 0
    for fd in unit.stored.values():
        os.close(fd)
    unit.stored.clear()
    manager = subprocess.Popen(
        [binary(), "serve", "--bootstrap-socket", unit.manager.socket, "--pool-size", "16MiB"],
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 20
        while (status := unit.manager.status()) is None or status["pid"] != manager.pid:
            assert time.monotonic() < deadline and manager.poll() is None
            time.sleep(0.01)
    finally:
        manager.kill()
        manager.wait()


@pytest.mark.skipif(bool(os.environ.get("ORBITKV_FAKE_ONLY")), reason="needs a Manager")
def test_a_claim_whose_file_was_removed_is_taken_again(unit):
    unit.start()
    os.remove(unit.manager.socket + ".keeper")
    assert os.fstat(unit.stored["claim"]).st_nlink == 0
    assert unit.end(signal.SIGKILL) == -signal.SIGKILL
    unit.start()
    assert os.path.samestat(os.fstat(unit.stored["claim"]), os.stat(unit.manager.socket + ".keeper"))
    assert unit.end(signal.SIGKILL) == -signal.SIGKILL
    assert serve_beside(unit)[0] == 1


@pytest.mark.skipif(bool(os.environ.get("ORBITKV_FAKE_ONLY")), reason="needs a Manager")
def test_a_start_asks_systemd_for_time_as_it_goes_on(unit):
    unit.flags = ["--start-silence", "20"]
    unit.start()
    asked = [lines for lines in unit.said if "EXTEND_TIMEOUT_USEC=20000000" in lines]
    assert asked and all(lines[0].startswith("STATUS=starts: ") for lines in asked)
    assert unit.said.index(asked[-1]) < unit.said.index(["READY=1"])


@pytest.mark.skipif(bool(os.environ.get("ORBITKV_FAKE_ONLY")), reason="needs a Manager")
def test_a_reload_that_would_start_cold_is_refused(unit):
    unit.socket.shutdown(socket.SHUT_RD)  # nothing is stored
    pid = unit.start()["pid"]
    assert not unit.manager.status()["kept"]["stored"]
    os.kill(unit.pid, signal.SIGHUP)
    deadline = time.monotonic() + 20
    while "it stays: the systemd has not taken" not in unit.manager.text():
        assert time.monotonic() < deadline, unit.manager.text()
        time.sleep(0.01)
    assert unit.manager.status()["pid"] == pid
    assert unit.end(signal.SIGTERM) == 0


@pytest.mark.skipif(bool(os.environ.get("ORBITKV_FAKE_ONLY")), reason="needs a Manager")
def test_a_stop_of_the_unit_writes_what_is_worth_keeping(unit, tmp_path):
    unit.flags = ["--ssd-path", str(tmp_path / "store"), "--ssd-size", "64MiB", "--ssd-segment-size", "1MiB"]
    unit.flags += ["--ssd-write-policy", "all"]
    unit.start()
    memory = pages(1)
    keys = [key(i) for i in range(8)]
    with CacheManagerClient(unit.manager.socket, b"i" * 16, name="test") as client:
        registration = register(client, memory)
        publish(client, registration, list(range(8)), keys)
        visible(client, keys)
        assert unit.end(signal.SIGTERM) == 0
        for fd in unit.stored.values():  # systemd drops what it stores
            os.close(fd)
        unit.stored.clear()
        status = unit.start()
        assert status["kept"]["blocks"] == 0 and status["ssd"]["recovered"] == 8
