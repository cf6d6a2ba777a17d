"""RecoveryContract: what callers give is checked here, the rules are the native part's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from orbitkv import _core
from orbitkv._arguments import U16, U32, U64, fields, items, mapping, text, whole

Coverage = Mapping[int, Iterable[tuple[int, int]]]


class RecoveryContract:
    """When an engine can go on with what is cached, by the rules of a registration's groups.

    groups: [(group, "prefix" | "window" | "checkpoint", window in tokens or None)]; group 0 is a
    prefix group. Tokens count from the start of the request. start:end is the tail behind what the
    engine holds itself, in whole pages; a boundary is a token at which it would go on computing:
    start < boundary <= end. coverage: what one shard has, {group: [(start, end), ...]}, for every
    group. ValueError or TypeError says what is wrong with an input.

        from orbitkv import RecoveryContract

        contract = RecoveryContract("my model", 16, [(0, "prefix", None), (1, "window", 32)])
        coverage = {0: [(0, 64)], 1: [(16, 48)]}  # tokens that are cached, by group
        assert contract.restorable_boundaries("my model", 0, 64, coverage) == [48]
        assert contract.select_boundary("my model", 0, 64, [coverage], 64) == 48
        assert contract.required_ranges("my model", 0, 48) == [(0, 0, 48), (1, 16, 48)]
    """

    __slots__ = ("_core",)

    def __init__(self, namespace: str, page_tokens: int, groups: Iterable[tuple[int, str, int | None]]) -> None:
        rules = [_rule(f"groups[{at}]", each) for at, each in enumerate(items("groups", groups))]
        self._core = _core.RecoveryContract(text("namespace", namespace), whole("page_tokens", page_tokens), rules)

    @property
    def namespace(self) -> str:
        """That ranges are asked under; another one is refused."""
        return self._core.namespace

    @property
    def page_tokens(self) -> int:
        """Tokens a page."""
        return self._core.page_tokens

    def required_ranges(self, namespace: str, start: int, end: int) -> list[tuple[int, int, int]]:
        """[(group, start, end)]: what the boundary `end` needs."""
        return self._core.required_ranges(*_tail(namespace, start, end))

    def restorable_boundaries(self, namespace: str, start: int, end: int, coverage: Coverage) -> list[int]:
        """The boundaries of one shard, ascending."""
        return _ask(
            self._core.restorable_boundaries,
            (namespace, start, end, coverage),
            lambda: (*_tail(namespace, start, end), _coverage("coverage", coverage)),
        )

    def common_boundaries(self, namespace: str, start: int, end: int, coverages: Iterable[Coverage]) -> list[int]:
        """The boundaries that all shards have, ascending."""
        return _ask(
            self._core.common_boundaries,
            (namespace, start, end, coverages),
            lambda: (*_tail(namespace, start, end), _shards(coverages)),
        )

    def select_boundary(
        self, namespace: str, start: int, end: int, coverages: Iterable[Coverage], limit: int
    ) -> int | None:
        """The greatest boundary that all shards have and that is at most `limit`, or None."""
        return _ask(
            self._core.select_boundary,
            (namespace, start, end, coverages, limit),
            lambda: (*_tail(namespace, start, end), _shards(coverages), whole("limit", limit, U64)),
        )


def _ask(native: Callable[..., Any], given: tuple[Any, ...], checked: Callable[[], tuple[Any, ...]]) -> Any:
    """Ranges are many: they are looked at here only if the native part does not take them."""
    try:
        return native(*given)
    except TypeError:
        pass
    return native(*checked())


def _rule(name: str, value: Any) -> tuple[int, str, int | None]:
    group, rule, window = fields(name, value, ("group", "rule", "window"))
    window = None if window is None else whole(f"{name}: window", window, U32)
    return whole(f"{name}: group", group, U16), text(f"{name}: rule", rule), window


def _tail(namespace: Any, start: Any, end: Any) -> tuple[str, int, int]:
    return text("namespace", namespace), whole("start", start, U64), whole("end", end, U64)


def _shards(coverages: Any) -> list[dict[int, list[tuple[int, int]]]]:
    return [_coverage(f"coverages[{at}]", each) for at, each in enumerate(items("coverages", coverages))]


def _coverage(name: str, value: Any) -> dict[int, list[tuple[int, int]]]:
    there = mapping(name, value)
    return {whole(f"a group of {name}", group, U16): _ranges(f"{name}[{group}]", there[group]) for group in there}


def _ranges(name: str, value: Any) -> list[tuple[int, int]]:
    start, end = f"a start in {name}", f"an end in {name}"
    pairs = (fields(f"a range in {name}", each, ("start", "end")) for each in items(name, value))
    return [(whole(start, first, U64), whole(end, last, U64)) for first, last in pairs]
