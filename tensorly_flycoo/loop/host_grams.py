"""The Gram matrices and inner products of NumPy factors that one call of parafac remembers.

`gram_products` tells why, and how long that is right. Here Gram matrices are plain arrays.
"""

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..engines.narrow_rows import NarrowRows
from ..engines.tall import inner_product, multiply, solve_rows

#: Gram matrices that are kept before those of factors that are gone are dropped.
_MOST_CACHED = 32


class _CachedHostGram(NamedTuple):
    factor: Callable[[], np.ndarray | None]  # a weak reference
    gram: np.ndarray
    mttkrp: Callable[[], np.ndarray | None] = lambda: None  # that the factor solves
    inner: float = 0.0  # the inner product of both

    def is_solution_of(self, mttkrp: np.ndarray) -> bool:
        """Say whether the factor solves the system of an MTTKRP, so that `inner` is with it."""
        solved = self.mttkrp()
        return solved is not None and solved is find_whole(mttkrp)


class HostGrams:
    """Gram matrices and sums that are known of the NumPy factors of one call of parafac."""

    def __init__(self) -> None:
        self._cached: dict[int, _CachedHostGram] = {}  # by the id of the factor

    def forget(self, factor: np.ndarray) -> None:
        """Drop what is known of a factor, which was written to."""
        self._cached.pop(id(find_whole(factor)), None)

    def find_gram(self, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
        """Return ``a @ b`` if `a` is the transpose of a factor `b`, else None."""
        # The transpose of all of a factor is a view of the same array, with reversed strides.
        factor = find_whole(b)
        is_transposed = a.shape == b.shape[::-1] and a.strides == b.strides[::-1]
        if factor is None or a.base is not factor or not is_transposed:
            return None
        return self._find(factor, factor).gram

    def solve_factor(
        self, a: np.ndarray, rows: np.ndarray, rounds: bool = False
    ) -> tuple[np.ndarray, NarrowRows | None]:
        """Solve ``a @ y.T = rows.T`` for a factor y, and keep what the same pass finds.

        Return y, and its narrow rows if it `rounds` and the pass has done so.
        """
        y, found = solve_rows(a, rows, wants_sums=True, rounds=rounds)
        if found is None:
            return y, None
        gram, inner, narrow = found
        mttkrp = find_whole(rows)
        if mttkrp is not None:
            self._keep(y, gram, weakref.ref(mttkrp), inner)
        return y, narrow

    def compute_fit(self, norm: float, weights: Any, factors: Sequence[Any], mttkrp: Any) -> float:
        """Compute the norm of the difference of a tensor and a CP model: see `gram_products`."""
        cached = [self._find(factor, find_whole(factor)) for factor in factors]
        product = functools.reduce(np.multiply, [of_factor.gram for of_factor in cached])
        if weights is not None:
            product = product * (weights[:, None] * weights)
        last = cached[-1]
        inner = last.inner
        if not last.is_solution_of(mttkrp):
            inner = inner_product(mttkrp, factors[-1])
        model_square = product.astype(float, copy=False).sum()
        return math.sqrt(abs(float(norm) ** 2 + model_square - 2 * inner))

    def _find(self, factor: np.ndarray, whole: np.ndarray | None) -> _CachedHostGram:
        """Return the cached Gram matrix of a factor; compute and keep it if there is none.

        `whole` is the array that `find_whole` returns for the factor.
        """
        cached = self._cached.get(id(whole))
        # Another array may have got the id of one that is gone.
        if cached is None or cached.factor() is not whole:
            return self._keep(whole, multiply(factor.T, factor))
        return cached

    def _keep(self, factor: np.ndarray | None, gram: np.ndarray, *solved: Any) -> _CachedHostGram:
        """Keep a factor's Gram matrix while the factor lives; `solved` is of its MTTKRP, if any."""
        if factor is None:
            return _CachedHostGram(lambda: None, gram)
        if len(self._cached) >= _MOST_CACHED:
            for number, old in list(self._cached.items()):
                if old.factor() is None:
                    del self._cached[number]
        cached = _CachedHostGram(weakref.ref(factor), gram, *solved)
        self._cached[id(factor)] = cached
        return cached


def find_whole(view: np.ndarray) -> np.ndarray | None:
    """Return the array whose memory a view shares, if the view is all of it in the same order.

    >>> factor = np.ones((4, 3))
    >>> find_whole(factor.T.T) is factor, find_whole(factor.T), find_whole(factor[:2])
    (True, None, None)
    """
    whole = view.base if type(view.base) is np.ndarray else view
    if whole.shape != view.shape or whole.strides != view.strides:
        return None
    return whole
