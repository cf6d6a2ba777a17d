"""Recoveries against a Manager: the example of docs/queries.md, and what it promises."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from manager_process import ManagerProcess
from orbitkv import (
    CacheManagerClient,
    Group,
    Layer,
    QueryLoading,
    QueryReady,
    RecoveryContract,
    RecoveryLoading,
    RecoveryMissing,
    RecoveryReady,
    RejectedError,
    WarmHint,
)

PAGES = pathlib.Path(__file__).parents[2] / "docs" / "queries.md"
SPACE = "queries"
PAGE = 16  # tokens
BYTES = 4096
COUNT = 16  # pages of the tail
RULES = [(0, "prefix", None), (1, "window", 24), (2, "checkpoint", None)]


def example(text):
    """The page's example in which this stands."""
    found = [e for e in re.findall(r"```python\n(.*?)```", PAGES.read_text(), re.DOTALL) if text in e]
    assert len(found) == 1
    return found[0]


def key(group, page):
    return bytes([group, page]) * 16


class Engine:
    def __init__(self, manager):
        self.client = CacheManagerClient(manager.socket, os.urandom(16))
        self.client.wait_connected(10)
        self.memory = [np.zeros((COUNT, BYTES), np.uint8) for _ in RULES]
        layers = [Layer(f"l{g}", g, 0, self.memory[g], BYTES, 1, BYTES) for g in range(3)]
        groups = [Group(g, rule=rule, window_tokens=window or 0) for g, rule, window in RULES]
        self.registered = self.client.register(SPACE, 0, 1, "cpu:0", layers, COUNT, PAGE, groups)

    def save(self, group, pages):
        for page in pages:
            self.memory[group][page] = 16 * group + page
        hashes = [key(group, page) for page in pages]
        assert self.client.wait_save(self.client.save(self.registered, [(group, pages, hashes)]), 10).success
        self.memory[group][:] = 0


@pytest.fixture
def manager():
    with ManagerProcess() as started:
        yield started


@pytest.fixture
def engine(manager):
    engine = Engine(manager)
    yield engine
    engine.client.close()


def tail_hashes():
    return {group: [key(group, page) for page in range(COUNT)] for group in range(3)}


def run_example(engine):
    names = {
        "client": engine.client, "instance": engine.client.instance_id, "namespace": SPACE, "page": PAGE,
        "origin": 0, "end": COUNT * PAGE, "hashes": tail_hashes(), "time": time,
        "RecoveryContract": RecoveryContract, "RecoveryLoading": RecoveryLoading,
    }  # fmt: skip
    exec(example("query_boundaries").replace('"window", 100', '"window", 24'), names)
    return names


def test_the_example_of_the_page(manager, engine):
    engine.save(0, range(12))
    engine.save(1, range(6, 10))
    engine.save(2, [3, 7, 9, 11])
    names = run_example(engine)
    assert names["found"].boundary == 10 * PAGE  # 11 lacks the checkpoint, 12 the window
    assert names["found"].pages[1] == (6, 7, 8, 9)
    answer = names["answer"]
    assert isinstance(answer, RecoveryReady)
    needed = {0: range(10), 1: range(8, 10), 2: range(9, 10)}
    for group, pages in needed.items():
        targets = [[] for _ in range(group)] + [list(range(len(pages)))]
        load = engine.client.start_restore(engine.registered, [(answer.leases[group], targets)])
        assert engine.client.wait_restore(load, 10).success
        for slot, page in enumerate(pages):
            assert (engine.memory[group][slot] == 16 * group + page).all()
    manager.wait_for(lambda s: s["leases"] == 0 and s["tickets"] == 0, "nothing held")
    assert manager.status()["recoveries"] == 1


def test_nothing_where_no_boundary_is_complete(engine):
    engine.save(0, range(12))
    assert run_example(engine)["found"].boundary is None


