"""Iterations of parafac that GPUs compute ahead of TensorLy's loop, each by one launch.

TensorLy's loop asks for an iteration piece by piece, and the pieces of a small tensor cost the host
more time than the GPU; the more so if it launches for several GPUs. So a whole iteration is
recorded as a CUDA graph, and launched before the loop asks for its first piece. Whoever then asks
for an MTTKRP, a solution or an error with the very inputs of the graph gets what the graph
computes; anything else is computed as ever. So results have the same bits.

    iteration 1, 2      as ever; `IterationsAhead` watches which modes are updated
    iteration 3         is recorded, and launched by its first MTTKRP
    any later one       is launched while the host waits for the error of the one before; or, if no
                        errors are computed, by its first MTTKRP

Two recordings take turns, and each starts from the factors that the other one writes: so the
factors of an iteration stay as they are while the next one is computed.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..base.array_modules import Array
from ..engines.tall import gpu_kernels
from ..ops.mttkrp import LastPass, multiply
from ..spread.row_shards import RowShards
from ..tensor.tensor import FlycooTensor
from .gram_products import (
    CachedGram,
    ComputedAhead,
    GramMemory,
    PendingError,
    find_address,
    make_cached,
)
from .recording import LEAST_LEFT, NUM_FIRST, Recorded, Recorder, are_same

if TYPE_CHECKING:
    from ..engines.cuda.graphs import HostNumber

_logger = logging.getLogger("tensorly_flycoo")


@dataclass(slots=True)
class _Step:
    """The update of one factor: what it reads, and what it makes."""

    factor_addresses: list[int]  # of all modes, before the update
    gram_sums: tuple[Any, ...]  # the Gram matrices of the other factors
    product: Array  # the MTTKRP
    factor: Array
    gram: CachedGram


@dataclass(slots=True)
class _Iteration:
    """What a recording computes."""

    factor_addresses: list[int]  # at the start
    steps: dict[int, _Step]  # by mode
    factors: list[Array]
    grams: list[CachedGram]
    error: "HostNumber"


class IterationsAhead(ComputedAhead):
    """Whole iterations of a parafac with unit weights, which are launched ahead of its loop.

    Each iteration of the loop begins with an MTTKRP of `first_mode`. The loop passes its factors on
    as they are; a callback only reads them, and keeps none: they are overwritten.
    """

    def __init__(
        self, x: FlycooTensor, memory: GramMemory, first_mode: int, num_iterations: int
    ) -> None:
        self._recorder = Recorder(x, first_mode)
        self._engine = x._engine
        self._norm_square = float(x.norm()) ** 2
        self._memory = memory
        self._first_mode = first_mode
        self._num_left = num_iterations
        self._num_begun = 0
        self._modes: list[int] = []  # that an iteration updates, in its order
        self._pair: list[Recorded[_Iteration]] = []  # that take turns
        self._launched: Recorded[_Iteration] | None = None  # ahead of the loop
        self._current: Recorded[_Iteration] | None = None  # whose results are handed out

    # What the loop asks for

    def find_product(self, factors: Sequence[Array], mode: int) -> Array | None:
        """Return the MTTKRP of a mode if it is computed of these factors."""
        if RowShards in map(type, factors):
            return None
        if mode == self._first_mode:
            self._begin(factors)
        if self._num_begun == 1:
            self._modes.append(mode)
        if self._current is None:
            return None
        step = self._current.result.steps.get(mode)
        if step is None or step.factor_addresses != _locate(factors):
            return None
        return step.product

    def find_solution(
        self, mttkrp: Array, gram_sums: tuple[Any, ...]
    ) -> tuple[Array, CachedGram] | None:
        """Return the factor that solves for an MTTKRP and these Gram matrices, if it is computed.

        With it comes what is known of it.
        """
        if self._current is None:
            return None
        address = find_address(mttkrp)
        for step in self._current.result.steps.values():
            if find_address(step.product) == address and are_same(step.gram_sums, gram_sums):
                return step.factor, step.gram
        return None

    def find_error(self, grams: Sequence[CachedGram]) -> "_Pending | None":
        """Return the error of the factors with these Gram matrices if it is computed."""
        if self._current is None or not are_same(self._current.result.grams, grams):
            return None
        return _Pending(self._current)

    def launch(self, factors: Sequence[Array]) -> bool:
        """Launch the iteration that starts from these factors; return whether one does."""
        for recorded in self._pair:
            if recorded.result.factor_addresses == _locate(factors):
                is_launched = self._recorder.launch(recorded)
                self._launched = recorded if is_launched else None
                return is_launched
        return False

    def end(self) -> None:
        """Wait for what is under way, and let go of all memory."""
        for recorded in self._pair:
            recorded.wait()
        self._pair = []
        self._launched = self._current = None
        self._memory.ahead = None

    # What is launched

    def _begin(self, factors: Sequence[Array]) -> None:
        """Begin to hand out an iteration, which may have to be launched, or recorded."""
        self._num_begun += 1
        self._num_left -= 1
        if self._num_begun == NUM_FIRST + 1 and self._can_record():
            self._record(factors)
        if self._launched is None:
            self.launch(factors)
        self._current = self._launched
        self._launched = None

    def _can_record(self) -> bool:
        """Return whether iterations are all alike, and by the kernels, which a graph can launch."""
        num_solves = NUM_FIRST * len(self._modes)
        is_usual = len(set(self._modes)) == len(self._modes) and self._modes[-1] == max(self._modes)
        return is_usual and self._memory.num_solves == num_solves and self._num_left >= LEAST_LEFT

    def _record(self, factors: Sequence[Array]) -> None:
        """Record two iterations, of which the second ends at these factors."""
        known = [self._memory.find(factor) for factor in factors]
        grams = [gram for gram in known if gram is not None]
        if len(grams) < len(factors):
            return
        record = self._recorder.record
        targets = factors, grams
        there = record(partial(self._iterate, factors, grams))
        if there is None:
            return
        middle = there.result
        iterate_back = partial(self._iterate, middle.factors, middle.grams, targets=targets)
        back = record(iterate_back, follows=True)
        if back is None:
            return
        self._pair = [there, back]
        _logger.debug("iterations are recorded as a graph")

    def _iterate(
        self,
        factors: Sequence[Array],
        grams: Sequence[CachedGram],
        layout: Any,
        targets: tuple[Sequence[Array], Sequence[CachedGram]] | None = None,
    ) -> _Iteration:
        """Launch what TensorLy's loop asks for in one iteration; copy its results to targets."""
        from ..engines.cuda.graphs import HostNumber

        kernels = gpu_kernels()
        assert kernels is not None
        start_addresses = _locate(factors)
        factors = list(factors)
        grams = list(grams)
        rank = factors[0].shape[1]
        dtype = factors[0].dtype
        last_pass = LastPass()
        steps = {}
        for mode in self._modes:
            addresses = _locate(factors)
            sums = tuple([gram.sums for n, gram in enumerate(grams) if n != mode])
            product = multiply(layout, self._engine, factors, mode, last_pass)
            inverse = kernels.invert_product(sums, (), rank, dtype)
            factor, factor_sums, inner = kernels.solve_rows(product, inverse)
            if targets is not None:
                target_factors, target_grams = targets
                factor = _copy(factor, target_factors[mode])
                factor_sums = kernels.copy_sums(factor_sums, target_grams[mode].sums)
            factors[mode] = factor
            grams[mode] = make_cached(factor, factor_sums)
            grams[mode].note_solved(product, inner)
            steps[mode] = _Step(addresses, sums, product, factor, grams[mode])
        error = HostNumber()
        all_sums = [gram.sums for gram in grams]
        inner = grams[-1].inner
        kernels.launch_fit(all_sums, (), rank, dtype, inner, self._norm_square, error.address)
        return _Iteration(start_addresses, steps, factors, grams, error)


@dataclass(slots=True)
class _Pending(PendingError):
    """The error of an iteration that is under way."""

    _recorded: Recorded[_Iteration]

    def wait(self) -> float:
        """Wait for the error, and return it."""
        self._recorded.wait()
        return self._recorded.result.error.read()


def _locate(arrays: Sequence[Array]) -> list[int]:
    """Return where arrays are: at one place there is but one array while a graph lives."""
    return list(map(find_address, arrays))


def _copy(source: Array, target: Array) -> Array:
    target[...] = source
    return target
