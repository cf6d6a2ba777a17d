"""When to leave the Manager alone, and what to say about it: one warning when it goes
away or refuses, one line when it answers again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from orbitkv.errors import Action, OrbitKVError

logger = logging.getLogger("vllm.orbitkv")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


class Availability:
    """After a failure calls pause, longer each time, so that no step waits for a Manager
    that does not answer. The client reconnects by itself meanwhile."""

    def __init__(self, clock: Callable[[], float], consequence: str, quiet: bool = False) -> None:
        self._clock = clock
        self._consequence = consequence
        self._quiet = quiet
        self._until = 0.0
        self._pause = 0.0
        self._said = False

    def may_try(self) -> bool:
        return self._clock() >= self._until

    def failed(self, error: OrbitKVError) -> None:
        if error.action in (Action.RECONNECT, Action.RETRY):
            self._pause = min(max(self._pause * 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            self._until = self._clock() + self._pause
        if not self._said:
            self._said = True
            level = logging.DEBUG if self._quiet else logging.WARNING
            logger.log(level, "OrbitKV: %s. The engine serves on; %s.", error, self._consequence)

    def worked(self) -> None:
        if self._said:
            self._said = False
            level = logging.DEBUG if self._quiet else logging.INFO
            logger.log(level, "OrbitKV: the Manager answers again.")
        self._pause = self._until = 0.0
