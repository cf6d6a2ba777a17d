"""Where the pages lie: layers of the client from the engine's KV cache configuration.

Nothing is taken from shapes. What the configuration says is checked against the views
that the engine hands out, and by writing a pattern through one and reading the other.
"""

from __future__ import annotations

from typing import Any

from orbitkv.client import Layer

_PATTERN = 0xA5


class GeometryError(ValueError):
    """The pages do not lie as OrbitKV needs them; the text names the layer."""


def describe_layers(kv_cache_config: Any, kv_caches: dict[str, Any]) -> list[Layer]:
    """One layer each, in the group's order: whole pages, K and V together."""
    group = kv_cache_config.kv_cache_groups[0]
    page = group.kv_cache_spec.page_size_bytes
    layers = {}
    for tensor in kv_cache_config.kv_cache_tensors:
        for position, name in enumerate(tensor.layers):
            if name not in kv_caches:
                raise GeometryError(f"the engine registered no KV cache for layer {name}")
            view = kv_caches[name]
            offset = tensor.offset + position * tensor.layer_stride
            _check_view(name, view, offset, kv_cache_config.num_blocks)
            _check_run(name, view, page // (view.shape[0] // kv_cache_config.num_blocks))
            layers[name] = Layer(
                name=name,
                group=0,
                component=0,
                tensor=_bytes_from(view, offset),
                block_stride=tensor.block_stride,
                rows=1,
                row_bytes=page,
                row_stride=page,
            )
    missing = [name for name in group.layer_names if name not in layers]
    if missing:
        raise GeometryError(f"no KV cache tensor holds layer {missing[0]}")
    return [layers[name] for name in group.layer_names]


def _check_view(name: str, view: Any, offset: int, num_blocks: int) -> None:
    found = view.storage_offset() * view.element_size()
    if found != offset:
        raise GeometryError(
            f"layer {name} starts at byte {found} of its storage, the configuration says {offset}"
        )
    if view.shape[0] == 0 or view.shape[0] % num_blocks:
        raise GeometryError(f"the view of layer {name} has {view.shape[0]} blocks for {num_blocks} of the engine")


def _check_run(name: str, view: Any, expected: int) -> None:
    """One (kernel) block of the view must be one run of the expected length."""
    element = view.element_size()
    product = span = element
    for size, stride in zip(view.shape[1:], view.stride()[1:], strict=True):
        product *= size
        span += (size - 1) * stride * element
    if product != span or product != expected:
        raise GeometryError(
            f"a page of layer {name} is not one run of {expected} bytes "
            f"(shape {tuple(view.shape)}, stride {view.stride()}); layouts that split pages are not supported"
        )


def _bytes_from(view: Any, offset: int) -> Any:
    """The bytes of the view's storage from `offset` to its end, as a tensor of its own."""
    import torch

    storage = view.untyped_storage()
    count = storage.nbytes() - offset
    return torch.empty(0, dtype=torch.uint8, device=view.device).set_(storage, offset, (count,), (1,))


def check_pages(layers: list[Layer], kv_caches: dict[str, Any], num_blocks: int) -> None:
    """Writes a pattern through the engine's view of the first and last real block and
    finds it where the layer says, and nowhere beside it. Leaves the pages as they were."""
    for layer in layers:
        view = kv_caches[layer.name]
        blocks = view.reshape(num_blocks, -1) if view.shape[0] != num_blocks else view
        if blocks.data_ptr() != view.data_ptr():
            raise GeometryError(f"layer {layer.name}: blocks of the view cannot be grouped without a copy")
        for block in sorted({1, num_blocks - 1}):
            _check_page(layer, blocks, block, num_blocks)


def _check_page(layer: Layer, blocks: Any, block: int, num_blocks: int) -> None:
    import torch

    page = layer.row_bytes

    def page_of(number: int) -> Any:
        start = number * layer.block_stride
        return layer.tensor[start : start + page]

    if block * layer.block_stride + page > layer.tensor.numel():
        raise GeometryError(f"block {block} of layer {layer.name} lies outside its storage")
    before = page_of(block).clone()
    near = [b for b in (block - 1, block + 1) if 0 <= b < num_blocks]
    neighbours = {b: page_of(b).clone() for b in near}
    blocks[block].view(torch.uint8).fill_(_PATTERN)
    written = bool((page_of(block) == _PATTERN).all())
    untouched = all(torch.equal(page_of(b), old) for b, old in neighbours.items())
    page_of(block).copy_(before)
    if not written or not untouched:
        raise GeometryError(
            f"block {block} of layer {layer.name} is not where the KV cache configuration says; "
            "this vLLM lays pages out in a way that OrbitKV does not know"
        )
