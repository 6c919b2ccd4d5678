"""Tucker decomposition with penalised rows of some factors; those of the others are orthonormal."""

from collections.abc import Sequence
from typing import final

import numpy as np
import tensorly as tl
from tensorly.tenalg import multi_mode_dot

from ..base.array_modules import Array, array_module
from ..engines.tall import call_lapack, eigh, multiply, qr, transposed_product
from ..loop.masks import MissingEntries
from ..loop.run import RunModel
from ..tensor.tensor import FlycooTensor
from .row_penalties import RIDGE, RowPenalty, update_rows
from .tucker_sweep import TuckerSweep, list_grams


@final
class PenalizedTucker(TuckerSweep):
    """Updates each factor, and the core after each of them, so that the objective never rises.

    It is ``|x - m|**2 / 2`` plus the penalties of rows and ``|core|**2``. A factor without a
    penalty, given the core, is best where it is the polar factor of its targets; with the core's
    update that is a step of the orthogonal iteration for HOOI's singular vectors.
    """

    def __init__(
        self,
        model: RunModel,
        x: FlycooTensor,
        missing: MissingEntries | None,
        penalties: Sequence[RowPenalty | None],
        is_resumed: bool,
    ) -> None:
        super().__init__(solver="tucker", model=model, x=x, missing=missing)
        self._penalties = penalties
        if not is_resumed:
            self._begin()

    def _begin(self) -> None:
        """Make factors without a penalty orthonormal, and find the best core."""
        factors = self.model.factors
        for mode, penalty in enumerate(self._penalties):
            if penalty is None:
                factors[mode] = qr(factors[mode])[0]
        self._fill()
        last = len(factors) - 1
        products = self._contract(last, *self._project(last))
        self.model.weights = fit_core(products, list_grams(factors))

    def update(self, iteration: int) -> float:
        model = self.model
        self._fill()
        grams = list_grams(model.factors)
        for mode, penalty in enumerate(self._penalties):
            rows, numbers = self._project(mode)
            targets = self._make_targets(mode, rows, numbers)
            if penalty is None:
                factor = find_polar_factor(targets)
            else:
                seen = multi_mode_dot(model.weights, grams, skip=mode)
                gram = tl.unfold(seen, mode) @ tl.unfold(model.weights, mode).T
                factor = update_rows(penalty, model.factors[mode], targets, gram)
            model.factors[mode] = factor
            grams[mode] = transposed_product(factor, factor)
            products = self._contract(mode, rows, numbers)
            model.weights = fit_core(products, grams)
        return self._measure(products, grams)


def find_polar_factor(targets: Array) -> Array:
    """Return the matrix with orthonormal columns whose inner product with `targets` is largest.

    >>> find_polar_factor(np.array([[0.0, 3.0], [2.0, 0.0], [0.0, 0.0]])).round(12) + 0.0
    array([[0., 1.],
           [1., 0.],
           [0., 0.]])
    """
    columns, triangle = qr(targets)
    left, _, right = call_lapack(np.linalg.svd, triangle)
    return multiply(columns, left @ right)


def fit_core(products: Array, grams: Sequence[Array]) -> Array:
    """Return the core that minimises ``|x - m|**2 / 2 + |core|**2``, in the dtype of `products`.

    `products` is the tensor times all factors, whose Gram matrices are `grams`. The matrix of the
    system, the Kronecker product of them plus 2, is diagonal in their eigenvectors.
    """
    xp = array_module(products)
    spectra = [eigh(gram.astype(np.float64)) for gram in grams]
    curvature = xp.ones(())
    for values, _ in spectra:
        curvature = curvature[..., None] * values
    bases = [vectors for _, vectors in spectra]
    rotated = multi_mode_dot(products.astype(np.float64), bases, transpose=True)
    # Rounding may leave an eigenvalue below 0.
    solved = rotated / (curvature.clip(0, None) + RIDGE)
    return multi_mode_dot(solved, bases).astype(products.dtype)
