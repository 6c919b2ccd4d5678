"""Models whose factors lie side by side: one MTTKRP updates a mode of all of them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, array_module, is_cupy, move
from ..engines.tall import inner_product, multiply, solve_rows, suits_cpu_engine
from ..loop.cp_model import make_cp_tensor, multiply_all
from ..loop.momentum import extrapolate
from ..loop.precision import NarrowFactors
from ..loop.whole_tensor import WholeTensor
from ..tensor.tensor import FlycooTensor
from .imputed_starts import ImputedStarts

#: On a GPU a batch has a multiple of so many models: then rows of columns of either precision are
#: aligned, for which there are fewer kernels, and the faster ones.
GPU_MULTIPLE = 4


class RowFits(Protocol):
    """A rule that fits the rows of a batch, in place of plain least squares."""

    def add_smoothness(self, gram: Array, stack: Array, mode: int) -> Array:
        """Add a penalty to the Gram matrices (n, R, R) of the factors of a mode (n, I, R)."""
        ...

    def solve(self, batch: "Batch", rows: Array, mode: int) -> Array:
        """Return the factors of a mode (n, I, R) that its MTTKRP `rows` give."""
        ...


class ModelStack(ABC):
    """Models of one rank that are updated together; the lists have an array for each mode.

    These are the factors of all models (n, I, R), and their `columns` as MTTKRP reads them
    (I, n * R).
    """

    #: The share of its models to which it may shrink. It keeps more, though they are computed for
    #: nothing, lest there be a kernel for each number of models.
    shrinks_to = 0.75

    def __init__(self, x: FlycooTensor, stacks: Sequence[Array], imputed: ImputedStarts | None):
        self.x = x
        self.imputed = imputed
        self.stacks = list(stacks)
        self.columns = list(stacks)
        self.multiple = GPU_MULTIPLE if is_cupy(stacks[0]) else 1  # of which are models
        self.narrow: NarrowFactors | None = None  # which rounds the factors

    @property
    def num_models(self) -> int:
        return len(self.stacks[0])

    @property
    def rank(self) -> int:
        return self.stacks[0].shape[2]

    def take(self, place: int) -> CPTensor:
        """Return a copy of one model."""
        return make_cp_tensor(None, [factor.copy() for factor in self.view(place)])

    def view(self, place: int) -> list[Array]:
        """Return the factors of one model as they are until the next iteration."""
        return [stack[place] for stack in self.stacks]

    @abstractmethod
    def keep(self, places: np.ndarray) -> None:
        """Drop all models but those at `places`."""

    @abstractmethod
    def iterate(self, steps: Sequence[float] | None = None) -> list[np.floating]:
        """Update all modes of all models; return their errors.

        With `steps`, move all factors but the first, which is not read, by as many of their last
        changes before.
        """

    @abstractmethod
    def take_back(self, is_back: np.ndarray) -> None:
        """Undo the last iteration of some models, which had `steps`."""

    def _scale_residuals(self, residuals: np.ndarray) -> list[np.floating]:
        """Return the errors for the norms of residuals, in float64."""
        return [*(residuals.astype(self.x.dtype) / self.x.norm())]

    def _find_imputed_errors(self, sums: np.ndarray) -> list[np.floating]:
        """Return the errors of models that impute, as `ImputedTensor.measure` does.

        The imputed entries are a part of the tensor. The sums (4, n) are the squares of the models,
        their inner products with what they were fitted to, and those of `ImputedStarts.measure`.
        """
        squares, inner, imputed_squares, changes = sums
        total = self.x._layout.norm**2 + imputed_squares
        errors = np.sqrt(np.abs(total + squares - 2 * (inner + changes)) / total)
        return [*errors]


class Batch(ModelStack):
    """Models that array functions update, of any module; or rules, which fit one model at a time.

    `before` are the factors before the last step, and `grams` the Gram matrices (n, R, R).
    `columns` and `grams` count rows of a mode as often as its `weights` (n, I, 1) say, if it has
    some. With `fits`, rows are fitted by other rules than least squares. `narrow` rounds the
    factors, of models without either.
    """

    def __init__(
        self,
        x: FlycooTensor,
        stacks: list[Array],
        imputed: ImputedStarts | None = None,
        weights: Mapping[int, Array] | None = None,
        fits: RowFits | None = None,
        narrow: NarrowFactors | None = None,
    ) -> None:
        super().__init__(x, stacks, imputed)
        self.data = WholeTensor(x, imputed)
        self.narrow = self.data.narrow = narrow
        self.weights = weights or {}
        self.fits = fits
        self.before: list[Array] = []
        self.grams = list(stacks)
        for mode, stack in enumerate(stacks):
            self._replace(mode, stack)

    def keep(self, places: np.ndarray) -> None:
        ids = array_module(self.stacks[0]).asarray(places)
        self.stacks = [stack[ids] for stack in self.stacks]
        self.before = [stack[ids] for stack in self.before]
        self.columns = [lay_out(stack) for stack in self.stacks]
        self.grams = [gram[ids] for gram in self.grams]
        if self.imputed is not None:
            self.imputed.keep(ids)

    def iterate(self, steps: Sequence[float] | None = None) -> list[np.floating]:
        if steps is not None:
            self._extrapolate(steps)
        rows, stack = self.update()
        return self._measure(rows, stack)

    def _extrapolate(self, steps: Sequence[float]) -> None:
        """Move all factors but the first, which is not read, by as many of their last changes."""
        before = self.before
        self.before = self.stacks.copy()
        if not before:
            return
        each = array_module(before[0]).asarray(steps, before[0].dtype)[:, None, None]
        for mode in range(1, self.x.ndim):
            self._replace(mode, extrapolate(self.stacks[mode], before[mode], each))

    def take_back(self, is_back: np.ndarray) -> None:
        is_chosen = array_module(self.stacks[0]).asarray(is_back)[:, None, None]
        pairs = zip(self.before, self.stacks, strict=True)
        self.stacks = [np.where(is_chosen, before, now) for before, now in pairs]

    def update(self) -> tuple[Array, Array]:
        """Update all modes of all models; return the last one's MTTKRP and factors."""
        for mode in range(self.x.ndim):
            products = self.data.mttkrp(None, self.columns, mode)
            if self.imputed is not None:
                products = self.imputed.complete(products, self.columns, mode)
            rows = take_apart(products, self.num_models).copy()
            del products  # to be freed before the factors are made
            self._replace(mode, self._solve(rows, mode))
        return rows, self.stacks[-1]

    def _replace(self, mode: int, stack: Array) -> None:
        """Replace the factors of a mode, and the arrays computed from them."""
        counted = stack * self.weights[mode] if mode in self.weights else stack
        columns = lay_out(counted)
        if self.data.is_rounding:
            columns = self.data.round_factor(columns, mode)
            stack = counted = take_apart(columns, len(stack)).copy()
        gram = _multiply_transposed(stack, counted)
        if self.fits is not None:
            gram = self.fits.add_smoothness(gram, stack, mode)
        self.stacks[mode] = stack
        self.columns[mode] = columns
        self.grams[mode] = gram

    def _solve(self, rows: Array, mode: int) -> Array:
        """Return the factors of a mode (n, I, R) that its MTTKRP `rows` give."""
        if self.fits is None:
            return self.solve_least_squares(rows, mode)
        return self.fits.solve(self, rows, mode)

    def solve_least_squares(self, rows: Array, mode: int) -> Array:
        """Return the factors of a mode that fit best, given those of the other modes."""
        grams = self.grams[:mode] + self.grams[mode + 1 :]
        # The engine takes pseudo-inverses where it must, if it has a kernel.
        inverses = self.x._engine.invert_products(grams, rows.dtype)
        if inverses is None:
            matrices = multiply_all(self.grams, mode).astype(rows.dtype, copy=False)
            pairs = zip(matrices, rows, strict=True)  # on the CPU to the bit as for lone runs
            solved = [solve_rows(matrix, product, wants_sums=True)[0] for matrix, product in pairs]
            return array_module(rows).stack(solved)
        stack = (rows @ inverses).astype(rows.dtype)
        if rows.dtype == np.float64:  # a step of refinement reduces the residual
            stack += (rows - stack @ multiply_all(self.grams, mode)) @ inverses
        return stack

    def _measure(self, rows: Array, stack: Array) -> list[np.floating]:
        """Compute the errors as for a lone run, after a single copy to the host."""
        squares = sum_squares(self.grams)
        if is_cupy(rows):
            inner = (rows * stack).sum(axis=1, dtype=np.float64).sum(axis=1)
        else:
            pairs = zip(rows, stack, strict=True)
            inner = np.array([inner_product(product, factor) for product, factor in pairs])
        sums = [squares, inner]
        if self.imputed is not None:
            sums += [*self.imputed.measure(self.columns)]
        on_host = move(array_module(rows).stack(sums), np)
        if self.imputed is not None:
            return self._find_imputed_errors(on_host)
        squares, inner = on_host
        return self._scale_residuals(
            np.sqrt(np.abs(float(self.x.norm()) ** 2 + squares - 2 * inner))
        )


