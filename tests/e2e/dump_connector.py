"""OrbitKVConnector for tests: dumps page bytes at publish and after a load, and breaks
things on demand. Its switches are environment variables, read when they matter:

ORBITKV_TEST_DUMP      directory; pages go to published/ and loaded/ in it
ORBITKV_TEST_LATE=1    no client before wake() (engines that are forked ready-made)
ORBITKV_TEST_VERIFY=0  restores do not verify checksums
ORBITKV_TEST_SABOTAGE  swap | zero: damages pages after a load
ORBITKV_TEST_POISON=1  overwrites source pages as soon as their save has released them
ORBITKV_TEST_HOOKS=1   layer-ready loads wait in the engine's layer hooks, as on a GPU
"""

import os
import pathlib
import uuid
from dataclasses import dataclass, field, replace

import torch
from orbitkv import CacheManagerClient, ManagerUnavailableError
from orbitkv.vllm.availability import Availability
from orbitkv.vllm.config import instance_of
from orbitkv.vllm.connector import OrbitKVConnector
from orbitkv.vllm.device import HostPages
from orbitkv.vllm.metadata import StepTasks
from pages import write_page


@dataclass(frozen=True)
class TestTasks(StepTasks):
    """Adds the keys of what is loaded; the connector itself does not need them."""

    load_keys: dict[str, list[bytes]] = field(default_factory=dict)


def all_loads(tasks):
    return tasks.loads + (tasks.layered.loads if tasks.layered else ())


class LateClient:
    """Stands in for a client until the process that will use it has been forked."""

    instance_id = bytes(16)

    def __getattr__(self, name):
        raise ManagerUnavailableError("not woken up yet")

    def wake(self, client):
        self.__dict__.update(
            {n: getattr(client, n) for n in dir(client) if not n.startswith("__")}, real=client
        )


class HookPages(HostPages):
    """CPU pages that layers wait for one by one. A restore into CPU memory is done when
    it is enqueued, so that is all there is to wait for."""

    streams = True

    def layer_events(self, names):
        return []

    def wait(self, name):
        pass


class DumpConnector(OrbitKVConnector):
    instances = []  # of this process

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self._views = []
        self._loading = {}  # request -> (keys, blocks)
        self._saving = {}  # job -> blocks
        DumpConnector.instances.append(self)

    def _open_client(self, name):
        if os.environ.get("ORBITKV_TEST_LATE"):
            return LateClient()
        instance = instance_of(self._kv_transfer_config.engine_id)
        return self._new_client(self._settings.bootstrap_socket, instance, name)

    def _new_client(self, socket, instance, name):
        verify = os.environ.get("ORBITKV_TEST_VERIFY") != "0"
        return CacheManagerClient(
            socket, instance, self._settings.timeout_ms, name=name, verify=verify, early_leases=True
        )

    @classmethod
    def wake_all(cls, socket):
        """After the fork: clients under a new instance id, then the pages registered."""
        instance = uuid.uuid4().bytes
        for connector in cls.instances:
            side = connector._worker or connector._scheduler
            name = "worker" if connector._worker else "scheduler"
            side._client.wake(connector._new_client(socket, instance, name))
            side._availability = Availability(side._availability._clock, "tests", quiet=side is connector._worker)
        for connector in cls.instances:
            if connector._worker is not None:
                if os.environ.get("ORBITKV_TEST_HOOKS"):
                    connector._worker._spec = replace(connector._worker._spec, pages=HookPages())
                connector._worker._ready()

    # ---- scheduler ----

    def build_connector_meta(self, scheduler_output):
        requests = self._scheduler._requests
        tasks = super().build_connector_meta(scheduler_output)
        loads = all_loads(tasks)
        if not loads:
            return tasks
        keys = {}
        for task in loads:
            state = requests[task.req_id]
            keys[task.req_id] = [state.request.block_hashes[p] for p in state.loading]
        return TestTasks(tasks.loads, tasks.saves, tasks.layered, tasks.known_failures, keys)

    # ---- worker ----

    def register_kv_caches(self, kv_caches):
        super().register_kv_caches(kv_caches)
        blocks = self._kv_cache_config.num_blocks
        self._views = [kv_caches[layer.name] for layer in self._worker._spec.layers]
        assert all(view.shape[0] == blocks for view in self._views)

    def start_load_kv(self, forward_context, **kwargs):
        tasks = self._tasks()
        for task in all_loads(tasks):
            self._loading[task.req_id] = (tasks.load_keys[task.req_id], list(task.blocks))
        super().start_load_kv(forward_context, **kwargs)

    def wait_for_save(self):
        tasks = self._tasks()
        self._worker.settle_layered()
        good = tasks.layered is None or self._worker._verdicts[tasks.layered.job]
        for task in tasks.layered.loads if tasks.layered else ():
            keys, blocks = self._loading.pop(task.req_id)
            if good:
                self._dump("loaded", keys, blocks)
        for task in tasks.saves if good else ():
            self._saving[task.job] = task.blocks
            keys = [task.hashes[i : i + 32] for i in range(0, len(task.hashes), 32)]
            self._dump("published", keys, task.blocks)
        super().wait_for_save()

    def get_transfer_results(self, finished_req_ids):
        results = super().get_transfer_results(finished_req_ids)
        for req_id in results.finished_recving:
            keys, blocks = self._loading.pop(req_id)
            if req_id not in results.failed_recving:
                self._sabotage(blocks)
                self._dump("loaded", keys, blocks)
        return results

    def build_connector_worker_meta(self):
        report = super().build_connector_worker_meta()
        for job in report.released if report else ():
            blocks = self._saving.pop(job, ())
            if os.environ.get("ORBITKV_TEST_POISON"):
                for view in self._views:
                    for block in blocks:
                        view[block].view(torch.uint8).fill_(0xEE)
        return report

    def _page(self, block):
        views = [view[block].contiguous().view(torch.uint8).cpu() for view in self._views]
        return b"".join(view.numpy().tobytes() for view in views)

    def _dump(self, kind, keys, blocks):
        directory = os.environ.get("ORBITKV_TEST_DUMP")
        if directory:
            for key, block in zip(keys, blocks, strict=False):
                if block is not None:
                    write_page(pathlib.Path(directory) / kind, key, self._page(block))

    def _sabotage(self, blocks):
        how = os.environ.get("ORBITKV_TEST_SABOTAGE")
        first, second = blocks[0], blocks[1]
        if how == "zero":
            self._views[1][second].zero_()
        elif how == "swap":
            for view in self._views:
                kept = view[first].clone()
                view[first].copy_(view[second])
                view[second].copy_(kept)
