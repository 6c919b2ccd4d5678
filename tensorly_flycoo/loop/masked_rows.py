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
        xp = missing.engine.xp
        self._xp, self._cells, self._modes = xp, missing.coords, list(missing.modes)
        self._wholes = [mode for mode in range(missing.ndim) if mode not in self._modes]
        self._listed = self._cells
        count = self._cells.shape[1]
        if self._wholes:
            roots = xp.tile(xp.arange(rank), count)
            self._listed = xp.stack([*xp.repeat(self._cells, rank, axis=1), roots])
        sizes = [missing.shape[mode] for mode in self._modes]
        pairs = zip(self._listed, sizes, strict=False)
        self._plans = [RowPlan.of(rows, size) for rows, size in pairs]

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
        weights = {n: of for n, of in row_weights.items() if n != mode and n in self._modes}
        if mode in self._wholes:
            rows = multiply_all([factors[n][ids] for n, ids in self._pair(self._cells)])
            counted = self._weigh(rows, self._cells, weights)
            gram = gram - transposed_product(rows, counted) * self._multiply_wholes(grams, mode)
        old = factors[mode]
        hold = _HOLD * float(gram.trace()) / rank or 1.0
        common = gram + (hold + l2_reg) * self._xp.eye(rank)
        targets = products + hold * old
        if mode in self._wholes:
            return fit_alike(targets, common, old, non_negative=non_negative)
        columns = [factors[n] for n in self._modes]
        if self._wholes:
            columns.append(_find_root(self._multiply_wholes(grams)))
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

    def _pair(self, coords: Array) -> list[tuple[int, Array]]:
        return list(zip(self._modes, coords, strict=False))

    def _weigh(self, values: Array, coords: Array, weights: dict[int, Array]) -> Array:
        """Multiply what cells have by the weights of their rows."""
        for n, ids in self._pair(coords):
            if n in weights:
                own = weights[n][ids]
                values = values * (own if values.ndim == 1 else own[:, None])
        return values

    def _multiply_wholes(self, grams: Sequence[Array], skip: int | None = None) -> Array:
        """Multiply the Gram matrices of modes whose indices are all missing."""
        kept = [grams[n] for n in self._wholes if n != skip]
        return multiply_all(kept) if kept else array_module(grams[0]).ones_like(grams[0])


def _find_root(gram: Array) -> Array:
    """Return a matrix (R, R) whose Gram matrix this is."""
    values, vectors = eigh(gram)
    return np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
