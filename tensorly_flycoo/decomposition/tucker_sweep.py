"""What sweeps over Tucker models share: a sparse tensor's products with the factors, and the error.

No sweep forms anything as large as the tensor.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorly as tl
from tensorly.tenalg import multi_mode_dot
from tensorly.tucker_tensor import TuckerTensor

from ..base.array_modules import Array, array_module
from ..engines.tall import multiply, transposed_product
from ..loop.masks import MissingEntries
from ..loop.run import RunModel, Sweep
from ..ops.cp_entries import choose_block_size
from ..ops.ttmc import multiply_nonempty_rows
from ..tensor.tensor import FlycooTensor


def start_masked(missing: MissingEntries, ranks: Sequence[int]) -> tuple[Array, list[Array]]:
    """Make TensorLy's start by singular vectors, which impute missing entries five times."""
    factors = []
    for mode, rank in enumerate(ranks):
        left, *_ = missing.unfold_imputed(mode, rank, 5).svd(rank)
        factors.append(left)
    return tl.tenalg.multi_mode_dot(missing.tensor, factors, transpose=True), factors


def evaluate_tucker(coords: Array, core: Array, factors: Sequence[Array]) -> Array:
    """Return the values of a model at coords (ndim, count): (count,)."""
    values = array_module(core).empty(coords.shape[1], core.dtype)
    block_size = choose_block_size(core, core.size)
    for start in range(0, values.size, block_size):
        block = coords[:, start : start + block_size]
        first, *rest = [factor[ids] for factor, ids in zip(factors, block, strict=True)]
        product = first @ core.reshape(core.shape[0], -1)
        for rows in rest:
            product = (rows[:, :, None] * product.reshape(*rows.shape, -1)).sum(axis=1)
        values[start : start + block_size] = product[:, 0]
    return values


def fill_missing(x: FlycooTensor, missing: MissingEntries | None, model: RunModel) -> FlycooTensor:
    """Return the tensor with the values of the model at its missing entries.

    An iteration begins with it: expectation maximisation.
    """
    if missing is None:
        return x
    return missing.fill(evaluate_tucker(missing.coords, model.weights, model.factors))


def list_grams(factors: Sequence[Array]) -> list[Array]:
    """Return the Gram matrix of each factor."""
    return [transposed_product(factor, factor) for factor in factors]


def make_tucker_tensor(model: RunModel) -> TuckerTensor:
    """Make a TensorLy TuckerTensor with a list of factors of its own."""
    return TuckerTensor((model.weights, list(model.factors)))


class TuckerSweep(Sweep):
    """A sweep that updates a core and factors from the tensor's products with the other factors."""

    def __init__(
        self, *, solver: str, model: RunModel, x: FlycooTensor, missing: MissingEntries | None
    ) -> None:
        self.solver = solver
        self.model = model
        self._x = x
        self._missing = missing
        self._filled = x  # with the values of the model at missing entries

    def _fill(self) -> None:
        """Set the missing entries to the values of the model."""
        self._filled = fill_missing(self._x, self._missing, self.model)

    def _project(self, mode: int) -> tuple[Array, Array | slice]:
        """Return the rows of a mode's TTMc that are not zero, and their numbers."""
        fixed = {n: factor for n, factor in enumerate(self.model.factors) if n != mode}
        return multiply_nonempty_rows(self._filled, mode, fixed)

    def _make_targets(self, mode: int, rows: Array, numbers: Array | slice) -> Array:
        """Return the mode's TTMc times the core, (I, R), from the rows of `_project`."""
        factor = self.model.factors[mode]
        targets = array_module(factor).zeros(factor.shape, factor.dtype)
        targets[numbers] = multiply(rows, tl.unfold(self.model.weights, mode).T)
        return targets

    def _contract(self, mode: int, rows: Array, numbers: Array | slice) -> Array:
        """Return the tensor times all factors, from the rows of `_project`."""
        product = transposed_product(self.model.factors[mode][numbers], rows)
        return tl.fold(product, mode, self.model.weights.shape)

    def _measure(self, products: Array, grams: Sequence[Array]) -> float:
        """Return the error, from the tensor times all factors and their Gram matrices."""
        core = self.model.weights.astype(np.float64)
        square = np.float64(float(self._filled.norm())) ** 2
        exact_grams = [gram.astype(np.float64) for gram in grams]
        model_square = float((core * multi_mode_dot(core, exact_grams)).sum())
        inner = float((core * products).sum())
        # |x - m|^2 = |x|^2 + |m|^2 - 2 <x, m>; rounding may leave less than 0.
        residual_square = abs(square + model_square - 2 * inner)
        return float(np.sqrt(residual_square / square))

    def measure_start(self) -> float:
        self._fill()
        factors = self.model.factors
        last = len(factors) - 1
        return self._measure(self._contract(last, *self._project(last)), list_grams(factors))

    def make(self) -> TuckerTensor:
        return make_tucker_tensor(self.model)

    def save_state(self) -> Mapping[str, Array]:
        """Return nothing: an iteration depends on the model alone."""
        return {}
