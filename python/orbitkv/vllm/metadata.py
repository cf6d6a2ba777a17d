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
class StepTasks(KVConnectorMetadata):
    loads: tuple[LoadTask, ...] = ()
    saves: tuple[SaveTask, ...] = ()


NOTHING = StepTasks()


@dataclass
class WorkerReport(KVConnectorWorkerMetadata):
    """Save jobs whose pages a worker no longer needs: job -> number of workers."""

    released: dict[int, int] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        merged = dict(self.released)
        for job, workers in getattr(other, "released", {}).items():
            merged[job] = merged.get(job, 0) + workers
        return WorkerReport(merged)


@dataclass(frozen=True)
class Handshake(KVConnectorHandshakeMetadata):
    """Worker to scheduler at start: both must name blocks alike."""

    canary: str
