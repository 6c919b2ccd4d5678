"""Missing entries of many models whose factors lie side by side, for runs that go together."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ..base.array_modules import Array
from ..loop.masks import MissingEntries
from ..ops.mttkrp import LastPass
from ..spread.slab_layout import AnyLayout, SlabLayout

#: The plans of missing entries, as long as these live: all runs share them.
_planned: WeakKeyDictionary[MissingEntries, Any] = WeakKeyDictionary()


class _Unit(NamedTuple):
    """A group of modes, or one mode, whose indices are one number in the entries."""

    modes: Sequence[int]
    bits: Sequence[int]  # of the number, below the index of each mode


class ImputedStarts(LastPass):
    """The share of missing entries in MTTKRPs of many models whose columns are side by side.

    It is a `LastPass`, whose T includes them: the observed tensor's groups share their passes too.
    """

    def __init__(self, missing: MissingEntries, num_models: int) -> None:
        super().__init__()
        self._engine = missing.engine
        self._units = _list_units(missing.observed._layout)
        if missing not in _planned:
            _planned[missing] = _plan(missing, self._units)
        self._entries = _planned[missing]
        self._values = self._engine.xp.stack([missing.start] * num_models, axis=1)  # (count, n)
        # Of each unit: the factors of its modes, and their Khatri-Rao product.
        self._merged: dict[int, tuple[list[Array], Array]] = {}

    def keep(self, places: Array) -> None:
        """Drop all models but those at `places`."""
        self._values = self._engine.xp.ascontiguousarray(self._values[:, places])
        self._merged = {}

    def find_completion(
        self, factors: Sequence[Any], mode: int
    ) -> Callable[[Array], object] | None:
        """Return a function that adds the missing entries to T of a group; None without a group."""
        number = self._find_unit(mode)
        if not self._is_group(number):
            return None
        return lambda rows: self._add(rows, factors, number)

    def complete(self, products: Array, factors: Sequence[Array], mode: int) -> Array:
        """Add the missing entries to the MTTKRP of a mode, unless T has them."""
        number = self._find_unit(mode)
        if self._is_group(number):
            return products
        return self._add(products, factors, number)

    def measure(self, factors: Sequence[Array]) -> Array:
        """Impute from the models; return the sums (2, n) that `Entries.evaluate` does."""
        columns = {n: self._merge(factors, n) for n in range(len(self._units))}
        new_values, sums = self._entries.evaluate(columns, self._values)
        self._values[...] = new_values  # in place, as a graph of the launches needs them
        return sums

    def forget_products(self) -> None:
        """Forget the products of factors, lest a graph read some that it does not write."""
        self._merged = {}

    def _find_unit(self, mode: int) -> int:
        """Return the number of the unit that has a mode."""
        return next(n for n, unit in enumerate(self._units) if mode in unit.modes)

    def _is_group(self, number: int) -> bool:
        return len(self._units[number].modes) > 1

    def _add(self, out: Array, factors: Sequence[Array], number: int) -> Array:
        """Add the missing entries to the MTTKRP of a unit, in place."""
        numbers = [n for n in range(len(self._units)) if n != number]
        columns = {n: self._merge(factors, n) for n in numbers}
        self._entries.add_mttkrp(columns, self._values, number, out)
        return out

    def _merge(self, factors: Sequence[Array], number: int) -> Array:
        """Return the Khatri-Rao product of the factors of a unit; kept until one is replaced."""
        unit = self._units[number]
        unit_factors = [factors[mode] for mode in unit.modes]
        if number in self._merged:
            sources, product = self._merged[number]
            if all(factor is source for factor, source in zip(unit_factors, sources, strict=True)):
                return product
        product = unit_factors[0]
        if len(unit_factors) > 1:
            product = self._engine.combine_rows(unit_factors, unit.bits)
        self._merged[number] = unit_factors, product
        return product


def _plan(missing: MissingEntries, units: Sequence[_Unit]) -> Any:
    """Plan the entries by the numbers of their units."""
    engine = missing.engine
    rows = []
    sizes = []
    for unit in units:
        shifted = [missing.coords[n] << bit for n, bit in zip(*unit, strict=True)]
        rows.append(reduce(or_, shifted))
        sizes.append(missing.shape[unit.modes[0]] << unit.bits[0])
    return engine.entries(engine, engine.xp.stack(rows), sizes, missing.dtype)


def _list_units(layout: AnyLayout) -> list[_Unit]:
    """List the units of a tensor: its groups of modes, and modes alone where T would lack rows.

    T of a slab lacks rows; and missing entries may have prefixes that no nonzero has.
    """
    record_format = layout.record_format
    units = []
    for modes, bits in zip(record_format.groups, record_format.bits_below, strict=True):
        if isinstance(layout, SlabLayout) or (layout.prefixes is not None and modes[0] == 0):
            units += [_Unit((mode,), (0,)) for mode in modes]
        else:
            units.append(_Unit(modes, bits))
    return units
