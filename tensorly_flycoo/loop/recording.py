"""Launches of whole iterations, which are recorded once as a CUDA graph and then made by one call.

The pieces of an iteration of a small tensor cost the host more time than the GPU; the more so if it
launches for several GPUs. The same kernels run in the same order, so results have the same bits.

`ahead` records iterations of TensorLy's loop, `recorded_sweep` those of loops of our own. Loops
whose iterations read and write the same arrays need but `RecordedIterations`.
"""

import collections
import logging
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from ..base.array_modules import Array
from ..base.devices import Devices, OneDevice
from ..engines.tall import gpu_kernels
from ..format.layout import Layout
from ..spread.slab_layout import SlabLayout
from ..tensor.tensor import FlycooTensor

if TYPE_CHECKING:
    from ..engines.cuda.graphs import Graph

_logger = logging.getLogger("tensorly_flycoo")

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


#: Iterations that are launched piece by piece first: they compile kernels, or load them.
NUM_FIRST = 2

#: The fewest that are left to record for.
LEAST_LEFT = 4

#: That of batches: with 40, `best_of` took up to a third longer [H200].
_LEAST_LEFT_OF_BATCH = 10

#: The graphs that take turns, at most.
_MOST_GRAPHS = 2

#: Launches an iteration that reads a layout, and returns what it computes.
LaunchPieces: TypeAlias = Callable[[Any], Array]


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

    Each work begins, and ends, with the records of `first_mode` resident. If it `shares_memory`,
    what one has computed is used before the next launch.
    """

    def __init__(self, x: FlycooTensor, first_mode: int, shares_memory: bool = False) -> None:
        self._layout: Layout | SlabLayout = x._layout
        self._engine = x._engine
        self._devices = _find_devices(x)
        self._first_mode = first_mode
        self._shares_memory = shares_memory
        self._pool: Any = None  # that is shared
        self._fork: Any = None  # the layout with which work is recorded

    def record(
        self, work: Callable[[Any], _Result], *, follows: bool = False
    ) -> Recorded[_Result] | None:
        """Record what a function launches that takes a layout; nothing of it runs yet.

        It begins with the records as they are or, if it `follows`, as the last recording leaves
        them. Returns None if the driver or the memory does not allow it.
        """
        from ..engines.cuda.graphs import RECORDING_ERRORS

        try:
            return self._record(work, follows)
        except RECORDING_ERRORS as error:
            _logger.debug("iterations cannot be recorded: %s", error)
            return None

    def _record(self, work: Callable[[Any], _Result], follows: bool) -> Recorded[_Result]:
        """Record as `record` does; raise one of `graphs.RECORDING_ERRORS` if it is not possible."""
        from ..engines.cuda.graphs import make_pool, record

        if self._shares_memory and self._pool is None:
            self._pool = make_pool()
        if not follows:
            self._layout.bring(self._first_mode, self._engine)
            with self._layout.lock:
                self._fork = self._layout.fork()
        layout = self._fork
        start = layout.get_state()

        def launch_all() -> _Result:
            result = work(layout)
            layout.bring(self._first_mode, self._engine)
            return result

        graph, result = record(launch_all, self._devices.others, self._pool)
        return Recorded(start, layout.get_state(), graph, result)

    def launch(self, recorded: Recorded[Any]) -> bool:
        """Launch recorded work, unless somebody else has moved the records; return whether."""
        layout = self._layout
        with layout.lock, self._devices.in_order():
            if not layout.is_in_state(recorded.start):
                return False
            calls: list[Any] = [recorded.graph.launch, *layout.list_moves(recorded.end)]
            # No bytecode of Python runs in between, so no KeyboardInterrupt comes there.
            collections.deque(map(operator.call, calls), maxlen=0)
            recorded.done = recorded.graph.note_end()
        return True


class RecordedIterations:
    """The graphs of the iterations of one loop, which read and write the same arrays.

    Where records move, an iteration may leave them in the other one of two copies. Then a second
    graph is recorded, which begins there, and the two take turns.
    """

    def __init__(self, x: FlycooTensor) -> None:
        self._layout = x._layout
        self._recorder = Recorder(x, first_mode=0, shares_memory=True)
        self._can_record = True
        self.forget()

    def forget(self) -> None:
        """Forget the graphs, since the arrays of the loop are others."""
        self._num_first = 0
        self._recordings: list[Recorded[Array]] = []

    def launch(self, launch_pieces: LaunchPieces, num_left: int) -> Array:
        """Launch an iteration, after which so many are left at most.

        Returns what its pieces do, which holds until the next launch.
        """
        for recorded in self._recordings:
            if self._recorder.launch(recorded):
                return recorded.result
        if self._is_worth_recording(num_left):
            recorded_now = self._record(launch_pieces)
            if recorded_now is not None and self._recorder.launch(recorded_now):
                return recorded_now.result
        self._num_first += 1
        return launch_pieces(self._layout)

    def _is_worth_recording(self, num_left: int) -> bool:
        has_begun = self._num_first >= NUM_FIRST and len(self._recordings) < _MOST_GRAPHS
        return self._can_record and has_begun and num_left >= _LEAST_LEFT_OF_BATCH

    def _record(self, launch_pieces: LaunchPieces) -> Recorded[Array] | None:
        """Record an iteration; return None, now and later, if that is not possible."""
        recorded = self._recorder.record(launch_pieces)
        if recorded is None:
            self._can_record = False
            return None
        self._recordings.append(recorded)
        _logger.debug("an iteration of all runs is recorded as a graph")
        return recorded


def are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether two sequences hold the very same objects."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _find_devices(x: FlycooTensor) -> Devices:
    """Return the GPUs of a tensor."""
    if isinstance(x._layout, SlabLayout):
        return x._layout.devices
    return OneDevice(x._engine.xp)
