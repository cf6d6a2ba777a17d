"""OrbitKVConnector: what vLLM calls, handed to the side that this instance is.

Layer hooks do nothing unless their step loads. No thread starts here, and nothing
depends on shutdown().
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from orbitkv.client import CacheManagerClient, Group
from orbitkv.vllm import geometry, loading, namespace
from orbitkv.vllm.config import Settings, check_engine, check_one_host, host, instance_of
from orbitkv.vllm.device import pages_of
from orbitkv.vllm.metadata import Handshake, StepTasks, WorkerReport
from orbitkv.vllm.scheduler import SchedulerSide
from orbitkv.vllm.worker import RankSpec, WorkerSide

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput


class OrbitKVConnector(KVConnectorBase_V1, SupportsHMA):
    """Publishes full blocks after each step; restores prefixes asynchronously, or layer by
    layer in the step that uses them (loading.py)."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        check_engine(KVConnectorBase_V1, vllm_config, kv_cache_config)
        self._settings = Settings.parse(self._kv_transfer_config.kv_connector_extra_config)
        self._worker: WorkerSide | None = None
        self._scheduler: SchedulerSide | None = None
        self._load = loading.choose(self._settings.load, vllm_config)
        self._scope = namespace.cache_scope(self._settings.cache_scope)
        self._worker_canary: str | None = None
        client = self._open_client("scheduler" if role == KVConnectorRole.SCHEDULER else "worker")
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(
                client,
                block_tokens=kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size,
                workers=vllm_config.parallel_config.world_size,
                read=self._settings.mode == "read_write",
            )
            self._scheduler.check_hashes_with(self._misnamed)
        else:
            self._worker = WorkerSide(client)

    def _open_client(self, name: str) -> CacheManagerClient:
        return CacheManagerClient(
            self._settings.bootstrap_socket,
            instance_of(self._kv_transfer_config.engine_id),
            self._settings.timeout_ms,
            self._settings.spin_iterations,
            name=f"vllm-{name}",
            copy_method=self._settings.copy_method,
            copy_pace=self._settings.copy_pace,
            # A load that fails late costs a computation, but only under this policy.
            early_leases=self._kv_transfer_config.kv_load_failure_policy == "recompute",
        )

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a lost save is a miss later

    # ---- worker ----

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

        config = self._kv_cache_config
        spec = config.kv_cache_groups[0].kv_cache_spec
        world = self._vllm_config.parallel_config.tensor_parallel_size
        rank = get_tensor_model_parallel_rank() if world > 1 else 0
        layers = geometry.describe_layers(config, kv_caches)
        geometry.check_pages(layers, kv_caches, config.num_blocks)
        self._worker.register(
            RankSpec(
                namespace=namespace.namespace_text(self._vllm_config, config, self._scope),
                rank=rank,
                world_size=world,
                pages=pages_of(kv_caches[layer.name] for layer in layers),
                layers=layers,
                num_blocks=config.num_blocks,
                block_tokens=spec.block_size,
                groups=[Group(id=0, shard=rank, shards=world)],
            )
        )

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        tasks = self._tasks()
        if tasks.layered is not None:  # first: this step waits for them
            self._worker.start_layered(tasks.layered, loading.layer_hooks_run(forward_context))
        if tasks.loads:
            self._worker.start_loads(tasks.loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        layers = self._worker.layers
        if layers is not None and layers.active:
            layers.wait(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return  # whole pages are published after the step

    def wait_for_save(self) -> None:
        tasks = self._tasks()
        if tasks.layered is not None:
            self._worker.settle_layered()
        if tasks.saves:
            self._worker.start_saves(tasks.saves, tasks.known_failures)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        ended, failed = self._worker.ended_loads()
        return KVConnectorTransferResults(finished_recving=ended, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.bad_blocks()

    def build_connector_worker_meta(self) -> WorkerReport | None:
        return self._worker.report()

    def get_handshake_metadata(self) -> Handshake:
        # Behind another connector the policy for failed loads is that one's, unknown here.
        layers = self._load != loading.ASYNC and get_kv_transfer_group() is self
        return Handshake(namespace.worker_canary(self._hash_algorithm()), layers, host())

    def _tasks(self) -> StepTasks:
        tasks = self._connector_metadata
        return tasks if isinstance(tasks, StepTasks) else StepTasks()

    # ---- scheduler ----

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.bind_pool(gpu_block_pool)

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        handshakes = {rank: m for rank, m in metadata.items() if isinstance(m, Handshake)}
        check_one_host({rank: m.host for rank, m in handshakes.items()}, host())
        canaries = {m.canary for m in handshakes.values()}
        if len(canaries) > 1:
            raise ValueError(
                "OrbitKV: the workers hash blocks differently; start all of them with the same PYTHONHASHSEED"
            )
        self._worker_canary = canaries.pop() if canaries else None
        if metadata and all(getattr(m, "layers", False) for m in metadata.values()):
            self._scheduler.load_with(self._load)

    def _misnamed(self) -> str | None:
        """Asked before the first lookup, when the engine has set its hashing up."""
        if self._worker_canary in (None, namespace.scheduler_canary(self._hash_algorithm())):
            return None
        return "scheduler and worker hash blocks differently; give both the same PYTHONHASHSEED"

    def _hash_algorithm(self) -> str:
        return self._vllm_config.cache_config.prefix_caching_hash_algo

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return self._scheduler.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        block_ids = blocks.get_block_ids()[0] if num_external_tokens else []
        self._scheduler.allocated(request, block_ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepTasks:
        return self._scheduler.step_tasks(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._scheduler.worker_output(connector_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.finished(request.request_id)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, [])

    def has_pending_block_frees(self) -> bool:
        return self._scheduler.frees_soon()

    def has_pending_push_work(self) -> bool:
        return self._scheduler.has_open_saves()

    def reset_cache(self) -> bool:
        return self._scheduler is None or self._scheduler.reset()

    def shutdown(self) -> None:
        for side in (self._worker, self._scheduler):
            if side is not None:
                side.close()
