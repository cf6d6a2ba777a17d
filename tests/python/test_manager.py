"""The Manager's process against what its surroundings do to it."""

import os
import resource
import signal
import socket
import subprocess
import time

import pytest
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


@pytest.mark.parametrize(
    "words, says",
    [
        (["--nonsense"], "no option --nonsense before the command; see orbitkv --help"),
        (["--nonsense=1", "status"], "no option --nonsense before"),
        (["-n"], "no option -n before"),
        (["nonsense"], 'no command is called "nonsense"'),
        ([], "subcommand is required"),
        (["status", "--nonsense"], "--nonsense"),
        (["serve", "--nonsense"], "--nonsense"),
        (["serve", "--pool", "nonsense"], "--pool"),
        (["serve", "--pool-size", "nonsense"], "'nonsense' is not a size"),
        (["serve", "--pool-size", "1KiB"], "at least 1MiB"),
        (["serve", "--lease-ttl", "nonsense"], "--lease-ttl"),
        (["evict", "--bytes", "nonsense"], "'nonsense' is not a size"),
        (["drop"], "name what is to go"),
        (["drop", "--older-than", "1s"], "at least 1m"),
        (["drop", "nonsense"], "no beginning of a digest"),
        (["ssd"], "subcommand is required"),
        (["pool", "add"], "size is required"),
        (["pool", "add", "nonsense"], "'nonsense' is not a size"),
        (["pool", "drain", "nonsense"], "'nonsense' is not a size"),
        (["upgrade", "--binary", "orbitkv"], "absolute path"),
        (["bench"], "name is required"),
        (["bench", "nonsense"], "no bench is called"),
        (["bench", "channel", "--runs", "nonsense"], "--runs"),
        (["bench", "channel", "--device", "nonsense"], "no device is called"),
        (["bench", "ssd", "--file-size", "nonsense"], "--file-size"),
        (["bench", "ssd", "--case", "nonsense"], "no case"),
        (["bench", "eviction"], "name the trace"),
        (["bench", "endurance"], "name the trace"),
        (["bench", "replay"], "name the trace"),
    ],
)
def test_a_wrong_command_line_is_exit_status_2(tmp_path, words, says):
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run([binary(), *words], capture_output=True, text=True, timeout=30, env=environment)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["evict"],
        ["drop", "--dry-run"],
        ["ssd", "list"],
        ["ssd", "drop", "ffffffff"],
        ["pool", "list"],
        ["pool", "add", "1GiB"],
        ["upgrade"],
        ["bench", "eviction", "/dev/zero"],
        ["bench", "endurance", "/no/such/trace"],
        ["bench", "replay", "/no/such/trace"],
    ],
)
def test_what_cannot_be_done_is_exit_status_1(tmp_path, words):
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run([binary(), *words], capture_output=True, text=True, timeout=30, env=environment)
    assert done.returncode == 1 and done.stderr, done.stdout


@pytest.mark.parametrize("words", [["--seeds", "nonsense"], ["--seeds", "0"], ["--jobs", "1000"], ["--nonsense"]])
def test_a_wrong_command_line_of_the_simulator_is_exit_status_2(words):
    program = os.path.join(os.path.dirname(binary()), "orbitkv-sim")
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and words[0] in done.stderr, done.stderr
