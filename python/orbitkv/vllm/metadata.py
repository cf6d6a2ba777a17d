"""What one step carries between the two sides of the connector. Small and picklable."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


@dataclass(frozen=True)
class LoadTask:
    """Restore the leased blocks of a request; one destination each, None = leave out."""

    req_id: str
    lease: bytes
    blocks: tuple[int | None, ...]


@dataclass(frozen=True)
class SaveTask:
    """Publish blocks after this step. `job` names the pins that the scheduler holds."""

    job: int
    blocks: tuple[int, ...]
    hashes: bytes  # 32 bytes a block


@dataclass(frozen=True)
class LayerLoads:
    """Restores that this step's layers wait for; `job` names the verdict on all of them."""

    job: int
    loads: tuple[LoadTask, ...]


@dataclass(frozen=True)
class StepTasks(KVConnectorMetadata):
    loads: tuple[LoadTask, ...] = ()
    saves: tuple[SaveTask, ...] = ()
    layered: LayerLoads | None = None
    known_failures: int = 0  # failed verdicts that the scheduler had read when it made these saves


NOTHING = StepTasks()


@dataclass
class WorkerReport(KVConnectorWorkerMetadata):
    """Save jobs whose pages a worker no longer needs: job -> number of workers. Verdicts on
    layer-ready loads: job -> whether every byte arrived."""

    released: dict[int, int] = field(default_factory=dict)
    verdicts: dict[int, bool] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        released, verdicts = dict(self.released), dict(self.verdicts)
        for job, workers in getattr(other, "released", {}).items():
            released[job] = released.get(job, 0) + workers
        for job, good in getattr(other, "verdicts", {}).items():
            verdicts[job] = verdicts.get(job, True) and good
        return WorkerReport(released, verdicts)


@dataclass(frozen=True)
class Handshake(KVConnectorHandshakeMetadata):
    """Worker to scheduler at start: both must name blocks alike and stand at one host, and a
    step may run ahead of its verdict only where the worker says so."""

    canary: str
    layers: bool = False
    host: str = ""  # config.host()
