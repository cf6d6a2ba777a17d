"""Hosts of an engine whose ranks stand at several Managers."""

import os

import numpy as np
from manager_process import ManagerProcess
from orbitkv import CacheManagerClient, Group, Layer

BYTES = 4096
COUNT = 32
TOKENS = 16


def key(block):
    return bytes([block + 1]) * 32


def pages(host, rank, block, group=0):
    return 128 * group + 64 * host + 32 * rank + block


class Host:
    """A Manager with two ranks of an engine, and as many groups as asked for: each has a layer."""

    def __init__(self, number, groups=1):
        self.number, self.groups = number, groups
        self.manager = ManagerProcess().start()
        self.instance = os.urandom(16)
        self.scheduler = self.connect()
        self.ranks = [self.connect() for _ in range(2)]
        self.memory = [np.zeros((groups, COUNT, BYTES), np.uint8) for _ in range(2)]
        self.registered = [
            client.register(
                f"tp;ranks:{2 * number}-{2 * number + 1}/4",
                rank,
                2,
                "cpu:0",
                [Layer(f"l{group}", group, 0, self.memory[rank][group], BYTES, 1, BYTES) for group in range(groups)],
                COUNT,
                TOKENS,
                [Group(id=group, shard=rank, shards=2) for group in range(groups)],
            )
            for rank, client in enumerate(self.ranks)
        ]

    def connect(self):
        client = CacheManagerClient(self.manager.socket, self.instance)
        client.wait_connected(10)
        return client

    def save(self, count):
        for rank, client in enumerate(self.ranks):
            for group in range(self.groups):
                for block in range(count):
                    self.memory[rank][group][block] = pages(self.number, rank, block, group)
            hashes = [key(b) for b in range(count)]
            saved = [(group, range(count), hashes) for group in range(self.groups)]
            assert client.wait_save(client.save(self.registered[rank], saved), 10).success
            self.memory[rank][:] = 0
        self.manager.wait_for(lambda s: s["blocks"] == count * self.groups, "saved")

    def restore(self, rank, leases):
        """All that was leased, at once; the bytes are compared."""
        client, memory = self.ranks[rank], self.memory[rank]
        memory[:] = 0
        loads = [(lease, [range(0)] * group + [range(blocks)]) for group, blocks, lease in leases]
        success = client.wait_restore(client.start_restore(self.registered[rank], loads), 10).success
        for group, blocks, _ in leases:
            for block in range(blocks):
                assert (memory[group][block] == pages(self.number, rank, block, group)).all()
            assert not memory[group][blocks:].any()
        return success

    def close(self):
        for client in [self.scheduler, *self.ranks]:
            client.close()
        self.manager.stop()
        self.manager.directory.cleanup()