def sum_squares(grams: Sequence[Array]) -> Array:
    """Return the square of each model (n,), in float64, from the Gram matrices of all modes."""
    squares = multiply_all(grams).astype(np.float64, copy=False)
    return squares.reshape(len(squares), -1).sum(axis=1)


def _multiply_transposed(stack: Array, counted: Array) -> Array:
    """Return the product (n, R, R) of each model's transposed factor and its counted rows."""
    if suits_cpu_engine(stack[0].T, stack[0]):  # on the CPU to the bit as for lone runs
        pairs = zip(stack, counted, strict=True)
        return np.stack([multiply(factor.T, rows) for factor, rows in pairs])
    if is_cupy(stack):
        stack = stack.astype(np.float64, copy=False)
        counted = counted.astype(np.float64, copy=False)
    return stack.swapaxes(1, 2) @ counted


def take_apart(columns: Array, num_models: int) -> Array:
    """Return the stack (n, I, R) that `lay_out` has laid side by side, as a view."""
    num_rows, num_columns = columns.shape
    return columns.reshape(num_rows, num_models, num_columns // num_models).transpose(1, 0, 2)


def lay_out(stack: Array) -> Array:
    """Lay the factors of all models side by side: (I, n * R).

    >>> lay_out(np.array([[[1, 2]], [[3, 4]]]))
    array([[1, 2, 3, 4]])
    """
    return stack.transpose(1, 0, 2).copy().reshape(stack.shape[1], -1)
