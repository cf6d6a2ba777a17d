"""What the client takes from other libraries' objects: memory, streams, events. No GPU needed:
the objects stand for torch's and cupy's, the native part for one that never finishes alone."""

import gc
import types
import weakref

import numpy as np
import pytest
from orbitkv import NO_STREAM, CacheManagerClient, Registration
from orbitkv._device import event_of, memory_of, stream_of


class Device:
    def __init__(self, kind, index=None):
        self.type, self.index = kind, index

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"


class Tensor:
    """As torch's: a view that starts `offset` elements of two bytes into its storage."""

    def __init__(self, device, nbytes=4096, offset=8):
        self.device, self._nbytes, self._offset = device, nbytes, offset

    def data_ptr(self):
        return 0x7F0000000000 + 2 * self._offset

    def storage_offset(self):
        return self._offset

    def element_size(self):
        return 2

    def untyped_storage(self):
        return types.SimpleNamespace(nbytes=lambda: self._nbytes)


def on_gpu(**changes):
    interface = {"data": (0x7F0000000000, False), "shape": (4, 8), "typestr": "<f2", "strides": None, "version": 3}
    return types.SimpleNamespace(__cuda_array_interface__={**interface, **changes})


# ---- memory ----


@pytest.mark.parametrize("device", ["cuda:1", "GPU-01234567", "MIG-01234567"])
def test_a_cuda_tensor_counts_to_the_end_of_its_storage(device):
    tensor = Tensor(Device("cuda", 1))
    assert memory_of(tensor, device) == (0x7F0000000010, 4096 - 16, tensor)


def test_a_cuda_array_counts_its_elements():
    array = on_gpu()
    assert memory_of(array, "cuda:0") == (0x7F0000000000, 64, array)


def test_a_tensor_of_the_real_torch_is_understood():
    torch = pytest.importorskip("torch")
    whole = torch.zeros(10, dtype=torch.float32)
    part = whole[4:]
    assert memory_of(part, "cpu:0") == (part.data_ptr(), 24, part)


@pytest.mark.parametrize(
    "memory, device, says",
    [
        (Tensor(Device("cuda", 0)), "cpu:0", "lies on cuda:0, the registration names cpu:0"),
        (Tensor(Device("cuda", 0)), "cuda:1", "lies on cuda:0, the registration names cuda:1"),
        (Tensor(Device("cpu")), "cuda:0", "lies on cpu, the registration names cuda:0"),
        (Tensor(Device("meta")), "cuda:0", "lies on meta"),
        (on_gpu(), "cpu:0", "lies on a GPU"),
        (on_gpu(data=(1, True)), "cuda:0", "writable"),
        (on_gpu(strides=(16, 2)), "cuda:0", "contiguous"),
        (np.zeros(8, np.uint8), "cuda:0", "lies in CPU memory"),
        (bytearray(8), "GPU-01234567", "lies in CPU memory"),
    ],
)
def test_memory_of_another_device_is_refused(memory, device, says):
    with pytest.raises(ValueError, match=says):
        memory_of(memory, device)


# ---- streams and events ----


def test_streams_are_numbers_or_have_one():
    assert stream_of(0) == 0 and stream_of(NO_STREAM) == 2**64 - 1
    assert stream_of(types.SimpleNamespace(cuda_stream=77)) == 77
    for wrong in (None, "0", True):
        with pytest.raises(TypeError, match="cuda_stream"):
            stream_of(wrong)


def test_events_are_numbers_or_have_one():
    assert event_of("l", 5) == 5 and event_of("l", types.SimpleNamespace(cuda_event=6)) == 6
    with pytest.raises(TypeError, match="event of l0.*cuda_event"):
        event_of("l0", None)


def test_an_event_that_torch_has_not_made_yet_is_refused():
    with pytest.raises(ValueError, match=r"event of l0 .*event\.record\(\)"):
        event_of("l0", types.SimpleNamespace(cuda_event=0))


# ---- what is kept ----


class Core:
    """Stands for the native client: operations end when the test says so."""

    def __init__(self):
        self.started, self.done = [], set()

    def start_save(self, registration, parts, stream):
        self.started.append((registration, stream))
        return len(self.started)

    def start_restore(self, registration, parts, stream, events):
        self.started.append((registration, stream, events))
        return len(self.started)

    def poll(self, handle):
        return (handle in self.done, True, 0, "", 0, 0)

    def wait(self, handle, timeout_ms):
        return self.poll(handle)

    def drop(self, handle):
        pass

    def close(self):
        pass


class Stream:
    cuda_stream = 70


class Event:
    def __init__(self, value):
        self.cuda_event = value


@pytest.fixture
def client(tmp_path):
    client = CacheManagerClient(str(tmp_path / "none.sock"), bytes(16))
    client._core.close()
    client._core = Core()
    return client


MEMORY = Registration(3, ())


def gone(*references):
    gc.collect()
    return [reference() is None for reference in references]


def test_streams_and_events_arrive_as_numbers(client):
    client.save(MEMORY, [(0, [1], [bytes(32)])], ready_stream=Stream())
    client.save(MEMORY, [(0, [1], [bytes(32)])])
    events = zip(["l0", "l1"], [Event(8), 9], strict=True)
    client.start_restore(MEMORY, [(bytes(16), [[1]])], ready_stream=7, layer_events=events)
    assert client._core.started == [(3, 70), (3, 0), (3, 7, [("l0", 8), ("l1", 9)])]


def test_objects_live_until_their_operation_is_seen_done(client):
    stream, event = Stream(), Event(8)
    alive = weakref.ref(stream), weakref.ref(event)
    handle = client.start_restore(MEMORY, [(bytes(16), [[1]])], stream, [("l0", event)])
    del stream, event
    assert not client.wait_restore(handle, 0).done and gone(*alive) == [False, False]
    client._core.done.add(handle.value)
    assert client.poll_restore(handle).done and gone(*alive) == [True, True]


def test_a_forgotten_open_operation_keeps_its_objects(client):
    stream = Stream()
    alive = weakref.ref(stream)
    client.forget(client.save(MEMORY, [(0, [1], [bytes(32)])], stream))
    del stream
    assert gone(alive) == [False]


def test_who_never_asks_keeps_the_objects_of_a_few(client):
    alive = []
    for number in range(1, 201):
        stream = Stream()
        alive.append(weakref.ref(stream))
        client._core.done.add(number)
        client.save(MEMORY, [(0, [1], [bytes(32)])], stream)
    del stream
    assert 0 < gone(*alive).count(False) <= 64


def test_a_call_that_fails_keeps_nothing(client):
    event = Event(0)
    alive = weakref.ref(event)
    with pytest.raises(ValueError, match="record"):
        client.start_restore(MEMORY, [(bytes(16), [[1]])], Stream(), [("l0", event)])
    del event
    assert gone(alive) == [True] and client._core.started == []
