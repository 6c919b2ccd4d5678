"""A stand-in for the part of CuPy that copies between GPUs use.

What is launched is only queued. `run` then takes the queues of all streams in a random order, as
far as events allow: what does not wait for what it needs gives a wrong result for some order. Freed
memory is given out again at once for work on the same stream, as CuPy's pool does.
"""

import importlib.util
import sys
import types
from collections import defaultdict, deque
from pathlib import Path

import numpy as np

from tensorly_flycoo.format.tree import add_parts, count_parts

DEVICES_PATH = Path(__file__).parents[2] / "tensorly_flycoo" / "engines" / "cuda" / "gpus.py"


class SimulatedGpus(types.ModuleType):
    """The module `cupy`."""

    def __init__(self, rng):
        super().__init__("cupy")
        self.rng, self.current, self.queues = rng, 0, defaultdict(deque)
        self.free = defaultdict(list)  # memory by device, stream and size
        self.num_records = self.num_waits = self.num_copies = self.num_kernels = 0
        self.ndarray = Array
        self.cuda = types.SimpleNamespace(
            Device=lambda number: Device(self, number),
            Stream=lambda non_blocking: Stream(self, self.current),
            Event=lambda disable_timing: Event(self),
            MemoryPointer=Pointer,
            Memory=Memory,
            memory=types.SimpleNamespace(PooledMemory=Memory),
            get_current_stream=lambda: Stream(self, None),
            runtime=types.SimpleNamespace(
                getDevice=lambda: self.current,
                deviceCanAccessPeer=lambda *pair: 1,
                deviceEnablePeerAccess=lambda peer: None,
                CUDARuntimeError=RuntimeError,
            ),
        )

    def empty(self, shape, dtype):
        return Array(self, np.empty(shape, dtype))

    def asarray(self, host):
        array = self.empty(host.shape, host.dtype)
        self.launch(lambda target=array.view: target.__setitem__(..., host))
        return array

    def ascontiguousarray(self, array):
        copy = self.empty(array.shape, array.dtype)
        self.launch(lambda target=copy.view, source=array.view: target.__setitem__(..., source))
        return copy

    def copy_blocks(self, copies):
        """Stand in for `engines.cuda.exchange.copy_blocks`."""
        self.num_kernels += 1
        pairs = []
        for target, array in copies:
            assert target.device_id == self.current
            assert isinstance(array.memory, Memory)
            assert array.itemsize % 4 == 0
            assert array.flags.c_contiguous or array.strides[1] == array.itemsize
            flat = target.mem.buffer[target.offset :][: array.nbytes]
            pairs.append((flat.view(array.dtype).reshape(array.shape), array.view))
        self.launch(lambda: [own.__setitem__(..., view) for own, view in pairs])

    def add_arrays(self, arrays, tree):
        """Stand in for `engines.cuda.exchange.add_arrays`."""
        self.num_kernels += 1
        assert all(isinstance(array.memory, Memory) for array in arrays)
        assert all(array.flags.c_contiguous for array in arrays)
        return self._add([array.view for array in arrays], tree)

    def add_parts(self, rows, tree):
        """Stand in for `engines.cuda.exchange.add_parts`."""
        return self._add(np.split(rows.view, count_parts(tree)), tree)

    def _add(self, views, tree):
        """Launch an addition of arrays; return its result."""
        total = self.empty(views[0].shape, views[0].dtype)

        def work(target=total.view):
            target[...] = add_parts(np.concatenate(views), tree)

        self.launch(work)
        return total

    def launch(self, work, stream=None):
        (stream or Stream(self, None)).enqueue(work)

    def run(self, stream=None):
        """Do all that is queued, or what is before all is done that one stream has."""
        while queues := [queue for queue in self.queues.values() if queue]:
            if stream is not None and not self.queues[stream.key]:
                break
            ready = [queue for queue in queues if getattr(queue[0], "is_ready", lambda: True)()]
            assert ready, "streams wait for each other"
            ready[self.rng.integers(len(ready))].popleft()()


class Device:
    def __init__(self, gpus, number):
        self.gpus, self.id = gpus, number

    def __enter__(self):
        self.previous, self.gpus.current = self.gpus.current, self.id

    def __exit__(self, *_):
        self.gpus.current = self.previous


