"""Entries of a tensor at which many models have values, each its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.array_modules import Array


class PieceEntries:
    """Distinct entries, at coords (ndim, count), for n models of rank R, on the current device.

    The columns (I, n * R) of all models are side by side, those of each model neighbours; the
    values are (count, n). Here the entries are the nonzeros, all 1, of a tensor with one mode more,
    which numbers them. The values are its factor, and its MTTKRP evaluates the models.
    """

    def __init__(self, engine: Any, coords: Array, shape: Sequence[int], dtype: np.dtype) -> None:
        xp = engine.xp
        ndim, count = coords.shape
        self._engine = engine
        self._xp = xp
        self._number_mode = ndim  # of the numbers of the entries
        coords_and_numbers = xp.concatenate([coords, xp.arange(count)[None]])
        ones = xp.ones(count, dtype)
        # In one piece, even if new tensors are spread over several devices.
        self._layout = engine.build_piece("replicated", coords_and_numbers, ones, (*shape, count))

    def add_mttkrp(
        self, columns: Mapping[int, Array], values: Array, mode: int, out: Array
    ) -> None:
        """Add the MTTKRP of the entries with these values to a contiguous `out` (I, n * R)."""
        count, num_models = values.shape
        num_columns = out.shape[1]
        rank = num_columns // num_models
        # Each model's value once for each of its columns: the factor of the mode of numbers.
        repeated = self._xp.broadcast_to(values[:, :, None], (count, num_models, rank))
        factors = {**columns, self._number_mode: repeated.reshape(count, num_columns)}
        out += self._multiply(factors, mode)

    def evaluate(self, columns: Mapping[int, Array], values: Array) -> tuple[Array, Array]:
        """Return the models' values at the entries, and how they differ from those before.

        These are sums in float64 (2, n): of the squares of the values, and of their products with
        their changes.
        """
        products = self._multiply(columns, self._number_mode)
        new_values = products.reshape(*values.shape, -1).sum(axis=2)
        exact = new_values.astype(np.float64)
        values_and_changes = self._xp.stack([exact, exact - values], axis=1)
        return new_values, (values_and_changes * exact[:, None]).sum(axis=0)

    def _multiply(self, factors: Mapping[int, Array], mode: int) -> Array:
        """Compute the MTTKRP of the tensor of ones."""
        record_format = self._layout.record_format
        num_columns = next(iter(factors.values())).shape[1]
        rows = self._xp.empty((record_format.shape[mode], num_columns), record_format.dtype)
        self._engine.mttkrp(self._layout, factors, mode, rows)
        return rows
