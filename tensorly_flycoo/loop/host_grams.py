"""The Gram matrices and inner products of NumPy factors that one call of parafac remembers.

`gram_products` tells why, and how long that is right. Here Gram matrices are plain arrays.
"""

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..engines.tall import inner_product, multiply, solve_rows


class _Known(NamedTuple):
    factor: Callable[[], np.ndarray | None]  # a weak reference
    gram: np.ndarray
    mttkrp: Callable[[], np.ndarray | None] = lambda: None  # that the factor solves
    inner: float = 0.0  # the inner product of both


class HostGrams:
    """Gram matrices and sums that are known of the NumPy factors of one call of parafac."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}  # by the id of the factor

    def find_gram(self, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
        """Return ``a @ b`` if `a` is the transpose of a factor `b`, else None."""
        factor = _find_whole(b)
        return self._find(factor).gram if _find_whole(a.T) is factor is not None else None

    def solve(self, a: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Solve ``a @ y.T = rows.T`` for a factor y, and keep what the same pass finds."""
        y, sums = solve_rows(a, rows, wants_sums=True)
        mttkrp = _find_whole(rows)
        if sums is not None and mttkrp is not None:
            gram, inner = sums
            self._keep(y, gram, weakref.ref(mttkrp), inner)
        return y

    def compute_fit(self, norm: float, weights: Any, factors: Sequence[Any], mttkrp: Any) -> float:
        """Compute the norm of the difference of a tensor and a CP model: see `gram_products`."""
        known = [self._find(factor) for factor in factors]
        product: Any = math.prod(of_factor.gram for of_factor in known)
        if weights is not None:
            product = product * (weights[:, None] * weights)
        *_, solved, inner = known[-1]
        if solved() is None or solved() is not _find_whole(mttkrp):
            inner = inner_product(mttkrp, factors[-1])
        square = product.astype(float, copy=False).sum()
        return math.sqrt(abs(float(norm) ** 2 + square - 2 * inner))

    def _find(self, factor: np.ndarray) -> _Known:
        whole = _find_whole(factor)
        known = self._known.get(id(whole))
        # Another array may have got the id of one that is gone.
        if known is None or known.factor() is not whole:
            known = self._keep(whole, multiply(factor.T, factor))
        return known

    def _keep(self, factor: np.ndarray | None, gram: np.ndarray, *solved: Any) -> _Known:
        """Keep what is known of a whole factor while that lives."""
        if factor is None:
            return _Known(lambda: None, gram)
        self._known = {n: own for n, own in self._known.items() if own.factor() is not None}
        self._known[id(factor)] = known = _Known(weakref.ref(factor), gram, *solved)
        return known


def _find_whole(view: np.ndarray) -> np.ndarray | None:
    """Return the array whose memory a view shares, if the view is all of it in the same order."""
    whole = view.base if type(view.base) is np.ndarray else view
    return whole if whole.shape == view.shape and whole.strides == view.strides else None
