"""The frames of a group over a Python object: two Python threads, so that the object is called as any is.

Native code never calls Python: the threads fetch and leave frames in a mailbox.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from orbitkv import _core
from orbitkv._arguments import U32, U64, whole

_WAIT = 0.1  # of one receive()
_AT_LEAST = 0.001  # between two that bring nothing of use
_AFTER_ERROR = 0.05
_END = 1.0


class Carrier(Protocol):
    """The engine's own channel to the hosts of a group's participants (docs/tp.md).

    Called by two threads of the group's, one in send() and one in receive(), with no lock of the group held.
    What either raises is a lost frame: it is sent again, and the text stands in the message of a claim that
    ends without an answer. Frames may be lost, doubled, late and out of order.
    """

    def send(self, participant: int, token: int, frame: bytes) -> None:
        """Brings the frame (64 KiB at most) and its token to the host of the participant, which counts from 0 as
        the group was given them. While it runs no other frame goes."""

    def receive(self, timeout: float) -> tuple[int, int, bytes] | None:
        """An answer: (participant, token of the frame that it answers, frame). None: there was none within the
        time, in seconds."""


class Pump:
    def __init__(self, carrier: Carrier, participants: int) -> None:
        if not (callable(getattr(carrier, "send", None)) and callable(getattr(carrier, "receive", None))):
            raise TypeError(f"a carrier has send() and receive(); {type(carrier).__name__} has not")
        self.mailbox = _core.Mailbox(participants)
        self._carrier = carrier
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._send_all, self._receive_all)]

    def start(self, group: _core.PrefixGroup) -> None:
        self.process = os.getpid()
        self.group = weakref.ref(group)  # whoever drops it ends it, and with it the threads
        _running.add(self)
        for thread in self._threads:
            thread.start()

    def end(self, deadline: float | None = None) -> None:
        """Call after the group has ended. Waits for calls of the carrier that run: until the deadline, or 1 s."""
        self.mailbox.stop()
        deadline = deadline or time.monotonic() + _END
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _send_all(self) -> None:
        self.mailbox.brought_by_me()
        while not self.mailbox.stopped():
            worked, parcel = self._guarded("send", self._take)
            if not worked:
                time.sleep(_AFTER_ERROR)
            elif parcel is not None:
                self._guarded("send", partial(self._send, parcel), parcel[0])

    def _receive_all(self) -> None:
        self.mailbox.brought_by_me()
        while not self.mailbox.stopped():
            asked = time.monotonic()
            worked, arrival = self._guarded("receive", self._receive)
            left = worked and arrival is not None
            if left:
                left, _ = self._guarded("what receive returned", partial(self._leave, arrival))
            if not worked:
                time.sleep(_AFTER_ERROR)
            elif not left and time.monotonic() - asked < _AT_LEAST:
                time.sleep(_AT_LEAST)

    def _take(self) -> tuple[int, int, bytes] | None:
        return self.mailbox.take(int(_WAIT * 1000))

    def _send(self, parcel: tuple[int, int, bytes]) -> None:
        self._carrier.send(*parcel)

    def _receive(self) -> Any:
        return self._carrier.receive(_WAIT)

    def _leave(self, arrival: Any) -> None:
        participant, token, frame = arrival
        if not isinstance(frame, bytes | bytearray | memoryview):
            raise TypeError(f"a frame is bytes, not {type(frame).__name__}")
        self.mailbox.arrived(whole("participant", participant, U32), whole("token", token, U64), bytes(frame))

    def _guarded(self, what: str, call: Callable[[], Any], participant: int | None = None) -> tuple[bool, Any]:
        try:
            return True, call()
        except BaseException as error:  # whatever it is, the next frame may get through
            self.mailbox.hindered(f"{what}: {_text(error)}", participant)
            return False, None


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode()
    except BaseException:  # its own __str__
        return type(error).__name__


_running: weakref.WeakSet[Pump] = weakref.WeakSet()


# Before the interpreter ends: no thread may come back into it then. What groups hold is given back first.
@atexit.register
def _end_all() -> None:
    pumps = [pump for pump in _running if pump.process == os.getpid()]  # a forked child ends nobody's group
    groups = [group for pump in pumps if (group := pump.group()) is not None]
    for group in groups:
        group.stop()
    deadline = time.monotonic() + _END
    for group in groups:
        with suppress(BaseException):  # where a carrier ends the process; a Ctrl-C, which must not leave the rest
            group.close(int(max(0.0, deadline - time.monotonic()) * 1000))
    del groups
    for pump in pumps:
        pump.mailbox.stop()
    deadline = time.monotonic() + _END
    for pump in pumps:
        pump.end(deadline)
