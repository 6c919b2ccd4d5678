"""Links between workers that are threads of one process, in place of those between GPUs."""

import itertools
import queue
import threading
from collections import defaultdict

import numpy as np

_names = itertools.count()

#: What is on its way, by the link's name, the sender and the receiver.
_on_the_way = defaultdict(queue.SimpleQueue)

#: Waits until all are connected, by the link's name.
_barriers = {}
_lock = threading.Lock()


class SimulatedLink:
    """Stands for `engines.cuda.processes.NcclLink`; a link that is closed leaves NaN in arrays.

    Attributes
    ----------
    num_arrays : int
        How many all links have received.
    """

    num_arrays = 0

    @staticmethod
    def make_name():
        return np.array([next(_names)])

    def __init__(self, number, count, name, is_needed):
        self._number, self._name, self._is_needed = number, int(name[0]), is_needed
        self._is_closing = threading.Event()
        with _lock:
            self._barrier = _barriers.setdefault(self._name, threading.Barrier(count))
        self._thread = threading.Thread(target=self._barrier.wait, daemon=True)
        self._thread.start()

    def wait(self, seconds):
        self._thread.join(min(seconds, 0.1))
        return not self._thread.is_alive()

    def check(self):
        pass

    def close(self):
        self._is_closing.set()

    def exchange(self, sent, received):
        for array, peer in sent:
            _on_the_way[self._name, self._number, peer].put(array.copy())
        for array, peer in received:
            array[...] = self._receive(_on_the_way[self._name, peer, self._number])

    def _receive(self, arrived):
        while self._is_needed() and not self._is_closing.is_set():
            try:
                array = arrived.get(timeout=0.05)
            except queue.Empty:
                continue
            SimulatedLink.num_arrays += 1
            return array
        return np.nan

    def synchronize(self):
        pass
