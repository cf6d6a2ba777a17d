"""Where the pages of a worker live, and how their bytes are ordered against its compute.

HostPages: the model thread itself reads and writes them, so there is nothing to order.
CudaPages: kernels do, on the stream that is current when a hook runs. Saves and loads
start behind that stream; layer events let it go on as soon as a layer has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class HostPages:
    name = "cpu:0"
    streams = False

    def order(self) -> dict[str, int]:
        """Keyword arguments of save() and start_restore()."""
        return {}


class CudaPages:
    """`cuda`: torch.cuda, or what stands in for it."""

    streams = True

    def __init__(self, ordinal: int, cuda: Any) -> None:
        self.name = f"cuda:{ordinal}"
        self._ordinal = ordinal
        self._cuda = cuda
        self._events: dict[str, Any] = {}

    def order(self) -> dict[str, int]:
        return {"ready_stream": self._stream().cuda_stream}

    def layer_events(self, names: Iterable[str]) -> list[tuple[str, int]]:
        """One event a layer, made once: (layer, CUevent). The client records them."""
        for name in names:
            if name not in self._events:
                event = self._cuda.Event()
                event.record(self._stream())  # torch makes the CUDA event at its first record
                self._events[name] = event
        return [(name, event.cuda_event) for name, event in self._events.items()]

    def wait(self, name: str) -> None:
        """What the current stream does from here on comes after the layer's event."""
        self._stream().wait_event(self._events[name])

    def _stream(self) -> Any:
        return self._cuda.current_stream(self._ordinal)


def pages_of(tensors: Iterable[Any]) -> HostPages | CudaPages:
    """From the KV cache tensors of this worker; they lie on one device."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1:
        names = ", ".join(sorted(str(device) for device in devices))
        raise ValueError(f"the KV cache of one worker lies on several devices ({names}); OrbitKV needs one")
    device = devices.pop()
    if device.type == "cpu":
        return HostPages()
    if device.type != "cuda":
        raise ValueError(f"the KV cache lies on {device}; OrbitKV knows cpu and cuda")
    import torch

    return CudaPages(torch.cuda.current_device() if device.index is None else device.index, torch.cuda)
