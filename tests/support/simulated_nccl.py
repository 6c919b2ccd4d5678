"""A stand-in for the part of CuPy that `engines.cuda.processes` uses, for threads of one process.

Each thread is a process with a GPU. Work is done when it is launched; an exchange waits for its
peers, unless the communicator is aborted.
"""

import ctypes
import importlib.util
import itertools
import queue
import sys
import threading
import types
from collections import defaultdict
from pathlib import Path

import numpy as np

PATH = Path(__file__).parents[2] / "tensorly_flycoo" / "engines" / "cuda" / "processes.py"


class SimulatedNccl(types.ModuleType):
    """The module `cupy.cuda.nccl`.

    Attributes
    ----------
    failing : set of {"start", "later"}
        When communicators find an error.
    num_aborted : int
    """

    available, NCCL_INT8 = True, 0

    def __init__(self):
        super().__init__("nccl")
        self.names, self.barriers = itertools.count(), {}
        self.on_the_way, self.of_thread = defaultdict(queue.SimpleQueue), threading.local()
        self.failing, self.num_aborted, self.lock = set(), 0, threading.Lock()
        self.NcclCommunicator = lambda *arguments: Communicator(self, *arguments)

    def get_unique_id(self):
        return next(self.names).to_bytes(128, "little")

    def groupStart(self):
        self.of_thread.received = []

    def groupEnd(self):
        for receive in self.of_thread.received:
            receive()


class Communicator:
    def __init__(self, nccl, count, name, number):
        assert isinstance(name, bytes)
        assert len(name) == 128
        if "start" in nccl.failing:
            raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR")
        self._nccl, self._name, self._number = nccl, name, number
        self._is_aborted = False
        with nccl.lock:
            barrier = nccl.barriers.setdefault(name, threading.Barrier(count))
        barrier.wait(timeout=30)

    def send(self, address, nbytes, kind, peer, stream):
        data = ctypes.string_at(address, nbytes)
        self._nccl.on_the_way[self._name, self._number, peer].put(data)

    def recv(self, address, nbytes, kind, peer, stream):
        arrived = self._nccl.on_the_way[self._name, peer, self._number]
        self._nccl.of_thread.received.append(lambda: self._receive(arrived, address, nbytes))

    def _receive(self, arrived, address, nbytes):
        while not self._is_aborted:
            try:
                data = arrived.get(timeout=0.02)
            except queue.Empty:
                continue
            assert len(data) == nbytes
            ctypes.memmove(address, data, nbytes)
            return

    def check_async_error(self):
        if "later" in self._nccl.failing:
            raise RuntimeError("NCCL_ERROR_REMOTE_ERROR")

    def abort(self):
        self._is_aborted = True
        self._nccl.num_aborted += 1


class Array:
    """A contiguous array on a GPU."""

    def __init__(self, view):
        self.view, self.nbytes = view, view.nbytes
        self.data = types.SimpleNamespace(ptr=view.ctypes.data)

    def __getitem__(self, index):
        return Array(self.view[index : index + 1])


class _Stream:
    ptr, done = 0, True

    def use(self):
        pass

    def synchronize(self):
        pass


def load_processes(monkeypatch):
    """Return the module `engines.cuda.processes` and its simulated NCCL."""
    cupy, cuda, nccl = types.ModuleType("cupy"), types.ModuleType("cupy.cuda"), SimulatedNccl()
    cupy.cuda, cuda.nccl = cuda, nccl
    cupy.zeros = lambda shape, dtype: [Array(row) for row in np.zeros(shape, dtype)]
    cuda.Device = lambda number: _Stream()
    cuda.Stream = lambda non_blocking: _Stream()
    cuda.get_current_stream = _Stream
    cuda.runtime = types.SimpleNamespace(
        getDevice=lambda: 1,
        getDeviceCount=lambda: 2,
        getDeviceProperties=lambda number: {"uuid": bytes([number, 255])},
    )
    for name, module in (("cupy", cupy), ("cupy.cuda", cuda), ("cupy.cuda.nccl", nccl)):
        monkeypatch.setitem(sys.modules, name, module)
    name = "tensorly_flycoo.engines.cuda.simulated_processes"
    spec = importlib.util.spec_from_file_location(name, PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, nccl
