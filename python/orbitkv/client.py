"""CacheManagerClient: one session of this process with the Manager of this host.

All calls are thread-safe, have a deadline and release the GIL while they wait or copy.
Engine pages are lent from save()/start_restore() until the operation is done; dropping
a handle cancels nothing, and a wait that times out keeps everything as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from orbitkv import _core
from orbitkv._arguments import (
    U16,
    U64,
    blocks,
    fields,
    flag,
    identity,
    instance_of,
    items,
    mapping,
    milliseconds,
    one_of,
    path,
    text,
    whole,
)
from orbitkv._core import NO_STREAM, BlockHashes
from orbitkv._device import event_of, memory_of, stream_of
from orbitkv.errors import OrbitKVError, RetryLaterError, SaveNotSubmittedError
from orbitkv.recovery import RecoveryContract
from orbitkv.values import (
    Boundary,
    Group,
    Health,
    InterestAuthority,
    Layer,
    OperationHandle,
    OperationReport,
    PublishActivity,
    QueryCandidates,
    QueryLoading,
    QueryReady,
    RecoveryLoading,
    RecoveryMissing,
    RecoveryReady,
    Registration,
    RestoreHandle,
    RestoreStatus,
    SaveHandle,
    SaveStatus,
    WarmHint,
)

__all__ = [
    "NO_LEASE",
    "NO_STREAM",
    "BlockHashes",
    "Boundary",
    "CacheManagerClient",
    "Group",
    "Health",
    "Layer",
    "OperationReport",
    "PublishActivity",
    "QueryCandidates",
    "QueryLoading",
    "QueryReady",
    "RecoveryLoading",
    "RecoveryMissing",
    "RecoveryReady",
    "Registration",
    "RestoreHandle",
    "RestoreStatus",
    "SaveHandle",
    "SaveStatus",
    "WarmHint",
]

NO_LEASE = bytes(16)
_FEW_LENT = 32


class CacheManagerClient:
    """A session with the Manager. Opening succeeds without one: the client goes on trying.

    bootstrap_socket: what `orbitkv serve --bootstrap-socket` was given; None: its default path.
    instance_id: 16 bytes, one for each engine (all its ranks share it) and new for each start.
    timeout_ms: longest wait of a call. Beside a Manager (`orbitkv serve --pool-size 1GiB`) this runs as it is:

        import time
        import uuid

        from orbitkv import CacheManagerClient, Layer, QueryLoading

        PAGE = 4096  # bytes of a block
        pages = bytearray(8 * PAGE)  # or a numpy array, or a torch tensor: 8 blocks of one layer
        hashes = [bytes([n]) * 32 for n in range(4)]  # 32 bytes a block: of its tokens and all before them
        with CacheManagerClient(instance_id=uuid.uuid4().bytes) as client:
            client.wait_connected()
            layer = Layer("layer 0", group=0, component=0, tensor=pages, block_stride=PAGE, rows=1, row_bytes=PAGE)
            memory = client.register("my model, float16", 0, 1, "cpu:0", [layer], num_blocks=8, block_tokens=16)
            pages[: 4 * PAGE] = b"k" * (4 * PAGE)  # computed: blocks 0 to 3
            saved = client.wait_save(client.save(memory, [(0, range(4), hashes)]))
            assert saved.success and saved.blocks + saved.resident == 4, saved.message
            # here into blocks 4 to 7; or in another process, after the same lines up to register()
            while isinstance(hit := client.query_prefetch(client.instance_id, hashes, "request 1"), QueryLoading):
                time.sleep(0.002)  # blocks that come from SSD
            assert hit.hit_blocks == 4, hit.why  # with none there is no lease, and nothing to restore
            load = client.start_restore(memory, [(hit.lease, [range(4, 8)])])
            assert client.wait_restore(load).success  # every byte is there and was verified
            assert pages[4 * PAGE :] == b"k" * (4 * PAGE)

    On a GPU: device="cuda:0", and CUDA tensors in the layers. Streams order: save() and
    start_restore() wait on the device for what stands on ready_stream, never in this thread.

    copy_method: "auto" | "direct" (DMA) | "kernel". copy_pace: "full" | "gentle" (slower,
    and less of a burden for compute beside it). trace_file: JSON lines, one an operation;
    None takes ORBITKV_TRACE_TRANSFERS, without which nothing is traced. early_leases: a query
    is leased while the last of its blocks still come from SSD; restores wait for theirs, and
    fail if one then cannot be read.

    Ctrl-C ends wait_connected(), wait_save(), wait_restore() and wait_restore_enqueued() at once, and
    what was waited for goes on; other calls hear it when they end, timeout_ms at most.
    """

    def __init__(
        self,
        bootstrap_socket: str | None = None,
        instance_id: bytes = NO_LEASE,
        timeout_ms: int = 5000,
        spin_iterations: int = 64,
        *,
        name: str = "python",
        verify: bool = True,
        inline_copies: bool = True,
        copy_method: str = "auto",
        copy_pace: str = "full",
        trace_file: str | None = None,
        early_leases: bool = False,
    ) -> None:
        identity("instance_id", instance_id)
        options = _core.Options()
        options.bootstrap_socket = "" if bootstrap_socket is None else path("bootstrap_socket", bootstrap_socket)
        options.name = text("name", name)
        options.timeout_ms = self._timeout_ms = whole("timeout_ms", timeout_ms)
        options.spin_iterations = whole("spin_iterations", spin_iterations)
        options.verify = flag("verify", verify)
        options.inline_copies = flag("inline_copies", inline_copies)
        options.copy_method = one_of("copy_method", copy_method, ("auto", "direct", "kernel"))
        options.copy_pace = one_of("copy_pace", copy_pace, ("full", "gentle"))
        options.early_leases = flag("early_leases", early_leases)
        if trace_file is not None:
            options.trace_file = path("trace_file", trace_file)
        self.instance_id = instance_id
        self._core = _core.Client(options)
        # Behind the core, so that they go after it: what the native side reads and writes,
        # and the streams and events of open operations.
        self._registered: dict[int, Any] = {}
        self._lent: dict[int, list[Any]] = {}
        self._sweep_at = _FEW_LENT

    @staticmethod
    def hashes(items: Iterable[bytes] | bytes) -> BlockHashes:
        """From an iterable of hashes, or from their concatenation."""
        return items if isinstance(items, BlockHashes) else BlockHashes(items)

    def wait_connected(self, timeout: float | None = None) -> None:
        """Until a session stands; timeout in seconds. ManagerUnavailableError says what is missing."""
        self._core.wait_connected(self._milliseconds(timeout))

    # ---- memory ----

    def register(
        self,
        namespace: str,
        rank: int,
        world_size: int,
        device: str,
        layers: Sequence[Layer],
        num_blocks: int,
        block_tokens: int,
        groups: Sequence[Group] = (Group(),),
    ) -> Registration:
        """Lends the memory of `layers`: num_blocks blocks of block_tokens tokens each.

        device: "cpu:0", "cuda:<ordinal>" as this process counts, "GPU-<uuid>" or "MIG-<uuid>".
        namespace: text of everything that changes the meaning of the bytes; blocks are found
        again only under the same text and shapes. Queries answer once all ranks are registered.
        """
        spec = _core.RegistrationSpec()
        spec.instance = self.instance_id
        spec.name_space = text("namespace", namespace)
        spec.rank, spec.world_size = whole("rank", rank, U16), whole("world_size", world_size, U16)
        spec.device = text("device", device)
        spec.num_blocks, spec.block_tokens = whole("num_blocks", num_blocks), whole("block_tokens", block_tokens)
        for at, group in enumerate(items("groups", groups)):
            g = instance_of(f"groups[{at}]", group, Group)
            spec.add_group(int(g.id), int(g.shard), int(g.shards), g.writer, g.rule, int(g.window_tokens))
        held, layers = [], items("layers", layers)
        for at, layer in enumerate(layers):
            instance_of(f"layers[{at}]", layer, Layer)
            address, size, owner = memory_of(layer.tensor, device)
            spec.add_layer(_layer_spec(layer, size), address)
            held.append(owner)
        registration = Registration(self._core.register_rank(spec), tuple(layers))
        self._registered[registration.handle] = held
        return registration

    def unregister(self, registration: Registration) -> None:
        """Waits for the operations of the registration, then forgets the memory."""
        self._core.unregister(_registered(registration))
        self._registered.pop(registration.handle, None)

    # ---- lookup ----

    def query_candidates(
        self, instance: bytes, hashes: Iterable[bytes], req_id: str, group_id: int = 0
    ) -> QueryCandidates:
        """Which positions are there. Pins nothing."""
        found = self._core.query_candidates(
            identity("instance", instance), self.hashes(hashes), text("req_id", req_id), _group(group_id)
        )
        run, positions, stored = found
        return QueryCandidates(run, tuple(positions), tuple(stored))

    def query_prefetch(
        self,
        instance: bytes,
        hashes: Iterable[bytes],
        req_id: str,
        wait_for_full_prefix: bool = False,
        group_id: int = 0,
    ) -> QueryReady | QueryLoading:
        """Leases the leading run. The same request and hashes get the same lease again.

        Ready at once if all of the run is in memory. Loading while blocks of it come from SSD:
        poll_query(), or ask again with the same request and hashes. That ends in Ready, with fewer blocks where
        reading failed or took longer than the Manager's --load-wait. wait_for_full_prefix: where the
        run ends at a block that another engine is saving, wait for it (--full-prefix-wait).
        """
        found = self._core.query_prefetch(
            identity("instance", instance),
            self.hashes(hashes),
            text("req_id", req_id),
            _group(group_id),
            flag("wait_for_full_prefix", wait_for_full_prefix),
        )
        return _query_answer(found, group_id)

    def prepare_prefix(self, instance: bytes, hashes: Iterable[bytes], req_id: str, group_id: int = 0) -> bool:
        """Ahead of need: loads what query_prefetch() of the same request and hashes would have to load.

        That one then finds it. Unclaimed, it ends a second after it is ready, or when a query would
        have to wait for what it holds; cancel_query() ends it. False: there is nothing to prepare,
        or no room for it now.
        """
        asked = identity("instance", instance), self.hashes(hashes), text("req_id", req_id), _group(group_id)
        return _begun(lambda: self._core.prepare_prefix(*asked))

    def warm_prefix(
        self,
        instance: bytes,
        hashes: Iterable[bytes],
        req_id: str,
        hint: WarmHint | None = None,
        group_id: int = 0,
    ) -> bool:
        """A hint that the list may be asked for: what is on SSD of it may be loaded while no query waits.

        Leases and promises nothing. Another hint under the request takes its place. False: too many
        hints live. A list of more than 2^20 hashes is rejected, as by a query.
        """
        h = WarmHint() if hint is None else instance_of("hint", hint, WarmHint)
        queue = (int(h.first_use_ms), int(h.max_wait_ms), int(h.priority), int(h.confidence))
        asked = identity("instance", instance), self.hashes(hashes), text("req_id", req_id), _group(group_id)

        def give() -> bool:
            self._core.warm_prefix(*asked, queue)
            return True

        return _begun(give)

    def cancel_warm(self, instance: bytes, req_id: str, group_id: int = 0) -> None:
        """Ends the hint, if it lives; what is being read for it alone is given up."""
        self._core.cancel_warm(identity("instance", instance), text("req_id", req_id), _group(group_id))

    def poll_query(self, instance: bytes, req_id: str, loading: QueryLoading) -> QueryReady | QueryLoading:
        """What query_prefetch() would answer to the same hashes, without sending them again.

        Where another list was asked under the request since, this answers Ready with no blocks,
        as it does where the list has ended; the newer list is not touched.
        """
        asked = identity("instance", instance), text("req_id", req_id)
        instance_of("loading", loading, QueryLoading)
        found = self._core.poll_query(*asked, loading.group_id, loading.revision)
        return _query_answer(found, loading.group_id)

    def query_boundaries(
        self,
        instance: bytes,
        contract: RecoveryContract,
        hashes: Mapping[int, Iterable[bytes]],
        req_id: str,
        tail: tuple[int, int],
        limit: int | None = None,
    ) -> Boundary:
        """The greatest boundary of the tail (at most `limit`) at which all groups are complete.

        hashes: by group, one a page of the tail [origin, end). Reads and pins nothing.
        """
        page = instance_of("contract", contract, RecoveryContract).page_tokens
        first, last = fields("tail", tail, ("origin", "end"))
        origin, end = whole("tail: origin", first, U64), whole("tail: end", last, U64)
        limit = end if limit is None else whole("limit", limit, U64)
        pages = {}
        for group, listed in mapping("hashes", hashes).items():
            found = self.query_candidates(instance, listed, req_id, group)
            pages[group] = tuple(sorted((*found.hit_positions, *found.stored_positions)))
        coverage = {
            group: [(origin + p * page, origin + (p + 1) * page) for p in there] for group, there in pages.items()
        }
        return Boundary(contract.select_boundary(contract.namespace, origin, end, [coverage], limit), pages)

    def read_recovery(
        self, instance: bytes, hashes: Mapping[int, Iterable[bytes]], req_id: str, origin: int, boundary: int
    ) -> RecoveryReady | RecoveryLoading | RecoveryMissing:
        """Leases every page that a boundary needs, of all groups, or nothing.

        hashes: of every registered group the pages of its required range
        (RecoveryContract.required_ranges of [origin, boundary)). RejectedError: they are not
        those of the boundary by the registered rules. The same request and hashes get the same
        leases again. A restore that fails on any rank loses the whole boundary.
        """
        asked = self._recovery(instance, hashes, req_id, (origin, boundary))
        return _recovery_answer(self._core.read_recovery(*asked))

    def prepare_recovery(
        self, instance: bytes, hashes: Mapping[int, Iterable[bytes]], req_id: str, origin: int, boundary: int
    ) -> bool:
        """As prepare_prefix(), for read_recovery(); cancel_recovery() ends it."""
        asked = self._recovery(instance, hashes, req_id, (origin, boundary))
        return _begun(lambda: self._core.prepare_recovery(*asked))

    def _recovery(
        self, instance: bytes, hashes: Mapping[int, Iterable[bytes]], req_id: str, tail: tuple[int, int]
    ) -> tuple[bytes, str, tuple[int, int], list[tuple[int, BlockHashes]]]:
        listed = {whole("a group of hashes", group, U16): each for group, each in mapping("hashes", hashes).items()}
        groups = [(group, self.hashes(listed[group])) for group in sorted(listed)]
        between = whole("origin", tail[0], U64), whole("boundary", tail[1], U64)
        return identity("instance", instance), text("req_id", req_id), between, groups

    def poll_recovery(
        self, instance: bytes, req_id: str, loading: RecoveryLoading
    ) -> RecoveryReady | RecoveryLoading | RecoveryMissing:
        """What read_recovery() would answer to the same hashes, without sending them again."""
        asked = identity("instance", instance), text("req_id", req_id)
        instance_of("loading", loading, RecoveryLoading)
        return _recovery_answer(self._core.poll_recovery(*asked, loading.revision))

    def cancel_recovery(self, instance: bytes, req_id: str, revision: int = 0) -> None:
        """Ends all of its leases that are not consumed. revision: of the answer meant; 0 is whichever."""
        asked = identity("instance", instance), text("req_id", req_id)
        self._core.cancel_recovery(*asked, whole("revision", revision, U64))

    def release(self, lease: bytes) -> None:
        """Gives back a lease that is not restored, or not to its end."""
        self._core.release(identity("lease", lease))

    def cancel_query(self, instance: bytes, req_id: str, group_id: int = 0, revision: int = 0) -> None:
        """Releases what query_prefetch leased for this request, if anything.

        revision: of the answer that is meant; 0 is whichever. An older one is left alone.
        """
        asked = identity("instance", instance), text("req_id", req_id), _group(group_id)
        self._core.cancel_query(*asked, whole("revision", revision, U64))

    # ---- save ----

    def save(
        self,
        registration: Registration,
        groups: Sequence[tuple[int, Sequence[int], Iterable[bytes]]],
        ready_stream: Any = 0,
    ) -> SaveHandle:
        """Lends the pages until the save is done. SaveNotSubmittedError: nothing was lent.

        ready_stream: whoever writes the pages, as torch.cuda.Stream or CUstream; 0 is the
        default stream, NO_STREAM: they are written. Kept alive until the save is done, and
        ignored for CPU pages.
        """
        stream, memory = stream_of(ready_stream), _registered(registration)
        parts = []
        for at, each in enumerate(items("groups", groups)):
            group, listed, hashes = fields(f"groups[{at}]", each, ("group", "blocks", "hashes"))
            named = whole("a group", group, U16), blocks(f"blocks of group {group}", listed)
            parts.append((*named, self.hashes(hashes)))
        try:
            handle = self._core.start_save(memory, parts, stream)
        except OrbitKVError as error:
            raise SaveNotSubmittedError(str(error), error.action) from error
        self._keep(handle, [ready_stream])
        return SaveHandle(handle)

    def poll_save(self, handle: SaveHandle) -> SaveStatus:
        """How it is, at once: of the blocks that were given how many were copied, were there, or found no memory."""
        return self._saved(handle, self._core.poll(_value(handle, SaveHandle)))

    def wait_save(self, handle: SaveHandle, timeout: float | None = None) -> SaveStatus:
        """timeout in seconds, None: the client's. Not done after it: still lent."""
        return self._saved(handle, self._core.wait(_value(handle, SaveHandle), self._milliseconds(timeout)))

    # ---- restore ----

    def start_restore(
        self,
        registration: Registration,
        loads: Sequence[tuple[bytes, Sequence[Sequence[int | None]]]],
        ready_stream: Any = 0,
        layer_events: Sequence[tuple[str, Any]] = (),
    ) -> RestoreHandle:
        """loads: (lease, for each group one block id per leased block; None is skipped).

        Fewer ids restore the lease's first blocks; the next call goes on behind them, and the
        lease ends with its last block.

        ready_stream: earlier users of the destination pages, as in save().
        layer_events: (name of a layer, torch.cuda.Event or CUevent), recorded after the
        layer's last byte; one event a layer, distinct, kept alive until the restore is done.
        Wait for them only after wait_restore_enqueued(), and let no output out before
        wait_restore() says success: events order, the verdict decides. torch creates an event
        at its first record(), so record it once before.
        """
        stream, memory = stream_of(ready_stream), _registered(registration)
        named = (fields("a layer event", each, ("layer", "event")) for each in items("layer_events", layer_events))
        layer_events = [(text("the layer of an event", layer), event) for layer, event in named]
        events = [(layer, event_of(layer, event)) for layer, event in layer_events]
        parts = []
        for at, load in enumerate(items("loads", loads)):
            lease, per_group = fields(f"loads[{at}]", load, ("lease", "block ids by group"))
            for group, listed in enumerate(items(f"block ids of loads[{at}]", per_group)):
                name = f"blocks of group {group}"
                parts.append((identity("a lease", lease), group, blocks(name, listed, holes=True)))
        handle = self._core.start_restore(memory, parts, stream, events)
        self._keep(handle, [ready_stream, *(event for _, event in layer_events)])
        return RestoreHandle(handle)

    def wait_restore_enqueued(self, handle: RestoreHandle, timeout: float | None = None) -> None:
        """Until every layer event is recorded: from then on streams may wait for them.

        RecomputeError: the restore ended without. RetryLaterError: not in time.
        """
        self._core.wait_enqueued(_value(handle, RestoreHandle), self._milliseconds(timeout))

    def poll_restore(self, handle: RestoreHandle) -> RestoreStatus:
        """How it is, at once. One that was forgotten is done, and no success; `message` says so."""
        return self._restored(handle, self._core.poll(_value(handle, RestoreHandle)))

    def wait_restore(self, handle: RestoreHandle, timeout: float | None = None) -> RestoreStatus:
        """timeout in seconds, None: the client's. Not done after it: the pages are still lent."""
        return self._restored(handle, self._core.wait(_value(handle, RestoreHandle), self._milliseconds(timeout)))

    def forget(self, handle: SaveHandle | RestoreHandle) -> None:
        """Drops the result of an operation; an open one goes on."""
        self._core.drop(_value(handle))

    def report(self, handle: SaveHandle | RestoreHandle) -> OperationReport:
        """RejectedError: the client has no trace_file, or the operation is not done."""
        return OperationReport(*self._core.report(_value(handle)))

    # ---- session ----

    @property
    def completion_fd(self) -> int:
        """An eventfd (an int) that is readable when operations ended; see take_completed(). Not yours to close."""
        return self._core.completion_fd()

    def take_completed(self) -> list[int]:
        """Values of the handles that ended since the last call, each once."""
        return self._core.take_completed()

    def health(self) -> Health:
        """Of this session, without asking the Manager."""
        return Health(*self._core.health())

    def publish_activity(self, instance: bytes | None = None) -> PublishActivity:
        """Of this client's instance, or of another one. RejectedError: no rank of it is registered."""
        of = self.instance_id if instance is None else identity("instance", instance)
        return PublishActivity(*self._core.publish_activity(of))

    def carry_interest(self, frame: bytes) -> bytes:
        """A frame that a coordinator elsewhere sent, to this Manager; the frame that answers it (docs/tp.md).

        One client a coordinator; close it when its channel ends. RejectedError: it is no such frame.
        """
        if not isinstance(frame, bytes | bytearray | memoryview):
            raise TypeError(f"a frame is bytes, not {type(frame).__name__}")
        return self._core.carry_interest(bytes(frame))

    def interest_authority(self, instance: bytes | None = None) -> InterestAuthority:
        """What an interest in the instance would be bound to now: for a PrefixGroup.

        RetryLaterError: not all ranks of the instance are registered.
        """
        of = self.instance_id if instance is None else identity("instance", instance)
        return InterestAuthority(*self._core.interest_authority(of))

    def peer_alive(self) -> bool:
        """False: the Manager's process has ended, or none is attached."""
        return self._core.peer_alive()

    def status(self) -> dict[str, Any]:
        """The Manager's status."""
        return json.loads(self._core.status())

    def close(self) -> None:
        """Drains and says goodbye, bounded by timeout_ms."""
        self._core.close()

    def __enter__(self) -> CacheManagerClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _milliseconds(self, timeout: float | None) -> int:
        return self._timeout_ms if timeout is None else milliseconds("timeout", timeout)

    def _saved(self, handle: SaveHandle, core: tuple[bool, bool, int, str, int, int]) -> SaveStatus:
        done, success, blocks, message, resident, dropped = core
        if done:
            self._lent.pop(handle.value, None)
        return SaveStatus(done, success, message, blocks, resident, dropped)

    def _restored(self, handle: RestoreHandle, core: tuple[bool, bool, int, str, int, int]) -> RestoreStatus:
        done, success, blocks, message, _, _ = core
        if done:
            self._lent.pop(handle.value, None)
        return RestoreStatus(done, success, message, blocks)

    def _keep(self, handle: int, objects: list[Any]) -> None:
        """Whoever never asks how operations ended keeps those of a few, not of all."""
        owned = [item for item in objects if not isinstance(item, int)]
        if not owned:
            return
        if len(self._lent) >= self._sweep_at:
            for other in list(self._lent):
                if self._core.poll(other)[0]:  # done, or dropped and gone
                    self._lent.pop(other, None)
            self._sweep_at = max(_FEW_LENT, 2 * len(self._lent))
        self._lent[handle] = owned


