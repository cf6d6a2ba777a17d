"""The client's contract, for the real client and for the fake that connector tests use."""

import gc
import os
import pickle
import select
import signal
import threading
import time
import weakref

import numpy as np
import pytest
from manager_process import ManagerProcess
from orbitkv import (
    Action,
    BlockHashes,
    CacheManagerClient,
    Group,
    Layer,
    ManagerUnavailableError,
    OrbitKVError,
    RejectedError,
    SaveNotSubmittedError,
)

PAGE = 4096
BLOCKS = 16
LAYERS = 3


def key(number):
    return number.to_bytes(32, "big")


def pages(seed):
    return np.random.default_rng(seed).integers(0, 256, (LAYERS, BLOCKS, PAGE), dtype=np.uint8)


def register(client, memory, rank=0, world=1, namespace='{"v":1,"model":"m"}'):
    layers = [Layer(f"layer{i}", 0, 0, memory[i], PAGE, 1, PAGE) for i in range(LAYERS)]
    return client.register(
        namespace, rank, world, "cpu:0", layers, BLOCKS, 16, [Group(0, shard=rank, shards=world)]
    )


def publish(client, registration, blocks, keys):
    status = client.wait_save(client.save(registration, [(0, blocks, keys)]), 10)
    assert (status.done, status.success) == (True, True), status.message


def visible(client, keys):
    """Done means that the pages are free; the Manager seals the blocks a moment later."""
    deadline = time.monotonic() + 5
    while client.query_candidates(client.instance_id, keys, "wait").hit_blocks < len(keys):
        assert time.monotonic() < deadline, "published blocks do not appear"
        time.sleep(0.001)


def restore(client, registration, lease, blocks):
    handle = client.start_restore(registration, [(lease, [blocks])])
    return client.wait_restore(handle, 10)


@pytest.fixture
def engine(host):
    """One instance with published blocks 0..5 under keys 1..6."""
    client = host.client(os.urandom(16))
    memory = pages(1)
    registration = register(client, memory)
    publish(client, registration, range(6), [key(i + 1) for i in range(6)])
    visible(client, [key(i + 1) for i in range(6)])
    return client, memory, registration


def test_pages_come_back_where_they_are_asked_for(engine):
    client, memory, registration = engine
    want = memory[:, :6].copy()
    memory[:, 6:] = 0
    ready = client.query_prefetch(client.instance_id, [key(i + 1) for i in range(6)], "r")
    assert ready.hit_blocks == 6
    targets = [15, 8, 11, 9, 14, 10]
    status = restore(client, registration, ready.lease, targets)
    assert status.success and status.blocks == 6, status.message
    assert np.array_equal(memory[:, targets], want)
    assert not memory[:, [6, 7, 12, 13]].any()


def test_another_instance_of_the_same_namespace_restores(host, engine):
    _, memory, _ = engine
    other, mine = host.client(os.urandom(16)), pages(2)
    registration = register(other, mine)
    ready = other.query_prefetch(other.instance_id, [key(1), key(2)], "r")
    assert restore(other, registration, ready.lease, [3, 4]).success
    assert np.array_equal(mine[:, 3:5], memory[:, :2])


def test_another_namespace_sees_nothing(host, engine):
    other = host.client(os.urandom(16))
    register(other, pages(2), namespace='{"v":1,"model":"other"}')
    assert other.query_prefetch(other.instance_id, [key(1)], "r").hit_blocks == 0


def test_a_run_ends_at_the_first_gap_but_candidates_go_on(engine):
    client, _, _ = engine
    asked = [key(1), key(2), key(99), key(3)]
    found = client.query_candidates(client.instance_id, asked, "r")
    assert (found.hit_blocks, tuple(found.hit_positions)) == (2, (0, 1, 3))
    assert client.query_prefetch(client.instance_id, asked, "r").hit_blocks == 2


def test_a_miss_leases_nothing(engine):
    client, _, _ = engine
    ready = client.query_prefetch(client.instance_id, [key(99)], "r")
    assert (ready.hit_blocks, ready.lease) == (0, bytes(16))


