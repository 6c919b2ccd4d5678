"""The Gram matrices of a CP model's factors, each computed once.

TensorLy's own parafac has a memory of another kind, `gram_products`: its loop is not ours.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..base.array_modules import Array
from ..engines.tall import transposed_product
from .cp_model import combine_grams


class _KnownGram(NamedTuple):
    factor: Callable[[], Any]  # a weak reference
    gram: Array  # (R, R)


class FactorGrams:
    """The Gram matrices that are known of a run's factors, to which nobody writes meanwhile."""

    def __init__(self) -> None:
        self._known: dict[int, _KnownGram] = {}  # by mode

    def forget(self) -> None:
        """Drop all, since factors may have been written to."""
        self._known.clear()

    def multiply(
        self, weights: Array | None, factors: Sequence[Any], skip: int | None = None
    ) -> Array:
        """Return what `multiply_grams` returns; compute the Gram matrices of new factors alone."""
        grams = [self._find(n, factor) for n, factor in enumerate(factors) if n != skip]
        return combine_grams(weights, factors[0], grams)

    def _find(self, mode: int, factor: Any) -> Array:
        known = self._known.get(mode)
        if known is None or known.factor() is not factor:
            gram = transposed_product(factor, factor)
            known = _KnownGram(weakref.ref(factor), gram)
            self._known[mode] = known
        return known.gram
