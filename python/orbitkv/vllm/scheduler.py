"""Scheduler side: looks blocks up, leases them, decides what a step loads and publishes.

Runs on the engine's only scheduling thread: one short call to the Manager per lookup,
no waiting for bytes. State is one record a request and one a save job in flight.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from orbitkv.errors import OrbitKVError
from orbitkv.values import QueryLoading
from orbitkv.vllm import loading
from orbitkv.vllm.availability import Availability
from orbitkv.vllm.generation import PrefixGeneration
from orbitkv.vllm.metadata import NOTHING, LayerLoads, LoadTask, SaveTask, StepTasks, WorkerReport

logger = logging.getLogger("vllm.orbitkv")

_LOOKUP_FRESH_S = 0.25  # a repeated lookup asks the Manager again after this
_LOADING_FRESH_S = 0.001  # one whose blocks are on their way from SSD: an idle engine asks in a loop
_ALONE_S = 0.002  # AUTO: a request runs ahead if no other one with a hit comes within this time
_PIN_WAIT_S = 1.0  # the scheduler waits this long for pins before it preempts
_PIN_SHARE = 0.5  # of the engine's blocks; more is not published


@dataclass
class Lookup:
    """The answer for blocks [first, total) of a request; the lease is ours."""

    first: int
    total: int
    blocks: int
    lease: bytes
    asked: float
    since: float  # when it was first answered so
    loading: bool = False  # no lease yet
    layered: bool = False  # offered for the step itself


@dataclass
class RequestState:
    request: Any
    hashes: Any = None  # of the client, covers len(hashes) blocks
    lookup: Lookup | None = None
    loading: range | None = None  # positions under load
    refused: set[bytes] = field(default_factory=set)  # keys that failed for this request


@dataclass
class Pin:
    """Blocks that workers copy from, held by reference count."""

    blocks: list[Any]
    workers: int
    since: float


class SchedulerSide:
    def __init__(
        self,
        client: Any,
        *,
        block_tokens: int,
        workers: int = 1,
        read: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._block_tokens = block_tokens
        self._workers = workers
        self._read = read
        self._write = True
        self._clock = clock
        self._availability = Availability(clock, "cached prefixes are computed again and nothing is published")
        self._requests: dict[str, RequestState] = {}
        self._load = loading.ASYNC
        self._loads: list[LoadTask] = []
        self._layered: list[LoadTask] = []
        self._parts = 0  # of the layered
        self._awaited: set[str] = set()  # requests that wait for an asynchronous load
        self._jobs: dict[int, list[str]] = {}  # layer-ready loads without a verdict -> requests
        self._failures = 0  # failed verdicts
        self._served: Any = ()  # request ids of the last step
        self._generating: bool | None = None  # one of them is; None: not looked yet
        self._late: dict[str, int] = {}  # request -> first block that was filled before it had a hash
        self._pins: dict[int, Pin] = {}
        self._pinned_blocks = 0
        self._next_job = 1
        self._pool: Any = None
        self._check_hashes: Callable[[], str | None] | None = None
        self._generation = PrefixGeneration()

    def bind_pool(self, pool: Any) -> None:
        self._pool = pool

    def check_hashes_with(self, check: Callable[[], str | None]) -> None:
        """`check` runs before the first lookup and says why blocks would be misnamed."""
        self._check_hashes = check

    def load_with(self, how: str) -> None:
        """loading.ASYNC (as it begins), LAYERS or AUTO."""
        self._load = how

    # ---- lookup ----

    def matched_tokens(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """Tokens beyond `computed` that a load can bring; None: to be asked again for the
        next step. Repeating it changes nothing."""
        state = self._state(request)
        state.request = request
        if not self._may_read(request) or state.loading is not None:
            return 0, False
        first = computed // self._block_tokens
        total = self._offerable(state, first)
        # The last token is computed in any case: its block alone is not worth a load.
        useful = min(total, (request.num_tokens - 1) // self._block_tokens)
        if useful <= first:
            self._release(state)
            return 0, False
        lookup = self._look_up(state, first, total)
        if lookup is None or lookup.blocks == 0:
            return 0, False
        if lookup.loading:
            return None, False
        parts = loading.parts(lookup.blocks)
        lookup.layered = parts <= loading.PARTS_A_STEP and self._runs_ahead()
        if lookup.layered and self._load == loading.AUTO:
            lookup.layered = not self._in_a_burst(state)
            if lookup.layered and self._clock() - lookup.since < _ALONE_S:
                return None, False
        if lookup.layered and self._parts + parts > loading.PARTS_A_STEP:
            return None, False
        # The step of a layer-ready load has to compute that token itself.
        blocks = min(lookup.blocks, useful - first) if lookup.layered else lookup.blocks
        return blocks * self._block_tokens, not lookup.layered

    def _runs_ahead(self) -> bool:
        """A step that waits for pages holds up every request in it, and loads that began
        earlier come first: in AUTO a load runs ahead unless it would hold up a request that
        is generating already."""
        if self._load != loading.AUTO:
            return self._load == loading.LAYERS
        if self._awaited:
            return False
        if self._generating is None:  # the answer holds until the step is made
            states = (self._requests.get(req_id) for req_id in self._served)
            self._generating = any(state is not None and _generates(state.request) for state in states)
        return not self._generating

    def _in_a_burst(self, state: RequestState) -> bool:
        """What the engine does for each request of a burst goes on beside copies only if they
        are not awaited in a step."""
        return bool(self._layered) or any(
            other is not state and other.lookup is not None and other.lookup.blocks
            for other in self._requests.values()
        )

    def _may_read(self, request: Any) -> bool:
        if self._check_hashes is not None:
            problem, self._check_hashes = self._check_hashes(), None
            if problem:
                logger.warning("OrbitKV is off for this engine: %s", problem)
                self._read = self._write = False
        parameters = getattr(request, "kv_transfer_params", None) or {}
        return (
            self._read
            and not getattr(request, "skip_reading_prefix_cache", False)
            and not parameters.get("do_remote_prefill")
        )

    def _offerable(self, state: RequestState, first: int) -> int:
        """End of the run from `first` without a key that failed for this request."""
        hashes = state.request.block_hashes
        total = min(len(hashes), state.request.num_tokens // self._block_tokens)
        if state.refused:
            for position in range(first, total):
                if hashes[position] in state.refused:
                    return position
        return total

    def _look_up(self, state: RequestState, first: int, total: int) -> Lookup | None:
        now = self._clock()
        held = state.lookup
        if held is not None:
            same = (held.first, held.total) == (first, total)
            if same and now - held.asked < (_LOADING_FRESH_S if held.loading else _LOOKUP_FRESH_S):
                return held
            if not same:
                self._release(state)
        if not self._availability.may_try():
            return None
        if state.hashes is None or len(state.hashes) < total:
            state.hashes = self._client.hashes(self._generation.keys(state.request.block_hashes))
        try:
            answer = self._client.query_prefetch(
                self._client.instance_id, state.hashes[first:total], state.request.request_id
            )
        except OrbitKVError as error:
            self._availability.failed(error)
            state.lookup = None
            return None
        self._availability.worked()
        on_its_way = isinstance(answer, QueryLoading)
        lease = b"" if on_its_way else answer.lease
        again = state.lookup is not None and not state.lookup.loading
        since = state.lookup.since if again else now
        state.lookup = Lookup(first, total, answer.hit_blocks, lease, now, since, on_its_way)
        return state.lookup

    def _release(self, state: RequestState) -> None:
        lookup, state.lookup = state.lookup, None
        if lookup is None or not lookup.blocks or not self._availability.may_try():
            return  # a lease that nobody gives back ends by its time or with the session
        try:
            if lookup.loading:
                self._client.cancel_query(self._client.instance_id, state.request.request_id)
            else:
                self._client.release(lookup.lease)
        except OrbitKVError as error:
            logger.debug("OrbitKV: a lease was not released: %s", error)

    # ---- loads ----

    def allocated(self, request: Any, block_ids: list[int], external_tokens: int) -> None:
        """Blocks were allocated; with external_tokens > 0 some of them are to be loaded."""
        state = self._state(request)
        state.request = request
        if _generates(request):  # preempted, and in this very step again
            self._generating = True
        if external_tokens == 0:
            self._release(state)
            return
        lookup, state.lookup = state.lookup, None
        if lookup is None:  # cannot be, but an assertion would end the engine
            logger.error("OrbitKV: %s is to load without a lookup; it is computed", request.request_id)
            lookup = Lookup(0, 0, external_tokens // self._block_tokens, bytes(16), 0.0, 0.0)
        count = external_tokens // self._block_tokens
        targets: list[int | None] = list(block_ids[lookup.first : lookup.first + count])
        targets += [None] * (lookup.blocks - len(targets))
        state.loading = range(lookup.first, lookup.first + count)
        task = LoadTask(request.request_id, lookup.lease, tuple(targets))
        if lookup.layered:
            self._layered.append(task)
            self._parts += loading.parts(len(targets))
        else:
            self._loads.append(task)
            self._awaited.add(request.request_id)

    # ---- the step ----

    def step_tasks(self, output: Any) -> StepTasks:
        self._served, self._generating = output.num_scheduled_tokens, None
        saves = self._saves(output) if self._write else ()
        if not (saves or self._loads or self._layered):
            return NOTHING
        loads, self._loads = tuple(self._loads), []
        return StepTasks(loads, saves, self._layer_loads(), self._failures)

    def _layer_loads(self) -> LayerLoads | None:
        if not self._layered:
            return None
        tasks, self._layered, self._parts = tuple(self._layered), [], 0
        job = self._new_job()
        self._jobs[job] = [task.req_id for task in tasks]
        return LayerLoads(job, tasks)

    def _saves(self, output: Any) -> tuple[SaveTask, ...]:
        blocks: dict[bytes, int] = {}
        for req_id, computed, count in self._filling(output):
            state = self._requests.get(req_id)
            if state is None:
                continue
            filled = (computed + count) // self._block_tokens
            first = min(self._late.pop(req_id, filled), computed // self._block_tokens)
            end = min(filled, len(state.request.block_hashes))
            if end < filled:  # its tokens are still on the device; the next step knows them
                self._late[req_id] = max(first, end)
            tables = output.kv_connector_block_state.get_block_ids(req_id) if first < end else None
            if tables is None:
                continue
            for position in range(first, min(end, len(tables[0]))):
                if tables[0][position] != 0:
                    blocks.setdefault(state.request.block_hashes[position], tables[0][position])
        room = self._room()
        blocks = dict(list(blocks.items())[:room]) if len(blocks) > room else blocks
        return (self._pin(blocks),) if blocks else ()

    def _filling(self, output: Any) -> Iterator[tuple[str, int, int]]:
        """(request id, tokens before this step, tokens in it) of requests that fill a block,
        or filled one whose hash was not known then. Every step pays for this loop."""
        size, counts, late = self._block_tokens, output.num_scheduled_tokens, self._late
        for new in output.scheduled_new_reqs:
            yield new.req_id, new.num_computed_tokens, counts.get(new.req_id, 0)
        cached = output.scheduled_cached_reqs
        for req_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            count = counts.get(req_id, 0)
            if computed % size + count >= size or req_id in late:
                yield req_id, computed, count

    def _room(self) -> int:
        """Blocks that may still be pinned; what is beyond is not published."""
        if self._pool is None:
            return 0
        return max(0, int(_PIN_SHARE * len(self._pool.blocks)) - self._pinned_blocks)

    def _pin(self, blocks: dict[bytes, int]) -> SaveTask:
        """A reference each, so that preemption, abort and finish leave the bytes alone."""
        job = self._new_job()
        held = [self._pool.blocks[block] for block in blocks.values()]
        self._pool.touch(held)
        self._pins[job] = Pin(held, self._workers, self._clock())
        self._pinned_blocks += len(held)
        return SaveTask(job, tuple(blocks.values()), b"".join(self._generation.keys(blocks)))

    def _new_job(self) -> int:
        job, self._next_job = self._next_job, self._next_job + 1
        return job

    # ---- results ----

    def worker_output(self, output: Any) -> None:
        report = getattr(output, "kv_connector_worker_meta", None)
        if isinstance(report, WorkerReport):
            for job, workers in report.released.items():
                self._unpin(job, workers)
            for job, good in report.verdicts.items():
                self._judged(job, good)
        failed = getattr(output, "failed_recving", None) or ()
        for req_id in getattr(output, "finished_recving", None) or ():
            self._awaited.discard(req_id)
            state = self._requests.get(req_id)
            if state is None or state.loading is None:
                continue
            self._loaded(state, req_id not in failed)

    def _loaded(self, state: RequestState, good: bool) -> None:
        if not good:
            state.refused.update(state.request.block_hashes[p] for p in state.loading)
        state.loading = None

    def _judged(self, job: int, good: bool) -> None:
        """The verdict on the loads of a step. The engine has taken back the requests that it
        found running. Others (aborted ones) may have left cached blocks that were computed
        on bad pages, so after a failure its whole prefix cache goes."""
        for req_id in self._jobs.pop(job, ()):
            state = self._requests.get(req_id)
            if state is not None and state.loading is not None:
                self._loaded(state, good)
        if not good:
            self._failures += 1
            self._pool.evict_blocks(set(range(len(self._pool.blocks))))

    def _unpin(self, job: int, workers: int) -> None:
        pin = self._pins.get(job)
        if pin is None:
            return
        pin.workers -= workers
        if pin.workers > 0:
            return
        del self._pins[job]
        self._pinned_blocks -= len(pin.blocks)
        self._pool.free_blocks(reversed(pin.blocks))  # the prefix is evicted last

    def frees_soon(self) -> bool:
        """Blocks that only we hold come free by themselves: waiting beats preempting. And a
        step that waits for its verdict must be taken back as it was scheduled."""
        if self._jobs:
            return True
        oldest = self._clock() - _PIN_WAIT_S
        return any(
            block.ref_cnt == 1 for pin in self._pins.values() if pin.since > oldest for block in pin.blocks
        )

    def has_open_saves(self) -> bool:
        return bool(self._pins)

    # ---- end of life ----

    def finished(self, req_id: str) -> None:
        state = self._requests.pop(req_id, None)
        self._late.pop(req_id, None)
        self._generating = None
        if state is not None:
            self._release(state)

    def reset(self) -> bool:
        """What is stored must not be used any more (the weights changed under their name): from
        now on under keys of a fresh generation. Only an idle engine; False: it is not."""
        busy = self._work_under_way()
        if busy:
            logger.warning("OrbitKV: the connector cache is not reset: %s; try again when the engine is idle", busy)
            return False
        for state in self._requests.values():
            self._release(state)
            state.hashes = None
            state.refused.clear()
        self._late.clear()
        logger.info(
            "OrbitKV: reset to prefix generation %d: this engine finds nothing that was stored before, other "
            "engines are not affected. A restarted engine begins with generation 0 again: give changed weights "
            "another fingerprint or cache scope.",
            self._generation.advance(),
        )
        return True

    def _work_under_way(self) -> str:
        """What holds pages, or bytes that were computed before: empty if nothing does."""
        computed = sum(
            1
            for state in self._requests.values()
            if state.loading is not None or getattr(state.request, "num_computed_tokens", 0) > 0
        )
        counts = {
            "requests with computed or loading blocks": computed,
            "saves": len(self._pins),
            "loads": len(self._loads) + len(self._layered) + len(self._jobs) + len(self._awaited),
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)

    def close(self) -> None:
        """Nothing is looked up or published any more. The engine may keep this object until
        the interpreter is gone; the native client must not last as long."""
        if self._client is None:
            return
        self._read = self._write = False
        self._client.close()
        self._client = None
        self._requests.clear()

    def _state(self, request: Any) -> RequestState:
        state = self._requests.get(request.request_id)
        if state is None:
            state = self._requests[request.request_id] = RequestState(request)
        return state


def _generates(request: Any) -> bool:
    """With the first token, come or on its way, a request does not count yet: who arrives
    while the step of that token runs belongs to the same burst. So a load holds each request
    up once at most."""
    return request.num_output_tokens + request.num_output_placeholders > 1
