"""Entries of a tensor at which many models have values, each its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.array_modules import Array


class Entries:
    """Distinct entries, at coords (ndim, count), for n models of rank R.

    The columns (I, n * R) of all models are side by side, those of each model neighbours; the
    values are (count, n). Here the entries are the nonzeros, all 1, of a tensor with one mode more,
    which numbers them. The values are its factor, and its MTTKRP evaluates the models.
    """

    def __init__(self, engine: Any, coords: Array, shape: Sequence[int], dtype: np.dtype) -> None:
        self._engine = engine
        self._xp = engine.xp
        (self._ndim, count), ones = coords.shape, engine.xp.ones(coords.shape[1], dtype)
        numbered = engine.xp.concatenate([coords, engine.xp.arange(count)[None]])
        self._layout = engine.build_piece("replicated", numbered, ones, (*shape, count))

    def add_mttkrp(
        self, columns: Mapping[int, Array], values: Array, mode: int, out: Array
    ) -> None:
        """Add the MTTKRP of the entries with these values to a contiguous `out` (I, n * R)."""
        (count, n), num_columns = values.shape, out.shape[1]
        wide = self._xp.broadcast_to(values[:, :, None], (count, n, num_columns // n))
        out += self._multiply({**columns, self._ndim: wide.reshape(count, num_columns)}, mode)

    def evaluate(self, columns: Mapping[int, Array], values: Array) -> tuple[Array, Array]:
        """Return the models' values at the entries, and how they differ from those before.

        These are sums in float64 (2, n): of the squares of the values, and of their products with
        their changes.
        """
        products = self._multiply(columns, self._ndim)
        found = products.reshape(*values.shape, -1).sum(axis=2)
        exact = found.astype(np.float64)
        pairs = self._xp.stack([exact, exact - values], axis=1)
        return found, (pairs * exact[:, None]).sum(axis=0)

    def _multiply(self, factors: Mapping[int, Array], mode: int) -> Array:
        record_format = self._layout.record_format
        shape = (record_format.shape[mode], next(iter(factors.values())).shape[1])
        rows = self._xp.empty(shape, record_format.dtype)
        self._engine.mttkrp(self._layout, factors, mode, rows)
        return rows
