"""Exceptions of the client. Each says by its type what the caller should do."""

from __future__ import annotations

import enum


class Action(enum.IntEnum):
    """What to do about a failure; the numbers are those of the native client."""

    NONE = 0
    RETRY = 1
    RECOMPUTE = 2
    RECONNECT = 3
    REJECT = 4
    BUG = 5


class OrbitKVError(RuntimeError):
    """Base of all failures that the client reports."""

    action = Action.BUG


class RetryLaterError(OrbitKVError):
    """A stated limit is reached: try again later."""

    action = Action.RETRY


class RecomputeError(OrbitKVError):
    """The bytes are not to be had: compute them."""

    action = Action.RECOMPUTE


class ManagerUnavailableError(OrbitKVError):
    """No session stands. The client reconnects by itself; go on without it."""

    action = Action.RECONNECT


class RejectedError(OrbitKVError):
    """The input is wrong and stays wrong: correct the call."""

    action = Action.REJECT


class BugError(OrbitKVError):
    """An invariant of OrbitKV broke: report the text."""

    action = Action.BUG


class SaveNotSubmittedError(OrbitKVError):
    """Nothing was sent and no page is lent. `action` is that of the cause."""

    def __init__(self, message: str, action: Action = Action.BUG) -> None:
        super().__init__(message)
        self.action = action


_BY_ACTION = {
    kind.action: kind
    for kind in (RetryLaterError, RecomputeError, ManagerUnavailableError, RejectedError, BugError)
}


def from_outcome(action: int, message: str) -> OrbitKVError:
    """The exception for a failing outcome of the native client."""
    kind = _BY_ACTION.get(Action(action) if action in Action._value2member_map_ else Action.BUG, BugError)
    return kind(message)