def test_the_same_question_has_the_same_lease(engine):
    client, _, _ = engine
    first = client.query_prefetch(client.instance_id, [key(1), key(2)], "r")
    again = client.query_prefetch(client.instance_id, [key(1), key(2)], "r")
    assert again.lease == first.lease
    assert client.query_prefetch(client.instance_id, [key(1)], "r").lease != first.lease


def test_a_released_lease_restores_nothing(engine):
    client, memory, registration = engine
    ready = client.query_prefetch(client.instance_id, [key(1)], "r")
    client.release(ready.lease)
    before = memory.copy()
    try:
        status = restore(client, registration, ready.lease, [9])
        assert status.done and not status.success and status.message
    except OrbitKVError as error:
        assert str(error)
    assert np.array_equal(memory, before)


def test_waiting_until_enqueued_needs_no_device(engine):
    client, memory, registration = engine
    ready = client.query_prefetch(client.instance_id, [key(1)], "r")
    handle = client.start_restore(registration, [(ready.lease, [[9]])])
    client.wait_restore_enqueued(handle, 10)
    assert client.wait_restore(handle, 10).success
    assert np.array_equal(memory[:, 9], memory[:, 0])


def test_a_hole_leaves_its_block_alone(engine):
    client, memory, registration = engine
    memory[:, 6:] = 7
    ready = client.query_prefetch(client.instance_id, [key(1), key(2), key(3)], "r")
    assert restore(client, registration, ready.lease, [8, None, 9]).success
    assert np.array_equal(memory[:, 8], memory[:, 0]) and np.array_equal(memory[:, 9], memory[:, 2])
    assert (memory[:, [6, 7, 10, 11]] == 7).all()


def test_publishing_twice_keeps_the_first_bytes(engine):
    client, memory, registration = engine
    want = memory[:, 0].copy()
    publish(client, registration, [7], [key(1)])
    ready = client.query_prefetch(client.instance_id, [key(1)], "r")
    assert restore(client, registration, ready.lease, [9]).success
    assert np.array_equal(memory[:, 9], want)


def test_a_block_is_there_when_every_rank_has_published_it(host):
    instance = os.urandom(16)
    clients = [host.client(instance), host.client(instance)]
    memory = [pages(3), pages(4)]
    with_registration = [(c, register(c, m, rank, 2)) for rank, (c, m) in enumerate(zip(clients, memory, strict=False))]
    publish(*with_registration[0], [1], [key(1)])
    assert clients[0].query_prefetch(instance, [key(1)], "a").hit_blocks == 0
    publish(*with_registration[1], [1], [key(1)])
    visible(clients[0], [key(1)])
    ready = clients[0].query_prefetch(instance, [key(1)], "b")
    assert ready.hit_blocks == 1
    for client, registration in with_registration:
        assert restore(client, registration, ready.lease, [5]).success
    for m in memory:
        assert np.array_equal(m[:, 5], m[:, 1])


def test_a_dead_manager_is_said_and_nothing_is_lent(host, engine):
    client, _, registration = engine
    host.take_down()
    with pytest.raises(SaveNotSubmittedError):
        client.save(registration, [(0, [1], [key(50)])])
    with pytest.raises(OrbitKVError):
        client.query_prefetch(client.instance_id, [key(1)], "r")
    assert not client.peer_alive() and not client.health().connected


# ---- what only the real client has ----


@pytest.fixture
def real(request):
    if os.environ.get("ORBITKV_FAKE_ONLY"):
        pytest.skip("ORBITKV_FAKE_ONLY is set")
    with ManagerProcess() as manager:
        yield manager


def test_ended_operations_make_the_completion_fd_readable(real):
    with CacheManagerClient(real.socket, os.urandom(16)) as client:
        registration = register(client, pages(1))
        assert select.select([client.completion_fd], [], [], 0)[0] == []
        handle = client.save(registration, [(0, [1], [key(1)])])
        assert select.select([client.completion_fd], [], [], 5)[0]
        assert client.take_completed() == [handle.value] and client.take_completed() == []
        assert client.poll_save(handle).success


