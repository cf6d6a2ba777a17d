"""What the client takes and gives: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Layer:
    """One fragment of every block: row r of block b starts b*block_stride + r*row_stride
    bytes behind the start of `tensor` and holds row_bytes.

    tensor: a torch tensor (CPU or CUDA), an object with `__cuda_array_interface__` or
    `__array_interface__`, or a writable buffer. Of a torch tensor everything from its first
    element to the end of its storage counts; anything else must be contiguous.
    """

    name: str
    group: int
    component: int
    tensor: Any
    block_stride: int
    rows: int
    row_bytes: int
    row_stride: int = 0


@dataclass(frozen=True)
class Group:
    """A group of layers of this rank: which shard of its blocks it reads and writes.

    rule: which cached tokens the group needs before the engine can go on at token b: "prefix"
    (all; group 0 has it), "window" (the last ceil(window_tokens / block_tokens) blocks) or
    "checkpoint" (the block that ends at b).
    """

    id: int = 0
    shard: int = 0
    shards: int = 1
    writer: bool = True
    rule: str = "prefix"
    window_tokens: int = 0


@dataclass(frozen=True)
class Registration:
    """Registered memory, kept alive by the client until unregister(); survives a Manager restart."""

    handle: int
    layers: tuple[Layer, ...] = field(repr=False)


@dataclass(frozen=True)
class QueryCandidates:
    """hit_blocks: the leading run in memory or on SSD; positions that are in memory, and that are stored only."""

    hit_blocks: int
    hit_positions: tuple[int, ...]
    stored_positions: tuple[int, ...] = ()


@dataclass(frozen=True)
class QueryReady:
    """The leading run is leased: restore it, or release the lease.

    why: of a poll that ends with no blocks: "gone", "timeout", "no_memory" (no budget), or "unknown"
    (the query ended, was cancelled or replaced, or is of an earlier Manager).
    """

    hit_blocks: int
    lease: bytes
    revision: int = field(default=0, compare=False)
    why: str = ""


@dataclass(frozen=True)
class QueryLoading:
    """The run is on its way from SSD into memory: poll_query(), ask again, or cancel_query().

    admitted: False where it waits for budget, or for blocks that others save; then it holds nothing.
    """

    hit_blocks: int
    group_id: int = 0
    revision: int = field(default=0, compare=False)
    admitted: bool = True


@dataclass(frozen=True)
class WarmHint:
    """When a list may be needed, and how surely.

    first_use_ms: from now, an estimate. max_wait_ms: the hint is of no use after that; 0: as long
    as hints live (5 s). priority: larger first. confidence: 0 to 100.
    """

    first_use_ms: int = 0
    priority: int = 0
    confidence: int = 100
    max_wait_ms: int = 0


@dataclass(frozen=True)
class Boundary:
    """What query_boundaries() found: the greatest boundary at which every group is complete.

    boundary: in tokens; None: there is none. pages: by group, which pages of the tail are there,
    in memory or stored, as positions from its origin.
    """

    boundary: int | None
    pages: dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class RecoveryReady:
    """Every page of the boundary is leased, one lease a group: restore them, or release them."""

    leases: dict[int, bytes]
    revision: int


@dataclass(frozen=True)
class RecoveryLoading:
    """Not all of it is in memory yet: poll_recovery(), ask again, or cancel_recovery().

    admitted: False where it waits for budget or room in memory; then it holds nothing.
    """

    revision: int
    admitted: bool = True


@dataclass(frozen=True)
class RecoveryMissing:
    """Nothing is leased. why: "gone", "timeout", "no_memory", "too_large", or "unknown" (of a poll:
    it ended, was cancelled or replaced, or is of an earlier Manager). group: the first that is not
    to be had."""

    why: str
    group: int


@dataclass(frozen=True)
class _Handle:
    value: int


class SaveHandle(_Handle):
    """Of a save."""


class RestoreHandle(_Handle):
    """Of a restore."""


@dataclass(frozen=True)
class _Status:
    done: bool
    success: bool
    message: str
    blocks: int = 0


@dataclass(frozen=True)
class SaveStatus(_Status):
    """Of a save. Of one that is done and a success, the blocks that were given are these: `blocks`
    were copied, `resident` are there already or another publisher saves them, `dropped` found no
    place - message says why; save them again if they count. At most 65,536 blocks are being saved at once
    in a Manager: what is more goes in parts, each after wait_save() of the one before."""

    resident: int = 0
    dropped: int = 0


class RestoreStatus(_Status):
    """Of a restore."""


@dataclass(frozen=True)
class OperationReport:
    """When this process saw an operation's stages, in nanoseconds since the call, and what it moved."""

    readiness_ns: int
    dispatched_ns: int
    dequeued_ns: int
    claimed_ns: int
    enqueued_ns: int
    drained_ns: int
    bytes: int
    fragments: int
    method: str


@dataclass(frozen=True)
class PublishActivity:
    """What the publishes of an instance do now, and what it lost for want of memory."""

    open: int  # hold memory of the Manager that they copy into
    waiting: int  # for another publisher or a load of the same blocks
    lent_bytes: int
    dropped: int  # blocks, since the instance registered
    oldest_s: float  # age of the oldest of them


@dataclass(frozen=True)
class Health:
    connected: bool
    incarnation: int
    reconnects: int
    open_operations: int
    message: str


class InterestAuthority(NamedTuple):
    """What an interest is bound to: the life of a Manager and the registrations of an instance's ranks there."""

    incarnation: int
    generation: int
    layout: bytes
    consumers: int