def test_all_or_nothing(manager, engine):
    client, name = engine.client, engine.client.instance_id
    engine.save(0, range(4))
    engine.save(1, [2, 3])
    hashes = {0: [key(0, p) for p in range(4)], 1: [key(1, 2), key(1, 3)], 2: [key(2, 3)]}
    assert client.read_recovery(name, hashes, "r", 0, 4 * PAGE) == RecoveryMissing("gone", 2)
    assert manager.status()["pool"]["leased"] == 0
    engine.save(2, [3])
    first = client.read_recovery(name, hashes, "r", 0, 4 * PAGE)
    assert sorted(first.leases) == [0, 1, 2]
    assert client.read_recovery(name, hashes, "r", 0, 4 * PAGE) == first
    assert client.poll_recovery(name, "r", RecoveryLoading(first.revision)) == first
    client.release(first.leases[1])
    assert client.poll_recovery(name, "r", RecoveryLoading(first.revision)) == RecoveryMissing("unknown", 0)
    client.cancel_recovery(name, "r", first.revision - 1)
    assert manager.status()["leases"] == 2
    client.cancel_recovery(name, "r", first.revision)
    assert manager.status()["leases"] == 0


def test_a_set_that_is_not_of_the_boundary_is_refused(engine):
    hashes = {0: [key(0, p) for p in range(4)], 1: [key(1, 3)], 2: [key(2, 3)]}
    with pytest.raises(RejectedError, match="recovery of 6 pages; .* need 7"):
        engine.client.read_recovery(engine.client.instance_id, hashes, "r", 0, 4 * PAGE)
    with pytest.raises(RejectedError, match="behind its origin"):
        engine.client.read_recovery(engine.client.instance_id, hashes, "r", 64, 64)


def test_long_lists_go_in_parts(engine):
    hashes = {0: [key(0, 1)] * 5000, 1: [key(1, 1)] * 2, 2: [key(2, 1)]}
    engine.save(0, [1])
    engine.save(1, [1])
    engine.save(2, [1])
    answer = engine.client.read_recovery(engine.client.instance_id, hashes, "r", 0, 5000 * PAGE)
    assert isinstance(answer, RecoveryReady)


# ---- budgets, preparation, hints ----


def test_what_does_not_fit_the_budget_waits_and_is_cut_at_the_limit():
    with ManagerProcess(extra=["--query-budget", "50KiB", "--query-instance-budget", "50KiB"]) as manager:
        engine = Engine(manager)
        client, name = engine.client, engine.client.instance_id
        engine.save(0, range(COUNT))
        keys = [key(0, page) for page in range(COUNT)]
        cut = client.query_prefetch(name, keys, "cut")
        slots = cut.hit_blocks
        assert 4 < slots < COUNT
        assert manager.status()["budgets"]["cut"] == 1
        waits = client.query_prefetch(name, keys[:4], "waits")
        assert waits == QueryLoading(4, admitted=False)
        assert client.poll_query(name, "waits", waits) == waits
        budgets = manager.status()["budgets"]
        assert budgets["waiting"] == 1
        assert budgets["used"] <= budgets["limit"] == 50 * 1024
        assert manager.status()["instances"][0]["charged"] == budgets["used"]
        client.release(cut.lease)
        ready = client.poll_query(name, "waits", waits)
        assert isinstance(ready, QueryReady)
        assert ready.hit_blocks == 4
        client.release(ready.lease)
        manager.wait_for(lambda s: s["budgets"]["used"] == 0, "every byte back")
        client.close()


@pytest.fixture
def stored(tmp_path):
    """A Manager whose blocks are on SSD only, and an engine of it."""
    flags = ["--ssd-path", str(tmp_path / "store"), "--ssd-size", "128MiB", "--ssd-segment-size", "4MiB"]
    with ManagerProcess(extra=[*flags, "--ssd-write-policy", "all"]) as manager:
        engine = Engine(manager)
        engine.save(0, range(COUNT))
        manager.wait_for(lambda s: s["ssd"]["records"] >= COUNT, "all stored")
        manager.command("evict", "--wait")
        manager.wait_for(lambda s: s["blocks"] == 0, "memory is empty")
        yield manager, engine
        engine.client.close()


