"""Worker side: registers the pages, submits loads and saves, reports what ended.

Submitting is all that a step pays for; copies run on the client's executor without the
GIL. Nothing here raises for trouble with the Manager: a load fails (and is computed), a
save is given up (and is a miss later).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from orbitkv.errors import OrbitKVError, RetryLaterError
from orbitkv.vllm.availability import Availability
from orbitkv.vllm.device import HostPages
from orbitkv.vllm.layers import LayerLoader
from orbitkv.vllm.metadata import LayerLoads, LoadTask, SaveTask, WorkerReport

logger = logging.getLogger("vllm.orbitkv")


@dataclass(frozen=True)
class RankSpec:
    """What register() needs, kept for a Manager that comes later."""

    namespace: str
    rank: int
    world_size: int
    pages: Any  # device.HostPages or device.CudaPages
    layers: list[Any]
    num_blocks: int
    block_tokens: int
    groups: list[Any]


class WorkerSide:
    def __init__(self, client: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        # The scheduler side speaks for both about an absent Manager.
        self._availability = Availability(clock, "pages are not shared", quiet=True)
        self._spec: RankSpec | None = None
        self._registration: Any = None
        self._waiting: deque[LoadTask] = deque()  # until the Manager admits them
        self._loads: dict[str, Any] = {}  # request -> handle
        self._saves: dict[int, Any] = {}  # job -> handle
        self._failed: set[str] = set()  # loads that never started
        self._released: set[int] = set()  # jobs that never started
        self._verdicts: dict[int, bool] = {}  # of layer-ready loads, not reported yet
        self._bad_blocks: set[int] = set()
        self._failures = 0  # failed verdicts
        self._said: set[str] = set()
        self.pages: Any = HostPages()
        self.layers: LayerLoader | None = None  # once registered

    def register(self, spec: RankSpec) -> None:
        self._spec = spec
        self.pages = spec.pages
        self._ready()

    def _ready(self) -> bool:
        """True once the pages are registered; tries again after a pause if not."""
        if self._registration is not None:
            return True
        if self._spec is None or not self._availability.may_try():
            return False
        spec = self._spec
        try:
            self._registration = self._client.register(
                spec.namespace, spec.rank, spec.world_size, spec.pages.name,
                spec.layers, spec.num_blocks, spec.block_tokens, spec.groups,
            )  # fmt: skip
        except OrbitKVError as error:
            self._trouble("the pages are not registered", error)
            return False
        self._availability.worked()
        names = [layer.name for layer in spec.layers]
        self.layers = LayerLoader(self._client, spec.pages, self._registration, names)
        return True

    # ---- submit ----

    def start_loads(self, tasks: Iterable[LoadTask]) -> None:
        self._waiting.extend(tasks)
        self._start_waiting()

    def _start_waiting(self) -> None:
        """The Manager admits a bounded number of restores: the rest waits for one to end."""
        while self._waiting:
            task = self._waiting[0]
            try:
                handle = self._start_load(task)
            except RetryLaterError:
                return
            self._waiting.popleft()
            if handle is None:
                self._failed.add(task.req_id)
            else:
                self._loads[task.req_id] = handle

    def _start_load(self, task: LoadTask) -> Any:
        if not self._ready() or not self._availability.may_try():
            return None
        try:
            handle = self._client.start_restore(
                self._registration, [(task.lease, [task.blocks])], **self.pages.order()
            )
        except OrbitKVError as error:
            if isinstance(error, RetryLaterError) and self._loads:
                raise
            self._trouble("a load was not started", error)
            return None
        self._availability.worked()
        return handle

    def start_layered(self, task: LayerLoads, hooked: bool) -> None:
        """Before the forward whose layers wait for them."""
        if self._ready():
            self.layers.begin(task, hooked)
        else:
            blocks = {block for load in task.loads for block in load.blocks if block is not None}
            self._judge(task.job, blocks, "the pages are not registered")

    def settle_layered(self) -> None:
        """After the forward: holds the step until its verdict is known."""
        if self.layers is not None and (verdict := self.layers.settle()) is not None:
            self._judge(*verdict)

    def _judge(self, job: int, bad_blocks: set[int], problem: str) -> None:
        self._verdicts[job] = not problem
        if problem:
            self._failures += 1
            self._bad_blocks |= bad_blocks
            self._say("OrbitKV: a load failed; the step that used it is taken back: %s", problem)

    def start_saves(self, tasks: Iterable[SaveTask], known_failures: int = 0) -> None:
        """Steps that were scheduled before the scheduler knew of a failed verdict may have
        computed on its pages: they publish nothing."""
        for task in tasks:
            handle = self._start_save(task) if self._failures == known_failures else None
            if handle is None:
                self._released.add(task.job)
            else:
                self._saves[task.job] = handle

    def _start_save(self, task: SaveTask) -> Any:
        if not self._ready() or not self._availability.may_try():
            return None
        try:
            groups = [(0, task.blocks, self._client.hashes(task.hashes))]
            handle = self._client.save(self._registration, groups, **self.pages.order())
        except OrbitKVError as error:
            self._trouble("a save was not submitted", error)
            return None
        self._availability.worked()
        return handle

    # ---- report ----

    def ended_loads(self) -> tuple[set[str], set[str]]:
        """(ended, failed among them), each request once."""
        ended, failed = set(self._failed), self._failed
        self._failed = set()
        for req_id, handle in list(self._loads.items()):
            status = self._client.poll_restore(handle)
            if not status.done:
                continue
            del self._loads[req_id]
            self._client.forget(handle)
            ended.add(req_id)
            if not status.success:
                failed.add(req_id)
                self._say("OrbitKV: a load failed and is computed instead: %s", status.message)
        self._start_waiting()
        return ended, failed

    def bad_blocks(self) -> set[int]:
        """Destinations of failed layer-ready loads, once, in the step that read them."""
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def report(self) -> WorkerReport | None:
        verdicts, self._verdicts = self._verdicts, {}
        released, self._released = self._released, set()
        for job, handle in list(self._saves.items()):
            status = self._client.poll_save(handle)
            if not status.done:
                continue
            del self._saves[job]
            self._client.forget(handle)
            released.add(job)
            if not status.success:
                self._say("OrbitKV: pages were not published: %s", status.message)
        return WorkerReport(dict.fromkeys(released, 1), verdicts) if released or verdicts else None

    def close(self) -> None:
        """Loads and saves fail from here on. The engine may keep this object until the
        interpreter is gone; the native client must not last as long."""
        if self._client is None:
            return
        self._client.close()
        self._client = self._spec = self._registration = self.layers = None
        self._loads.clear()
        self._saves.clear()

    def _trouble(self, what: str, error: OrbitKVError) -> None:
        self._availability.failed(error)
        logger.debug("OrbitKV: %s: %s", what, error)

    def _say(self, text: str, message: str) -> None:
        """Each message once, a bounded number of them; the Manager counts them all."""
        if message not in self._said and len(self._said) < 32:
            self._said.add(message)
            logger.warning(text, message)
