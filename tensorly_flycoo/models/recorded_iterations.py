"""Iterations of our own loops on a GPU as CUDA graphs, each of which is one launch.

The pieces of an iteration of a small tensor cost the host more time than the GPU. A loop whose
iterations read and write the same arrays records one of them, and launches that from then on. The
same kernels run in the same order, so results have the same bits.

Where records move, an iteration may leave them in the other one of two copies. Then a second graph
is recorded, which begins there, and the two take turns.
"""

import collections
import logging
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ..base.array_modules import Array
from ..format.layout import Layout
from ..tensor.tensor import FlycooTensor

if TYPE_CHECKING:
    from ..engines.cuda.graphs import Graph, Recorder

_logger = logging.getLogger("tensorly_flycoo")

#: Iterations that are launched piece by piece first: they compile kernels, or load them.
_NUM_FIRST = 2

#: The fewest that are left to record for: with 40, `best_of` took up to a third longer [H200].
_LEAST_LEFT = 10

#: The graphs that take turns, at most.
_MOST_GRAPHS = 2


#: Launches an iteration that reads a layout, and returns what it computes.
LaunchPieces: TypeAlias = Callable[[Layout], Array]


@dataclass(slots=True)
class _Recording:
    """A recorded iteration, and what it computes, at its address in each launch."""

    start: Mapping[str, Any]  # the state of the layout
    end: Mapping[str, Any]
    graph: "Graph"
    results: Array


class RecordedIterations:
    """The graphs of the iterations of one loop over a tensor on one GPU."""

    def __init__(self, x: FlycooTensor) -> None:
        layout = x._layout
        assert isinstance(layout, Layout)
        self._layout = layout
        self._engine = x._engine
        self._recorder: Recorder | None = None
        self._can_record = True
        self.forget()

    def forget(self) -> None:
        """Forget the graphs, since the arrays of the loop are others."""
        self._num_first = 0
        self._recordings: list[_Recording] = []

    def launch(self, launch_pieces: LaunchPieces, num_left: int) -> Array:
        """Launch an iteration, after which so many are left at most.

        Returns what its pieces do, which holds until the next launch.
        """
        recording = self._find_recording()
        if recording is None and self._is_worth_recording(num_left):
            recording = self._record(launch_pieces)
        if recording is not None and self._launch_graph(recording):
            return recording.results
        self._num_first += 1
        return launch_pieces(self._layout)

    def _find_recording(self) -> _Recording | None:
        """Return the recording that begins with the records as they are."""
        for recording in self._recordings:
            if _is_in_state(self._layout, recording.start):
                return recording
        return None

    def _is_worth_recording(self, num_left: int) -> bool:
        has_begun = self._num_first >= _NUM_FIRST and len(self._recordings) < _MOST_GRAPHS
        return self._can_record and has_begun and num_left >= _LEAST_LEFT

    def _record(self, launch_pieces: LaunchPieces) -> _Recording | None:
        """Record an iteration; return None if the driver or the memory does not allow it."""
        from ..engines.cuda.graphs import RECORDING_ERRORS, Recorder

        if self._recorder is None:
            self._recorder = Recorder()
        with self._layout.step(0, self._engine, stays=True):
            fork = self._layout.fork()
        start = fork.get_state()
        try:
            graph, results = self._recorder.record(partial(launch_pieces, fork))
        except RECORDING_ERRORS as error:
            _logger.debug("iterations cannot be recorded: %s", error)
            self._can_record = False
            return None
        recording = _Recording(start, fork.get_state(), graph, results)
        self._recordings.append(recording)
        _logger.debug("an iteration of all runs is recorded as a graph")
        return recording

    def _launch_graph(self, recording: _Recording) -> bool:
        """Launch a recording, unless somebody else has moved the records; say whether."""
        layout = self._layout
        with layout.lock:
            if not _is_in_state(layout, recording.start):
                return False
            move = partial(vars(layout).update, recording.end)
            both: list[Callable[[], object]] = [recording.graph.launch, move]
            # No bytecode of Python runs between the two, so no KeyboardInterrupt comes there.
            collections.deque(map(operator.call, both), maxlen=0)
        return True


def _is_in_state(layout: Layout, state: Mapping[str, Any]) -> bool:
    return all(vars(layout)[name] is value for name, value in state.items())