def test_other_threads_run_while_one_waits(real):
    """A wait that is not over keeps what it waits for, and holds no lock of Python."""
    os.kill(real.process.pid, signal.SIGSTOP)
    client = CacheManagerClient(real.socket, os.urandom(16), timeout_ms=700)
    outcome = []

    def wait():
        try:
            client.wait_connected(0.6)
        except ManagerUnavailableError as error:
            outcome.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    turns = 0
    while waiter.is_alive():
        turns += 1
        time.sleep(0.001)
    os.kill(real.process.pid, signal.SIGCONT)
    assert outcome and turns > 100
    client.close()


def test_a_client_that_was_there_first_finds_the_manager_later():
    manager = ManagerProcess()
    client = CacheManagerClient(manager.socket, os.urandom(16))
    registration = register(client, pages(1))
    assert not client.health().connected and "serve" in client.health().message
    with manager:
        client.wait_connected(10)
        publish(client, registration, [1], [key(1)])
        visible(client, [key(1)])
        assert client.status()["blocks"] == 1
        client.close()


def test_errors_say_what_to_do(real):
    with CacheManagerClient(real.socket, os.urandom(16)) as client:
        with pytest.raises(OrbitKVError) as unregistered:
            client.query_prefetch(client.instance_id, [key(1)], "r")
        assert unregistered.value.action in (Action.RETRY, Action.REJECT) and "regist" in str(unregistered.value)
        memory = pages(1)
        layer = Layer("layer0", 0, 0, memory[0], PAGE, 1, PAGE)
        with pytest.raises(RejectedError, match="layer0"):
            client.register('{"v":1}', 0, 1, "cpu:0", [layer], BLOCKS + 1, 16)


def test_a_closed_client_says_so(real):
    client = CacheManagerClient(real.socket, os.urandom(16))
    client.wait_connected(10)
    registration = register(client, pages(1))
    client.close()
    assert not client.health().connected and "closed" in client.health().message
    for call in (client.wait_connected, client.status, lambda: register(client, pages(1))):
        with pytest.raises(ManagerUnavailableError):
            call()
    with pytest.raises(SaveNotSubmittedError):
        client.save(registration, [(0, [1], [key(1)])])


@pytest.mark.parametrize("option", ["timeout_ms", "spin_iterations"])
def test_waits_without_an_end_are_refused(real, option):
    with pytest.raises(RejectedError, match=option):
        CacheManagerClient(real.socket, os.urandom(16), **{option: 2**31})


def test_memory_that_cannot_be_a_layer_is_refused(real):
    with CacheManagerClient(real.socket, os.urandom(16)) as client:

        def register_one(memory):
            client.register('{"v":1}', 0, 1, "cpu:0", [Layer("l", 0, 0, memory, PAGE, 1, PAGE)], BLOCKS, 16)

        with pytest.raises(ValueError, match="writable"):
            register_one(np.frombuffer(bytes(BLOCKS * PAGE), dtype=np.uint8))
        # One byte of memory that says it has 64 KiB.
        with pytest.raises(ValueError, match="contiguous"):
            register_one(np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (BLOCKS * PAGE,), (0,)))
        memory = bytearray(BLOCKS * PAGE)
        register_one(memory)
        with pytest.raises(BufferError):
            memory.extend(b"moved")


def test_registered_memory_outlives_the_callers_names(real):
    with CacheManagerClient(real.socket, os.urandom(16)) as client:
        memory = pages(1)
        alive = weakref.ref(memory)
        registration = register(client, memory)
        same = type(registration)(registration.handle, ())
        del memory, registration
        gc.collect()
        assert alive() is not None
        client.unregister(same)
        assert alive() is None


