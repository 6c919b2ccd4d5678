"""The missing entries of a tensor, imputed from each of many models that are updated together."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.array_modules import Array
from ..decomposition.masks import MissingEntries
from ..engines import select_engine
from ..format.group_passes import LastPass
from ..format.layout import Layout


class ImputedStarts(LastPass):
    """What missing entries add to the MTTKRPs of many models whose columns are side by side.

    It is a `LastPass`, whose T includes them: the observed tensor's groups share their passes too.
    On the CPU only. `values` (count, n) are those of each model at the end of the last iteration.
    """

    def __init__(self, missing: MissingEntries, num_models: int) -> None:
        super().__init__()
        layout, self._engine = missing.observed._layout, select_engine("cpu")
        record_format = layout.record_format
        self._units: list[tuple[Sequence[int], Sequence[int]]] = []  # modes and their bits
        for group, bits in zip(record_format.groups, record_format.bits_below, strict=True):
            # T of a slab lacks rows; missing entries may have prefixes that no nonzero has.
            if isinstance(layout, Layout) and (layout.prefixes is None or group[0] > 0):
                self._units.append((group, bits))
            else:
                self._units += [((mode,), (0,)) for mode in group]
        rows = [
            np.bitwise_or.reduce([missing.coords[n] << bit for n, bit in zip(*unit, strict=True)])
            for unit in self._units
        ]
        self._ids, self._norm = np.stack(rows).astype(np.int64), missing.observed._layout.norm
        self._orders = [_sort(self._ids, number) for number in range(len(rows))]
        self.values = np.repeat(missing.start[:, None], num_models, axis=1)
        self._merged: dict[int, tuple[list[Array], Array]] = {}

    def keep(self, places: np.ndarray) -> None:
        """Drop all models but those at `places`."""
        self.values = np.ascontiguousarray(self.values[:, places])
        self._merged = {}

    def find_completion(
        self, factors: Sequence[Any], mode: int
    ) -> Callable[[Array], object] | None:
        number, is_whole = self._find_unit(mode)
        return (lambda rows: self._add(rows, factors, number)) if is_whole else None

    def complete(self, products: Array, factors: Sequence[Array], mode: int) -> Array:
        """Add the missing entries to the MTTKRP of a mode, unless T has them."""
        number, is_whole = self._find_unit(mode)
        return products if is_whole else self._add(products, factors, number)

    def _find_unit(self, mode: int) -> tuple[int, bool]:
        """Return the number of a mode's unit, and whether that is a group, whose T is completed."""
        pairs = enumerate(self._units)
        return next((n, len(modes) > 1) for n, (modes, _) in pairs if mode in modes)

    def _add(self, out: Array, factors: Sequence[Array], number: int) -> Array:
        starts, ids, places = self._orders[number]
        columns = [self._merge(factors, n) for n in range(len(self._units)) if n != number]
        self._engine.add_entries(starts, ids, places, self.values, tuple(columns), out)
        return out

    def _merge(self, factors: Sequence[Array], number: int) -> Array:
        """Return the Khatri-Rao product of the factors of a unit; kept until one is replaced."""
        modes, bits = self._units[number]
        given = [factors[mode] for mode in modes]
        known, merged = self._merged.get(number, ([], None))
        if merged is None or any(a is not b for a, b in zip(given, known, strict=True)):
            merged = given[0] if len(given) == 1 else self._engine.combine_rows(given, bits)
            merged = np.ascontiguousarray(merged)
            self._merged[number] = given, merged
        return merged

    def measure(self, factors: Sequence[Array], squares: Array, inner: Array) -> Array:
        """Impute from the models, and return the relative errors (n,) of `ImputedTensor.measure`.

        `squares` (n,) are those of the models' norms, `inner` (n,) their inner products with what
        was imputed before.
        """
        columns = [self._merge(factors, number) for number in range(len(self._units))]
        added, changes = self._engine.evaluate_models(self._ids, tuple(columns), self.values)
        total = self._norm**2 + added
        return np.sqrt(np.abs(total + squares - 2 * (inner + changes)) / total)


def _sort(ids: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sort entries by the rows of one unit.

    Return where each row's entries begin, and the last one's end; the rows of all units, the sorted
    one's first; and the places of the entries.
    """
    places = np.argsort(ids[number], kind="stable")
    rows = np.concatenate([ids[number : number + 1], np.delete(ids, number, axis=0)])[:, places]
    starts = np.flatnonzero(np.diff(rows[0], prepend=-1, append=-1))
    return starts, np.ascontiguousarray(rows), places
