"""One engine whose ranks stand at several Managers: docs/tp.md. All calls are thread-safe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from orbitkv import _core
from orbitkv._arguments import U16, U64, fields, flag, identity, instance_of, items, milliseconds, whole
from orbitkv._carrier import Carrier, Pump
from orbitkv._core import BlockHashes
from orbitkv.client import CacheManagerClient
from orbitkv.values import InterestAuthority


@dataclass(frozen=True)
class CommonPrefix:
    """What every rank can restore: exactly `blocks`, claimed at all participants; 0: none, and nothing is held.

    leases: for each participant those of its groups, as (group, blocks, lease).
    why: "gone", "timeout", "no_memory", "too_large" or "" where no Manager gave a reason; of `participant`.
    """

    blocks: int
    leases: tuple[tuple[tuple[int, int, bytes], ...], ...]
    why: str = ""
    participant: int = 0
    message: str = ""


@dataclass(frozen=True)
class CommonRestore:
    """done: the outcome is known. success: every rank has restored all blocks; `message` says why not.
    quiet: no rank may be copying any more; until then the pages are not the engine's, whatever the outcome."""

    done: bool
    success: bool
    quiet: bool
    message: str


@dataclass(frozen=True)
class ParticipantStats:
    """What went to a participant and came of it, since the group was opened.

    sent: frames, each as often as it was sent again. answered: of them, each once. astray: came of it, and
    answered nothing (late, doubled, spoilt, or of no claim). silent: claims that ran out of time because
    nothing of it answered: its carrier loses what it is given, or nobody is at the far end.
    """

    sent: int
    answered: int
    astray: int
    silent: int


def _core_of(client: CacheManagerClient | None) -> _core.Client:
    if client is None:
        raise TypeError("a participant without a client; only a group with a carrier has those")
    return instance_of("the client of a participant", client, CacheManagerClient)._core


def _authority(bound: InterestAuthority | None = None) -> tuple[int, int, bytes, int] | None:
    if bound is None:
        return None
    incarnation, generation, layout, consumers = fields("an authority", bound, InterestAuthority._fields)
    return (
        whole("incarnation", incarnation, U64),
        whole("generation", generation, U64),
        identity("layout", layout),
        whole("consumers", consumers, U16),
    )


class Claim:
    """One that is dropped, or left as a context, is closed."""

    def __init__(self, core: _core.PrefixGroup, number: int) -> None:
        self._core = core
        self._number = number
        self._open = True

    def poll(self, timeout: float = 0.0) -> CommonPrefix | None:
        """Waits for the outcome of the claims, `timeout` seconds at most. None: it is not known yet."""
        loading, blocks, leases, why, participant, message = self._core.poll(
            self._number, milliseconds("timeout", timeout)
        )
        if loading:
            return None
        return CommonPrefix(blocks, tuple(tuple(each) for each in leases), why, participant, message)

    def restored(self, rank: int, success: bool) -> None:
        """How the restore of a rank of the engine ended; False for one that died or will not begin.

        RejectedError: poll() has told no leases, so no rank can have restored.
        """
        self._core.restored(self._number, whole("rank", rank, U16), flag("success", success))

    def wait(self, timeout: float = 0.0) -> CommonRestore:
        """Until the outcome is known and no rank may be copying, `timeout` seconds at most."""
        return CommonRestore(*self._core.wait(self._number, milliseconds("timeout", timeout)))

    def close(self) -> None:
        """Gives back what is held, and forgets the claim. Copies that run go on. Once more it does nothing."""
        if self._open:
            self._open = False
            self._core.close_claim(self._number)

    def __del__(self) -> None:
        with suppress(Exception):  # its group may be closed
            self.close()

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


Participant = (
    tuple[CacheManagerClient | None, bytes, Sequence[int]]
    | tuple[CacheManagerClient | None, bytes, Sequence[int], InterestAuthority | None]
)


def _seat(name: str, value: Any) -> list[Any]:
    of = ("client", "instance", "ranks", "authority")
    bound = isinstance(value, Sequence) and len(value) == len(of)
    return fields(name, value, of) if bound else [*fields(name, value, of[:3]), None]


