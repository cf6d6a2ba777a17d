"""Ctrl-C in a call that waits: it ends, and what is raised is KeyboardInterrupt."""

import signal
import subprocess
import sys

import pytest
from manager_process import ManagerProcess

# The waits are far longer than the test may take. The process ends at once: what it holds is not looked at.
PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
from orbitkv import CacheManagerClient, Group, Layer, PrefixGroup
FOREVER = 3600
signal.signal(signal.SIGINT, signal.default_int_handler)

class Mute:
    def send(self, participant, token, frame):
        pass

    def receive(self, timeout):
        time.sleep(timeout)

def alone():
    group = PrefixGroup([(None, bytes(range(16)), [0])], timeout=FOREVER, carrier=Mute())
    return group, group.begin([b"h" * 32])

def client(**options):
    return CacheManagerClient(sys.argv[1], os.urandom(16), **options)

def saving(found):
    found.wait_connected(30)
    memory = np.zeros((4, 4096), np.uint8)
    registration = found.register("n", 0, 1, "cpu:0", [Layer("l", 0, 0, memory, 4096, 1, 4096)], 4, 16, [Group(0)])
    return lambda: found.save(registration, [(0, range(4), [bytes([b]) * 32 for b in range(4)])])

def interrupted(call):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        found = call()
    except KeyboardInterrupt:
        print("interrupted")
    except BaseException as error:
        print("another:", repr(error))
    else:
        print("returned:", found)
    sys.stdout.flush()
    os._exit(0)
"""


def run(call, socket="/nowhere/orbitkv.sock"):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + call, socket], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "call",
    [
        "found = client()\ninterrupted(lambda: found.wait_connected(FOREVER))",
        "_, claim = alone()\ninterrupted(lambda: claim.poll(FOREVER))",
        "_, claim = alone()\ninterrupted(lambda: claim.wait(FOREVER))",
        "group, claim = alone()\ninterrupted(lambda: group.close())",
    ],
    ids=["wait_connected", "poll", "wait", "close"],
)
def test_a_wait_without_an_answer_is_interrupted(call):
    assert run(call) == "interrupted"


@pytest.fixture
def manager(request):
    made = ManagerProcess(environment={"ORBITKV_FAULT": getattr(request, "param", "")})
    with made:
        yield made
        made.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("manager", ["manager_before_grant:stop:1"], indirect=True)
def test_a_save_of_a_manager_that_stands_still_is_interrupted(manager):
    call = "save = saving(found := client())\nhandle = save()\n"
    assert run(call + "interrupted(lambda: found.wait_save(handle, FOREVER))", manager.socket) == "interrupted"


def test_a_query_that_fails_after_a_signal_raises_what_the_signal_raises(manager):
    """A query has no slices: it ends with the client's timeout, and is an error then."""
    call = "found = client(timeout_ms=2000)\nfound.wait_connected(30)\n"
    call += f"os.kill({manager.process.pid}, signal.SIGSTOP)\n"
    call += "interrupted(lambda: found.query_candidates(os.urandom(16), [b'h' * 32], 'r'))"
    assert run(call, manager.socket) == "interrupted"


def test_a_call_of_another_thread_is_not_ended_by_a_signal_but_the_main_thread_hears_it():
    call = """
_, claim = alone()
threading.Thread(target=lambda: claim.poll(FOREVER), daemon=True).start()
def both():
    while True:
        claim.wait(1)
interrupted(both)
"""
    assert run(call) == "interrupted"
