"""A sparse tensor as a decomposition sees it: without missing entries, for one call."""

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..base.array_modules import Array
from ..base.watching import note_iteration
from ..engines.tall import inner_product
from ..ops.mttkrp import LastPass, check_devices, multiply
from ..tensor.lazy_array import LazyArray
from ..tensor.tensor import FlycooTensor
from .cp_model import residual_square
from .factor_grams import FactorGrams
from .gram_products import GramMemory, stop
from .precision import NarrowFactors


def check_start(mttkrp: Array) -> None:
    """Refuse a start whose first MTTKRP is zero: so would be every factor in turn."""
    if np.max(mttkrp) == 0 == np.min(mttkrp):
        raise np.linalg.LinAlgError(
            "the initial guess has nothing in common with the tensor: the first MTTKRP is zero, "
            "and so would be the model. The singular vectors of init='svd' may be so if the "
            "tensor is very sparse: pass init='random'"
        )


class SweepCount:
    """A count of the iterations of TensorLy's loop, for somebody who watches.

    Each begins with an MTTKRP of `first_mode`; those of line search and callbacks are of the last.
    """

    def __init__(self, first_mode: int, n_iter_max: int) -> None:
        self._first_mode = first_mode
        self._n_iter_max = n_iter_max
        self._num_begun = 0

    def begin_mode(self, mode: int) -> None:
        """Note that an MTTKRP begins."""
        if mode == self._first_mode:
            self._num_begun = min(self._num_begun + 1, self._n_iter_max)
            note_iteration(self._num_begun - 1, self._n_iter_max)

    def note_error(self, error: float) -> None:
        """Note the error of the last iteration, which ends."""
        note_iteration(self._num_begun, self._n_iter_max, error)


class WholeTensor(LazyArray):
    """A sparse tensor for one call of a decomposition, with the methods of an `ImputedTensor`.

    By this type, what TensorLy's own parafac calls knows that all uses of a result are known.
    """

    _instead = "it belongs to one call of parafac"
    values = None  # of entries that are missing, as an `ImputedTensor` has
    residual = None
    can_compute_ahead = True  # as `ahead` does: its products are those of `tensor` alone

    def __init__(self, x: FlycooTensor, last_pass: LastPass | None = None) -> None:
        record_format = x._layout.record_format
        self.tensor = x
        self.shape = record_format.shape
        self.ndim = record_format.ndim
        self.dtype = record_format.dtype
        # That of the call's own arrays: those of a tensor on a cluster are on the host.
        self.device = "cuda" if x._engine.name == "cuda" else "cpu"
        self.memory = GramMemory()
        self.narrow: NarrowFactors | None = None  # of a run in mixed precision
        self.last_pass = last_pass or LastPass()
        self._has_begun = False
        self.is_checked = False  # whether `check_start` has seen parafac's first MTTKRP
        self.num_left = 0  # errors that a loop with `look_ahead` computes, at most
        self.sweep_count: SweepCount | None = None  # of TensorLy's loop
        self._first_mode: int | None = None  # of this iteration
        self._ahead: tuple[int, list[Array], Array] | None = None  # a mode, factors, their MTTKRP

    def end_products(self) -> None:
        """End the thread's use of the memory, which `tl.ones` began: see `gram_products`."""
        stop()

    def norm(self) -> np.floating:
        return self.tensor.norm()

    def impute(self, weights: Array | None, factors: Sequence[Array]) -> None:
        """Do nothing: no entry is missing."""

    def mttkrp(
        self, weights: Array | None, factors: Sequence[Array], mode: int, is_early: bool = False
    ) -> Array:
        """Compute the MTTKRP of factors in any precision: (I_mode, R), in that of the tensor.

        One that `is_early` has not been asked for by the loop.
        """
        x = self.tensor
        if self.sweep_count is not None and not is_early:
            self.sweep_count.begin_mode(mode)
        if self.memory.ahead is not None and not is_early:
            product = self.memory.ahead.find_product(factors, mode)
            if product is not None:
                self._ahead = None  # its factors are overwritten
                return product
        if self._first_mode is None:
            self._first_mode = mode
        if self._ahead is not None:
            mode_ahead, factors_ahead, product = self._ahead
            self._ahead = None
            if mode_ahead == mode and all(map(operator.is_, factors_ahead, factors)):
                return product
        if not self._has_begun:
            check_devices(x, list(factors))
            self._has_begun = True
        are_ones = self.memory.has_unit_weights
        if not are_ones and isinstance(weights, np.ndarray):  # on a GPU the host would wait
            are_ones = weights.tolist() == [1] * weights.size
        if are_ones:
            weights = None
        narrow = None
        if self.narrow is not None:
            narrow = self.narrow.find(factors, skip=mode)
        return multiply(x._layout, x._engine, factors, mode, self.last_pass, weights, narrow=narrow)

    @property
    def is_rounding(self) -> bool:
        """Whether the run rounds its factors, so that MTTKRP reads half the bytes."""
        return self.narrow is not None and self.narrow.is_rounding

    def round_factor(self, factor: Any, mode: int) -> Any:
        """Round a factor that was updated, maybe in place, if the run rounds; return it."""
        if not self.is_rounding:
            return factor
        assert self.narrow is not None
        if self.narrow.take_solved(factor, mode):
            return factor
        rounded = self.narrow.round(factor, mode)
        self.memory.forget(rounded)
        return rounded

    def look_ahead(self, factors: Sequence[Array]) -> None:
        """Launch the next iteration's first MTTKRP, if it is known, before the host waits."""
        mode = self._first_mode
        self._first_mode = None
        self.num_left -= 1
        if self.num_left < 1:
            return
        if self.memory.ahead is not None and self.memory.ahead.launch(factors):
            return
        if mode is None or mode == self.ndim - 1:
            return
        are_final = self.memory.has_unit_weights and not self.memory.factors_may_change
        if are_final and self.tensor.keep == "device":
            product = self.mttkrp(None, factors, mode, is_early=True)
            self._first_mode = None
            self._ahead = (mode, list(factors), product)

    def measure(
        self,
        weights: Array | None,
        factors: Sequence[Array],
        last_mttkrp: Array | None = None,
        grams: FactorGrams | None = None,
    ) -> tuple[Any, None]:
        """Compute the relative error of a model, by default with an MTTKRP of the last mode.

        With `grams`, the error of a model on a GPU is a number on the host, which has waited for
        it, and meanwhile may have launched what comes next.
        """
        if last_mttkrp is None:
            last_mttkrp = self.mttkrp(weights, factors, len(factors) - 1)
            self._first_mode = None  # it is no iteration's
        norm = self.norm()
        gram = None
        if grams is not None:
            look_ahead = partial(self.look_ahead, factors)
            residual = grams.compute_residual(
                float(norm), weights, factors, last_mttkrp, meanwhile=look_ahead
            )
            if residual is not None:
                return np.float64(residual) / norm, None
            gram = grams.multiply(weights, factors)
        inner = inner_product(last_mttkrp, factors[-1])
        square = residual_square(norm**2, weights, factors, inner, gram)
        return np.sqrt(square) / norm, None
