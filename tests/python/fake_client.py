"""The Python client's contract in memory: no process, no threads, failures on demand.

Connector tests run against it; test_client.py holds it to the same rules as the real one.
"""

import ctypes
import itertools

from orbitkv import errors
from orbitkv.values import QueryLoading


class FakeManager:
    """What the clients of one host share."""

    def __init__(self):
        self.blocks = {}  # (namespace, group, hash) -> {shard: [bytes per layer]}
        self.instances = {}  # instance -> (namespace, world size, {ranks})
        self.leases = {}  # lease -> (instance, [keys], {shards not yet consumed})
        self.queries = {}  # (instance, request) -> (hashes, lease)
        self.stored = set()  # hashes of blocks that are not in memory yet: queries are Loading
        self.waits = set()  # (instance, request) that were told so and have neither lease nor cancelled
        self.down = False
        self.held = False  # operations stay open until finish()
        self.fail_restores = ""
        self.most_restores = 128  # open at once; more are refused
        self.fail_enqueue = ""  # restores end before their layer events are recorded
        self.orders = []  # (operation, ready_stream, layer_events) of saves and restores
        self.open = []
        self.calls = []
        self.incarnation = 1
        self._ids = itertools.count(1)

    def call(self, name):
        self.calls.append(name)
        if self.down:
            raise errors.ManagerUnavailableError("no Manager at /fake; start `orbitkv serve`")

    def new_id(self):
        return next(self._ids)

    def restart(self):
        """Everything is forgotten, as after a kill."""
        self.blocks, self.instances, self.leases, self.queries = {}, {}, {}, {}
        self.down = False
        self.incarnation += 1

    def finish(self):
        """Ends what is open, oldest first."""
        ready, self.open = self.open, []
        for operation in ready:
            operation.run()


class Operation:
    def __init__(self, work, parts):
        self._work = work
        self.parts = parts  # of a restore
        self.done, self.success, self.message, self.blocks = False, False, "", 0

    def run(self):
        self.success, self.message, self.blocks = self._work()
        self.done = True


