"""Worker side of layer-ready loads: one restore feeds the layers of one step.

begin() before the forward, wait() in every layer, settle() after the forward and before
anything of the step leaves the worker. Events order, the verdict decides: settle()
returns only when the restore is done, so no page is under a copy after it. A failed
restore makes all its destination blocks bad, which are those of the step unless its loads
had to be started one by one; the engine takes back the requests that read them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from orbitkv.errors import OrbitKVError, RetryLaterError
from orbitkv.vllm.metadata import LayerLoads, LoadTask

logger = logging.getLogger("vllm.orbitkv")

_PATIENCE_S = 10.0  # with a copy, before it is complained about
_ROOM_WITHIN_S = 1.0  # others' restores end within this, or the load fails
_ROOM_PAUSE_S = 0.0005


@dataclass
class Open:
    """The restores of the running step."""

    job: int
    blocks: set[int]
    restores: list[tuple[Any, set[int]]] = field(default_factory=list)  # handle, destinations
    unread: set[str] | None = None  # layers whose hook has not come yet; None: nobody waits per layer
    enqueued: bool = False
    bad: set[int] = field(default_factory=set)
    problem: str = ""

    def fail(self, blocks: set[int], problem: str) -> None:
        self.bad |= blocks
        self.problem = self.problem or problem


class LayerLoader:
    def __init__(self, client: Any, pages: Any, registration: Any, names: Sequence[str]) -> None:
        self._client = client
        self._pages = pages
        self._registration = registration
        self._names = list(dict.fromkeys(names))
        self._hooks_come = True
        self._open: Open | None = None

    @property
    def active(self) -> bool:
        """Whether layers of the running step have to wait."""
        return self._open is not None and self._open.unread is not None

    # ---- before the forward ----

    def begin(self, task: LayerLoads, hooked: bool) -> None:
        """hooked: the forward calls wait() in every layer; if not, it starts behind all."""
        blocks = _destinations(task.loads)
        self._open = Open(task.job, blocks)
        if not self._pages.streams:
            self._one_by_one(task.loads)
            return
        try:
            handle = self._start(task.loads, self._pages.layer_events(self._names))
        except OrbitKVError as error:
            logger.debug("OrbitKV: loads of one step are tried one by one: %s", error)
            self._one_by_one(task.loads)
            return
        self._open.restores.append((handle, blocks))
        if hooked and self._hooks_come:
            self._open.unread = set(self._names)
        elif self._enqueued():
            for name in self._names:
                self._pages.wait(name)

    def _start(self, loads: Sequence[LoadTask], events: Sequence[tuple[str, int]] = ()) -> Any:
        options = {"layer_events": events} if events else {}
        parts = [(load.lease, [load.blocks]) for load in loads]
        return self._client.start_restore(self._registration, parts, **self._pages.order(), **options)

    def _one_by_one(self, loads: Sequence[LoadTask]) -> None:
        """Whole before the forward: without streams, or because one of them is refused."""
        for load in loads:
            blocks = _destinations([load])
            try:
                handle = self._start_once_admitted(load)
            except OrbitKVError as error:
                self._open.fail(blocks, str(error))
                continue
            self._open.restores.append((handle, blocks))
            self._drain(handle)

    def _start_once_admitted(self, load: LoadTask) -> Any:
        deadline = time.monotonic() + _ROOM_WITHIN_S
        while True:
            try:
                return self._start([load])
            except RetryLaterError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_ROOM_PAUSE_S)

    # ---- in the forward ----

    def wait(self, name: str) -> None:
        opened = self._open
        if opened is None or opened.unread is None or not self._enqueued():
            return
        if name in opened.unread:
            opened.unread.discard(name)
            self._pages.wait(name)

    def _enqueued(self) -> bool:
        """Whether the events of this step have been recorded; only then may a stream wait."""
        opened = self._open
        if not opened.enqueued and not opened.problem:
            try:
                self._client.wait_restore_enqueued(opened.restores[0][0], _PATIENCE_S)
                opened.enqueued = True
            except OrbitKVError as error:
                opened.fail(opened.blocks, str(error))
        return opened.enqueued

    # ---- after the forward ----

    def settle(self) -> tuple[int, set[int], str] | None:
        """(job, bad blocks, why) once all copies of the step have ended; None: no loads."""
        opened, self._open = self._open, None
        if opened is None:
            return None
        for handle, blocks in opened.restores:
            status = self._drain(handle)
            self._client.forget(handle)
            if not status.success:
                opened.fail(blocks, status.message)
        if opened.unread and not opened.problem:
            self._hooks_come = False
            opened.fail(
                opened.blocks,
                f"layer {sorted(opened.unread)[0]} read its pages without waiting for them; "
                "from now on steps wait for all layers first",
            )
        return opened.job, opened.bad, opened.problem

    def _drain(self, handle: Any) -> Any:
        """Until the operation is done: its pages are lent, so nothing else would be safe."""
        while not (status := self._client.wait_restore(handle, _PATIENCE_S)).done:
            logger.warning("OrbitKV: a restore does not end; the step has waited for it for %d s", _PATIENCE_S)
        return status


def _destinations(loads: Sequence[LoadTask]) -> set[int]:
    return {block for load in loads for block in load.blocks if block is not None}
