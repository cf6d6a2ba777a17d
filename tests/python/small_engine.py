"""Just enough of an engine to drive both sides of the connector, with vLLM's own block
pool: requests, one step at a time, and what the scheduler does with the results."""

import hashlib
from types import SimpleNamespace

import numpy as np
from orbitkv import Group, Layer
from orbitkv.vllm.device import CudaPages, HostPages
from orbitkv.vllm.scheduler import SchedulerSide
from orbitkv.vllm.worker import RankSpec, WorkerSide
from vllm.v1.core.block_pool import BlockPool

BLOCK = 16
PAGE = 256
LAYERS = 2


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Request:
    def __init__(self, req_id, tokens, skip_reading_prefix_cache=False, kv_transfer_params=None):
        self.request_id = req_id
        self.skip_reading_prefix_cache = skip_reading_prefix_cache
        self.kv_transfer_params = kv_transfer_params
        self.block_hashes = []
        self.tokens = []
        self.extend(tokens)
        self.num_prompt_tokens = len(tokens)
        self.num_output_placeholders = 0  # tokens that steps in flight will bring

    def extend(self, tokens):
        self.tokens += tokens
        for i in range(len(self.block_hashes), len(self.tokens) // BLOCK):
            self.block_hashes.append(hashlib.sha256(repr(self.tokens[: (i + 1) * BLOCK]).encode()).digest())

    @property
    def num_tokens(self):
        return len(self.tokens)

    @property
    def num_output_tokens(self):
        return self.num_tokens - self.num_prompt_tokens


class FakeCuda:
    """torch.cuda's streams and events: a log of who waits for what."""

    def __init__(self):
        self.log = []
        self.cuda_stream = 77
        self._handles = iter(range(1000, 2000))

    def Event(self):  # noqa: N802
        handle = next(self._handles)
        return SimpleNamespace(cuda_event=handle, record=lambda stream: self.log.append(("made", handle)))

    def current_stream(self, ordinal):
        return self

    def wait_event(self, event):
        self.log.append(("wait", event.cuda_event))


def content(key):
    """The bytes that this engine 'computes' for a block."""
    seed = int.from_bytes(key[:8], "big")
    return np.random.default_rng(seed).integers(0, 256, (LAYERS, PAGE), dtype=np.uint8)


class Engine:
    def __init__(self, client_of, num_blocks=32, read=True, workers=1, load="async", cuda=None):
        self.clock = Clock()
        self.hooked = True  # layers of a step call their hooks
        self.skipped = ()  # but not these
        self.pool = BlockPool(num_blocks, enable_caching=True, hash_block_size=BLOCK)
        self.memory = [np.zeros((LAYERS, num_blocks, PAGE), np.uint8) for _ in range(workers)]
        self.scheduler = SchedulerSide(
            client_of(), block_tokens=BLOCK, workers=workers, read=read, clock=self.clock
        )
        self.scheduler.bind_pool(self.pool)
        self.scheduler.load_with(load)
        self.workers = []
        for rank in range(workers):
            worker = WorkerSide(client_of(), self.clock)
            layers = [Layer(f"l{i}", 0, 0, self.memory[rank][i], PAGE, 1, PAGE) for i in range(LAYERS)]
            worker.register(
                RankSpec(
                    '{"v":1}', rank, workers, CudaPages(0, cuda) if cuda else HostPages(), layers, num_blocks, BLOCK,
                    [Group(0, rank, workers)],
                )
            )  # fmt: skip
            self.workers.append(worker)
        self.tables = {}

    # ---- scheduler's doing ----

    def admit(self, request, computed=0):
        """Look up and allocate; the tokens that will be loaded."""
        tokens, asynchronous = self.scheduler.matched_tokens(request, computed)
        if tokens is None:  # an engine asks again at once; time passes
            self.clock.now += 0.003
            tokens, asynchronous = self.scheduler.matched_tokens(request, computed)
        assert tokens > 0 or not asynchronous
        table = self.tables.setdefault(request.request_id, [])
        need = -(-request.num_tokens // BLOCK) - len(table)
        table += [b.block_id for b in self.pool.get_new_blocks(need)]
        self.scheduler.allocated(request, list(table), tokens)
        return tokens

    def free(self, req_id):
        self.pool.free_blocks(self.pool.blocks[b] for b in reversed(self.tables.pop(req_id)))

    def finish(self, request):
        self.scheduler.finished(request.request_id)
        self.free(request.request_id)

    # ---- a step ----

    def step(self, scheduled=(), new=True):
        """scheduled: (request, computed, tokens). Computes, loads, saves, reports."""
        entries = [SimpleNamespace(req_id=r.request_id, num_computed_tokens=c) for r, c, _ in scheduled]
        cached = SimpleNamespace(
            req_ids=[] if new else [e.req_id for e in entries],
            num_computed_tokens=[] if new else [e.num_computed_tokens for e in entries],
        )
        output = SimpleNamespace(
            scheduled_new_reqs=entries if new else [],
            scheduled_cached_reqs=cached,
            num_scheduled_tokens={r.request_id: n for r, _, n in scheduled},
            kv_connector_block_state=SimpleNamespace(get_block_ids=lambda req_id: (self.tables[req_id],)),
        )
        tasks = self.scheduler.step_tasks(output)
        self.load_layers(tasks)
        self.compute(scheduled)
        return self.work(tasks)

    def load_layers(self, tasks):
        if tasks.layered is None:
            return
        for worker in self.workers:
            worker.start_layered(tasks.layered, self.hooked)
            for layer in range(LAYERS):
                if self.hooked and layer not in self.skipped and worker.layers.active:
                    worker.layers.wait(f"l{layer}")

    def compute(self, scheduled):
        for request, computed, tokens in scheduled:
            for position in range(computed // BLOCK, (computed + tokens) // BLOCK):
                if position < len(request.block_hashes):
                    block = self.tables[request.request_id][position]
                    for memory in self.memory:
                        memory[:, block] = content(request.block_hashes[position])

    def work(self, tasks):
        """Every worker's half of a step, and the scheduler's reading of it."""
        ended, failed, counts, report, bad = set(), set(), {}, None, set()
        for worker in self.workers:
            if tasks.layered is not None:
                worker.settle_layered()
            worker.start_loads(tasks.loads)
            worker.start_saves(tasks.saves, tasks.known_failures)
            mine, broken = worker.ended_loads()
            for req_id in mine:
                counts[req_id] = counts.get(req_id, 0) + 1
            failed |= broken
            bad |= worker.bad_blocks()
            part = worker.report()
            report = part if report is None else report.aggregate(part) if part else report
        ended = {req_id for req_id, n in counts.items() if n == len(self.workers)}
        self.scheduler.worker_output(
            SimpleNamespace(
                kv_connector_worker_meta=report, finished_recving=ended, failed_recving=failed & ended
            )
        )
        return SimpleNamespace(tasks=tasks, ended=ended, failed=failed, counts=counts, bad=bad)

    def loaded_pages_are_right(self, request, tokens):
        table = self.tables[request.request_id]
        return all(
            np.array_equal(memory[:, table[i]], content(request.block_hashes[i]))
            for memory in self.memory
            for i in range(tokens // BLOCK)
        )
