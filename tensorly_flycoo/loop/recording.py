"""Launches of whole iterations, which are recorded once as a CUDA graph and then made by one call.

The pieces of an iteration of a small tensor cost the host more time than the GPU; the more so if it
launches for several GPUs. `ahead` records iterations of TensorLy's loop, `recorded_sweep` those of
loops of our own.
"""

import collections
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..base.devices import Devices, OneDevice
from ..engines.tall import gpu_kernels
from ..format.layout import Layout
from ..spread.slab_layout import SlabLayout
from ..tensor.tensor import FlycooTensor

if TYPE_CHECKING:
    from ..engines.cuda.graphs import Graph

_Result = TypeVar("_Result")

#: With more nonzeros one GPU works longer than the host; and each of several, for which the host
#: needs several times as long [H200].
_MOST_NONZEROS = 2**23
_MOST_NONZEROS_EACH = 2**26

#: Two recordings need about eight times the memory of the factors: little in itself, or of the
#: tensor's.
_MOST_FACTOR_NBYTES = 2**22
_MOST_FACTOR_SHARE = 1 / 256


def suits(x: FlycooTensor, rank: int) -> bool:
    """Return whether the iterations of a tensor on GPUs may cost the host more time than these."""
    if x._engine.name != "cuda" or x.keep != "device":
        return False
    kernels = gpu_kernels()
    if kernels is None or x.ndim > kernels.MAX_GRAMS or not kernels.suits_rank(rank, x.dtype):
        return False
    devices = _find_devices(x)
    most_nonzeros = _MOST_NONZEROS
    if devices.others:
        most_nonzeros = _MOST_NONZEROS_EACH * (1 + len(devices.others))
    factor_nbytes = sum(x.shape) * rank * x.dtype.itemsize
    most_nbytes = max(_MOST_FACTOR_NBYTES, x.nbytes * _MOST_FACTOR_SHARE)
    return x.nnz <= most_nonzeros and factor_nbytes <= most_nbytes


@dataclass
class Recorded(Generic[_Result]):
    """Recorded launches, and the event after their last launch."""

    start: Any  # the state of the layout before them
    end: Any
    graph: "Graph"
    result: _Result  # what they compute
    done: Any = None

    def wait(self) -> None:
        """Wait for the last launch."""
        if self.done is not None:
            self.done.synchronize()


class Recorder:
    """Records work on the nonzeros of a tensor, and launches it.

    Each work begins, and ends, with the records of `first_mode` resident.
    """

    def __init__(self, x: FlycooTensor, first_mode: int) -> None:
        self._layout: Layout | SlabLayout = x._layout
        self._engine = x._engine
        self._devices = _find_devices(x)
        self._first_mode = first_mode
        self._fork: Any = None  # with which all work is recorded

    def record(self, work: Callable[[Any], _Result]) -> Recorded[_Result]:
        """Record what a function launches that takes a layout; nothing of it runs yet.

        Raises one of `graphs.RECORDING_ERRORS` if that is not possible.
        """
        from ..engines.cuda.graphs import record

        if self._fork is None:
            self._layout.bring(self._first_mode, self._engine)
            with self._layout.lock:
                self._fork = self._layout.fork()
        layout = self._fork
        start = layout.get_state()

        def launch_all() -> _Result:
            result = work(layout)
            layout.bring(self._first_mode, self._engine)
            return result

        graph, result = record(launch_all, self._devices.others)
        return Recorded(start, layout.get_state(), graph, result)

    def launch(self, recorded: Recorded[Any]) -> bool:
        """Launch recorded work, unless somebody else has moved the records; return whether."""
        import cupy

        layout = self._layout
        with layout.lock, self._devices.in_order():
            if not layout.is_in_state(recorded.start):
                return False
            calls: list[Any] = [recorded.graph.launch, *layout.list_moves(recorded.end)]
            # No bytecode of Python runs in between, so no KeyboardInterrupt comes there.
            collections.deque(map(operator.call, calls), maxlen=0)
            recorded.done = cupy.cuda.get_current_stream().record()
        return True


def _find_devices(x: FlycooTensor) -> Devices:
    """Return the GPUs of a tensor."""
    if isinstance(x._layout, SlabLayout):
        return x._layout.devices
    return OneDevice(x._engine.xp)