def test_the_example_of_what_is_done_ahead(stored):
    manager, engine = stored
    names = {
        "client": engine.client, "instance": engine.client.instance_id, "time": time,
        "next_hashes": [key(0, page) for page in range(8)],
        "later_hashes": [key(0, page) for page in range(12)],
        "QueryLoading": QueryLoading, "WarmHint": WarmHint,
    }  # fmt: skip
    exec(example("prepare_prefix"), names)
    assert names["answer"].hit_blocks == 8
    manager.wait_for(lambda s: s["loads"]["loaded"] == 12, "the hint was served")
    status = manager.status()
    assert status["budgets"]["claimed"] == 1
    assert status["budgets"]["hints"] == 1
    assert status["budgets"]["speculative"] == 0
    assert status["hits"] == 8
    engine.client.release(names["answer"].lease)
    manager.wait_for(lambda s: s["budgets"]["used"] == 0, "every byte back")


def test_preparations_end_by_themselves_and_by_cancel(stored):
    manager, engine = stored
    client, name = engine.client, engine.client.instance_id
    keys = [key(0, page) for page in range(4)]
    for i in range(4):
        assert client.prepare_prefix(name, keys, f"r{i}")
    assert not client.prepare_prefix(name, keys, "one more")
    assert not client.prepare_prefix(name, [key(9, 9)], "nowhere")
    client.cancel_query(name, "r0")
    assert manager.status()["budgets"]["prepared"] == 3
    manager.wait_for(lambda s: s["budgets"]["prepared"] == 0, "unclaimed")
    assert manager.status()["budgets"]["unclaimed"] == 3
    assert client.warm_prefix(name, [key(9, 9)], "h")
    client.cancel_warm(name, "h")
    with pytest.raises(ValueError, match="confidence is 0 to 100"):
        client.warm_prefix(name, keys, "h", WarmHint(confidence=101))
    with pytest.raises(RejectedError, match="a hint has at most 1048576 hashes"):
        client.warm_prefix(name, [key(9, 9)] * (2**20 + 1), "h")


def test_a_recovery_is_prepared(manager, engine):
    client, name = engine.client, engine.client.instance_id
    for group, pages in ((0, range(4)), (1, [2, 3]), (2, [3])):
        engine.save(group, pages)
    hashes = {0: [key(0, p) for p in range(4)], 1: [key(1, 2), key(1, 3)], 2: [key(2, 3)]}
    assert client.prepare_recovery(name, hashes, "r", 0, 4 * PAGE)
    assert isinstance(client.read_recovery(name, hashes, "r", 0, 4 * PAGE), RecoveryReady)
    assert manager.status()["budgets"]["claimed"] == 1
    client.cancel_recovery(name, "r")
    assert not client.prepare_recovery(name, {**hashes, 2: [key(9, 9)]}, "r", 0, 4 * PAGE)


def test_waiting_for_full_prefixes_without_publishers_is_no_wait(engine):
    client, name = engine.client, engine.client.instance_id
    engine.save(0, range(4))
    keys = [key(0, page) for page in range(8)]
    assert client.query_prefetch(name, keys, "r", wait_for_full_prefix=True).hit_blocks == 4


SAVER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_queries import Engine
class At: socket = sys.argv[2]
engine = Engine(At)
engine.save(0, range(4))
engine.client.close()
"""


def test_a_query_waits_for_what_another_engine_is_saving(manager, engine):
    """The other one stands still in the middle of its save, and goes on."""
    saver = subprocess.Popen(
        [sys.executable, "-c", SAVER, str(pathlib.Path(__file__).parent), manager.socket],
        env={**os.environ, "ORBITKV_FAULT": "client_claimed:stop:1"},
    )
    try:
        _, status = os.waitpid(saver.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        client, name, keys = engine.client, engine.client.instance_id, [key(0, page) for page in range(8)]
        assert client.query_prefetch(name, keys, "at once") == QueryReady(0, bytes(16))
        waits = client.query_prefetch(name, keys, "r", wait_for_full_prefix=True)
        assert isinstance(waits, QueryLoading) and not waits.admitted
        assert manager.status()["budgets"]["publisher_waits"] == 1
        saver.send_signal(signal.SIGCONT)
        found, end = waits, time.monotonic() + 20
        while isinstance(found, QueryLoading) and time.monotonic() < end:
            time.sleep(0.01)
            found = client.poll_query(name, "r", waits)
        assert isinstance(found, QueryReady) and found.hit_blocks == 4
        client.release(found.lease)
        assert saver.wait(20) == 0
    finally:
        saver.kill()
        saver.wait()
