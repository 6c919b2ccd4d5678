"""The objective of `observed_parafac`, and the ways to fit the rows of a factor to it."""

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import tensorly as tl

from ..base.array_modules import Array, array_module
from ..base.fit_record import find_record
from ..loop import observed_rows
from ..loop.cp_model import find_biases, multiply_grams
from ..loop.initial_guess import draw_factors, take_guess
from ..ops.cp_entries import take_model
from ..ops.mttkrp import mttkrp
from ..tensor.tensor import FlycooTensor
from .observed_entries import ObservedEntries


@final
@dataclass(frozen=True)
class Problem:
    """Data and options of a fit, the same for each ridge and for any entries held out."""

    x: FlycooTensor
    rank: int
    init: Any
    mean: float  # of the values
    biases: bool
    unobserved: float  # the weight of cells that are not observed
    non_negative: bool
    num_steps: int  # of conjugate gradients; 0 to solve

    @property
    def dtype(self) -> np.dtype:
        """The dtype of an iteration's factors."""
        if self.num_steps:
            return self.x.dtype
        return np.dtype(np.float64)

    @property
    def bias_modes(self) -> tuple[int, ...]:
        """The mode of each column's biases, the number of modes for the mean, else -1."""
        components = (-1,) * self.rank
        if not self.biases:
            return components
        return components + tuple(range(self.x.ndim + 1))

    @functools.cached_property
    def scale(self) -> float:
        """The root mean square of the values, less their mean if there are biases."""
        values = self.x._sorted_nonzeros()[1].astype(np.float64)
        return observed_rows.measure_scale(values - self.mean * self.biases) or 1.0

    def start(self, random_state: Any) -> list[Array]:
        """Make the initial guess, with columns for the biases."""
        x = self.x
        random = tl.check_random_state(random_state)
        if isinstance(self.init, str) and self.init == "random":
            guess = draw_factors(x, self.rank, random)
            # A product of ndim factors is then of the size of the values.
            root = self.scale ** (1 / x.ndim)
            guess = [factor.astype(np.float64) * root for factor in guess]
        else:
            guess = take_guess(x, self.rank, self._read_init())
        factors = [factor.astype(self.dtype) for factor in guess]
        if self.biases:
            return self._add_biases(factors)
        return factors

    def _read_init(self) -> Any:
        """Return the user's guess, without the biases that it has from another fit."""
        if self.biases:
            return _leave_out_biases(self.init)
        return self.init

    def _add_biases(self, factors: list[Array]) -> list[Array]:
        """Append columns that are zero in the factor of their mode, and ones in the others."""
        columns = self.x._engine.xp.arange(self.x.ndim + 1)
        # Times zero, for the shape (I, ndim + 1) and the dtype of the factor.
        biases = [(columns != mode) + 0 * factor[:, :1] for mode, factor in enumerate(factors)]
        biases[-1][:, -1] = self.mean
        return [np.concatenate(pair, axis=1) for pair in zip(factors, biases, strict=True)]

    def make_rows(self, entries: ObservedEntries, l2_reg: float) -> "RowSolver":
        """Make a solver that fits rows to entries with a ridge."""
        if self.num_steps:
            return ConjugateGradients(self, entries, l2_reg)
        return ExactRows(self, entries, l2_reg)

    def find_ridges(self, l2_reg: float) -> Array:
        """Return the ridge of each column (R,), biases included."""
        ridges = np.full(len(self.bias_modes), float(l2_reg))
        ridges[: self.rank] = observed_rows.scale_ridge(l2_reg, self.scale, self.x.ndim)
        return self.x._engine.xp.asarray(ridges, self.dtype)

    def find_gram(self, ridges: Array, factors: list[Array], mode: int) -> Array:
        """Return the part that the systems of all rows of a mode have in common."""
        gram = array_module(ridges).diag(ridges)
        if self.unobserved:
            gram = gram + self.unobserved * multiply_grams(None, factors, mode)
        return gram

    def find_free(self, mode: int) -> Array | None:
        """Mark the columns to update, all but the ones beside other modes' biases; None for all."""
        if not self.biases:
            return None
        modes = self.x._engine.xp.asarray(self.bias_modes)
        return (modes < 0) | (modes == mode)


