"""One engine over two Managers: the example of docs/tp.md, byte for byte, and who has nothing."""

import os
import pathlib
import re
import threading
import time

import numpy as np
import pytest
from manager_process import ManagerProcess
from orbitkv import CacheManagerClient, Group, Layer, PrefixGroup, RejectedError, RetryLaterError

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "tp.md"
BYTES = 4096
COUNT = 32
SAVED = (12, 7)


def key(block):
    return bytes([block + 1]) * 32


def pages(host, rank, block):
    return 64 * host + 32 * rank + block


class Host:
    def __init__(self, number):
        self.number = number
        self.manager = ManagerProcess().start()
        self.instance = os.urandom(16)
        self.scheduler = self.connect()
        self.ranks = [self.connect() for _ in range(2)]
        self.memory = [np.zeros((COUNT, BYTES), np.uint8) for _ in range(2)]
        self.registered = [
            client.register(
                f"tp;ranks:{2 * number}-{2 * number + 1}/4",
                rank,
                2,
                "cpu:0",
                [Layer("l", 0, 0, self.memory[rank], BYTES, 1, BYTES)],
                COUNT,
                16,
                [Group(shard=rank, shards=2)],
            )
            for rank, client in enumerate(self.ranks)
        ]

    def connect(self):
        client = CacheManagerClient(self.manager.socket, self.instance)
        client.wait_connected(10)
        return client

    def save(self, count):
        for rank, client in enumerate(self.ranks):
            for block in range(count):
                self.memory[rank][block] = pages(self.number, rank, block)
            handle = client.save(self.registered[rank], [(0, range(count), [key(b) for b in range(count)])])
            assert client.wait_save(handle, 10).success
            self.memory[rank][:] = 0
        self.manager.wait_for(lambda s: s["blocks"] == count, "saved")

    def restore(self, rank, lease, count):
        client = self.ranks[rank]
        handle = client.start_restore(self.registered[rank], [(lease, [range(count)])])
        success = client.wait_restore(handle, 10).success
        for block in range(count):
            assert (self.memory[rank][block] == pages(self.number, rank, block)).all()
        assert not self.memory[rank][count:].any()
        return success

    def close(self):
        for client in [self.scheduler, *self.ranks]:
            client.close()
        self.manager.stop()
        self.manager.directory.cleanup()


@pytest.fixture
def hosts():
    made = [Host(0), Host(1)]
    yield made
    for host in made:
        host.close()


def group_of(hosts, timeout=20.0, **options):
    seats = [(host.scheduler, host.instance, [2 * host.number, 2 * host.number + 1]) for host in hosts]
    return PrefixGroup(seats, timeout, **options)


def test_the_pages_example_restores_every_rank(hosts):
    for host, count in zip(hosts, SAVED, strict=True):
        host.save(count)
    (example,) = [e for e in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "claim.wait" in e]
    restored = []

    def restore_on_all_ranks(found):
        assert found.blocks == min(SAVED)
        for host in hosts:
            ((group, blocks, lease),) = found.leases[host.number]
            assert (group, blocks) == (0, min(SAVED))
            for rank in range(2):
                restored.append(2 * host.number + rank)
                yield restored[-1], host.restore(rank, lease, blocks)

    names = {
        "PrefixGroup": lambda _: group_of(hosts),
        "scheduler_a": None,
        "scheduler_b": None,
        "instance": None,
        "hashes": [key(block) for block in range(16)],
        "restore_on_all_ranks": restore_on_all_ranks,
    }
    exec(example, names)
    assert restored == [0, 1, 2, 3]
    for host in hosts:
        status = host.manager.wait_for(lambda s: s["leases"] == 0 and s["interests"]["open"] == 0, "nothing held")
        assert status["interests"]["claims"] == 1
    names["group"].close()


def test_a_host_without_it_leaves_nothing_held(hosts):
    hosts[0].save(4)
    with group_of(hosts) as group:
        claim = group.begin([key(block) for block in range(4)])
        found = claim.poll(10)
        assert (found.blocks, found.leases, found.why, found.participant) == (0, (), "gone", 1)
        end = claim.wait(10)
        assert end.done and end.quiet and not end.success
        hosts[0].manager.wait_for(lambda s: s["leases"] == 0 and s["interests"]["open"] == 0, "nothing held")
        claim.close()
        claim.close()
        with pytest.raises(RejectedError):
            claim.poll()
    with pytest.raises(RejectedError):
        group.begin([key(0)])


def test_what_cannot_be_a_group_is_named(hosts):
    with pytest.raises(RejectedError, match="rank 1 is of two participants"):
        PrefixGroup([(host.scheduler, host.instance, [1]) for host in hosts])
    with group_of(hosts[:1], timeout=0.5) as group:
        with pytest.raises(RejectedError, match="hashes"):
            group.begin([])
        claim = group.begin([key(0)])
        with pytest.raises(RejectedError, match="rank 9"):
            claim.restored(9, True)
        with pytest.raises(RejectedError, match="no lease"):
            claim.restored(0, True)
        for wrong in (-1, 65_536):
            with pytest.raises(ValueError, match="rank"):
                claim.restored(wrong, True)
        with pytest.raises(ValueError, match="timeout"):
            claim.poll(1e9)
    with PrefixGroup([(hosts[0].scheduler, hosts[0].instance, [0, 1, 2])]) as group:
        found = group.begin([key(0)]).poll(10)
        assert found.blocks == 0 and "ranks" in found.message
    with pytest.raises(RejectedError):
        hosts[0].scheduler.carry_interest(b"no frame")


def test_claims_that_are_dropped_are_closed(hosts):
    hosts[0].save(2)
    with group_of(hosts[:1]) as group:
        for _ in range(150):  # 128 may be open
            assert group.begin([key(0)]).poll(20) is not None
        with group.begin([key(0)]) as claim:
            assert claim.poll(20).blocks == 1
        hosts[0].manager.wait_for(lambda s: s["leases"] == 0 and s["interests"]["open"] == 0, "nothing held")


def test_a_group_that_is_closed_while_threads_use_it_lets_them_go():
    client = CacheManagerClient("/nowhere/none.sock", os.urandom(16))
    for _ in range(20):
        group = PrefixGroup([(client, os.urandom(16), [0])])
        ended = []

        def work(group=group, ended=ended):
            try:
                while True:
                    claim = group.begin([key(0)])
                    claim.poll(0.01)
                    claim.wait(0.0)
                    claim.close()
            except (RejectedError, RetryLaterError) as error:
                ended.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.005)
        group.close()
        for thread in threads:
            thread.join(60)
        assert len(ended) == 4
    client.close()