class PrefixGroup:
    """participants: (client of its Manager, instance id there, ranks of the engine that the instance has).

    A fourth member, the InterestAuthority that the ranks were told, binds it to those registrations.
    Clients reach Managers of their own host only. With a carrier, which reaches others, they may be None.
    timeout, restore_timeout: seconds from begin() until all is claimed, and from there until every rank has told.
    RejectedError: no participants, more than 64, or a rank that two of them have.

    Beside one Manager, with two engines' parts at it, this runs as it is:

        import uuid

        from orbitkv import CacheManagerClient, Layer, PrefixGroup

        PAGE = 4096
        hashes = [bytes([n]) * 32 for n in range(4)]
        parts = []  # of one engine; elsewhere each would be a host with its Manager
        for rank in range(2):
            client = CacheManagerClient(instance_id=uuid.uuid4().bytes)
            client.wait_connected()
            pages = bytearray(8 * PAGE)
            layer = Layer("layer 0", group=0, component=0, tensor=pages, block_stride=PAGE, rows=1, row_bytes=PAGE)
            memory = client.register(f"my model, rank {rank}/2", 0, 1, "cpu:0", [layer], num_blocks=8, block_tokens=16)
            saved = client.wait_save(client.save(memory, [(0, range(4), hashes)]))
            assert saved.success, saved.message
            parts.append((client, memory))

        with PrefixGroup([(client, client.instance_id, [rank]) for rank, (client, _) in enumerate(parts)]) as group:
            with group.begin(hashes) as claim:
                found = claim.poll(5.0)  # None: not known yet
                assert found is not None and found.blocks == 4, found
                for rank, (client, memory) in enumerate(parts):
                    [(_, blocks, lease)] = found.leases[rank]
                    load = client.start_restore(memory, [(lease, [range(4, 4 + blocks)])])
                    claim.restored(rank, client.wait_restore(load).success)
                end = claim.wait(5.0)
                assert end.done and end.success and end.quiet, end.message
    """

    def __init__(
        self,
        participants: Sequence[Participant],
        timeout: float = 5.0,
        restore_timeout: float = 60.0,
        carrier: Carrier | None = None,
    ) -> None:
        times = (milliseconds("timeout", timeout, 1), milliseconds("restore_timeout", restore_timeout, 1))
        clients, seats = [], []
        for at, each in enumerate(items("participants", participants)):
            client, instance, ranks, bound = _seat(f"participants[{at}]", each)
            if carrier is None:
                clients.append(_core_of(client))
            listed = [whole("rank", rank, U16) for rank in items("ranks", ranks)]
            seats.append((identity("instance", instance), listed, _authority(bound)))
        self._pump = None if carrier is None else Pump(carrier, len(seats))
        self._core = _core.PrefixGroup(clients, seats, times, self._pump.mailbox if self._pump else None)
        if self._pump:
            self._pump.start(self._core)

    def begin(
        self, hashes: Iterable[bytes] | BlockHashes, group_id: int = 0, origin: int = 0, boundary: int = 0
    ) -> Claim:
        """All participants are asked at once for the leading run of the list.

        boundary: tokens; the list is that of read_recovery(), group after group, and is had whole or not.
        """
        list_ = hashes if isinstance(hashes, BlockHashes) else BlockHashes(hashes)
        tail = (whole("origin", origin, U64), whole("boundary", boundary, U64))
        return Claim(self._core, self._core.begin(list_, whole("group_id", group_id, U16), tail))

    def stats(self) -> tuple[ParticipantStats, ...]:
        """By participant, in the order in which they were given. RejectedError: the group is closed."""
        return tuple(ParticipantStats(*each) for each in self._core.stats())

    def close(self) -> None:
        """Gives back all that it holds, and waits for that, `timeout` at most. Its clients stay open.

        Calls of other threads that wait end at once. Its carrier is not called any more, but for a call that
        has not returned a second later. RejectedError: within send() or receive() of its carrier.
        """
        self._core.close()
        if self._pump:
            self._pump.end()

    def __enter__(self) -> PrefixGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