class Stream:
    """A stream; with the device None the default one of the GPU that is current when it is used."""

    def __init__(self, gpus, device):
        self.gpus, self._device = gpus, device

    @property
    def key(self):
        is_default = self._device is None
        return (self.gpus.current, None) if is_default else (self._device, id(self))

    def enqueue(self, work):
        self.gpus.queues[self.key].append(work)

    def wait_event(self, event):
        self.gpus.num_waits += 1
        self.enqueue(Wait(event, event.num_recorded))

    def synchronize(self):
        self.gpus.run(self)


class Event:
    def __init__(self, gpus):
        self.gpus, self.device, self.num_recorded, self.num_done = gpus, gpus.current, 0, 0

    def record(self, stream):
        assert stream.key[0] == self.device, "an event is recorded on its own GPU"
        self.gpus.num_records += 1
        self.num_recorded += 1
        stream.enqueue(lambda number=self.num_recorded: setattr(self, "num_done", number))


class Wait:
    """Waits for the last record before."""

    def __init__(self, event, number):
        self.event, self.number = event, number

    def is_ready(self):
        return self.event.num_done >= self.number

    def __call__(self):
        pass


class Memory:
    """Memory of the current GPU, for work on its default stream; given back when it is deleted."""

    def __init__(self, gpus, nbytes):
        self.place = gpus.free[gpus.current, nbytes]
        self.device_id = gpus.current
        self.buffer = self.place.pop() if self.place else np.full(nbytes, 255, np.uint8)

    def __del__(self):
        self.place.append(self.buffer)


class ForeignMemory:
    """Memory of the current GPU that kernels of others cannot read."""

    def __init__(self, gpus, nbytes):
        self.device_id, self.buffer = gpus.current, np.full(nbytes, 255, np.uint8)


class Pointer:
    def __init__(self, gpus, memory, offset):
        self.gpus, self.mem, self.offset = gpus, memory, offset
        self.device_id = memory.device_id

    def __add__(self, offset):
        return Pointer(self.gpus, self.mem, self.offset + offset)

    def __iadd__(self, offset):
        raise AssertionError("CuPy's pointers change in place, for all that have them")

    def copy_from_device_async(self, source, nbytes, stream):
        self.gpus.num_copies += 1
        target = self.mem.buffer[self.offset :][:nbytes]
        origin = source.mem.buffer[source.offset :][:nbytes]
        self.gpus.launch(lambda: target.__setitem__(..., origin), stream)


class Array:
    """An array, or a view of one."""

    def __init__(self, gpus, like, memory=None, view=None):
        self.gpus, self.memory = gpus, memory or Memory(gpus, like.nbytes)
        flat = self.memory.buffer.view(like.dtype) if view is None else None
        self.view = flat.reshape(like.shape) if view is None else view
        self.shape, self.dtype, self.size = self.view.shape, self.view.dtype, self.view.size
        self.nbytes, self.flags = self.view.nbytes, self.view.flags
        self.ndim, self.strides, self.itemsize = self.view.ndim, self.view.strides, like.itemsize

    @property
    def data(self):
        offset = self.view.ctypes.data - self.memory.buffer.ctypes.data if self.size else 0
        return Pointer(self.gpus, self.memory, offset)

    def __getitem__(self, index):
        return Array(self.gpus, self.view, self.memory, self.view[index])

    def fill(self, values):
        self.gpus.launch(lambda target=self.view: target.__setitem__(..., values))


def load_devices(gpus, monkeypatch):
    """Return the module `engines.cuda.gpus`, with simulated GPUs."""
    exchange = types.ModuleType("exchange")
    exchange.copy_blocks = gpus.copy_blocks
    exchange.add_arrays = gpus.add_arrays
    exchange.MAX_ARRAYS = 32
    monkeypatch.setitem(sys.modules, "cupy", gpus)
    monkeypatch.setitem(sys.modules, "tensorly_flycoo.engines.cuda.exchange", exchange)
    name = "tensorly_flycoo.engines.cuda.simulated_devices"
    spec = importlib.util.spec_from_file_location(name, DEVICES_PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
