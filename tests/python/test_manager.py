"""The Manager's process against what its surroundings do to it."""

import os
import resource
import signal
import socket
import subprocess
import time

from manager_process import ManagerProcess, binary
from orbitkv import CacheManagerClient


def attach(manager):
    client = CacheManagerClient(manager.socket, os.urandom(16))
    client.wait_connected(10)
    return client


def test_clients_that_left_take_no_session():
    """More attach and leave between two ticks than there are sessions."""
    with ManagerProcess() as manager:
        for _ in range(300):
            with CacheManagerClient(manager.socket, os.urandom(16)) as client:
                assert client.health().connected, client.health().message


def test_a_log_that_nobody_reads_any_more_ends_nothing():
    manager = ManagerProcess()
    process = subprocess.Popen(
        [binary(), "serve", "--bootstrap-socket", manager.socket, "--pool-size", "64MiB"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    process.stderr.readline()
    process.stderr.close()
    try:
        for _ in range(3):
            attach(manager).close()  # each writes lines
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_without_descriptors_the_manager_waits_quietly():
    with ManagerProcess() as manager:
        client = attach(manager)
        pid = manager.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        open_now = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_now, before[1]))
        waiting = []
        for _ in range(4):
            waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            waiting[-1].connect(manager.socket)
        time.sleep(1)
        assert client.status()["sessions"]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        attach(manager).close()
        for one in waiting:
            one.close()
        client.close()
        with open(manager.log) as log:
            assert sum("no descriptor left" in line for line in log) == 1


def test_closed_standard_descriptors_do_not_become_others():
    manager = ManagerProcess()
    command = [binary(), "serve", "--bootstrap-socket", manager.socket, "--pool-size", "64MiB"]
    process = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command])
    try:
        deadline = time.monotonic() + 10
        while not os.path.exists(manager.socket) and time.monotonic() < deadline:
            time.sleep(0.01)
        attach(manager).close()
        for fd in range(3):
            assert os.readlink(f"/proc/{process.pid}/fd/{fd}") == "/dev/null"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_socket_that_was_removed_is_made_anew():
    with ManagerProcess() as manager:
        os.remove(manager.socket)
        manager.wait_for(lambda s: s["pool"]["largest_free"] > 0, "the Manager at a new socket")
        assert "was removed; it is made anew" in manager.text()


def test_output_that_cannot_be_written_is_an_error():
    with ManagerProcess() as manager, open("/dev/full", "w") as full:
        ask = [binary(), "status", "--json", "--bootstrap-socket", manager.socket]
        done = subprocess.run(ask, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
        assert done.returncode == 1 and "could not be written" in done.stderr
