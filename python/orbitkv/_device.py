"""Addresses, streams and events out of other libraries' objects, without importing them."""

from __future__ import annotations

import ctypes
import math
from typing import Any

from orbitkv._arguments import U64, whole


def memory_of(tensor: Any, device: str) -> tuple[int, int, Any]:
    """Address of the first element, the bytes from there to the end of the allocation, and
    what keeps them where they are. ValueError: not memory of `device`, or not one run."""
    if hasattr(tensor, "untyped_storage"):
        _check_torch_device(tensor.device, device)
        skipped = tensor.storage_offset() * tensor.element_size()
        return tensor.data_ptr(), tensor.untyped_storage().nbytes() - skipped, tensor
    if hasattr(tensor, "__cuda_array_interface__"):
        if _is_cpu(device):
            raise ValueError(f"a layer lies on a GPU, the registration names {device}")
        interface = tensor.__cuda_array_interface__
        return *_run_of(interface), tensor
    if not _is_cpu(device):
        raise ValueError(f"a layer lies in CPU memory, the registration names {device}")
    if hasattr(tensor, "__array_interface__"):
        return *_run_of(tensor.__array_interface__), tensor
    memory = memoryview(tensor).cast("B")
    if memory.readonly:
        raise ValueError("the memory of a layer must be writable")
    first = ctypes.c_char.from_buffer(memory)  # while it lives the owner can neither move nor close it
    return ctypes.addressof(first), memory.nbytes, first


def stream_of(stream: Any) -> int:
    """An integer (CUstream), or an object with `cuda_stream` such as torch.cuda.Stream."""
    value = getattr(stream, "cuda_stream", stream)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"ready_stream is an int or has cuda_stream, unlike {type(stream).__name__}")
    return whole("ready_stream", value, U64)


def event_of(layer: str, event: Any) -> int:
    """An integer (CUevent), or an object with `cuda_event` such as torch.cuda.Event."""
    value = getattr(event, "cuda_event", event)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"the event of {layer} is an int or has cuda_event, unlike {type(event).__name__}")
    if value == 0:
        raise ValueError(
            f"the event of {layer} does not exist yet: torch creates it at its first record(); "
            "call event.record() once before it is used as a layer event"
        )
    return whole(f"the event of {layer}", value, U64)


def _is_cpu(device: str) -> bool:
    return device.startswith("cpu")


def _check_torch_device(found: Any, device: str) -> None:
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"a layer lies on {found}; pages lie in CPU memory or on a CUDA device")
    # A UUID says nothing about ordinals: the native side asks the driver where the memory is.
    ordinal = device.removeprefix("cuda:") if device.startswith("cuda:") else None
    elsewhere = ordinal is not None and found.index is not None and str(found.index) != ordinal
    if (found.type == "cpu") != _is_cpu(device) or elsewhere:
        raise ValueError(f"a layer lies on {found}, the registration names {device}")


def _run_of(interface: dict[str, Any]) -> tuple[int, int]:
    """Address and bytes of an array interface, which must be one writable run."""
    address, readonly = interface["data"]
    if readonly:
        raise ValueError("the memory of a layer must be writable")
    if interface.get("strides") is not None:
        raise ValueError("the memory of a layer must be contiguous")
    return address, math.prod(interface["shape"]) * int(interface["typestr"][2:])
