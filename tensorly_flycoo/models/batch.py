"""Models whose factors lie side by side: one MTTKRP updates a mode of all of them."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Protocol

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, array_module, is_cupy, move
from ..engines.tall import gpu_kernels, inner_product, multiply, solve_rows, suits_cpu_engine
from ..loop.cp_model import make_cp_tensor, multiply_all
from ..loop.initial_guess import draw_factors
from ..loop.masks import MissingEntries
from ..loop.momentum import extrapolate
from ..loop.precision import NarrowFactors
from ..loop.whole_tensor import WholeTensor
from ..tensor.tensor import FlycooTensor
from .imputed_starts import ImputedStarts

#: From so many bytes on, a factor on a GPU is solved for by kernels; array functions, which serve
#: all models at once, read and write it more often. Not measured: launches take about as long.
_LONG_FACTOR_NBYTES = 2**25

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


class Batch:
    """Models of one rank that are updated together; the lists have an array for each mode.

    These are the factors of all models (n, I, R), now and `before` the last step; their `columns`
    as MTTKRP reads them (I, n * R); and their Gram matrices `grams` (n, R, R). The latter two count
    rows of a mode as often as its `weights` (n, I, 1) say, if it has some. With `fits`, rows are
    fitted by other rules than least squares. `narrow` rounds the factors, of models without either.
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
        self.x = x
        self.imputed = imputed
        self.data = WholeTensor(x, imputed)
        self.data.narrow = narrow
        self.weights = weights or {}
        self.fits = fits
        self.stacks = list(stacks)
        self.before: list[Array] = []
        self.columns = list(stacks)
        self.grams = list(stacks)
        for mode, stack in enumerate(stacks):
            self._replace(mode, stack)
        self.multiple = GPU_MULTIPLE if is_cupy(stacks[0]) else 1  # of which are models

    @classmethod
    def draw(
        cls,
        x: FlycooTensor,
        rank: int,
        seeds: Sequence[int],
        missing: MissingEntries | None = None,
        narrow: NarrowFactors | None = None,
    ) -> "Batch":
        """Draw the initial guesses of TensorLy."""
        guesses = [draw_factors(x, rank, tl.check_random_state(seed)) for seed in seeds]
        return cls._begin(x, guesses, missing, narrow)

    @classmethod
    def resume(cls, x: FlycooTensor, model: CPTensor, missing: MissingEntries | None) -> "Batch":
        """Take a model as the last iteration of a batch has left it."""
        batch = cls._begin(x, [model.factors], missing)
        if batch.imputed is not None:
            batch.imputed.measure(batch.columns)
        return batch

    @classmethod
    def _begin(
        cls,
        x: FlycooTensor,
        guesses: list[list[Array]],
        missing: MissingEntries | None,
        narrow: NarrowFactors | None = None,
    ) -> "Batch":
        """Begin with guesses, whose weights are ones."""
        if is_cupy(guesses[0][0]):
            guesses += guesses[:1] * (-len(guesses) % GPU_MULTIPLE)
        stacks = [np.stack(factors) for factors in zip(*guesses, strict=True)]
        if missing is None:
            return cls(x, stacks, narrow=narrow)
        return cls(missing.observed, stacks, ImputedStarts(missing, len(guesses)))

    @property
    def num_models(self) -> int:
        return len(self.stacks[0])

    @property
    def rank(self) -> int:
        return self.stacks[0].shape[2]

    def take(self, place: int) -> CPTensor:
        """Return a copy of one model."""
        return make_cp_tensor(None, [stack[place].copy() for stack in self.stacks])

    def keep(self, places: np.ndarray) -> None:
        """Drop all models but those at `places`."""
        ids = array_module(self.stacks[0]).asarray(places)
        self.stacks = [stack[ids] for stack in self.stacks]
        self.before = [stack[ids] for stack in self.before]
        self.columns = [_lay_out(stack) for stack in self.stacks]
        self.grams = [gram[ids] for gram in self.grams]
        if self.imputed is not None:
            self.imputed.keep(ids)

    def extrapolate(self, steps: Sequence[float]) -> None:
        """Move all factors but the first, which is not read, by as many of their last changes."""
        before = self.before
        self.before = self.stacks.copy()
        if not before:
            return
        each = array_module(before[0]).asarray(steps, before[0].dtype)[:, None, None]
        for mode in range(1, self.x.ndim):
            self._replace(mode, extrapolate(self.stacks[mode], before[mode], each))

    def take_back(self, is_back: np.ndarray) -> None:
        """Undo the extrapolation of some models."""
        is_chosen = array_module(self.stacks[0]).asarray(is_back)[:, None, None]
        pairs = zip(self.before, self.stacks, strict=True)
        self.stacks = [np.where(is_chosen, before, now) for before, now in pairs]

    def iterate(self) -> list[np.floating]:
        """Update all modes of all models; return their errors."""
        rows, stack = self.update()
        return self._measure(rows, stack)

    def update(self) -> tuple[Array, Array]:
        """Update all modes of all models; return the last one's MTTKRP and factors."""
        for mode in range(self.x.ndim):
            num_models = self.num_models
            products = self.data.mttkrp(None, self.columns, mode)
            kernels = self._find_solver(products)
            if kernels is not None:
                rows = _take_apart(products, num_models)
                self._solve_by_kernels(kernels, products, mode)
                continue
            if self.imputed is not None:
                products = self.imputed.complete(products, self.columns, mode)
            rows = _take_apart(products, num_models).copy()
            del products  # to be freed before the factors are made
            self._replace(mode, self._solve(rows, mode))
        return rows, self.stacks[-1]

    def _find_solver(self, products: Array) -> ModuleType | None:
        """Return the kernels that solve for the factors of a mode, from its MTTKRP; or None."""
        is_plain = self.imputed is None and self.fits is None and not self.weights
        kernels = _find_kernels(products[:, : self.rank])
        if kernels is None or not is_plain or self.x.ndim > kernels.MAX_GRAMS:
            return None
        return kernels

    def _solve_by_kernels(self, kernels: ModuleType, products: Array, mode: int) -> None:
        """Replace the factors of a mode by the best ones, which are rounded in the same pass."""
        grams = self.grams[:mode] + self.grams[mode + 1 :]
        rounds = self.data.is_rounding
        columns, gram, narrow = kernels.solve_side_by_side(products, grams, rounds)
        if narrow is not None:
            assert self.data.narrow is not None
            self.data.narrow.keep(columns, mode, narrow)
        self.stacks[mode] = _take_apart(columns, self.num_models)
        self.columns[mode] = columns
        self.grams[mode] = gram

    def _replace(self, mode: int, stack: Array) -> None:
        """Replace the factors of a mode, and the arrays computed from them."""
        counted = stack * self.weights[mode] if mode in self.weights else stack
        columns = _lay_out(counted)
        if self.data.is_rounding:
            columns = self.data.round_factor(columns, mode)
            stack = counted = _take_apart(columns, len(stack)).copy()
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
        squares = multiply_all(self.grams).astype(np.float64, copy=False)
        squares = squares.reshape(len(squares), -1).sum(axis=1)
        norm = self.x.norm()
        kernels = _find_kernels(rows[0])
        if kernels is not None:
            pairs = zip(rows, stack, strict=True)
            sums_of_blocks = [kernels.inner_blocks(*pair).to_array() for pair in pairs]
            inner = array_module(rows).stack([blocks.sum() for blocks in sums_of_blocks])
        elif is_cupy(rows):
            inner = (rows * stack).sum(axis=1, dtype=np.float64).sum(axis=1)
        else:
            pairs = zip(rows, stack, strict=True)
            inner = np.array([inner_product(product, factor) for product, factor in pairs])
        sums = [squares, inner]
        if self.imputed is not None:
            sums += [*self.imputed.measure(self.columns)]
        on_host = move(array_module(rows).stack(sums), np)
        if self.imputed is None:
            squares, inner = on_host
            errors = np.sqrt(np.abs(float(norm) ** 2 + squares - 2 * inner))
            return [*(errors.astype(self.x.dtype) / norm)]
        # As `ImputedTensor.measure` does: the imputed entries are a part of the tensor.
        squares, inner, imputed_squares, changes = on_host
        total = self.x._layout.norm**2 + imputed_squares
        errors = np.sqrt(np.abs(total + squares - 2 * (inner + changes)) / total)
        return [*errors]