def test_a_save_says_what_was_stored_was_there_and_was_dropped():
    with ManagerProcess(pool="1MiB") as manager, CacheManagerClient(manager.socket, os.urandom(16)) as client:
        registration = register(client, pages(1))
        keys = [key(number) for number in range(BLOCKS)]
        first = client.wait_save(client.save(registration, [(0, range(8), keys[:8])]), 10)
        assert (first.success, first.blocks, first.resident, first.dropped) == (True, 8, 0, 0)
        visible(client, keys[:8])
        second = client.wait_save(client.save(registration, [(0, range(BLOCKS), keys)]), 10)
        assert (second.blocks, second.resident, second.dropped, second.message) == (8, 8, 0, "")
        visible(client, keys)
        held = client.query_prefetch(client.instance_id, keys, "held")
        assert held.hit_blocks == BLOCKS
        room = 1024 * 1024 // (LAYERS * PAGE)
        dropped = 0
        for start in range(100, 100 + 10 * BLOCKS, BLOCKS):
            more = [key(start + number) for number in range(BLOCKS)]
            status = client.wait_save(client.save(registration, [(0, range(BLOCKS), more)]), 10)
            assert status.success and status.blocks + status.resident + status.dropped == BLOCKS
            visible(client, more[: status.blocks])
            client.query_prefetch(client.instance_id, more[: status.blocks], f"held {start}")
            dropped += status.dropped
            if status.dropped:
                assert f"{status.dropped} of {BLOCKS} blocks were dropped: the Manager's pool" in status.message
        assert dropped >= 11 * BLOCKS - room


def test_a_save_right_after_the_start_is_kept():
    with ManagerProcess(pool="512MiB", extra=["--publish-wait", "30000"]) as manager:
        manager.kill()
        manager.start(ready=False)
        with CacheManagerClient(manager.socket, os.urandom(16)) as client:
            client.wait_connected(20)
            registration = register(client, pages(1))
            status = client.wait_save(client.save(registration, [(0, range(4), [key(n) for n in range(4)])]), 40)
            assert (status.done, status.success, status.blocks, status.dropped) == (True, True, 4, 0)


def test_streams_of_cpu_pages_are_ignored(real):
    with CacheManagerClient(real.socket, os.urandom(16)) as client:
        registration = register(client, pages(1))
        handle = client.save(registration, [(0, [1], [key(1)])], ready_stream=7)
        assert client.wait_save(handle, 10).success


def test_layer_events_of_unknown_layers_are_refused(real):
    with CacheManagerClient(real.socket, os.urandom(16)) as client:
        registration = register(client, pages(1))
        with pytest.raises(RejectedError):
            client.start_restore(registration, [(b"l" * 16, [[1]])], layer_events=[("nowhere", 1)])


def test_traced_operations_are_reported(real, tmp_path):
    with CacheManagerClient(real.socket, os.urandom(16), trace_file=str(tmp_path / "trace")) as client:
        registration = register(client, pages(1))
        handle = client.save(registration, [(0, [1, 2], [key(1), key(2)])])
        assert client.wait_save(handle, 10).success
        report = client.report(handle)
        assert (report.bytes, report.fragments) == (2 * LAYERS * PAGE, 2 * LAYERS)
        assert report.claimed_ns <= report.enqueued_ns <= report.drained_ns and report.method
    assert (tmp_path / "trace").read_text().count("\n") == 1


def test_without_a_trace_nothing_is_reported(real):
    with CacheManagerClient(real.socket, os.urandom(16)) as client:
        registration = register(client, pages(1))
        handle = client.save(registration, [(0, [1], [key(1)])])
        client.wait_save(handle, 10)
        with pytest.raises(RejectedError):
            client.report(handle)


def test_block_hashes_slice_and_travel():
    keys = [key(i) for i in range(10)]
    hashes = BlockHashes(keys)
    part = hashes[3:7]
    assert (len(hashes), list(part), part[-1]) == (10, keys[3:7], keys[6])
    assert part == BlockHashes(keys[3:7]) and part != hashes and hash(part) == hash(BlockHashes(keys[3:7]))
    assert pickle.loads(pickle.dumps(part)) == part
    assert BlockHashes(b"".join(keys)) == hashes and hashes.tobytes() == b"".join(keys)
    assert len(hashes[5:5]) == 0
    with pytest.raises(IndexError):
        part[4]
    with pytest.raises(ValueError):
        hashes[::2]


@pytest.mark.parametrize("bad", [[b"short"], ["text" * 8], [bytes(33)], bytes(40)])
def test_block_hashes_refuse_other_lengths(bad):
    with pytest.raises(ValueError, match="32 bytes"):
        BlockHashes(bad)