def _leave_out_biases(init: Any) -> Any:
    """Return a guess without the components that are biases, which are fitted anew."""
    record = find_record(init)
    if record is None or not record.bias_modes:
        return init
    weights, factors = take_model(init)
    is_kept = ~find_biases(record, len(record.bias_modes))
    kept = array_module(factors[0]).asarray(np.flatnonzero(is_kept))
    if weights is not None:
        weights = weights[kept]
    return weights, [factor[:, kept] for factor in factors]


class RowSolver(ABC):
    """Fits the rows of one factor after the other to some entries, with a ridge."""

    square: float  # the weighted sum of the squared values
    ridges: Array  # of each column (R,)

    @abstractmethod
    def set_ridge(self, l2_reg: float) -> None:
        """Go on with another ridge."""

    @abstractmethod
    def fit(self, factors: list[Array], mode: int) -> Array:
        """Return new rows of a mode."""

    @abstractmethod
    def measure(self, factors: list[Array]) -> float:
        """Return the relative error of a model."""


def fit_all(rows: RowSolver, factors: list[Array]) -> None:
    """Fit each factor in turn, in place."""
    for mode in range(len(factors)):
        factors[mode] = rows.fit(factors, mode)


@final
class ExactRows(RowSolver):
    """Rows that solve their systems of equations, or non-negative ones."""

    def __init__(self, problem: Problem, entries: ObservedEntries, l2_reg: float) -> None:
        self.square = entries.square
        self.ridges = problem.find_ridges(l2_reg)
        self._problem = problem
        self._entries = entries
        self._excess = entries.excess
        pairs = zip(entries.coords, problem.x.shape, strict=True)
        self._plans = [observed_rows.RowPlan.of(rows, size) for rows, size in pairs]

    def set_ridge(self, l2_reg: float) -> None:
        self.ridges = self._problem.find_ridges(l2_reg)

    def fit(self, factors: list[Array], mode: int) -> Array:
        entries = self._entries
        return observed_rows.fit_rows(
            observed_rows.list_cells(entries.coords, entries.targets, factors, mode, self._excess),
            factors[mode],
            self._plans[mode],
            self._problem.find_gram(self.ridges, factors, mode),
            is_free=self._problem.find_free(mode),
            non_negative=self._problem.non_negative,
        )

    def measure(self, factors: list[Array]) -> float:
        return self._entries.measure(factors)


@final
class ConjugateGradients(RowSolver):
    """Rows that a few steps of conjugate gradients improve."""

    def __init__(self, problem: Problem, entries: ObservedEntries, l2_reg: float) -> None:
        self.square = entries.square
        self.ridges = problem.find_ridges(l2_reg)
        self._problem = problem
        x = problem.x
        excess = entries.excess
        if excess is None:
            excess = np.ones_like(entries.values)
        self._excess = x._rebuild(entries.coords, excess.astype(x.dtype))
        is_whole = entries.weights is None and entries.values.size == x.nnz
        self._targets = x
        if not is_whole:
            self._targets = x._rebuild(entries.coords, entries.targets.astype(x.dtype))
        self._residual_square = -1.0  # of the model after the last mode was fitted

    def set_ridge(self, l2_reg: float) -> None:
        self.ridges = self._problem.find_ridges(l2_reg)

    def fit(self, factors: list[Array], mode: int) -> Array:
        return self._improve(factors, mode, self._problem.num_steps)

    def _improve(self, factors: list[Array], mode: int, num_steps: int) -> Array:
        """Return the rows of a mode after some steps; with the last mode, note the residual."""
        targets = mttkrp(self._targets, factors, mode)
        rows, residuals = observed_rows.improve_rows(
            self._excess,
            targets,
            factors,
            mode,
            self._problem.find_gram(self.ridges, factors, mode),
            self._problem.find_free(mode),
            num_steps,
        )
        if mode == len(factors) - 1:
            # The loss is a quadratic function of these rows: by its gradients here and at 0.
            gradients = targets + residuals + self.ridges * rows
            self._residual_square = self.square - float((rows * gradients).sum(dtype=np.float64))
        return rows

    def measure(self, factors: list[Array]) -> float:
        if self._residual_square < 0:  # of the initial guess, or rounded
            self._improve(factors, len(factors) - 1, num_steps=0)
        return float(np.maximum(self._residual_square, 0.0) / self.square) ** 0.5  # or nan
