"""Worker side of layer-ready loads: one restore feeds the layers of one step.

begin() before the forward, wait() in every layer, settle() after the forward and before
anything of the step leaves the worker. Events order, the verdict decides: settle()
returns only when the restore is done, so no page is under a copy after it. A failed
verdict makes every destination block of the step bad; the engine takes the step back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from orbitkv.errors import OrbitKVError
from orbitkv.vllm.metadata import LayerLoads, LoadTask

logger = logging.getLogger("vllm.orbitkv")

_PATIENCE_S = 10.0  # with a copy, before it is complained about


@dataclass
class Open:
    """The restores of the running step."""

    job: int
    blocks: set[int]
    handles: list[Any] = field(default_factory=list)
    unread: set[str] | None = None  # layers whose hook has not come yet; None: nobody waits per layer
    enqueued: bool = False
    problem: str = ""


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
        blocks = {block for load in task.loads for block in load.blocks if block is not None}
        self._open = Open(task.job, blocks)
        if not self._pages.streams:
            self._one_by_one(task.loads)
            return
        try:
            self._open.handles.append(self._start(task.loads, self._pages.layer_events(self._names)))
        except OrbitKVError as error:
            logger.debug("OrbitKV: loads of one step are tried one by one: %s", error)
            self._one_by_one(task.loads)
            return
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
            try:
                handle = self._start([load])
            except OrbitKVError as error:
                self._open.problem = str(error)
                continue
            self._open.handles.append(handle)
            self._drain(handle)

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
                self._client.wait_restore_enqueued(opened.handles[0], _PATIENCE_S)
                opened.enqueued = True
            except OrbitKVError as error:
                opened.problem = str(error)
        return opened.enqueued

    # ---- after the forward ----

    def settle(self) -> tuple[int, set[int], str] | None:
        """(job, bad blocks, why) once all copies of the step have ended; None: no loads."""
        opened, self._open = self._open, None
        if opened is None:
            return None
        for handle in opened.handles:
            status = self._drain(handle)
            self._client.forget(handle)
            if not status.success:
                opened.problem = opened.problem or status.message
        if opened.unread and not opened.problem:
            self._hooks_come = False
            opened.problem = (
                f"layer {sorted(opened.unread)[0]} read its pages without waiting for them; "
                "from now on steps wait for all layers first"
            )
        return opened.job, opened.blocks if opened.problem else set(), opened.problem

    def _drain(self, handle: Any) -> Any:
        """Until the operation is done: its pages are lent, so nothing else would be safe."""
        while not (status := self._client.wait_restore(handle, _PATIENCE_S)).done:
            logger.warning("OrbitKV: a restore does not end; the step has waited for it for %d s", _PATIENCE_S)
        return status
