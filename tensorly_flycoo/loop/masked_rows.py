"""Rows of a factor that fit all cells but the missing ones, which are not imputed."""

from collections.abc import Sequence

import numpy as np

from ..base.array_modules import Array, array_module
from ..engines.tall import eigh, transposed_product
from .cp_model import multiply_all
from .masks import MissingEntries
from .observed_rows import RowPlan, fit_alike, fit_rows

#: What holds rows where they are if too few of their cells are known, relative to the mean of the
#: diagonal of the systems. Where they are known it slows an iteration by as much, and no more.
_HOLD = 1e-10


class MaskedRows:
    r"""What missing cells take from the systems of rows.

    A row of a factor has the Gram matrix of all cells, less that of its missing ones. Where cells
    are missing for all indices of some modes, these have the product Q of the modes' Gram matrices,
    elementwise: in place of the indices stand the R rows of a root of it, as one mode more.
    """

    def __init__(self, missing: MissingEntries, rank: int) -> None:
        self._xp = missing.engine.xp
        self._modes = list(missing.modes)
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
        """Fit the rows of a mode to the MTTKRP of what is observed, `products`; all in float64.

        `grams` are the Gram matrices of all modes, and count rows of a mode as often as its
        `row_weights` (I,) say, if it has some.
        """
        gram = multiply_all(grams, mode)
        rank = products.shape[1]
        other_modes = {*self._modes} - {mode}
        weights = {n: row_weights[n] for n in other_modes if n in row_weights}
        if mode in self._wholes:
            # All rows of the mode miss the same cells.
            of_cells = self._sum_cells(factors, weights)
            gram = gram - of_cells * self._multiply_wholes(grams, mode)
        # A weak ridge towards the old rows; 1 if all other factors are zero.
        hold = _HOLD * float(gram.trace()) / rank or 1.0
        common = gram + (hold + l2_reg) * self._xp.eye(rank)
        old = factors[mode]
        targets = products + hold * old
        if mode in self._wholes:
            return fit_alike(targets, common, old, non_negative=non_negative)
        columns = [factors[n] for n in self._modes]
        if self._wholes:
            columns.append(_find_root(self._multiply_wholes(grams)))
        # A missing cell takes back what the Gram matrix of all cells counts: its weight is -1.
        zeros = self._xp.zeros(self._listed.shape[1])
        place = self._modes.index(mode)
        return fit_rows(
            self._listed,
            zeros,
            columns,
            place,
            self._plans[place],
            common,
            weights=self._weigh(zeros - 1, self._listed, weights),
            added=targets,
            non_negative=non_negative,
        )

    def _sum_cells(self, factors: Sequence[Array], weights: dict[int, Array]) -> Array:
        """Return the Gram matrix (R, R) of the products of the factors' rows at the cells."""
        rows = multiply_all([factors[n][ids] for n, ids in self._pair(self._cells)])
        return transposed_product(rows, self._weigh(rows, self._cells, weights))

    def _pair(self, coords: Array) -> list[tuple[int, Array]]:
        """Pair the modes with their coords; those of roots, after them, are left out."""
        return list(zip(self._modes, coords, strict=False))

    def _weigh(self, values: Array, coords: Array, weights: dict[int, Array]) -> Array:
        """Multiply what cells have, (K,) or (K, R), by the weights of their rows."""
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