def _group(group_id: Any) -> int:
    return whole("group_id", group_id, U16)


def _registered(registration: Any) -> int:
    return instance_of("registration", registration, Registration).handle


def _value(handle: Any, kind: type = OperationHandle) -> int:
    return instance_of("handle", handle, kind).value


def _begun(prepare: Callable[[], bool]) -> bool:
    """Work ahead of need is refused where there is no place for it: no reason to fail."""
    try:
        return prepare()
    except RetryLaterError:
        return False


def _query_answer(
    found: tuple[int, bytes, bool, int, str, bool], group_id: int
) -> QueryReady | QueryLoading:
    blocks, lease, loading, revision, why, admitted = found
    if loading:
        return QueryLoading(blocks, group_id, revision, admitted)
    return QueryReady(blocks, lease, revision, why)


def _recovery_answer(
    found: tuple[dict[int, tuple[int, bytes]], bool, bool, int, str, int],
) -> RecoveryReady | RecoveryLoading | RecoveryMissing:
    leases, loading, admitted, revision, why, group = found
    if loading:
        return RecoveryLoading(revision, admitted)
    if why:
        return RecoveryMissing(why, group)
    return RecoveryReady({g: lease for g, (_, lease) in leases.items()}, revision)


def _layer_spec(layer: Layer, size: int) -> _core.LayerSpec:
    spec = _core.LayerSpec()
    spec.name, spec.bytes = layer.name, size
    for field in ("group", "component", "block_stride", "rows", "row_bytes", "row_stride"):
        setattr(spec, field, int(getattr(layer, field)))
    spec.row_stride = spec.row_stride or spec.row_bytes
    return spec
