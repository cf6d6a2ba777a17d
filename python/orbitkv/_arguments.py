"""What callers give, checked before the native part sees it: errors name the argument and its range."""

from __future__ import annotations

import math
import operator
import os
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

U8, U16, U32, U64 = ((1 << bits) - 1 for bits in (8, 16, 32, 64))
_HOLE = U32


def _shown(value: object) -> str:
    text = "a number of many digits" if isinstance(value, int) and value.bit_length() > 128 else repr(value)
    return text if len(text) <= 64 else f"{text[:64]}..."


def whole(name: str, value: Any, most: int = U32, least: int = 0) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is a whole number, not {_shown(value)}") from None
    if not least <= number <= most:
        raise ValueError(f"{name} is {least} to {most}, not {_shown(number)}")
    return number


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {_shown(value)}")
    return value


def instance_of(name: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIO" else "a"
        raise TypeError(f"{name} is {article} {kind.__name__}, not {_shown(value)}")
    return value


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if text(name, value) not in choices:
        raise ValueError(f"{name} is one of {', '.join(choices)}, not {_shown(value)}")
    return value


def path(name: str, value: Any) -> str:
    try:
        return os.fsdecode(value)
    except TypeError:
        raise TypeError(f"{name} is a path, not {_shown(value)}") from None


def identity(name: str, value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"{name} is 16 bytes, not {_shown(value)}")
    if len(value) != 16:
        raise ValueError(f"{name} has 16 bytes, not {len(value)}")
    return value


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {_shown(value)}")
    return value


def items(name: str, value: Any) -> list[Any]:
    try:
        return list(value)
    except TypeError:
        raise TypeError(f"{name} is a list, not {_shown(value)}") from None


def fields(name: str, value: Any, of: tuple[str, ...]) -> list[Any]:
    given = [] if isinstance(value, str | bytes) or not isinstance(value, Iterable) else list(value)
    if len(given) != len(of):
        raise ValueError(f"{name} is ({', '.join(of)}), not {_shown(value)}")
    return given


def mapping(name: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is a dict, not {_shown(value)}")
    return value


def milliseconds(name: str, value: Any, least: int = 0) -> int:
    """Of seconds."""
    if isinstance(value, bool | str | bytes):
        raise TypeError(f"{name} is a number of seconds, not {_shown(value)}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    except (TypeError, ValueError):
        raise TypeError(f"{name} is a number of seconds, not {_shown(value)}") from None
    if not least / 1000 <= seconds <= U32 / 1000:
        raise ValueError(f"{name} is {least / 1000:g} to {U32 // 1000} seconds, not {_shown(value)}")
    return int(seconds * 1000)


def blocks(name: str, values: Iterable[int | None], *, holes: bool = False) -> array[int]:
    """None stands for a hole."""
    listed = items(name, values)
    try:
        made = array("I", [_HOLE if holes and block is None else block for block in listed])
    except (TypeError, OverflowError):
        made = None
    if made is not None and _HOLE not in listed:
        return made
    wrong = next(each for each in listed if not _is_block(each, holes))
    also = " or None" if holes else ""
    raise ValueError(f"{name} are block ids, 0 to {_HOLE - 1}{also}; {_shown(wrong)} is none")


def _is_block(value: object, holes: bool) -> bool:
    if value is None:
        return holes
    try:
        return 0 <= operator.index(value) < _HOLE  # type: ignore[arg-type]
    except TypeError:
        return False
