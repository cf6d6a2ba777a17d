"""Under which keys this engine knows its blocks: an external reset takes fresh ones.

Generation 0 has the engine's own hashes, which other engines have too. A later one has a random
salt, so nothing that was stored before is found and nobody else finds what is stored from now on;
the old pages stay for others. It ends with the process: a restarted engine is at 0 again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable

_SALT_BYTES = 32


class PrefixGeneration:
    def __init__(self, random: Callable[[int], bytes] = os.urandom) -> None:
        self._random = random
        self._salt = b""
        self.number = 0

    def advance(self) -> int:
        self._salt = self._random(_SALT_BYTES)
        self.number += 1
        return self.number

    def key(self, block_hash: bytes) -> bytes:
        return hashlib.sha256(self._salt + block_hash).digest() if self._salt else block_hash

    def keys(self, hashes: Iterable[bytes]) -> Iterable[bytes]:
        return map(self.key, hashes) if self._salt else hashes
