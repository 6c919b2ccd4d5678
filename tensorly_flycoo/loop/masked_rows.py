"""Rows of a factor that fit all cells but the missing ones, which are not imputed."""

from collections.abc import Sequence

import numpy as np

from ..base.array_modules import Array, array_module
from ..engines.tall import eigh, transposed_product
from .cp_model import multiply_all
from .masks import MissingEntries
from .observed_rows import RowPlan, fit_alike, fit_rows, list_cells

#: A ridge towards the old rows, relative to the mean of the systems' diagonal: it keeps a row with
#: too few known cells where it is, and slows the convergence of other rows by the same share only.
_HOLD = 1e-10


class MaskedRows:
    r"""The systems of the rows of a factor that fit all cells but the missing ones.

    A row of a factor has the Gram matrix of all cells, less that of its missing ones. Where cells
    are missing for all indices of some modes, these have the product Q of the modes' Gram matrices,
    elementwise: in place of the indices stand the R rows of a root of it, as one mode more.
    """

    def __init__(self, missing: MissingEntries, rank: int) -> None:
        self._xp = missing.engine.xp
        self._modes = list(missing.modes)
        # The modes all of whose indices are missing, wherever a cell of `_modes` is.
        self._wholes = [mode for mode in range(missing.ndim) if mode not in self._modes]
        #: The missing cells of `_modes` (s, K), and the same with the rows of a root as a mode.
        self._cells = missing.coords
        self._listed = self._cells
        if self._wholes:
            self._listed = self._add_roots(rank)
        self._plans = [
            RowPlan.of(rows, missing.shape[mode]) for mode, rows in self._pair(self._listed)
        ]

    def _add_roots(self, rank: int) -> Array:
        """List each cell `rank` times, once for each row of a root: (s + 1, K * R)."""
        xp = self._xp
        roots = xp.tile(xp.arange(rank), self._cells.shape[1])
        return xp.stack([*xp.repeat(self._cells, rank, axis=1), roots])

    def fit(
        self,
        products: Array,
        grams: Sequence[Array],
        factors: Sequence[Array],
        mode: int,
        *,
        row_weights: dict[int, Array],
        l2_reg: float = 0.0,
        non_negative: bool = False,
    ) -> Array:
        """Fit the rows of a mode to `products`, the MTTKRP of the observed cells; all in float64.

        `grams` are the Gram matrices of all modes, and count rows of a mode as often as its
        `row_weights` (I,) say, if it has some.
        """
        gram = multiply_all(grams, mode)
        rank = products.shape[1]
        weights = {n: row_weights[n] for n in self._modes if n != mode and n in row_weights}
        if mode in self._wholes:
            gram = gram - self._sum_cells(factors, weights) * self._multiply_wholes(grams, mode)
        # A weak ridge towards the old rows, where a system has no other solution.
        hold = _HOLD * float(gram.trace()) / rank
        if hold == 0:  # all other factors are zero
            hold = 1.0
        common = gram + (hold + l2_reg) * self._xp.eye(rank)
        old = factors[mode]
        targets = products + hold * old
        if mode in self._wholes:
            return fit_alike(targets, common, old, non_negative=non_negative)
        columns = [factors[n] for n in self._modes]
        if self._wholes:
            columns.append(_find_root(self._multiply_wholes(grams)))
        # The Gram matrix counts all cells: a missing cell, of weight -1, is subtracted from it.
        zeros = self._xp.zeros(self._listed.shape[1])
        place = self._modes.index(mode)
        cell_weights = self._weigh(zeros - 1, self._listed, weights)
        return fit_rows(
            list_cells(self._listed, zeros, columns, place, cell_weights),
            old,
            self._plans[place],
            common,
            added=targets,
            non_negative=non_negative,
        )

    def _sum_cells(self, factors: Sequence[Array], weights: dict[int, Array]) -> Array:
        """Return the Gram matrix (R, R) of the products of the factors' rows at the cells."""
        rows = multiply_all([factors[n][ids] for n, ids in self._pair(self._cells)])
        return transposed_product(rows, self._weigh(rows, self._cells, weights))

    def _pair(self, coords: Array) -> list[tuple[int, Array]]:
        """Pair the modes with their coords; coords of roots, which come last, are left out."""
        return list(zip(self._modes, coords, strict=False))

    def _weigh(self, values: Array, coords: Array, weights: dict[int, Array]) -> Array:
        """Multiply values of cells, (K,) or (K, R), by the weights of the cells' rows."""
        for n, ids in self._pair(coords):
            if n not in weights:
                continue
            weights_of_cells = weights[n][ids]
            if values.ndim == 2:
                weights_of_cells = weights_of_cells[:, None]
            values = values * weights_of_cells
        return values

    def _multiply_wholes(self, grams: Sequence[Array], skip: int | None = None) -> Array:
        """Multiply the Gram matrices of modes whose indices are all missing."""
        factors_left = [grams[n] for n in self._wholes if n != skip]
        if not factors_left:
            return array_module(grams[0]).ones_like(grams[0])
        return multiply_all(factors_left)


def _find_root(gram: Array) -> Array:
    """Return a matrix (R, R) whose Gram matrix this is."""
    values, vectors = eigh(gram)
    return np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
