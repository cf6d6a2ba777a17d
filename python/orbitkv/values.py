"""What the client takes and gives: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from orbitkv._arguments import U16, U64, flag, one_of, text, whole

RULES = ("prefix", "window", "checkpoint")


@dataclass(frozen=True)
class Layer:
    """One fragment of every block: row r of block b starts b*block_stride + r*row_stride
    bytes behind the start of `tensor` and holds row_bytes. row_stride 0: the rows follow one another.

    name: for messages and layer events; components of one layer share it. group: the Group it is of.
    component: 0 is K, or K and V together, 1 is V. ValueError, TypeError: out of range.

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

    def __post_init__(self) -> None:
        text("Layer.name", self.name)
        whole("Layer.group", self.group, U16)
        whole("Layer.component", self.component, U16)
        whole("Layer.block_stride", self.block_stride, U64)
        whole("Layer.rows", self.rows, least=1)
        whole("Layer.row_bytes", self.row_bytes, U64, least=1)
        whole("Layer.row_stride", self.row_stride, U64)


@dataclass(frozen=True)
class Group:
    """A group of layers of this rank: which shard of its blocks it reads and writes.

    shard, shards: of a block, 0 <= shard < shards; ranks that hold the same bytes (MLA) name the same shard, and
    one of them is its writer. ValueError, TypeError: out of range.

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

    def __post_init__(self) -> None:
        whole("Group.id", self.id, U16)
        whole("Group.shards", self.shards, U16, least=1)
        whole("Group.shard", self.shard, self.shards - 1)
        flag("Group.writer", self.writer)
        one_of("Group.rule", self.rule, RULES)
        window = self.rule == "window"
        whole("Group.window_tokens", self.window_tokens, least=int(window))
        if not window and self.window_tokens:
            raise ValueError(f"Group.window_tokens is 0 for a {self.rule} group, not {self.window_tokens}")


@dataclass(frozen=True)
class Registration:
    """Registered memory, kept alive by the client until unregister(); survives a Manager restart."""

    handle: int
    layers: tuple[Layer, ...] = field(repr=False)


@dataclass(frozen=True)
class QueryCandidates:
    """hit_blocks: the leading run in memory or on SSD, in blocks. hit_positions are in memory, stored_positions on
    SSD only: indices of the list that was asked for, ascending, holes in it included."""

    hit_blocks: int
    hit_positions: tuple[int, ...]
    stored_positions: tuple[int, ...] = ()


@dataclass(frozen=True)
class QueryReady:
    """The leading run, hit_blocks of the list, is leased: restore it, or release the lease (16 bytes).

    With no blocks there is no lease, and nothing to release. revision: of this answer, for cancel_query().
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

    hit_blocks: of it, as far as is known. revision: of the list that was asked for.
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
    as hints live (5 s). priority: larger first. confidence: 0 to 100. Whole numbers from 0 on:
    ValueError, TypeError.
    """

    first_use_ms: int = 0
    priority: int = 0
    confidence: int = 100
    max_wait_ms: int = 0

    def __post_init__(self) -> None:
        for name in ("first_use_ms", "priority", "max_wait_ms"):
            whole(f"WarmHint.{name}", getattr(self, name))
        whole("WarmHint.confidence", self.confidence, 100)


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
    """Every page of the boundary is leased, one lease (16 bytes) a group: restore them, or release them."""

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
class OperationHandle:
    """Of a save or a restore that was started; dropping it cancels nothing."""

    value: int


class SaveHandle(OperationHandle):
    """Of a save."""


class RestoreHandle(OperationHandle):
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
    """When this process saw an operation's stages, in nanoseconds since the call, and what it moved.

    readiness: the ready stream was behind it; dispatched: sent to the Manager; dequeued: its grant was seen;
    claimed, enqueued (the last copy), drained. bytes, fragments: copied. method: "direct", "kernel" or "host".
    """

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
    """Of this session. incarnation: which life of the Manager, 0: none yet. reconnects: sessions after the first.
    message: what is wrong while it is not connected."""

    connected: bool
    incarnation: int
    reconnects: int
    open_operations: int
    message: str


class InterestAuthority(NamedTuple):
    """What an interest is bound to: the life of a Manager and the registrations of an instance's ranks there.

    generation rises when a rank registers; layout: 16 bytes, of namespace and shards; consumers: ranks.
    """

    incarnation: int
    generation: int
    layout: bytes
    consumers: int