class FakeClient:
    def __init__(self, manager, instance_id=bytes(16)):
        self.manager = manager
        self.instance_id = instance_id
        self._registered = {}
        self._operations = {}
        self.closed = False

    @staticmethod
    def hashes(items):
        if isinstance(items, bytes):
            return tuple(items[i : i + 32] for i in range(0, len(items), 32))
        return tuple(items)

    # ---- memory ----

    def register(self, namespace, rank, world_size, device, layers, num_blocks, block_tokens, groups=()):
        self.manager.call("register")
        handle = self.manager.new_id()
        shard = groups[0].shard if groups else 0
        self._registered[handle] = (namespace, rank, world_size, shard, list(layers), num_blocks)
        self._join(handle)
        return handle

    def _join(self, handle):
        namespace, rank, world_size, *_ = self._registered[handle]
        entry = self.manager.instances.setdefault(self.instance_id, (namespace, world_size, set()))
        entry[2].add(rank)

    def unregister(self, registration):
        self.manager.call("unregister")
        del self._registered[registration]

    # ---- lookup ----

    def _keys(self, instance, hashes, group):
        if instance not in self.manager.instances:
            raise errors.RejectedError("the instance is not registered: register its ranks first")
        namespace, world_size, ranks = self.manager.instances[instance]
        if len(ranks) < world_size:
            raise errors.RetryLaterError(f"{len(ranks)} of {world_size} ranks are registered")
        keys = [(namespace, group, h) for h in hashes]
        return keys, [len(self.manager.blocks.get(k, {})) == world_size for k in keys]

    def query_candidates(self, instance, hashes, req_id, group_id=0):
        self.manager.call("query_candidates")
        _, there = self._keys(instance, hashes, group_id)
        run = len(list(itertools.takewhile(bool, there)))
        return _Answer(hit_blocks=run, hit_positions=tuple(i for i, hit in enumerate(there) if hit))

    def query_prefetch(self, instance, hashes, req_id, wait_for_full_prefix=False, group_id=0):
        self.manager.call("query_prefetch")
        hashes = tuple(hashes)
        known = self.manager.queries.get((instance, req_id))
        if known and known[0] == hashes and known[1] in self.manager.leases:
            return _Answer(hit_blocks=len(self.manager.leases[known[1]][1]), lease=known[1])
        keys, there = self._keys(instance, hashes, group_id)
        run = len(list(itertools.takewhile(bool, there)))
        if run == 0:
            return _Answer(hit_blocks=0, lease=bytes(16))
        if self.manager.stored.intersection(hashes[:run]):
            self.manager.waits.add((instance, req_id))
            return QueryLoading(run)
        self.manager.waits.discard((instance, req_id))
        lease = self.manager.new_id().to_bytes(16, "little")
        shards = set(range(self.manager.instances[instance][1]))
        self.manager.leases[lease] = (instance, keys[:run], shards)
        self.manager.queries[(instance, req_id)] = (hashes, lease)
        return _Answer(hit_blocks=run, lease=lease)

    def release(self, lease):
        self.manager.call("release")
        if self.manager.leases.pop(lease, None) is None:
            raise errors.RecomputeError("the lease is unknown")

    def cancel_query(self, instance, req_id, group_id=0):
        self.manager.call("cancel_query")
        self.manager.waits.discard((instance, req_id))
        _, lease = self.manager.queries.pop((instance, req_id), (None, None))
        self.manager.leases.pop(lease, None)

    # ---- copies ----

    def _page(self, layers, block):
        return [(_address(layer.tensor) + block * layer.block_stride, layer.row_bytes) for layer in layers]

    def save(self, registration, groups, ready_stream=0):
        try:
            self.manager.call("save")
        except errors.OrbitKVError as error:
            raise errors.SaveNotSubmittedError(str(error), error.action) from error
        self.manager.orders.append(("save", ready_stream, ()))
        namespace, _, _, shard, layers, _ = self._registered[registration]
        parts = [(group, tuple(blocks), tuple(hashes)) for group, blocks, hashes in groups]

        def work():
            copied = 0
            for group, blocks, hashes in parts:
                for block, key in zip(blocks, hashes, strict=False):
                    shards = self.manager.blocks.setdefault((namespace, group, key), {})
                    if shard not in shards:
                        shards[shard] = [ctypes.string_at(*page) for page in self._page(layers, block)]
                        copied += 1
            return True, "", copied

        return self._start(work)

    def start_restore(self, registration, loads, ready_stream=0, layer_events=()):
        self.manager.call("start_restore")
        self.manager.orders.append(("restore", ready_stream, tuple(layer_events)))
        _, _, _, shard, layers, num_blocks = self._registered[registration]
        for lease, _ in loads:
            if lease not in self.manager.leases:
                raise errors.RecomputeError("the lease is unknown: it was released or its time is over")
        parts = sum(-(-len(per_group[0]) // 8192) for _, per_group in loads)
        if layer_events and parts > 128:
            raise errors.RejectedError(f"a restore with layer events of {parts} parts; at most 128 are allowed")
        if sum(operation.parts for operation in self.manager.open) + parts > self.manager.most_restores:
            raise errors.RetryLaterError(f"{self.manager.most_restores} restores are open; wait for one")

        def work():
            copied = 0
            for lease, per_group in loads:
                _, keys, shards = self.manager.leases[lease]
                for key, block in zip(keys, per_group[0], strict=False):
                    if block is None:
                        continue
                    assert block < num_blocks
                    if self.manager.fail_restores:
                        return False, self.manager.fail_restores, copied
                    for (address, size), content in zip(
                        self._page(layers, block), self.manager.blocks[key][shard], strict=False
                    ):
                        ctypes.memmove(address, content, size)
                    copied += 1
                shards.discard(shard)
                if not shards:
                    del self.manager.leases[lease]
            return True, "", copied

        return self._start(work, parts)

    def _start(self, work, parts=0):
        operation = Operation(work, parts)
        handle = self.manager.new_id()
        self._operations[handle] = operation
        self.manager.open.append(operation)
        if not self.manager.held:
            self.manager.finish()
        return handle

    def _poll(self, handle):
        return self._operations[handle]

    poll_save = poll_restore = _poll

    def wait_save(self, handle, timeout=None):
        self.manager.finish()  # whoever waits finds it done
        return self._operations[handle]

    wait_restore = wait_save

    def wait_restore_enqueued(self, handle, timeout=None):
        """Enqueued and done are one here; what a test holds is not enqueued."""
        self.manager.calls.append("wait_restore_enqueued")
        if self.manager.fail_enqueue:
            raise errors.RecomputeError(self.manager.fail_enqueue)
        operation = self._operations[handle]
        if not operation.done:
            raise errors.RetryLaterError("the restore is not enqueued yet")
        if not operation.success:
            raise errors.RecomputeError(operation.message)

    def forget(self, handle):
        self._operations.pop(handle, None)

    # ---- session ----

    def health(self):
        return _Answer(connected=not self.manager.down, incarnation=self.manager.incarnation)

    def peer_alive(self):
        return not self.manager.down

    def close(self):
        self.closed = True


class _Answer:
    def __init__(self, **fields):
        self.__dict__.update(fields)


def _address(tensor):
    return tensor.__array_interface__["data"][0]
