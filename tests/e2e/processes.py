"""Finding, killing and reaping the processes of an engine."""

import ctypes
import os
import signal
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def _prctl(option, value):
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def adopt_orphans():
    """Grandchildren whose parent died become ours, so that they can be seen gone."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent):
    """This process is killed when `parent` ends, whatever it is doing then."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _parent_and_state(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[1]), fields[0]


def name(pid):
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


def descendants(root):
    """Of `root`, without it, parents first."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                children.setdefault(_parent_and_state(entry)[0], []).append(int(entry))
            except (FileNotFoundError, ProcessLookupError):
                pass
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found[1:]


def is_gone(pid):
    try:
        return _parent_and_state(pid)[1] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def kill_all(pids, seconds=20):
    """SIGKILL by pid; returns when all of them are seen gone."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    deadline = time.monotonic() + seconds
    while not all(is_gone(pid) for pid in pids):
        if time.monotonic() > deadline:
            raise RuntimeError(f"still there after SIGKILL: {[p for p in pids if not is_gone(p)]}")
        time.sleep(0.005)
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass  # its parent's to reap
