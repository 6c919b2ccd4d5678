"""The Gram matrices of a CP model's factors, each computed once.

TensorLy's own parafac is served by `gram_products` alone: its loop is not ours. On a GPU this uses
the same kernels, and the same memory for what they find.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..base.array_modules import Array, is_cupy
from ..engines.tall import transposed_product
from .cp_model import combine_grams
from .gram_products import GramMemory, collect_grams, compute_fit


class _KnownGram(NamedTuple):
    factor: Callable[[], Any]  # a weak reference
    gram: Array  # (R, R)


class FactorGrams:
    """The Gram matrices that are known of a run's factors, to which nobody writes meanwhile."""

    def __init__(self) -> None:
        self._known: dict[int, _KnownGram] = {}  # by mode
        self._memory = GramMemory()  # of CuPy factors

    def forget(self) -> None:
        """Drop all, since factors may have been written to."""
        self._known.clear()
        self._memory.grams.clear()

    def multiply(
        self, weights: Array | None, factors: Sequence[Any], skip: int | None = None
    ) -> Array:
        """Return what `multiply_grams` returns; compute the Gram matrices of new factors alone.

        Where the GPU's kernels suit the factors it is one launch, and the product in float64.
        """
        if all(map(is_cupy, factors)):
            product = collect_grams(factors, self._memory, skip)
            if product is not None:
                return _scale(product.compute(), weights)
        grams = [self._find(n, factor) for n, factor in enumerate(factors) if n != skip]
        return combine_grams(weights, factors[0], grams)

    def compute_residual(
        self,
        norm: float,
        weights: Array | None,
        factors: Sequence[Any],
        mttkrp: Any,
        meanwhile: Callable[[], object],
    ) -> float | None:
        """Return what `gram_products.compute_fit` returns of CuPy factors, None of others."""
        if not all(map(is_cupy, (mttkrp, *factors))):
            return None
        return compute_fit(norm, weights, factors, mttkrp, self._memory, meanwhile)

    def _find(self, mode: int, factor: Any) -> Array:
        known = self._known.get(mode)
        if known is None or known.factor() is not factor:
            gram = transposed_product(factor, factor)
            known = _KnownGram(weakref.ref(factor), gram)
            self._known[mode] = known
        return known.gram


def _scale(gram: Array, weights: Array | None) -> Array:
    """Multiply a Gram matrix by the weights on both sides."""
    if weights is None:
        return gram
    return weights[:, None] * gram * weights
