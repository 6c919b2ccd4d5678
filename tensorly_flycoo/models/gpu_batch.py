"""Models side by side on a GPU, which kernels update where they are.

Each iteration reads and writes the same arrays, and none of its launches depends on a number that
the host knows. So a graph can launch them all at once: see `recording`.
"""

from collections.abc import Sequence
from types import ModuleType

import numpy as np

from ..base.array_modules import Array, array_module, copy_parts, is_cupy, move
from ..engines.tall import gpu_kernels
from ..loop.momentum import extrapolate
from ..loop.precision import NarrowFactors
from ..loop.recording import RecordedIterations, suits
from ..ops.mttkrp import LastPass, check_devices, multiply
from ..spread.slab_layout import AnyLayout
from ..tensor.tensor import FlycooTensor
from .batch import ModelStack, lay_out, sum_squares, take_apart
from .imputed_starts import ImputedStarts

#: With larger factors of all models, a GPU works longer than the host. Not measured.
_MOST_FACTOR_NBYTES = 2**23

#: The share of its models to which a small batch may shrink, which is then recorded anew. Never to
#: shrink took 0 to 6 % less time than at 0.75 [H200: 6,500 and 330,000 nonzeros].
_RECORDED_SHRINKS_TO = 0.4


def find_kernels(x: FlycooTensor, stacks: Sequence[Array]) -> ModuleType | None:
    """Return the kernels that update factors (n, I, R) of a tensor; None if none suit."""
    first = stacks[0]
    kernels = gpu_kernels() if is_cupy(first) else None
    if kernels is None or not 2 <= x.ndim <= kernels.MAX_GRAMS:
        return None
    return kernels if kernels.suits_rank(first.shape[2], first.dtype) else None


class GpuBatch(ModelStack):
    """A batch whose arrays stay where they are; `stacks` are views of `columns`.

    `before` are the columns before the last iteration, if some had steps; `grams` the Gram matrices
    (n, R, R). `num_iterations` are expected. `narrow` rounds the factors.
    """

    def __init__(
        self,
        x: FlycooTensor,
        stacks: Sequence[Array],
        kernels: ModuleType,
        num_iterations: int,
        imputed: ImputedStarts | None = None,
        narrow: NarrowFactors | None = None,
    ) -> None:
        super().__init__(x, stacks, imputed)
        self.narrow = narrow
        self.before: list[Array] = []
        self._steps: Array | None = None  # for each column
        self._kernels = kernels
        self._last_pass = imputed or LastPass()
        self._num_left = num_iterations
        self._recorded: RecordedIterations | None = None
        self._place(stacks)
        check_devices(x, self.columns)
        xp = array_module(stacks[0])
        self.grams = [xp.empty((len(stack), self.rank, self.rank)) for stack in stacks]
        for mode in range(x.ndim):
            self._round_and_multiply(mode)
        factor_nbytes = sum(columns.nbytes for columns in self.columns)
        if narrow is None and factor_nbytes <= _MOST_FACTOR_NBYTES and suits(x, self.rank):
            self._recorded = RecordedIterations(x)
            self.shrinks_to = _RECORDED_SHRINKS_TO

    def _place(self, stacks: Sequence[Array]) -> None:
        """Lay factors (n, I, R) side by side."""
        self.columns = list(map(lay_out, stacks))
        self.stacks = [take_apart(columns, len(stacks[0])) for columns in self.columns]

    def _round_and_multiply(self, mode: int) -> None:
        """Round the factors of a mode, if the run does, and compute their Gram matrices."""
        columns = self.columns[mode]
        if self._is_rounding:
            assert self.narrow is not None
            self.narrow.round(columns, mode)
        self._kernels.gram_side_by_side(columns, self.grams[mode])

    @property
    def _is_rounding(self) -> bool:
        return self.narrow is not None and self.narrow.is_rounding

    def keep(self, places: np.ndarray) -> None:
        if self._recorded is not None:
            self._recorded.forget()
        ids = array_module(self.columns[0]).asarray(places)
        stacks_before = [take_apart(columns, self.num_models) for columns in self.before]
        self.before = [lay_out(stack[ids]) for stack in stacks_before]
        self._place([stack[ids] for stack in self.stacks])
        self.grams = [gram[ids] for gram in self.grams]
        self._steps = None
        if self.imputed is not None:
            self.imputed.keep(ids)

    def take_back(self, is_back: np.ndarray) -> None:
        xp = array_module(self.columns[0])
        is_chosen = xp.asarray(np.repeat(is_back, self.rank))
        for columns, before in zip(self.columns, self.before, strict=True):
            xp.copyto(columns, before, where=is_chosen)

    def iterate(self, steps: Sequence[float] | None = None) -> list[np.floating]:
        self._num_left -= 1
        if steps is not None:
            self._set_steps(steps)
        if self._recorded is not None:
            sums = self._recorded.launch(self._launch, self._num_left)
        else:
            sums = self._launch(self.x._layout)
        on_host = move(sums, np)
        if self.imputed is not None:
            return self._find_imputed_errors(on_host)
        return self._scale_residuals(on_host)

    def _set_steps(self, steps: Sequence[float]) -> None:
        """Write the steps of the next iteration to the GPU, where a graph finds them."""
        if not self.before:
            self.before = [columns.copy() for columns in self.columns]
        if self._steps is None:
            first_row = self.columns[0][0]
            self._steps = array_module(first_row).empty_like(first_row)
        copy_parts(np.repeat(steps, self.rank), self._steps)

    def _launch(self, layout: AnyLayout) -> Array:
        """Launch an iteration of all models; return the sums that their errors are found by."""
        if self.imputed is not None:
            self.imputed.forget_products()
        if self._steps is not None:
            self._extrapolate()
        for mode in range(self.x.ndim):
            products, inner = self._update(layout, mode)
        if inner is None:
            last = self.columns[-1]
            inner = self._kernels.inner_side_by_side(products, last, self.num_models)
        if self.imputed is None:
            norm_square = float(self.x.norm()) ** 2
            return self._kernels.fit_side_by_side(self.grams, inner, norm_square, self.x.dtype)
        sums = [sum_squares(self.grams), inner.sum(axis=1), *self.imputed.measure(self.columns)]
        return array_module(inner).stack(sums)

    def _extrapolate(self) -> None:
        """Move all factors but the first, which is not read, by as many of their last changes."""
        for mode, (columns, before) in enumerate(zip(self.columns, self.before, strict=True)):
            if mode == 0:
                before[...] = columns
                continue
            further = extrapolate(columns, before, self._steps)
            before[...] = columns
            columns[...] = further
            self._round_and_multiply(mode)

    def _update(self, layout: AnyLayout, mode: int) -> tuple[Array, Array | None]:
        """Update a mode of all models; return its MTTKRP and inner products with it, if known."""
        narrow_rows = None
        if self.narrow is not None:
            narrow_rows = self.narrow.find(self.columns, skip=mode)
        engine = self.x._engine
        products = multiply(layout, engine, self.columns, mode, self._last_pass, narrow=narrow_rows)
        if self.imputed is not None:
            products = self.imputed.complete(products, self.columns, mode)
        other_grams = self.grams[:mode] + self.grams[mode + 1 :]
        # A new view: those who know arrays by their identity see that this one has changed.
        columns = self.columns[mode][:]
        self.columns[mode] = columns
        inner, new_rows = self._kernels.solve_side_by_side(
            products, other_grams, columns, self.grams[mode], self._is_rounding
        )
        if new_rows is not None:
            assert self.narrow is not None
            self.narrow.keep(columns, mode, new_rows)
        return products, inner
