"""Iterations of our own loops over the modes of a CP model, each launched at once on a GPU.

After some iterations piece by piece, two are recorded; see `recording`. Both read the factors that
are copied for them, and the factors that they compute are copied for the loop. So a callback may
keep these, and momentum compares them with others, or takes them back. What is recorded are the
kernels of an iteration piece by piece, so results have the same bits.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..base.array_modules import Array
from ..engines.tall import gpu_kernels
from ..ops.mttkrp import LastPass, multiply
from ..spread.row_shards import RowShards
from ..tensor.tensor import FlycooTensor
from .gram_products import GramMemory, GramProduct, collect_grams, launch_fit
from .recording import LEAST_LEFT, NUM_FIRST, Recorded, Recorder, are_same, suits

if TYPE_CHECKING:
    from ..engines.cuda.graphs import HostNumber

_logger = logging.getLogger("tensorly_flycoo")

#: Returns a new factor of a mode from the old one, its MTTKRP, the product of the other factors'
#: Gram matrices, and the mode. It only launches kernels.
UpdateMode: TypeAlias = Callable[[Array, Array, GramProduct, int], Array]


class Iteration(NamedTuple):
    """The factors after an iteration, and the norm of the residual, if it is wanted."""

    factors: list[Array]
    residual: float | None


@dataclass(slots=True)
class _Outcome:
    """What a recording computes."""

    factors: dict[int, Array]  # of the modes that it updates
    residual: "HostNumber"


class RecordedSweep:
    """The iterations of a sweep over some modes of a tensor, as two recordings launch them.

    With `looks_ahead`, an iteration is launched while the host waits for the residual of the one
    before, since it is known to begin with the same factors.
    """

    def __init__(
        self,
        x: FlycooTensor,
        modes: Sequence[int],
        update_mode: UpdateMode,
        num_iterations: int,
        *,
        wants_residual: bool,
        looks_ahead: bool,
    ) -> None:
        self._tensor = x
        self._modes = modes
        self._update_mode = update_mode
        self._num_left = num_iterations
        self._wants_residual = wants_residual
        self._looks_ahead = looks_ahead
        self._num_first = NUM_FIRST
        self._can_record = True
        self._recorder = Recorder(x, modes[0])
        self._inputs: list[Array] = []
        self._pair: list[Recorded[_Outcome]] = []
        self._last: Recorded[_Outcome] | None = None  # that was launched
        self._ahead: list[Array] | None = None  # the factors from which it was launched early

    @staticmethod
    def suits(x: FlycooTensor, rank: int, modes: Sequence[int]) -> bool:
        """Return whether iterations over these modes, in order, can be recorded, and should be."""
        is_usual = list(modes) == sorted(set(modes)) and modes[-1:] == [x.ndim - 1]
        return is_usual and suits(x, rank)

    def iterate(self, factors: Sequence[Array]) -> Iteration | None:
        """Do an iteration from these factors; None if it has to go piece by piece."""
        self._num_left -= 1
        self._num_first -= 1
        if self._num_first < 0 and self._can_record:
            self._can_record = False  # once, whether it succeeds or not
            self._record(factors)
        if not self._pair:
            return None
        is_launched = self._ahead is not None and are_same(self._ahead, factors)
        self._ahead = None
        if not is_launched and not self._launch(factors):
            return None
        current = self._last
        assert current is not None
        found = list(factors)
        for mode, factor in current.result.factors.items():
            found[mode] = _copy(factor)
        if not self._wants_residual:
            return Iteration(found, None)
        if self._looks_ahead and self._num_left > 0 and self._launch(found):
            self._ahead = found
        current.wait()
        return Iteration(found, current.result.residual.read())

    def _launch(self, factors: Sequence[Array]) -> bool:
        """Launch an iteration from copies of these factors; return whether it is launched."""
        for source, target in zip(factors, self._inputs, strict=True):
            target[...] = source
        for recorded in self._pair:
            # The results of the last one are still wanted.
            if recorded is not self._last and self._recorder.launch(recorded):
                self._last = recorded
                return True
        self._last = None
        return False

    def _record(self, factors: Sequence[Array]) -> None:
        """Record two iterations, unless only a few are left."""
        if RowShards in map(type, factors) or self._num_left < LEAST_LEFT:
            return
        self._inputs = list(map(_copy, factors))
        first = self._recorder.record(self._iterate)
        if first is None:
            return
        second = self._recorder.record(self._iterate, follows=True)
        if second is None:
            return
        self._pair = [first, second]
        _logger.debug("iterations are recorded as a graph")

    def _iterate(self, layout: Any) -> _Outcome:
        """Launch an iteration from the inputs."""
        from ..engines.cuda.graphs import HostNumber

        x = self._tensor
        memory = GramMemory()
        last_pass = LastPass()
        factors = list(self._inputs)
        for mode in self._modes:
            product = multiply(layout, x._engine, factors, mode, last_pass)
            gram = collect_grams(factors, memory, skip=mode)
            assert gram is not None
            factors[mode] = self._update_mode(factors[mode], product, gram, mode)
        residual = HostNumber()
        launch_fit(float(x.norm()), factors, product, memory, residual.address)
        return _Outcome({mode: factors[mode] for mode in self._modes}, residual)


def solve_recorded(factor: Array, product: Array, gram: GramProduct, mode: int) -> Array:
    """Update a factor by least squares: an `UpdateMode`."""
    return gram.solve(product.T).T


def _copy(factor: Array) -> Array:
    """Copy a factor to rows that MTTKRP reads by aligned loads."""
    kernels = gpu_kernels()
    assert kernels is not None
    copy = kernels.allocate_rows(factor.shape, factor.dtype)
    copy[...] = factor
    return copy
