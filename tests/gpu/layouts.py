"""KV memory as engines lay it out, as bytes of torch tensors, and as layers of the client.

A layout makes its tensors on any device and names, for every layer, the fragments of a
block. Nothing here uses the client: Fragment has the fields of its Layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

LAYERS, BLOCKS, TOKENS, HEADS, WIDTH, ITEM = 6, 48, 16, 4, 64, 2
HALF = TOKENS * HEADS * WIDTH * ITEM  # bytes of K, or of V, of one block in one layer
MLA_WIDTH = 576


@dataclass(frozen=True)
class Fragment:
    """Rows of every block of one layer, in `tensor` (uint8, from its first byte on)."""

    layer: str
    component: int
    tensor: Any
    block_stride: int
    row_bytes: int
    rows: int = 1
    row_stride: int = 0

    def block(self, number: int) -> list[Any]:
        """The bytes of one block, row by row, as views."""
        first = number * self.block_stride
        return [self.tensor[first + r * self.row_stride :][: self.row_bytes] for r in range(self.rows)]


@dataclass(frozen=True)
class Memory:
    """What was allocated, and where the blocks lie in it."""

    buffers: list[Any]
    fragments: list[Fragment]

    def write(self, number: int, content: Any) -> None:
        """content: all bytes of one block, fragment by fragment."""
        for piece in (row for fragment in self.fragments for row in fragment.block(number)):
            piece.copy_(content[: piece.numel()])
            content = content[piece.numel() :]

    def read(self, number: int) -> Any:
        return torch.cat([row for fragment in self.fragments for row in fragment.block(number)])

    @property
    def block_bytes(self) -> int:
        return sum(fragment.rows * fragment.row_bytes for fragment in self.fragments)


def _buffer(size: int, device: str) -> Any:
    return torch.zeros(size, dtype=torch.uint8, device=device)


def kv_outside(device: str) -> Memory:
    """A tensor a layer, [2, blocks, tokens, heads, width]: all K, then all V."""
    buffers = [_buffer(2 * BLOCKS * HALF, device) for _ in range(LAYERS)]
    halves = [
        Fragment(f"layer.{i}", c, buffer[c * BLOCKS * HALF :], HALF, HALF)
        for i, buffer in enumerate(buffers)
        for c in range(2)
    ]
    return Memory(buffers, halves)


def kv_inside(device: str) -> Memory:
    """A tensor a layer, [blocks, 2, tokens, heads, width]: K and V of a block side by side."""
    buffers = [_buffer(2 * BLOCKS * HALF, device) for _ in range(LAYERS)]
    halves = [
        Fragment(f"layer.{i}", c, buffer[c * HALF :], 2 * HALF, HALF)
        for i, buffer in enumerate(buffers)
        for c in range(2)
    ]
    return Memory(buffers, halves)


def one_buffer(device: str) -> Memory:
    """One allocation, layer after layer, K and V of a token together: whole pages."""
    page = 2 * HALF
    buffer = _buffer(LAYERS * BLOCKS * page, device)
    pages = [Fragment(f"layer.{i}", 0, buffer[i * BLOCKS * page :], page, page) for i in range(LAYERS)]
    return Memory([buffer], pages)


def blocks_first(device: str) -> Memory:
    """One allocation, block after block, the layers of a block side by side."""
    page = 2 * HALF
    buffer = _buffer(LAYERS * BLOCKS * page, device)
    pages = [Fragment(f"layer.{i}", 0, buffer[i * page :], LAYERS * page, page) for i in range(LAYERS)]
    return Memory([buffer], pages)


def heads_first(device: str) -> Memory:
    """A tensor a layer, [heads, blocks, tokens, width]: a page is a row for each head."""
    row = 2 * TOKENS * WIDTH * ITEM
    buffers = [_buffer(HEADS * BLOCKS * row, device) for _ in range(LAYERS)]
    pages = [
        Fragment(f"layer.{i}", 0, buffer, row, row, rows=HEADS, row_stride=BLOCKS * row)
        for i, buffer in enumerate(buffers)
    ]
    return Memory(buffers, pages)


def slot_pools(device: str) -> Memory:
    """A K pool and a V pool a layer, [slots, heads, width]; a block is TOKENS slots in a row."""
    pools = [_buffer(BLOCKS * HALF, device) for _ in range(2 * LAYERS)]
    halves = [Fragment(f"layer.{i // 2}", i % 2, pool, HALF, HALF) for i, pool in enumerate(pools)]
    return Memory(pools, halves)


def latent_pools(device: str) -> Memory:
    """One pool a layer, [slots, 1, 576]: latent attention keeps no K and V."""
    page = TOKENS * MLA_WIDTH * ITEM
    pools = [_buffer(BLOCKS * page, device) for _ in range(LAYERS)]
    return Memory(pools, [Fragment(f"layer.{i}", 0, pool, page, page) for i, pool in enumerate(pools)])


LAYOUTS: dict[str, Callable[[str], Memory]] = {
    "vllm-kv-outside": kv_outside,
    "vllm-kv-inside": kv_inside,
    "vllm-one-buffer": one_buffer,
    "vllm-blocks-first": blocks_first,
    "vllm-heads-first": heads_first,
    "sglang-pools": slot_pools,
    "sglang-latent-pools": latent_pools,
}


def content_of(seed: int, size: int) -> Any:
    """The bytes of a block: random, the same in every process, made on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)


def shuffled(count: int, seed: int) -> list[int]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
