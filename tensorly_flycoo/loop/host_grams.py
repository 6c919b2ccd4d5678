"""The Gram matrices and inner products of NumPy factors that one call of parafac remembers.

`gram_products` tells why, and how long that is right. Here Gram matrices are plain arrays.
"""

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..engines.tall import inner_product, multiply, solve_rows


@dataclass(slots=True)
class _Known:
    """The Gram matrix of a factor, and its inner product with the MTTKRP that it solves."""

    owner: weakref.ref[np.ndarray]  # of all the factor's memory, and of nothing else
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    gram: np.ndarray
    mttkrp: weakref.ref[np.ndarray] | None = None  # or what owns its memory
    inner: float = 0.0


class HostGrams:
    """What is known of the factors of one call of parafac, until it is forgotten."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}  # by the id of the owner

    def forget(self) -> None:
        """Forget all, where factors may change in place."""
        self._known.clear()

    def find_gram(self, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
        """Return ``a @ b`` if `a` is the transpose of a factor `b`, else None."""
        if b.ndim != 2 or a.shape != b.shape[::-1] or a.strides != b.strides[::-1]:
            return None
        owner = _find_owner(b)
        is_alike = owner.size == b.size and _find_owner(a) is owner
        return self._find(b).gram if is_alike else None

    def solve(self, a: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Solve ``a @ y.T = rows.T`` for a factor y, and keep what the same pass finds."""
        y, sums = solve_rows(a, rows)
        if sums is not None:
            gram, inner = sums
            known = self._keep(y, gram)
            known.mttkrp, known.inner = weakref.ref(_find_owner(rows)), inner
        return y

    def compute_fit(
        self,
        norm: float,
        weights: np.ndarray | None,
        factors: Sequence[np.ndarray],
        mttkrp: np.ndarray,
    ) -> float:
        """Compute the norm of the difference of a tensor and a CP model: see `gram_products`."""
        known = [self._find(factor) for factor in factors]
        product = math.prod(own.gram for own in known)
        if weights is not None:
            product = product * (weights[:, None] * weights)
        last = known[-1]
        is_known = last.mttkrp is not None and last.mttkrp() is _find_owner(mttkrp)
        inner = last.inner if is_known else inner_product(mttkrp, factors[-1])
        square = product.astype(float, copy=False).sum()
        return math.sqrt(abs(float(norm) ** 2 + square - 2 * inner))

    def _find(self, factor: np.ndarray) -> _Known:
        known = self._known.get(id(_find_owner(factor)))
        # Another array may have got the id of one that is gone.
        if (
            known is None
            or known.owner() is not _find_owner(factor)
            or known.strides != factor.strides
            or known.shape != factor.shape
        ):
            known = self._keep(factor, multiply(factor.T, factor))
        return known

    def _keep(self, factor: np.ndarray, gram: np.ndarray) -> _Known:
        """Keep the Gram matrix of a factor while that lives."""
        owner = _find_owner(factor)
        self._known = {n: own for n, own in self._known.items() if own.owner() is not None}
        known = _Known(weakref.ref(owner), factor.shape, factor.strides, gram)
        if owner.size == factor.size:
            self._known[id(owner)] = known
        return known


def _find_owner(array: np.ndarray) -> np.ndarray:
    """Return the array that owns the memory of a view."""
    return array.base if type(array.base) is np.ndarray else array