def _find_kernels(factor: Array) -> ModuleType | None:
    """Return the kernels that suit a factor on a GPU; None if it is short."""
    if not is_cupy(factor) or factor.nbytes < _LONG_FACTOR_NBYTES:
        return None
    kernels = gpu_kernels()
    if kernels is None or not kernels.suits_tensor_cores(factor):
        return None
    return kernels


def _multiply_transposed(stack: Array, counted: Array) -> Array:
    """Return the product (n, R, R) of each model's transposed factor and its counted rows."""
    if suits_cpu_engine(stack[0].T, stack[0]):  # on the CPU to the bit as for lone runs
        pairs = zip(stack, counted, strict=True)
        return np.stack([multiply(factor.T, rows) for factor, rows in pairs])
    if is_cupy(stack):
        stack = stack.astype(np.float64, copy=False)
        counted = counted.astype(np.float64, copy=False)
    return stack.swapaxes(1, 2) @ counted


def _take_apart(columns: Array, num_models: int) -> Array:
    """Return the stack (n, I, R) that `_lay_out` has laid side by side, as a view."""
    num_rows, num_columns = columns.shape
    return columns.reshape(num_rows, num_models, num_columns // num_models).transpose(1, 0, 2)


def _lay_out(stack: Array) -> Array:
    """Lay the factors of all models side by side: (I, n * R).

    >>> _lay_out(np.array([[[1, 2]], [[3, 4]]]))
    array([[1, 2, 3, 4]])
    """
    return stack.transpose(1, 0, 2).copy().reshape(stack.shape[1], -1)
